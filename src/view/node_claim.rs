//! Karpenter's `NodeClaim`, as far as it says which pool a node is asked of, and that it cannot be had.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use crate::api::{Capacity, Evidence};
use crate::rules::{capacity, evidence};

/// What a `NodeClaim` asks for.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodeClaim",
    plural = "nodeclaims",
    schema = "disabled",
    status = "NodeClaimStatus"
)]
pub(super) struct NodeClaimSpec {
    #[serde(default)]
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

/// What has come of it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct NodeClaimStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

impl NodeClaim {
    /// The capacity that it asks for: what a pod made for one pool leaves it no choice of, and its labels once it has it.
    pub(super) fn capacity(&self) -> Capacity {
        let one = |requirement: &&Requirement| requirement.operator == "In" && requirement.values.len() == 1;
        let asked = self.spec.requirements.iter().filter(one);
        let asked = asked.flat_map(|one| one.values.iter().map(|value| (one.key.clone(), value.clone())));
        let mut labels: BTreeMap<String, String> = asked.collect();
        labels.extend(self.metadata.labels.clone().unwrap_or_default());
        capacity::of(&labels)
    }

    /// Why its node cannot be had, if it says so itself.
    pub(super) fn trouble(&self, now: Timestamp) -> Option<Evidence> {
        let name = self.metadata.name.as_deref()?;
        let conditions = self.status.as_ref()?.conditions.iter();
        let mut launched =
            conditions.filter(|condition| condition.type_ == "Launched" && condition.status != "True");
        let condition = launched.next()?;
        // A time to come would not fade.
        let at = condition.last_transition_time.0.min(now);
        evidence::of_node_claim(name, &condition.reason, &condition.message, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::CapacityType;
    use serde_json::json;

    fn claim(reason: &str) -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "games-x7k2p"},
            "spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "games"},
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["c7g.large"]},
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1", "z2"]},
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
                    {"key": "karpenter.sh/nodepool", "operator": "Exists"},
                ],
            },
            "status": {"conditions": [{
                "type": "Launched", "status": "Unknown", "reason": reason, "message": "not now",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_says_its_pool_before_it_has_a_node() {
        let capacity = claim("LaunchFailed").capacity();
        assert_eq!(capacity.instance_type.as_deref(), Some("c7g.large"));
        assert_eq!((capacity.capacity_type, capacity.zone), (Some(CapacityType::Spot), None));
    }

    #[test]
    fn a_claim_says_that_it_cannot_be_had() {
        let now = Timestamp::now();
        assert_eq!(claim("SpotQuotaExceeded").trouble(now).unwrap().of, "node claim games-x7k2p");
        assert_eq!(claim("AwaitingReconciliation").trouble(now), None);
    }
}
