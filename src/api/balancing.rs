//! What a group says of the capacity that it runs on, and what it shows of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Viability;

/// An instance type that a group's servers may run on.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceDefinition {
    /// As the nodes' label `node.kubernetes.io/instance-type` has it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$"))]
    pub instance_type: String,
    /// How many game servers a node of this type holds, beside others: servers are spread in proportion, so that
    /// nodes come out even.
    #[serde(default = "default_weighted_capacity")]
    #[schemars(range(min = 1, max = 999))]
    pub weighted_capacity: i32,
}

fn default_weighted_capacity() -> i32 {
    1
}

/// Whether a group's servers run on spot capacity (row F9).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum BalancingStrategy {
    /// On spot capacity; on demand only while none of it is viable.
    #[default]
    SpotPreferred,
    /// On spot capacity or not at all.
    SpotOnly,
    /// On demand only, without balancing.
    OnDemandOnly,
}

/// Whether balancing may end games (row F7).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum GameServerProtectionPolicy {
    /// A game is played to its end.
    #[default]
    FullProtection,
    /// It ends once its server's replacement is ready, with the pod's grace period.
    NoProtection,
}

/// Whether node autoscalers may end a server to tidy up.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Eviction {
    /// Never: its node stays as long as it does.
    #[default]
    Never,
    /// While nobody plays there and no claim holds it. Costs a write to its pod for each claim, and another for each that
    /// comes to nothing.
    WhenIdle,
}

/// What a group may leave undone for now (row F17).
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum SuspendedAction {
    /// To move servers off pools that are not viable, and to even them out. New ones avoid such pools all the same.
    ReplaceInstanceTypes,
}

/// A capacity pool, as a group uses it.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupPool {
    /// Type, capacity type and zone, as `c7g.large/spot/zone-a`.
    #[schemars(length(max = 160))]
    pub pool: String,
    /// Whether it is fit for games now: its `CapacityPool` says why.
    pub verdict: Viability,
    /// How many of the group's servers count there.
    pub servers: i32,
}
