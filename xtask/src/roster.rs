//! Game servers as players find them: watched on the API server, and each asked until it answers.
//!
//! The demo and the bench use the same code, and the bench uses it for both of what it compares.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use gamekeeper::api::{GameServer, State};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, timeout_at};

use crate::progress::Progress;
use crate::quake3;

/// How long one question, with its repetitions, goes on: one a second at most once the server listens.
const QUESTION: Duration = Duration::from_secs(2);

/// Something that hosts a game.
pub(crate) trait Host:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync
{
    /// Where the game answers, once that is known.
    fn address(&self) -> Option<SocketAddr>;
    /// Whether the cluster says that players may come.
    fn is_ready(&self) -> bool;
}

impl Host for GameServer {
    fn address(&self) -> Option<SocketAddr> {
        let status = self.status.as_ref()?;
        let port = u16::try_from(status.ports.first()?.port).ok()?;
        Some(SocketAddr::new(status.address.as_ref()?.parse().ok()?, port))
    }

    fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.state == State::StandingBy)
    }
}

impl Host for Pod {
    fn address(&self) -> Option<SocketAddr> {
        let port = self.spec.as_ref()?.containers.first()?.ports.as_ref()?.first()?.container_port;
        let address = self.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        Some(SocketAddr::new(address, u16::try_from(port).ok()?))
    }

    /// A bare pod has no word for it: that it answers is all there is.
    fn is_ready(&self) -> bool {
        true
    }
}

/// One of them, and when it got so far.
#[derive(Clone, Debug)]
pub(crate) struct Entry<K> {
    /// As it was last seen.
    pub(crate) object: K,
    ready: Option<Instant>,
    answered: Option<Instant>,
}

impl<K: Host> Entry<K> {
    /// Since when a player can join: it says that it is ready, and has answered. None if it is not ready now.
    pub(crate) fn joinable(&self) -> Option<Instant> {
        let (ready, answered) = (self.ready?, self.answered?);
        self.object.is_ready().then_some(ready.max(answered))
    }

    /// Whether it has ever answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.is_some()
    }
}

/// All of them, by name.
pub(crate) type Entries<K> = BTreeMap<String, Entry<K>>;

/// The watch, and the questions that it leads to.
#[derive(Debug)]
pub(crate) struct Roster<K> {
    entries: watch::Receiver<Entries<K>>,
    task: JoinHandle<()>,
}

impl<K: Host + 'static> Roster<K> {
    /// Begins to watch what `api` has and `config` selects.
    pub(crate) fn start(api: Api<K>, config: watcher::Config) -> Self {
        let (sender, entries) = watch::channel(Entries::new());
        Self { entries, task: tokio::spawn(follow(api, config, sender)) }
    }

    /// What is there now.
    pub(crate) fn entries(&self) -> Entries<K> {
        self.entries.borrow().clone()
    }

    /// Looks at every change until `look` has found what it looks for; until then it says what is missing.
    pub(crate) async fn until<T>(
        &mut self,
        title: &str,
        patience: Duration,
        look: impl Fn(&Entries<K>) -> Result<T, String>,
    ) -> Result<T> {
        let mut progress = Progress::start(title);
        let deadline = Instant::now() + patience;
        loop {
            let missing = match look(&self.entries.borrow_and_update()) {
                Ok(found) => {
                    progress.finish();
                    return Ok(found);
                }
                Err(missing) => missing,
            };
            progress.note(missing.clone());
            if Instant::now() >= deadline {
                bail!("{title}: not so after {} s: {missing}", patience.as_secs());
            }
            // The time goes on being shown where nothing happens.
            let next = deadline.min(Instant::now() + Duration::from_secs(1));
            if let Ok(changed) = timeout_at(next, self.entries.changed()).await {
                changed.context("the watch on the API server has ended")?;
            }
        }
    }
}

impl<K> Drop for Roster<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow<K: Host + 'static>(api: Api<K>, config: watcher::Config, entries: watch::Sender<Entries<K>>) {
    let mut events = pin!(watcher(api, config).default_backoff());
    let (answers, mut answered) = mpsc::unbounded_channel();
    let mut questions = Questions { running: BTreeMap::new(), answers };
    let mut listed = Vec::new();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(Event::Apply(object))) => keep(&entries, &mut questions, object),
                Some(Ok(Event::InitApply(object))) => {
                    listed.push(object.name_any());
                    keep(&entries, &mut questions, object);
                }
                Some(Ok(Event::Delete(object))) => forget(&entries, &mut questions, &object.name_any()),
                Some(Ok(Event::Init)) => listed.clear(),
                Some(Ok(Event::InitDone)) => {
                    let known: Vec<String> = entries.borrow().keys().cloned().collect();
                    for gone in known.iter().filter(|name| !listed.contains(name)) {
                        forget(&entries, &mut questions, gone);
                    }
                }
                // It is tried again, later and later; what waits runs into its own deadline.
                Some(Err(_)) => {}
                None => return,
            },
            Some((name, when)) = answered.recv() => entries.send_modify(|entries| {
                if let Some(entry) = entries.get_mut(&name) {
                    entry.answered.get_or_insert(when);
                }
            }),
        }
    }
}

fn keep<K: Host>(entries: &watch::Sender<Entries<K>>, questions: &mut Questions, object: K) {
    let name = object.name_any();
    if let Some(address) = object.address() {
        questions.ask(&name, address);
    }
    let ready = object.is_ready().then(Instant::now);
    entries.send_modify(|entries| {
        let before = entries.get(&name);
        let ready = before.and_then(|before| before.ready).or(ready);
        let answered = before.and_then(|before| before.answered);
        entries.insert(name, Entry { object, ready, answered });
    });
}

fn forget<K>(entries: &watch::Sender<Entries<K>>, questions: &mut Questions, name: &str) {
    questions.stop(name);
    entries.send_modify(|entries| {
        entries.remove(name);
    });
}

/// The servers that are being asked, each by a task that ends with the first answer.
struct Questions {
    running: BTreeMap<String, AbortHandle>,
    answers: mpsc::UnboundedSender<(String, Instant)>,
}

impl Questions {
    fn ask(&mut self, name: &str, address: SocketAddr) {
        if self.running.contains_key(name) {
            return;
        }
        let (answers, asked) = (self.answers.clone(), name.to_owned());
        let question = tokio::spawn(async move {
            while quake3::status(address, QUESTION).await.is_err() {
                // Not every failure takes its time.
                sleep(Duration::from_millis(50)).await;
            }
            // Nobody listens any more where the watch has ended.
            let _ = answers.send((asked, Instant::now()));
        });
        self.running.insert(name.to_owned(), question.abort_handle());
    }

    fn stop(&mut self, name: &str) {
        if let Some(question) = self.running.remove(name) {
            question.abort();
        }
    }
}

impl Drop for Questions {
    fn drop(&mut self) {
        for question in self.running.values() {
            question.abort();
        }
    }
}
