//! `GameServerClaim`: ask for a game server with kubectl or `GitOps`, and wait for one.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GameServerPort, InstanceStatus};

/// A wish for one game server. Its name is the claim's id: a claim of the same name through the HTTP API is this one.
///
/// Deleted while its server waits for its game, it gives the server back.
#[derive(CustomResource, Clone, Debug, Deserialize, PartialEq, Serialize, KubeSchema)]
#[kube(
    group = "gamekeeper.dev",
    version = "v1alpha1",
    kind = "GameServerClaim",
    plural = "gameserverclaims",
    shortname = "gsc",
    category = "gamekeeper",
    namespaced,
    derive = "PartialEq",
    status = "GameServerClaimStatus",
    selectable = ".status.phase",
    validation = Rule::new("size(self.metadata.name) <= 128").message("a claim's name has at most 128 characters: it is the claim's id"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Server", type_ = "string", json_path = ".status.server"),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(name = "Port", type_ = "integer", json_path = ".status.ports[0].port"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a claim cannot be changed: make another"))]
pub struct GameServerClaimSpec {
    /// The groups to take a server of, in order of preference.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 63)))]
    pub groups: Vec<String>,

    /// The one server to take, of these groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server: Option<String>,

    /// What the server must be like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<ServerSelector>,

    /// What its instance may be; anything if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub instance_status: Vec<ClaimableStatus>,

    /// What the game is handed: up to 1,024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub data: Option<String>,

    /// How many seats, where the group shares its servers.
    #[serde(default = "default_seats")]
    #[schemars(range(min = 1, max = 200))]
    pub seats: i32,

    /// How long it waits for a server, in seconds; 0 takes one that is there or fails.
    #[serde(default = "default_wait_seconds")]
    #[schemars(range(min = 0, max = 86_400))]
    pub wait_seconds: i32,

    /// When it was asked for, to the microsecond: who asked first is served first. Counts from within a second of the
    /// object's creation; that itself if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<MicroTime>,

    /// How long it stays once it is over, in seconds.
    #[serde(default = "default_ttl_seconds_after_finished")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub ttl_seconds_after_finished: i32,
}

/// What the instance of a server may be that a claim takes (`FilterOption` in `FleetIQ`).
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ClaimableStatus {
    /// It stays.
    Active,
    /// Its node is to be left.
    Draining,
}

impl ClaimableStatus {
    /// Whether an instance is that.
    pub fn admits(self, status: InstanceStatus) -> bool {
        match self {
            Self::Active => status == InstanceStatus::Active,
            Self::Draining => status == InstanceStatus::Draining,
        }
    }
}

fn default_seats() -> i32 {
    1
}

fn default_wait_seconds() -> i32 {
    300
}

fn default_ttl_seconds_after_finished() -> i32 {
    600
}

/// What a server must be like.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerSelector {
    /// Labels that it must bear.
    #[schemars(length(max = 16))]
    pub match_labels: BTreeMap<String, String>,
}

/// What became of a claim.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.serverUid) || (has(self.serverUid) && self.serverUid == oldSelf.serverUid)").message("a claim is bound to one server and to no other"))]
#[x_kube(validation = Rule::new("!(self.phase in ['Bound', 'Confirmed']) || has(self.serverUid)").message("a claim that is Bound has a server"))]
pub struct GameServerClaimStatus {
    /// Where it stands.
    #[serde(default)]
    #[x_kube(validation = Rule::new(PHASE_RULE).message("a claim goes from Pending to Bound, Failed or Released, and from Bound to Confirmed, Expired or Released"))]
    pub phase: ClaimPhase,

    /// The server that it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub server: Option<String>,

    /// Its UID: names come back, UIDs do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub server_uid: Option<String>,

    /// Where players reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub address: Option<String>,

    /// The ports there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub ports: Vec<GameServerPort>,

    /// What the game had to say when it was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub data: Option<String>,

    /// When the game must be Active, or the claim lapses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<MicroTime>,

    /// When it was over: failed, lapsed, released, or its game had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<MicroTime>,

    /// What it waits for, or how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

const PHASE_RULE: &str = "self == oldSelf || oldSelf == 'Pending' \
    || (oldSelf == 'Bound' && self in ['Confirmed', 'Expired', 'Released'])";

/// Where a claim stands.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ClaimPhase {
    /// It waits for a server.
    #[default]
    Pending,
    /// A server is reserved for it.
    Bound,
    /// The game is Active, or was.
    Confirmed,
    /// The game was not Active in time.
    Expired,
    /// The server was given back.
    Released,
    /// There was no server for it in time, or it asks for what cannot be.
    Failed,
}
