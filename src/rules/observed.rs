//! What the rules are told: pods and game servers, cut down to what matters.
//!
//! Thousands of these are held in memory, so a pod's template and managed fields are not in here.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::notice::{Notice, Verdict};
use super::pool::{Fitness, Pool};
use super::request::Request;
use crate::api::{
    Advice, Capacity, CapacityPoolStatus, Claim, ClaimPhase, ClaimStatus, End, GameServerClaimStatus,
    GameServerPort, Health, Instance, InstanceStatus, Override, Players, PortProtocol, Registration,
    Shutdown, State,
};

/// A resource version. Comparable within one kind of object since Kubernetes 1.35; the API server
/// and etcd have counted upward all along.
pub type Version = u64;

/// An instance: a pod that the operator drives.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Its name, and its game server's.
    pub name: String,
    /// Tells it from another pod of the same name.
    pub uid: String,
    /// Of this picture of it.
    pub version: Version,
    /// The name of its group.
    pub group: String,
    /// The UID of its group.
    pub group_uid: String,
    /// Which place of the group it fills.
    pub slot: u32,
    /// The hash of the template that it was made from.
    pub revision: String,
    /// Who makes its game server.
    pub registration: Registration,
    /// What went before it in its slot, if that failed.
    pub after: Option<Failure>,
    /// When it was made.
    pub created_at: Timestamp,
    /// It has a deletion mark.
    pub deleting: bool,
    /// The kubelet, or whoever speaks for a lost node, says that it is ready.
    pub ready: bool,
    /// The node it was bound to.
    pub node: Option<String>,
    /// Its own addresses, one a family.
    pub ips: Vec<String>,
    /// What its first container, the game, is at.
    pub game: Game,
    /// Its labels but for ours, which its game server bears as well.
    pub labels: BTreeMap<String, String>,
    /// Why the scheduler finds no node, in its own words.
    pub unschedulable: Option<String>,
    /// The ports that players connect to.
    pub ports: Vec<GamePort>,
    /// All host ports that it asks for.
    pub host_ports: Vec<i32>,
    /// The capacity pool that it was made for, if for one.
    pub pool: Option<Pool>,
    /// Whether node autoscalers may end it now, where that follows its use.
    pub evictable: Option<bool>,
    /// Where its agent listens for pokes, if it has one that does.
    pub poke_port: Option<u16>,
}

/// A node, as far as instances on it matter.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// Its addresses.
    pub addresses: Vec<NodeAddress>,
    /// What it is.
    pub capacity: Capacity,
    /// What it says of its end.
    pub notice: Option<Notice>,
    /// Tells this start of it from others; empty where it is not said.
    pub boot_id: String,
    /// Tells it from another of its name.
    pub uid: String,
}

impl Node {
    /// Whether it says that it goes, with all that runs there.
    pub fn goes(&self) -> bool {
        self.notice.as_ref().is_some_and(|notice| matches!(notice.verdict, Verdict::Ends { .. }))
    }
}

/// Failures that a server comes after.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// How many predecessors in its slot failed in a row.
    pub in_a_row: u32,
    /// How the last one did.
    pub message: String,
}

/// A port of a pod that players connect to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GamePort {
    /// Its name in the group.
    pub name: String,
    /// Where the game listens.
    pub container_port: i32,
    /// On the node, for ports that are reached there.
    pub host_port: Option<i32>,
    /// Its protocol.
    pub protocol: PortProtocol,
}

/// What the game's container is at.
#[derive(Clone, Debug, PartialEq)]
pub enum Game {
    /// Not started.
    Waiting {
        /// The kubelet's reason, where it names a fault such as `ImagePullBackOff`.
        fault: Option<(String, String)>,
    },
    /// Running.
    Running,
    /// Ended: the pod is done, whatever its other containers do (case C10).
    Ended(Ended),
}

/// How a game's container ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Its exit code; none if the pod failed without running it.
    pub exit_code: Option<i32>,
    /// The kubelet's words.
    pub message: String,
    /// When it started, if it did.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Timestamp,
}

impl Pod {
    /// How the game ended, if it has.
    pub fn ended(&self) -> Option<&Ended> {
        match &self.game {
            Game::Ended(ended) => Some(ended),
            Game::Waiting { .. } | Game::Running => None,
        }
    }
}

/// What has become of a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It waits for its game, or its players.
    Held,
    /// The game is Active, or its players have begun to come.
    Confirmed,
    /// Its deadline came first.
    Lapsed,
    /// Its holder gave it back.
    Released,
}

/// A game server as its resource says.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Its name, and its pod's.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Of this picture of it.
    pub version: Version,
    /// The name of its group.
    pub group: String,
    /// The UID of its group.
    pub group_uid: String,
    /// Which place of the group it fills; none for one that the operator has neither made nor taken up.
    pub slot: Option<u32>,
    /// Its group went and left it running (deletion policy Retain).
    pub retained: bool,
    /// The revision that its pod was made from.
    pub revision: String,
    /// Its labels but for ours: what claims select by.
    pub labels: BTreeMap<String, String>,
    /// How many of its predecessors in the slot failed in a row.
    pub failed_before: u32,
    /// The UID of the pod that owns it; empty if none does.
    pub pod_uid: String,
    /// It has a deletion mark.
    pub deleting: bool,
    /// Where among its finalizers ours stands, while it does.
    pub finalizer_at: Option<usize>,
    /// When it was made.
    pub created_at: Timestamp,
    /// `spec.shutdown`.
    pub shutdown: Shutdown,
    /// `status.state`.
    pub state: State,
    /// `status.claimStatus`.
    pub claim_status: ClaimStatus,
    /// `status.claim`.
    pub claim: Option<Claim>,
    /// `status.reservations`.
    pub reservations: Vec<Claim>,
    /// `status.seated`.
    pub seated: i32,
    /// `status.health`.
    pub health: Health,
    /// `status.players`.
    pub players: Option<Players>,
    /// `status.sessions`.
    pub sessions: Option<i32>,
    /// `status.data`.
    pub data: Option<String>,
    /// `status.instance`.
    pub instance: Option<Instance>,
    /// `status.address`.
    pub address: Option<String>,
    /// `status.ports`.
    pub ports: Vec<GameServerPort>,
    /// `status.end`.
    pub end: Option<End>,
}

impl Server {
    /// Whether a claim holds it.
    pub fn is_claimed(&self) -> bool {
        self.claim_status == ClaimStatus::Claimed
    }

    /// The claims that stand on it, in whatever state.
    pub fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.claim.iter().chain(&self.reservations)
    }

    /// The claim of this id, in whatever state.
    pub fn claim_of(&self, id: &str) -> Option<&Claim> {
        self.claims().find(|claim| claim.id == id)
    }

    /// What has become of one of its claims.
    pub fn fate(&self, claim: &Claim) -> Fate {
        match claim.seats {
            _ if claim.released_at.is_some() => Fate::Released,
            Some(seats) if seats.lapsed => Fate::Lapsed,
            None if !self.is_claimed() => Fate::Lapsed,
            Some(seats) if seats.left == seats.reserved => Fate::Held,
            None if self.state < State::Active => Fate::Held,
            Some(_) | None => Fate::Confirmed,
        }
    }

    /// Whether the claim of this id holds it, or seats on it.
    pub fn is_held_by(&self, id: &str) -> bool {
        let fate = self.claim_of(id).map(|claim| self.fate(claim));
        matches!(fate, Some(Fate::Held | Fate::Confirmed))
    }

    /// Whether somebody plays there, or is about to.
    pub fn is_in_use(&self) -> bool {
        match self.state {
            State::Active => true,
            State::StandingBy => self.is_claimed(),
            State::Creating | State::Initializing | State::Terminating | State::Terminated => false,
        }
    }

    /// The node that it runs on, once that is known.
    pub fn node(&self) -> Option<&str> {
        self.instance.as_ref().map(|instance| instance.node_name.as_str())
    }

    /// Row F20: whether its node goes, and takes it along.
    pub fn goes_with_its_node(&self) -> bool {
        self.instance.as_ref().is_some_and(|instance| instance.status == InstanceStatus::SpotTerminating)
    }

    /// Why its node is to be left, in words, where it is.
    pub fn cause(&self) -> &str {
        self.instance
            .as_ref()
            .and_then(|instance| instance.cause.as_deref())
            .unwrap_or("its node is to be left")
    }

    /// Whether it is to end, by a mark or with its node: another takes its place already.
    pub fn is_replaced(&self) -> bool {
        self.is_marked() || self.goes_with_its_node()
    }

    /// Whether it is on its way out, or out.
    pub fn is_ending(&self) -> bool {
        self.state >= State::Terminating
    }

    /// Whether it is to end: marked, shut down, or deleted by hand.
    pub fn is_marked(&self) -> bool {
        self.deleting || self.shutdown != Shutdown::Never
    }
}

/// A `GameServerClaim`.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Its UID.
    pub uid: String,
    /// Of this picture of it.
    pub version: Version,
    /// What it asks for; its name is the id.
    pub request: Request,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// How long it waits from then on.
    pub wait: SignedDuration,
    /// How long it stays once it is over, in seconds.
    pub stays_seconds: i32,
    /// It has a deletion mark.
    pub deleting: bool,
    /// Whose it is.
    pub owner: AskedBy,
    /// Its status.
    pub status: GameServerClaimStatus,
}

/// An address of a node: its type, as Kubernetes names it, and itself.
pub type NodeAddress = (String, String);

/// Whose a `GameServerClaim` is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AskedBy {
    /// A caller of the HTTP API waits by it: it goes with the caller.
    Caller,
    /// Somebody who has applied it, and reads its status.
    Somebody,
}

impl Asked {
    /// Whether it has no server yet, and nothing has ended its wait.
    pub fn is_pending(&self) -> bool {
        self.status.phase == ClaimPhase::Pending
    }

    /// When it stops waiting.
    pub fn deadline(&self) -> Timestamp {
        self.requested_at.checked_add(self.wait).unwrap_or(Timestamp::MAX)
    }

    /// Its claim's id: its name.
    pub fn id(&self) -> &str {
        &self.request.id
    }
}

/// A `CapacityPool`.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenPool {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Of this picture of it.
    pub version: Version,
    /// It has a deletion mark.
    pub deleting: bool,
    /// What it speaks of.
    pub pool: Pool,
    /// `spec.override`.
    pub over: Override,
    /// `spec.advice`.
    pub advice: Option<Advice>,
    /// Its status.
    pub status: CapacityPoolStatus,
}

impl SeenPool {
    /// What it is worth to groups.
    pub fn fitness(&self) -> Fitness {
        let price = self.advice.as_ref().and_then(|advice| advice.price_per_hour.as_ref());
        Fitness { verdict: self.status.verdict, price: price.and_then(|price| price.parse().ok()) }
    }
}

/// A pod and the game server of the same name, as far as each is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The pod.
    pub pod: Option<Shared<Pod>>,
    /// The game server that this pod owns; or, without a pod, the one left behind.
    pub server: Option<Shared<Server>>,
}

/// What is seen of an object, shared by all who look at it: a group has thousands of members, and is looked at whole
/// many times a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared<T>(Arc<T>);

impl<T> From<T> for Shared<T> {
    fn from(seen: T) -> Self {
        Self(Arc::new(seen))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Tests make variants of what is seen.
#[cfg(test)]
impl<T: Clone> std::ops::DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl Member {
    /// The capacity pool that it was made for, if for one.
    pub fn pool(&self) -> Option<&Pool> {
        self.pod.as_ref()?.pool.as_ref()
    }

    /// The name that both bear.
    pub fn name(&self) -> &str {
        match (&self.pod, &self.server) {
            (Some(pod), _) => &pod.name,
            (None, Some(server)) => &server.name,
            (None, None) => "",
        }
    }
}
