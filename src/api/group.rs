//! `GameServerGroup`: so many game servers of one kind.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Addressing, BalancingStrategy, Eviction, GameServerProtectionPolicy, GroupPool, InstanceDefinition, Port,
    SuspendedAction,
};

/// A group of game servers made from one template and kept at a number.
#[derive(CustomResource, Clone, Debug, Deserialize, PartialEq, Serialize, KubeSchema)]
#[kube(
    group = "gamekeeper.dev",
    version = "v1alpha1",
    kind = "GameServerGroup",
    plural = "gameservergroups",
    shortname = "gsg",
    category = "gamekeeper",
    category = "all",
    namespaced,
    derive = "PartialEq",
    status = "GameServerGroupStatus",
    validation = Rule::new("size(self.metadata.name) <= 50").message("a group's name has at most 50 characters: its pods' names are made from it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("a group's name is a DNS label: lower-case letters, digits and '-', starting with a letter"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.desiredReplicas"),
    printcolumn(name = "On-Offer", type_ = "integer", json_path = ".status.servers.onOffer"),
    printcolumn(name = "Claimed", type_ = "integer", json_path = ".status.servers.claimed"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.servers.active"),
    printcolumn(name = "Starting", type_ = "integer", json_path = ".status.servers.starting"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waitingClaims", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.maxSize) || self.minSize <= self.maxSize").message("minSize is at most maxSize"))]
#[x_kube(validation = Rule::new("!has(self.agent) || self.ports.exists(p, p.name == self.agent.port && p.protocol == 'UDP')").message("agent.port names one of spec.ports, with protocol UDP: the agent asks the game there"))]
#[x_kube(validation = Rule::new("!has(self.agent) || self.registration != 'Self'").message("with registration Self the process registers and reports itself: leave out agent"))]
#[x_kube(validation = Rule::new("!has(self.claim.sharing) || !has(self.agent) || self.agent.emptySeconds >= self.claim.timeoutSeconds").message("with claim.sharing, agent.emptySeconds is at least claim.timeoutSeconds: players who have a seat may still come to an empty server"))]
#[x_kube(validation = Rule::new("!has(self.claim.sharing) || self.claim.confirmation == 'Game'").message("claim.sharing needs claim.confirmation Game: whoever has come is told from the players that the game reports"))]
#[x_kube(validation = Rule::new("self.balancingStrategy == 'SpotPreferred' || (has(self.instanceDefinitions) && size(self.instanceDefinitions) > 0)").message("balancingStrategy needs instanceDefinitions: without them a group runs on any node"))]
#[x_kube(validation = Rule::new("self.ports.all(p, p.policy == 'PodIP') || self.ports.all(p, p.policy != 'PodIP')").message("the ports of a group are all PodIP or none is: a game server has one address"))]
pub struct GameServerGroupSpec {
    /// How many game servers to keep. Counts within `minSize` and `maxSize`; the spec is left as written.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10_000))]
    pub replicas: i32,

    /// The least number of servers, whatever `replicas` says.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10_000))]
    pub min_size: i32,

    /// The greatest number of servers, whatever `replicas` says. No bound if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_size: Option<i32>,

    /// The ports that players connect to, on the first container of the template (the game).
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub ports: Vec<Port>,

    /// Which address players are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addressing: Option<Addressing>,

    /// How servers are claimed.
    #[serde(default)]
    pub claim: ClaimPolicy,

    /// A sidecar that reports the state of a game that cannot do so itself. Without it, the game
    /// patches the status of its own `GameServer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,

    /// Who makes the `GameServer` of each pod: the operator, or the process in it. A change applies to new pods.
    #[serde(default)]
    pub registration: Registration,

    /// How long a server may take from its making to `StandingBy`, in seconds; one that takes
    /// longer is replaced.
    #[serde(default = "default_launch_timeout_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub launch_timeout_seconds: i32,

    /// What a deletion of the group does with servers that are claimed or Active.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,

    /// The instance types that its servers may run on. On any node, and without balancing, if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["instanceType".to_string()]))]
    pub instance_definitions: Vec<InstanceDefinition>,

    /// On how many pools new servers go, of those that are viable: the cheapest by `spec.advice.pricePerHour` of each
    /// `CapacityPool` and the weight. On all of them if left out. No server moves for a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub cheapest_pools: Option<i32>,

    /// Whether its servers run on spot capacity.
    #[serde(default)]
    pub balancing_strategy: BalancingStrategy,

    /// Whether balancing may end games.
    #[serde(default)]
    pub game_server_protection_policy: GameServerProtectionPolicy,

    /// Whether node autoscalers may end its servers. A change applies to new pods; a template that has an annotation of
    /// theirs itself decides for its pods.
    #[serde(default)]
    pub eviction: Eviction,

    /// What is not done for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1))]
    pub suspended_actions: Vec<SuspendedAction>,

    /// The pod of each server. Its first container is the game: when that ends, the server has ended.
    /// A change applies to new pods.
    #[x_kube(validation = Rule::new("!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Never'").message("restartPolicy is Never: a game that has ended is not started again in place, another pod replaces it"))]
    #[x_kube(validation = Rule::new("has(self.spec) && size(self.spec.containers) > 0").message("the template has a container, the game"))]
    #[x_kube(validation = Rule::new("!has(self.metadata) || !has(self.metadata.labels) || self.metadata.labels.all(k, !k.startsWith('gamekeeper.dev/'))").message("labels that start with gamekeeper.dev/ are set by the operator"))]
    #[x_kube(validation = Rule::new("!has(self.metadata) || !has(self.metadata.annotations) || self.metadata.annotations.all(k, !k.startsWith('gamekeeper.dev/'))").message("annotations that start with gamekeeper.dev/ are set by the operator"))]
    #[x_kube(validation = Rule::new("!has(self.spec) || (self.spec.containers.all(c, c.name != 'gamekeeper-agent') && (!has(self.spec.initContainers) || self.spec.initContainers.all(c, c.name != 'gamekeeper-agent')))").message("the container name gamekeeper-agent is the agent's: ask for it with spec.agent"))]
    pub template: PodTemplateSpec,
}

fn default_launch_timeout_seconds() -> i32 {
    300
}

/// How servers are claimed.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimPolicy {
    /// How long a claim holds, in seconds, until the game must be Active (60, as `FleetIQ` has it).
    #[serde(default = "default_claim_timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: i32,

    /// What makes a claimed server Active.
    #[serde(default)]
    pub confirmation: Confirmation,

    /// Which of its servers a claim takes first, among those as good as each other.
    #[serde(default)]
    pub strategy: ClaimStrategy,

    /// Lets several sessions or players share a server: claims reserve seats on it. A server each if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}

/// How a server is shared.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sharing {
    /// How many seats a server has; fewer where the game reports a smaller capacity.
    #[schemars(range(min = 1, max = 200))]
    pub capacity: i32,
    /// Which server with room is filled first.
    #[serde(default)]
    pub prefer: Prefer,
}

/// Which shared server with room is filled first.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Prefer {
    /// The one with the fewest free seats, so that others empty.
    #[default]
    Fullest,
    /// The one with the most.
    Emptiest,
}

impl Default for ClaimPolicy {
    fn default() -> Self {
        Self {
            timeout_seconds: default_claim_timeout_seconds(),
            confirmation: Confirmation::default(),
            strategy: ClaimStrategy::default(),
            sharing: None,
        }
    }
}

/// What makes a claimed server Active.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Confirmation {
    /// The game says so, within the claim's timeout; else the claim lapses.
    #[default]
    Game,
    /// The claim itself: for games that say nothing.
    Immediate,
}

/// Which node's servers are claimed first.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ClaimStrategy {
    /// Those of the node with the most games, so that other nodes empty out.
    #[default]
    Packed,
    /// Those of the node with the fewest.
    Spread,
}

fn default_claim_timeout_seconds() -> i32 {
    60
}

/// Who makes the `GameServer` of a pod (row F11).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Registration {
    /// The operator, with the pod.
    #[default]
    Automatic,
    /// The process in the pod, with its pod's token; it may delete it as well.
    #[serde(rename = "Self")]
    Itself,
}

/// A sidecar that asks the game how it is and reports it.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// The protocol that the game speaks.
    pub protocol: AgentProtocol,
    /// The name of the port, in `spec.ports`, where it speaks it.
    #[schemars(length(min = 1, max = 15))]
    pub port: String,
    /// How long a game that had players may be without any before its session is over, in seconds.
    #[serde(default = "default_empty_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub empty_seconds: i32,
}

fn default_empty_seconds() -> i32 {
    30
}

/// A status protocol of games.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum AgentProtocol {
    /// `getstatus` of idTech 3 games: Quake III Arena, OpenArena and their kin. Bots count as players.
    IdTech3,
}

/// What a deletion of the group does with servers that are claimed or Active.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum DeletionPolicy {
    /// Waits for their games to end.
    #[default]
    Safe,
    /// Ends them.
    Force,
    /// Leaves all of its servers and pods running, without a group. One applied again under that name adopts them.
    Retain,
}

/// What is known of a group.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GameServerGroupStatus {
    /// Where the group is in its life.
    #[serde(default)]
    pub phase: Phase,

    /// The `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// How many servers count toward `desiredReplicas`: those that are not marked, ending or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// `spec.replicas` as in force: within `minSize` and `maxSize`, and with a server for each claim that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,

    /// How many claims wait for one of its servers: they add to `desiredReplicas`, never to the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_claims: Option<i32>,

    /// The label selector of the group's pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub selector: Option<String>,

    /// The group's servers by what they are at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<ServerCounts>,

    /// The capacity pools that its servers are on, and those that it may not use for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub pools: Vec<GroupPool>,

    /// `Ready`, `TemplateAccepted`, `ReplicasInBounds`, `Progressing`; `AgentsReachable` and `Balanced` where there are
    /// agents and pools; and, while it goes, `Deleting`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_string()]))]
    pub conditions: Vec<Condition>,
}

/// A group's place in its life (row F1).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Phase {
    /// Not seen by the operator yet.
    #[default]
    New,
    /// Its first servers are being made.
    Activating,
    /// It had all the servers it wants at least once.
    Active,
    /// It cannot get its first servers: the conditions say why. Heals by itself when the cause has gone.
    Error,
    /// Deleted, and waiting for games to end: no claims, no new servers.
    DeleteScheduled,
    /// Its last servers are going.
    Deleting,
}

/// Servers of a group, each counted once, except that those on offer stand by as well.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerCounts {
    /// Creating or Initializing.
    pub starting: i32,
    /// `StandingBy`, unclaimed.
    pub standing_by: i32,
    /// Of these, ready to be claimed: healthy, unmarked, with an address.
    pub on_offer: i32,
    /// Claimed, not Active yet.
    pub claimed: i32,
    /// Active.
    pub active: i32,
    /// Terminating, or Terminated and not gone yet.
    pub ending: i32,
}
