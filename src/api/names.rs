//! The names that the operator, its pods, its chart and its policies share.

/// The API group of all resources.
pub const GROUP: &str = "gamekeeper.dev";

/// What every label, annotation and finalizer of ours starts with; a template may use none of these.
pub const PREFIX: &str = "gamekeeper.dev/";

/// Label of a pod and its `GameServer`: the name of the group.
pub const LABEL_GROUP: &str = "gamekeeper.dev/group";

/// Label of a pod and its `GameServer`: the UID of the group, so that a group deleted and applied
/// again under the same name does not take the old one's pods for its own (case C18).
pub const LABEL_GROUP_UID: &str = "gamekeeper.dev/group-uid";

/// Label of a pod: which of the group's places it fills, a number from 0.
pub const LABEL_SLOT: &str = "gamekeeper.dev/slot";

/// Label of a pod: a hash of the template that it was made from.
pub const LABEL_REVISION: &str = "gamekeeper.dev/revision";

/// Label of a `GameServer` whose group went with the policy Retain: `true` until another group adopts it.
pub const LABEL_RETAINED: &str = "gamekeeper.dev/retained";

/// Stands on a claim by which a caller of the HTTP API waits: it goes with the caller.
pub const LABEL_CALLER_WAITS: &str = "gamekeeper.dev/caller-waits";

/// Annotation of a pod and its `GameServer`: how many of its predecessors in this slot failed in a row.
pub const ANNOTATION_ATTEMPT: &str = "gamekeeper.dev/attempt";

/// Annotation of a pod whose predecessor failed: how.
pub const ANNOTATION_LAST_FAILURE: &str = "gamekeeper.dev/last-failure";

/// Annotation of a pod: the capacity pool that it was made for, as `c7g.large/spot/zone-a`.
pub const ANNOTATION_POOL: &str = "gamekeeper.dev/capacity-pool";

/// Annotation of a pod that node autoscalers may end while it is idle: `WhenIdle`.
pub const ANNOTATION_EVICTION: &str = "gamekeeper.dev/eviction";

/// The value of [`ANNOTATION_EVICTION`].
pub const WHEN_IDLE: &str = "WhenIdle";

/// Label of a `CapacityPool`: the namespace of the operator that keeps it.
pub const LABEL_OWNER: &str = "gamekeeper.dev/operator";

/// Annotation of a pod: the names of the ports that players connect to, as the group had them when it was made.
pub const ANNOTATION_PORTS: &str = "gamekeeper.dev/ports";

/// Annotation of a pod whose process registers itself, whatever its group says by now: `Self`.
pub const ANNOTATION_REGISTRATION: &str = "gamekeeper.dev/registration";

/// The value of [`ANNOTATION_REGISTRATION`].
pub const REGISTERS_ITSELF: &str = "Self";

/// The most servers of a group, and so the end of its slots.
pub const SLOTS: u32 = 10_000;

/// Finalizer of a `GameServerGroup`: held until its pods have gone.
pub const GROUP_FINALIZER: &str = "gamekeeper.dev/servers-gone";

/// Finalizer of a `GameServer`: held until its pod has gone, so that Terminated can be seen.
pub const SERVER_FINALIZER: &str = "gamekeeper.dev/pod-gone";

/// The agent's container in a game's pod.
pub const AGENT_CONTAINER: &str = "gamekeeper-agent";

/// Where the agent listens for pokes, in its pod.
pub const POKE_PORT: u16 = 9355;

/// The name of that port in the agent's container: a pod without it is not poked.
pub const POKE_PORT_NAME: &str = "gamekeeper-poke";

/// What a poke asks for, with POST.
pub const POKE_PATH: &str = "/poke";

/// Where the agent tells the game of its server, on the pod's loopback alone.
pub const TELL_PORT: u16 = 9356;

/// The service account that a game's pod runs as, unless its template names one; also the name of
/// the `ClusterRole` and the `RoleBinding` that give it its few rights.
pub const GAME_ACCOUNT: &str = "gamekeeper-game";

/// What every environment variable that the operator gives to a game starts with.
pub const ENV_PREFIX: &str = "GAMEKEEPER_";

/// The virtual resource on which `create` is asked of whoever claims (a `SubjectAccessReview`).
pub const CLAIM_RESOURCE: &str = "gameserverclaims";

/// The operator's field manager, and the controller name in its events.
pub const OPERATOR: &str = "gamekeeper";
