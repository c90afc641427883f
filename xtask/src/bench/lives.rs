//! The lives that the bench `lifecycle` counts: each made, ready, claimed, played and gone.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gamekeeper::api::{GameServer, State};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt as _};
use tokio::time::{sleep, timeout};

use super::stage::{self, NAMESPACE};
use crate::demo::Ground;
use crate::demo::claim::{self, Forward};
use crate::openarena;
use crate::quake3::Player;
use crate::workspace::Workspace;

const GROUP: &str = "arena";

/// The servers end with the cluster, and their consoles are reached from this machine alone.
const PASSWORD: &str = "bench";

/// A game without players is over after this time, in seconds.
const EMPTY_SECONDS: i32 = 5;

/// How many lives go on at once: what is counted does not depend on it.
const AT_ONCE: usize = 5;

/// How long each player plays without the other: longer than an agent waits between two counts of players.
const PLAY: Duration = Duration::from_secs(6);

/// How long any other step may take.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long a running game may take to answer.
const ANSWER: Duration = Duration::from_secs(15);

/// Lets so many servers live, and returns their names when they are gone.
pub(super) async fn live(workspace: &Workspace, ground: &Ground, servers: u16) -> Result<BTreeSet<String>> {
    let client = ground.access.client().await?;
    openarena::ensure_namespace(&client, NAMESPACE).await?;
    let mut group = openarena::group(workspace, GROUP, i32::from(servers), &ground.images.openarena)?;
    openarena::open_console(&mut group, PASSWORD)?;
    group.spec.agent.as_mut().context("the sample's group has no agent")?.empty_seconds = EMPTY_SECONDS;
    stage::launch(&client, &group).await?;
    let host = Host {
        servers: Api::namespaced(client.clone(), NAMESPACE),
        token: claim::token(workspace, &ground.access, &client, NAMESPACE).await?,
        forward: Forward::open(&ground.access, &client).await?,
    };
    let lives = (1..=servers).map(|number| host.life(number));
    stream::iter(lives).buffer_unordered(AT_ONCE).try_collect().await
}

/// Who claims and plays.
struct Host {
    servers: Api<GameServer>,
    token: String,
    forward: Forward,
}

impl Host {
    /// One life from its claim on: two players come, one after the other, and leave so.
    async fn life(&self, number: u16) -> Result<String> {
        let id = format!("bench-{number}");
        let (_, granted) = claim::claim(&self.forward, &self.token, NAMESPACE, GROUP, &id).await?;
        let (name, address) = (granted.server.clone(), granted.address()?);
        let uid = self.servers.get(&name).await.with_context(|| format!("cannot read {name}"))?.uid();
        let first = Player::join(address, "Ada", ANSWER).await?;
        let active = |server: Option<&GameServer>| {
            server
                .and_then(|server| server.status.as_ref())
                .is_some_and(|status| status.state == State::Active)
        };
        self.until(&name, "Active", active).await?;
        sleep(PLAY).await;
        let second = Player::join(address, "Grace", ANSWER).await?;
        sleep(PLAY).await;
        first.leave(PASSWORD, ANSWER).await?;
        sleep(PLAY).await;
        second.leave(PASSWORD, ANSWER).await?;
        self.until(&name, "gone", conditions::is_deleted(&uid.unwrap_or_default())).await?;
        println!("{name} was claimed as {id}, played and is gone");
        Ok(name)
    }

    async fn until(
        &self,
        name: &str,
        what: &str,
        condition: impl kube::runtime::wait::Condition<GameServer>,
    ) -> Result<()> {
        let waited = timeout(PATIENCE, await_condition(self.servers.clone(), name, condition)).await;
        waited
            .with_context(|| format!("{name} is not {what} after {} s", PATIENCE.as_secs()))?
            .with_context(|| format!("cannot watch {name}"))
            .map(drop)
    }
}
