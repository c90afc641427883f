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
    /// A pod that was made for it found no node within the launch timeout.
    Undelivered,
}
