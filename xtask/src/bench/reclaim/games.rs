//! The games of servers on fake nodes, and a diary of all that becomes of the servers.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use gamekeeper::api::{GameServer, State};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::sight::{Picture, Seen, Sight};
use crate::progress::Progress;

/// How often it is looked whether something holds.
const LOOK: Duration = Duration::from_millis(100);

/// The games, which are played until this is dropped.
pub(super) struct Games {
    diary: Arc<Mutex<Diary>>,
    player: JoinHandle<Result<()>>,
}

#[derive(Debug, Default)]
struct Diary {
    sights: Vec<Sight>,
    picture: Picture,
}

impl Games {
    /// Has the games of all these servers played: each is StandingBy once its pod runs, and Active once it is claimed.
    pub(super) fn play(servers: Api<GameServer>) -> Self {
        let diary = Arc::<Mutex<Diary>>::default();
        let player = tokio::spawn(play(servers, Arc::clone(&diary)));
        Self { diary, player }
    }

    /// Waits until so many servers are so, at least.
    pub(super) async fn until(
        &self,
        what: &str,
        wanted: usize,
        patience: Duration,
        is: impl Fn(&Seen) -> bool,
    ) -> Result<()> {
        let mut progress = Progress::start(format!("waiting until {wanted} servers {what}"));
        let begun = Instant::now();
        loop {
            let count = read(&self.diary).picture.count(&is);
            if count >= wanted {
                progress.finish();
                return Ok(());
            }
            ensure!(!self.player.is_finished(), "the games have stopped");
            let seconds = patience.as_secs();
            ensure!(begun.elapsed() < patience, "{count} of {wanted} servers {what} after {seconds} s");
            progress.note(count.to_string());
            sleep(LOOK).await;
        }
    }

    /// Waits until no server has changed for so long, or the patience is over.
    pub(super) async fn quiet(&self, rest: Duration, patience: Duration) {
        let begun = Instant::now();
        let (mut seen, mut since) = (0, begun);
        while since.elapsed() < rest && begun.elapsed() < patience {
            sleep(LOOK).await;
            let sights = read(&self.diary).sights.len();
            if sights != seen {
                (seen, since) = (sights, Instant::now());
            }
        }
    }

    /// Ends the games, and gives what was seen.
    pub(super) async fn end(self) -> Result<Vec<Sight>> {
        if self.player.is_finished() {
            self.player.await.context("the games have broken off")??;
            return Ok(Vec::new());
        }
        self.player.abort();
        Ok(std::mem::take(&mut read(&self.diary).sights))
    }
}

/// What somebody who broke off has left is as good.
fn read(diary: &Mutex<Diary>) -> MutexGuard<'_, Diary> {
    diary.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn play(servers: Api<GameServer>, diary: Arc<Mutex<Diary>>) -> Result<()> {
    let mut events = pin!(watcher::watcher(servers.clone(), watcher::Config::default()));
    let mut said = HashSet::new();
    let mut reports = FuturesUnordered::new();
    loop {
        tokio::select! {
            event = events.next() => {
                let sight = match event.context("the watch of the servers has ended")? {
                    Ok(Event::Apply(server) | Event::InitApply(server)) => Sight::of(&server)?,
                    Ok(Event::Delete(server)) => Sight::gone(&server)?,
                    Ok(Event::Init | Event::InitDone) => continue,
                    Err(error) => {
                        eprintln!("the watch of the servers broke: {error}");
                        continue;
                    }
                };
                if let Some((server, state)) = sight.server.as_ref().and_then(|seen| Some((seen, next(seen)?)))
                    && said.insert((sight.uid.clone(), state))
                {
                    reports.push(say(servers.clone(), server.name.clone(), state));
                }
                let mut diary = read(&diary);
                diary.picture.put(&sight);
                diary.sights.push(sight);
            }
            Some(done) = reports.next() => done?,
        }
    }
}

/// What the game of a server says next.
fn next(server: &Seen) -> Option<State> {
    match server.state {
        State::Initializing => Some(State::StandingBy),
        State::StandingBy if server.claim.is_some() => Some(State::Active),
        State::Creating | State::StandingBy | State::Active | State::Terminating | State::Terminated => None,
    }
}

/// Says so of its server, unless that has been taken for its end.
async fn say(servers: Api<GameServer>, name: String, state: State) -> Result<()> {
    let report = Patch::Merge(json!({"status": {"state": state}}));
    match servers.patch_status(&name, &PatchParams::default(), &report).await {
        Err(kube::Error::Api(status)) if [404, 409, 422].contains(&status.code) => Ok(()),
        said => said.map(drop).with_context(|| format!("cannot report {name} {state:?}")),
    }
}
