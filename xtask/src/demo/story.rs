//! What the demo shows, step by step.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use gamekeeper::api::{GameServer, GameServerGroup, State};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};

use super::claim::{self, Forward, Granted};
use super::{Ground, Timeline};
use crate::install::{NAMESPACE as OPERATORS, RELEASE};
use crate::openarena;
use crate::quake3::{self, Player};
use crate::roster::{Entries, Roster};
use crate::trouble;
use crate::workspace::Workspace;

const NAMESPACE: &str = "gamekeeper-demo";
const GROUP: &str = "arena";
const PLAYER: &str = "Ada";

/// A game without players is over after this time: the demo is not to wait for long.
const EMPTY_SECONDS: i32 = 5;

/// How long all servers may take. On nodes that must pull the image first, that takes a while.
const LAUNCH_PATIENCE: Duration = Duration::from_mins(10);
/// How long any other step may take.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long a running game may take to answer.
const ANSWER: Duration = Duration::from_secs(15);

/// Plays the story to its end, and explains what went wrong if it does not get there.
pub(super) async fn tell(
    workspace: &Workspace,
    ground: &Ground,
    servers: i32,
    timeline: Timeline,
) -> Result<()> {
    let client = ground.access.client().await?;
    let mut story = Story {
        workspace,
        ground,
        roster: Roster::start(Api::namespaced(client.clone(), NAMESPACE), watcher::Config::default()),
        client,
        timeline,
    };
    match story.play(servers).await {
        Ok(()) => {
            story.sum_up();
            Ok(())
        }
        Err(error) => Err(story.explain(error).await),
    }
}

struct Story<'a> {
    workspace: &'a Workspace,
    ground: &'a Ground,
    client: Client,
    roster: Roster<GameServer>,
    timeline: Timeline,
}

impl Story<'_> {
    async fn play(&mut self, servers: i32) -> Result<()> {
        let rcon_password = self.apply_group(servers).await?;
        self.all_joinable(servers).await?;
        let before: BTreeSet<String> = self.roster.entries().values().filter_map(pod_uid).collect();
        let granted = self.claim().await?;
        let address = granted.address()?;
        self.play_game(&granted.server, address, &rcon_password).await?;
        self.server_gone(&granted.server).await?;
        self.replaced(&before, servers).await
    }

    /// Applies the group, and returns the password of its servers' consoles.
    async fn apply_group(&mut self, servers: i32) -> Result<String> {
        openarena::ensure_namespace(&self.client, NAMESPACE).await?;
        let groups: Api<GameServerGroup> = Api::namespaced(self.client.clone(), NAMESPACE);
        let existing = groups.get_opt(GROUP).await.context("cannot read the group of an earlier demo")?;
        // Servers that run already keep the password that they were started with.
        let password = existing.as_ref().and_then(password_of).unwrap_or_else(new_password);
        let mut group = openarena::group(self.workspace, GROUP, servers, &self.ground.images.openarena)?;
        if let Some(agent) = &mut group.spec.agent {
            agent.empty_seconds = EMPTY_SECONDS;
        }
        openarena::open_console(&mut group, &password)?;
        let params = PatchParams::apply("gamekeeper-demo").force();
        groups.patch(GROUP, &params, &Patch::Apply(&group)).await.context("cannot apply the group")?;
        self.timeline.tell(format!("group {NAMESPACE}/{GROUP} asks for {servers} OpenArena servers"));
        Ok(password)
    }

    async fn all_joinable(&mut self, servers: i32) -> Result<()> {
        let wanted = usize::try_from(servers).unwrap_or_default();
        let title = "waiting until all servers stand by and answer";
        let joinable = self.roster.until(title, LAUNCH_PATIENCE, |entries| {
            let joinable = entries.values().filter(|entry| entry.joinable().is_some()).count();
            if joinable == wanted && entries.len() == wanted { Ok(()) } else { Err(progress(entries)) }
        });
        tokio::select! {
            done = joinable => done?,
            hopeless = trouble::watch(&self.client, NAMESPACE, GROUP) => return Err(hopeless),
        }
        self.timeline.tell(format!("all {servers} stand by and answer getstatus"));
        Ok(())
    }

    async fn claim(&mut self) -> Result<Granted> {
        let token = claim::token(self.workspace, &self.ground.access, &self.client, NAMESPACE).await?;
        let forward = Forward::open(&self.ground.access, &self.client).await?;
        let id = format!("demo-{}", new_password());
        let (answer, granted) = claim::claim(&forward, &token, NAMESPACE, GROUP, &id).await?;
        println!(
            "POST /v1/namespaces/{NAMESPACE}/claims {{\"id\": \"{id}\", \"groups\": [\"{GROUP}\"]}} answers:\n{answer:#}"
        );
        self.timeline.tell(format!("{} is claimed", granted.server));
        Ok(granted)
    }

    /// A player comes, plays for a moment, and leaves.
    async fn play_game(&mut self, server: &str, address: SocketAddr, rcon_password: &str) -> Result<()> {
        let player = Player::join(address, PLAYER, ANSWER).await?;
        let seen = quake3::status(address, ANSWER).await?;
        let map = seen.info.get("mapname").map_or("?", String::as_str);
        self.timeline.tell(format!("{} joined {address} on map {map}", seen.players.join(", ")));
        self.state_reached(server, State::Active).await?;
        self.timeline.tell(format!("{server} is Active"));
        player.leave(rcon_password, ANSWER).await?;
        self.timeline.tell(format!("{PLAYER} left"));
        self.state_reached(server, State::Terminating).await?;
        self.timeline.tell(format!("{server} is Terminating: nobody played there for {EMPTY_SECONDS} s"));
        Ok(())
    }

    async fn state_reached(&mut self, server: &str, wanted: State) -> Result<()> {
        let title = format!("waiting until {server} is {wanted:?}");
        let look = |entries: &Entries<GameServer>| match entries.get(server).map(|entry| state(&entry.object))
        {
            Some(state) if state < wanted => Err(format!("it is {state:?}")),
            Some(_) => Ok(()),
            // What is gone has passed through all of them.
            None if wanted >= State::Terminating => Ok(()),
            None => Err("it is gone".to_owned()),
        };
        self.roster.until(&title, PATIENCE, look).await
    }

    async fn server_gone(&mut self, server: &str) -> Result<()> {
        let look = |entries: &Entries<GameServer>| match entries.get(server) {
            Some(entry) => Err(format!("it is {:?}", state(&entry.object))),
            None => Ok(()),
        };
        self.roster.until(&format!("waiting until {server} is gone"), PATIENCE, look).await?;
        self.timeline.tell(format!("{server} and its pod are gone"));
        Ok(())
    }

    async fn replaced(&mut self, before: &BTreeSet<String>, servers: i32) -> Result<()> {
        let wanted = usize::try_from(servers).unwrap_or_default();
        let look = |entries: &Entries<GameServer>| {
            let joinable = entries.values().filter(|entry| entry.joinable().is_some());
            let (new, old): (Vec<_>, Vec<_>) =
                joinable.partition(|entry| pod_uid(entry).is_some_and(|uid| !before.contains(&uid)));
            match new.first() {
                Some(entry) if new.len() + old.len() == wanted => Ok(entry.object.name_any()),
                Some(_) | None => Err(progress(entries)),
            }
        };
        let name = self.roster.until("waiting until its replacement answers", PATIENCE, look).await?;
        self.timeline.tell(format!("{name}, another pod, stands by in its place and answers"));
        Ok(())
    }

    fn sum_up(&self) {
        println!();
        self.timeline.print();
        let option = self.ground.access.kubectl_option();
        println!("\nIt all stays up. Try next:");
        if self.ground.cluster.is_some() {
            println!("  eval \"$(cargo xtask cluster env)\"");
        }
        println!(
            "  kubectl{option} -n {NAMESPACE} get gsg,gs\n  \
             kubectl{option} -n {NAMESPACE} describe gsg {GROUP}\n  \
             kubectl{option} -n {NAMESPACE} scale gsg {GROUP} --replicas 10\n  \
             kubectl{option} -n {NAMESPACE} events\n  \
             kubectl{option} -n {OPERATORS} logs deploy/{RELEASE}"
        );
        if self.ground.cluster.is_some() {
            println!("  cargo xtask cluster down");
        } else {
            println!("  kubectl{option} delete namespace {NAMESPACE}");
        }
    }

    /// The error, and what the cluster says about it.
    async fn explain(&self, error: Error) -> Error {
        let option = self.ground.access.kubectl_option();
        let known = trouble::of_group(&self.client, NAMESPACE, GROUP).await;
        let logs = match &self.ground.cluster {
            Some(cluster) => {
                format!(" (cargo xtask cluster env), and {}", cluster.dir().join("logs").display())
            }
            None => String::new(),
        };
        let pull = if error.is::<trouble::NoImage>() {
            format!("\n{}", self.ground.images.instructions())
        } else {
            String::new()
        };
        anyhow::anyhow!(
            "{error:#}\nThe group {NAMESPACE}/{GROUP}:\n{known}\
             Logs: kubectl{option} -n {OPERATORS} logs deploy/{RELEASE}{logs}{pull}"
        )
    }
}

fn password_of(group: &GameServerGroup) -> Option<String> {
    let game = group.spec.template.spec.as_ref()?.containers.first()?;
    let mut arguments = game.args.as_ref()?.iter().skip_while(|argument| *argument != openarena::PASSWORD);
    arguments.nth(1).cloned()
}

fn new_password() -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    // The seeds of std's hash maps: as hard to guess as a demo's console needs.
    format!("{:016x}", std::collections::hash_map::RandomState::new().build_hasher().finish())
}

fn state(server: &GameServer) -> State {
    server.status.as_ref().map(|status| status.state).unwrap_or_default()
}

fn pod_uid(entry: &crate::roster::Entry<GameServer>) -> Option<String> {
    entry.object.owner_references().first().map(|owner| owner.uid.clone())
}

/// How many of the servers are how far.
fn progress(entries: &Entries<GameServer>) -> String {
    let count =
        |wanted: fn(State) -> bool| entries.values().filter(|entry| wanted(state(&entry.object))).count();
    let answering = entries.values().filter(|entry| entry.has_answered()).count();
    format!(
        "{} starting, {} standing by, {} active, {} ending; {answering} answering",
        count(|state| state < State::StandingBy),
        count(|state| state == State::StandingBy),
        count(|state| state == State::Active),
        count(|state| state > State::Active),
    )
}
