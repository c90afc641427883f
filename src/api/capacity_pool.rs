//! `CapacityPool`: what is known of the nodes of one type, paid for in one way, in one zone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CapacityType;

/// A capacity pool: an instance type, how it is paid for, and a zone.
///
/// Made by the operator for what groups name in `spec.instanceDefinitions`, and collected by it. Whether it is fit for
/// games is told from evidence; `spec.override` wins.
#[derive(CustomResource, Clone, Debug, Deserialize, PartialEq, Serialize, KubeSchema)]
#[kube(
    group = "gamekeeper.dev",
    version = "v1alpha1",
    kind = "CapacityPool",
    plural = "capacitypools",
    shortname = "pool",
    category = "gamekeeper",
    derive = "PartialEq",
    status = "CapacityPoolStatus",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.instanceType"),
    printcolumn(name = "Capacity", type_ = "string", json_path = ".spec.capacityType"),
    printcolumn(name = "Zone", type_ = "string", json_path = ".spec.zone"),
    printcolumn(name = "Verdict", type_ = "string", json_path = ".status.verdict"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.since"),
    printcolumn(name = "Override", type_ = "string", json_path = ".spec.override", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct CapacityPoolSpec {
    /// The instance type, as its provider calls it. Cannot be changed.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("spec.instanceType cannot be changed: a pool is its type, capacity type and zone"))]
    pub instance_type: String,
    /// How it is paid for. Cannot be changed.
    #[x_kube(validation = Rule::new("self == oldSelf").message("spec.capacityType cannot be changed: a pool is its type, capacity type and zone"))]
    pub capacity_type: CapacityType,
    /// The zone; any if empty. Cannot be changed.
    #[serde(default)]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("spec.zone cannot be changed: a pool is its type, capacity type and zone"))]
    pub zone: String,
    /// What to hold the pool for, whatever the evidence says.
    #[serde(default, rename = "override")]
    pub over: Override,
    /// What a tool of yours knows of it: the operator reads this, and never writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
}

/// What is known of a pool outside the cluster.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// How many of 100 of its instances are interrupted in a month. It makes what speaks against the pool last longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub interruption_percent: Option<i32>,
    /// How likely a request for it succeeds, from 1 to 10, as Amazon's spot placement score. At 1 and 2 it is not viable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10))]
    pub placement_score: Option<i32>,
    /// What one of its nodes costs an hour, in whatever currency all pools have it: a decimal number. Read by groups with
    /// `spec.cheapestPools`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24), regex(pattern = r"^[0-9]{1,12}(\.[0-9]{1,10})?$"))]
    pub price_per_hour: Option<String>,
}

/// A word from outside on a pool.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Override {
    /// The evidence decides.
    #[default]
    Auto,
    /// It is fit for games.
    Viable,
    /// It is not.
    NotViable,
}

/// What is known of a pool. Written when something happens.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityPoolStatus {
    /// Whether it is fit for hosting games now.
    #[serde(default)]
    pub verdict: Viability,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<MicroTime>,
    /// Why, in words and numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// What speaks against it, as long as it counts; the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub evidence: Vec<Evidence>,
}

/// Whether a pool is fit for hosting games now.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum Viability {
    /// It is.
    #[default]
    Viable,
    /// It is again, and one server at a time is launched there until one is ready.
    Probing,
    /// Nothing is launched there, and what runs there drains.
    NotViable,
}

/// Something that speaks against a pool.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// What happened.
    pub kind: EvidenceKind,
    /// The node, or the server, that it happened to: it counts once.
    #[schemars(length(max = 512))]
    pub of: String,
    /// What was said.
    #[schemars(length(max = 512))]
    pub message: String,
    /// When it was seen.
    pub at: MicroTime,
}

/// What may speak against a pool.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum EvidenceKind {
    /// A node of it had its notice.
    Interrupted,
    /// A node of it went without one, with what ran there.
    Lost,
    /// A pod that was made for it found no node within the launch timeout, or the cluster's autoscaler could have none.
    Undelivered,
}
