//! What a watch of the game servers shows, in its order.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use gamekeeper::api::{ClaimStatus, GameServer, Health, InstanceStatus, Shutdown, State};
use jiff::Timestamp;
use kube::{Resource, ResourceExt as _};

/// A server as it was seen once, or that it has gone.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    /// When this process saw it.
    pub(super) at: Timestamp,
    /// Where it stands in the order of all writes of the cluster.
    pub(super) version: u64,
    pub(super) uid: String,
    /// None once it has gone.
    pub(super) server: Option<Seen>,
}

/// What is to be known of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) state: State,
    /// The id of the claim that holds it.
    pub(super) claim: Option<String>,
    pub(super) node: Option<String>,
    pub(super) instance: InstanceStatus,
    /// Healthy, with an address, and not to end.
    pub(super) sound: bool,
}

impl Sight {
    pub(super) fn of(server: &GameServer) -> Result<Self> {
        let status = server.status.clone().unwrap_or_default();
        let held = status.claim.filter(|_| status.claim_status == ClaimStatus::Claimed);
        let unmarked =
            server.spec.shutdown == Shutdown::Never && server.metadata.deletion_timestamp.is_none();
        let seen = Seen {
            name: server.name_any(),
            state: status.state,
            claim: held.map(|claim| claim.id),
            node: status.instance.as_ref().map(|instance| instance.node_name.clone()),
            instance: status.instance.map(|instance| instance.status).unwrap_or_default(),
            sound: status.health == Health::Healthy && status.address.is_some() && unmarked,
        };
        Ok(Self { server: Some(seen), ..Self::gone(server)? })
    }

    pub(super) fn gone(server: &GameServer) -> Result<Self> {
        let uid = server.uid().context("a game server has no UID")?;
        Ok(Self { at: Timestamp::now(), version: version(server)?, uid, server: None })
    }
}

/// Where an object's last write stands in the order of all writes of the cluster.
pub(super) fn version(object: &impl Resource) -> Result<u64> {
    let version = object.meta().resource_version.as_deref().context("an object has no resourceVersion")?;
    version.parse().with_context(|| format!("the resourceVersion {version:?} is no number"))
}

impl Seen {
    /// Whether it could be given to a claim, whatever is known of its node.
    pub(super) fn is_offered(&self) -> bool {
        self.state == State::StandingBy
            && self.claim.is_none()
            && self.sound
            && self.instance != InstanceStatus::SpotTerminating
    }

    /// Whether it is ready for players, or in use.
    pub(super) fn is_ready(&self) -> bool {
        (State::StandingBy..=State::Active).contains(&self.state)
    }
}

/// The servers as they are at one place of the order.
#[derive(Debug, Default)]
pub(super) struct Picture(BTreeMap<String, Seen>);

impl Picture {
    /// Takes up what was seen, and gives what was known of that server before.
    pub(super) fn put(&mut self, sight: &Sight) -> Option<Seen> {
        match &sight.server {
            Some(server) => self.0.insert(sight.uid.clone(), server.clone()),
            None => self.0.remove(&sight.uid),
        }
    }

    /// How many are so.
    pub(super) fn count(&self, is: impl Fn(&Seen) -> bool) -> usize {
        self.0.values().filter(|server| is(server)).count()
    }

    /// The UIDs of those that are so.
    pub(super) fn uids(&self, is: impl Fn(&Seen) -> bool) -> impl Iterator<Item = String> {
        self.0.iter().filter(move |(_, server)| is(server)).map(|(uid, _)| uid.clone())
    }
}
