//! `GameServer`: one game server process and its life.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A game server: the process that players connect to, in the pod of the same name.
///
/// Made by the operator with its pod and gone with it. The game, or its agent, reports
/// `status.state`, `players`, `sessions`, `data` and `health` with the pod's own token; the operator and the
/// claim service write the rest.
#[derive(CustomResource, Clone, Debug, Deserialize, PartialEq, Serialize, KubeSchema)]
#[kube(
    group = "gamekeeper.dev",
    version = "v1alpha1",
    kind = "GameServer",
    plural = "gameservers",
    shortname = "gs",
    category = "gamekeeper",
    category = "all",
    namespaced,
    derive = "PartialEq",
    status = "GameServerStatus",
    selectable = ".spec.group",
    selectable = ".status.state",
    selectable = ".status.claimStatus",
    printcolumn(name = "Group", type_ = "string", json_path = ".spec.group"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Claim", type_ = "string", json_path = ".status.claimStatus"),
    printcolumn(name = "Players", type_ = "integer", json_path = ".status.players.count"),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(name = "Port", type_ = "integer", json_path = ".status.ports[0].port"),
    printcolumn(name = "Shutdown", type_ = "string", json_path = ".spec.shutdown"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Health", type_ = "string", json_path = ".status.health", priority = 1),
    printcolumn(name = "Sessions", type_ = "integer", json_path = ".status.sessions", priority = 1),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.instance.nodeName", priority = 1),
    printcolumn(name = "Instance", type_ = "string", json_path = ".status.instance.status", priority = 1),
    printcolumn(
        name = "Capacity",
        type_ = "string",
        json_path = ".status.instance.capacity.capacityType",
        priority = 1
    ),
    printcolumn(
        name = "Type",
        type_ = "string",
        json_path = ".status.instance.capacity.instanceType",
        priority = 1
    ),
    printcolumn(name = "Zone", type_ = "string", json_path = ".status.instance.capacity.zone", priority = 1),
    printcolumn(name = "End", type_ = "string", json_path = ".status.end.reason", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct GameServerSpec {
    /// The `GameServerGroup` it belongs to, in the same namespace. Cannot be changed.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("spec.group cannot be changed: a game server stays in its group"))]
    pub group: String,

    /// Whether it shall end: `Never`, `WhenIdle` (marked: no new players, gone once it has no game
    /// and no claim, or has ended its last session; can be taken back) or `Now` (gone at once, whoever plays).
    #[serde(default)]
    #[x_kube(validation = Rule::new("oldSelf != 'Now' || self == 'Now'").message("spec.shutdown Now cannot be taken back"))]
    pub shutdown: Shutdown,
}

/// A wish that a server end (`spec.shutdown`).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Shutdown {
    /// It stays.
    #[default]
    Never,
    /// Marked for deletion (row A4): gone once idle.
    WhenIdle,
    /// The shut-down call (row P6): gone at once.
    Now,
}

/// What is known of a game server.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.claimStatus == 'Unclaimed' || has(self.claim) || size(self.reservations) > 0").message("a Claimed server has a claim, or seats that are reserved"))]
#[x_kube(validation = Rule::new("self.claimStatus == 'Unclaimed' || oldSelf.claimStatus == 'Unclaimed' || (has(oldSelf.claim) == has(self.claim) && (!has(self.claim) || self.claim.id == oldSelf.claim.id))").message("the server is claimed by another id until that claim lapses or is released"))]
pub struct GameServerStatus {
    /// Where it is in its life: Creating → Initializing → `StandingBy` → Active → Terminating →
    /// Terminated. It may skip forward and never goes back.
    #[serde(default)]
    #[x_kube(validation = Rule::new(STATE_RULE).message("a game server's state only goes forward: Creating, Initializing, StandingBy, Active, Terminating, Terminated"))]
    pub state: State,

    /// Whether a claim holds it.
    #[serde(default)]
    pub claim_status: ClaimStatus,

    /// The claim that holds it, or the last one that did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,

    /// The claims on a server that is shared (the group's `claim.sharing`): those whose players have not come, those
    /// whose players have, and, for a minute after their deadlines, those that are over.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub reservations: Vec<Claim>,

    /// The player count up to which players who came were taken off reservations.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100_000))]
    pub seated: i32,

    /// How the game says it is. Nobody is sent to an `Unhealthy` server.
    #[serde(default)]
    pub health: Health,

    /// Who plays there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub players: Option<Players>,

    /// How many sessions are played there. A marked server that is Active goes once it says 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub sessions: Option<i32>,

    /// Up to 1,024 characters that the game hands to whoever claims it: a map, a mode, a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub data: Option<String>,

    /// The pod as it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,

    /// Where players reach it: the pod's IP, or the node's for host ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub address: Option<String>,

    /// The ports at that address, in the group's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub ports: Vec<GameServerPort>,

    /// Why it ends or has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// Each state may only be followed by those that come later. The comparisons are spelled out
/// because `indexOf` on a list costs the API server a hundred times as much.
const STATE_RULE: &str = "self == oldSelf || oldSelf == 'Creating' \
    || (oldSelf == 'Initializing' && self != 'Creating') \
    || (oldSelf == 'StandingBy' && (self == 'Active' || self == 'Terminating' || self == 'Terminated')) \
    || (oldSelf == 'Active' && (self == 'Terminating' || self == 'Terminated')) \
    || (oldSelf == 'Terminating' && self == 'Terminated')";

/// A game server's place in its life (rows P1 to P4). The order of the variants is the order of life.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum State {
    /// Its pod does not run yet.
    #[default]
    Creating,
    /// Its pod runs; the game is not ready for players.
    Initializing,
    /// Ready for players, nobody plays.
    StandingBy,
    /// In use; it never stands by again.
    Active,
    /// On its way out: no player is sent there any more.
    Terminating,
    /// The game has ended.
    Terminated,
}

/// Whether a claim holds the server.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ClaimStatus {
    /// Nobody holds it.
    #[default]
    Unclaimed,
    /// `status.claim` holds it.
    Claimed,
}

/// How the game says it is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Health {
    /// Fit for players.
    #[default]
    Healthy,
    /// Not fit: it is not on offer.
    Unhealthy,
}

/// A reservation of one server, with a deadline.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The caller's id for it, unique in the namespace: asked again with it, the answer is the same.
    #[schemars(length(min = 1, max = 128))]
    pub id: String,
    /// When it was taken.
    pub claimed_at: MicroTime,
    /// When it lapses unless the game has gone Active.
    pub expires_at: MicroTime,
    /// The Kubernetes user that took it.
    #[schemars(length(max = 512))]
    pub by: String,
    /// The UID of the `GameServerClaim` that it was made for, if it was: that one gone, the server is given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub object: Option<String>,
    /// A hash of what was asked for: the same id with another request is refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16))]
    pub request: String,
    /// What the caller hands to the game.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub data: Option<String>,
    /// When it was last asked for again while its first caller may not have been answered yet: from then on it is not
    /// given back for that caller's going away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated_at: Option<MicroTime>,
    /// When its holder gave it back, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<MicroTime>,
    /// Its seats, on a server that is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seats: Option<Seats>,
}

/// Seats on a shared server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seats {
    /// How many were asked for; once its deadline is over and some have come, how many those are.
    #[schemars(range(min = 1, max = 200))]
    pub reserved: i32,
    /// How many of their players have not come.
    #[schemars(range(min = 0, max = 200))]
    pub left: i32,
    /// Nobody had come by its deadline, and all of them are free again.
    #[serde(default)]
    pub lapsed: bool,
}

/// Players of a server.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Players {
    /// How many play now.
    #[schemars(range(min = 0, max = 100_000))]
    pub count: i32,
    /// How many can.
    #[schemars(range(min = 0, max = 100_000))]
    pub capacity: i32,
}

/// The pod that hosts the server.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// The node it runs on.
    #[schemars(length(max = 253))]
    pub node_name: String,
    /// Whether its node is to be left.
    #[serde(default)]
    pub status: InstanceStatus,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub cause: Option<String>,
    /// When its node is gone, as far as its provider says so; the game has until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retire_at: Option<MicroTime>,
    /// What its node is, as far as that is labelled.
    #[serde(default, skip_serializing_if = "Capacity::is_unknown")]
    pub capacity: Capacity,
    /// The node's `bootID` when the pod came to run there: nothing outlives a start anew.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
}

/// What a node is, by its labels.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Its instance type, as its provider calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub instance_type: Option<String>,
    /// How it is paid for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
    /// Its zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub zone: Option<String>,
}

impl Capacity {
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// How a node is paid for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub enum CapacityType {
    /// Cheap, and taken away when its provider needs it.
    Spot,
    /// Stays; reserved capacity too.
    OnDemand,
}

impl CapacityType {
    /// As resources and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spot => "Spot",
            Self::OnDemand => "OnDemand",
        }
    }
}

/// Whether the node of an instance is to be left.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum InstanceStatus {
    /// It stays.
    #[default]
    Active,
    /// Its node is to be left, as when it is cordoned: games go on, and its servers are claimed only when no other is.
    Draining,
    /// Its node goes, and takes it along: nobody is sent there any more. It stays so.
    SpotTerminating,
}

/// A port that players connect to.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GameServerPort {
    /// Its name in the group.
    #[schemars(length(min = 1, max = 15))]
    pub name: String,
    /// Its number at `status.address`.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Its protocol.
    pub protocol: super::PortProtocol,
}

/// Why and when a server ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// The cause, in one word.
    pub reason: EndReason,
    /// The cause in words, with the exit code where there is one.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// When it was decided, or when the game's container ended.
    pub time: MicroTime,
}

/// Why a server ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum EndReason {
    /// The game said so (Terminating), or exited 0 after having been Active.
    SessionEnded,
    /// The game exited with an error or was killed.
    Crashed,
    /// The game exited before anybody played.
    ExitedEarly,
    /// It was not ready within the group's `launchTimeoutSeconds`.
    LaunchTimeout,
    /// No node had the host port free that it was given.
    PortTaken,
    /// The pod failed before the game ran: refused or evicted by its node.
    PodFailed,
    /// There were more servers than the group wants.
    ScaledIn,
    /// The template it was made from was replaced before its game had started.
    Outdated,
    /// It was marked (`spec.shutdown: WhenIdle`) and idle, or its last session had ended.
    Marked,
    /// Somebody called `spec.shutdown: Now`.
    ShutDown,
    /// Its pod was deleted by somebody else.
    PodDeleted,
    /// Its node had its notice, or was gone.
    NodeEnding,
    /// Its instance was to be left for its capacity pool's sake, and its replacement was ready.
    Balanced,
    /// Its group is being deleted, or is gone.
    GroupDeleted,
}

impl EndReason {
    /// Whether the server failed by itself, so that its replacement backs off when it fails as well (row P5).
    pub fn is_failure(self) -> bool {
        match self {
            Self::Crashed | Self::ExitedEarly | Self::LaunchTimeout | Self::PortTaken | Self::PodFailed => {
                true
            }
            Self::SessionEnded
            | Self::ScaledIn
            | Self::Outdated
            | Self::Marked
            | Self::ShutDown
            | Self::PodDeleted
            | Self::NodeEnding
            | Self::Balanced
            | Self::GroupDeleted => false,
        }
    }
}
