//! Row F8: how a pod is bound to its pool, in the labels of the cluster's provider.

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration,
};

use super::capacity::{INSTANCE_TYPE, ZONE};
use super::pool::Pool;
use crate::api::CapacityType;

/// Whose labels tell spot capacity from other.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum CapacityLabels {
    /// `karpenter.sh/capacity-type`.
    #[default]
    Karpenter,
    /// `eks.amazonaws.com/capacityType`, of EKS' managed node groups.
    Eks,
    /// `cloud.google.com/gke-spot`.
    Gke,
    /// `kubernetes.azure.com/scalesetpriority`.
    Aks,
}

impl CapacityLabels {
    fn key(self) -> &'static str {
        match self {
            Self::Karpenter => "karpenter.sh/capacity-type",
            Self::Eks => "eks.amazonaws.com/capacityType",
            Self::Gke => "cloud.google.com/gke-spot",
            Self::Aks => "kubernetes.azure.com/scalesetpriority",
        }
    }

    /// The values of the label for such capacity; none where it is told by the label's absence.
    fn values(self, capacity_type: CapacityType) -> &'static [&'static str] {
        match (self, capacity_type) {
            (Self::Karpenter | Self::Aks, CapacityType::Spot) => &["spot"],
            (Self::Karpenter, CapacityType::OnDemand) => &["on-demand", "reserved"],
            (Self::Eks, CapacityType::Spot) => &["SPOT"],
            (Self::Eks, CapacityType::OnDemand) => &["ON_DEMAND"],
            (Self::Gke, CapacityType::Spot) => &["true"],
            (Self::Gke | Self::Aks, CapacityType::OnDemand) => &[],
        }
    }

    /// What lets a pod onto the provider's spot nodes: GKE's and AKS' bear a taint.
    fn toleration(self, capacity_type: CapacityType) -> Option<Toleration> {
        let tainted = capacity_type == CapacityType::Spot && matches!(self, Self::Gke | Self::Aks);
        tainted.then(|| Toleration {
            key: Some(self.key().to_owned()),
            operator: Some("Equal".to_owned()),
            value: self.values(capacity_type).first().map(ToString::to_string),
            effect: Some("NoSchedule".to_owned()),
            toleration_seconds: None,
        })
    }
}

/// Binds a pod to the nodes of `pool`, beside what its template says.
pub fn bind(pod: &mut PodSpec, pool: &Pool, labels: CapacityLabels) {
    let mut expressions = vec![one_of(INSTANCE_TYPE, &[&pool.instance_type])];
    if !pool.zone.is_empty() {
        expressions.push(one_of(ZONE, &[&pool.zone]));
    }
    expressions.push(one_of(labels.key(), labels.values(pool.capacity_type)));
    let affinity = pod.affinity.get_or_insert_with(Affinity::default).node_affinity.get_or_insert_default();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(NodeSelector::default);
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    // A node is to fit one of the terms: each gets ours too.
    for term in &mut required.node_selector_terms {
        term.match_expressions.get_or_insert_default().extend(expressions.iter().cloned());
    }
    pod.tolerations.get_or_insert_default().extend(labels.toleration(pool.capacity_type));
}

fn one_of(key: &str, values: &[&str]) -> NodeSelectorRequirement {
    let operator = if values.is_empty() { "DoesNotExist" } else { "In" };
    let values = (!values.is_empty()).then(|| values.iter().map(ToString::to_string).collect());
    NodeSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures;
    use serde_json::json;

    fn bound(pod: serde_json::Value, pool: &Pool, labels: CapacityLabels) -> serde_json::Value {
        let mut pod: PodSpec = serde_json::from_value(pod).unwrap();
        bind(&mut pod, pool, labels);
        serde_json::to_value(pod).unwrap()
    }

    #[test]
    fn a_pod_goes_to_the_nodes_of_its_pool_alone() {
        let pod =
            bound(json!({"containers": []}), &fixtures::pool("c7g.large", "z1"), CapacityLabels::Karpenter);
        let terms = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let ours = json!([
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["c7g.large"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1"]},
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
        ]);
        assert_eq!(pod.pointer(terms).unwrap(), &json!([{"matchExpressions": ours}]));
        assert_eq!(pod["tolerations"], json!([]));
    }

    #[test]
    fn what_the_template_asks_for_holds_as_well() {
        let own = json!({"key": "disk", "operator": "Exists"});
        let template = json!({"containers": [], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [own]}, {"matchFields": []}],
            },
        }}});
        let pod = bound(template, &fixtures::pool("a", ""), CapacityLabels::Gke);
        let terms = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let terms = pod.pointer(terms).unwrap().as_array().unwrap();
        assert_eq!(terms[0]["matchExpressions"].as_array().unwrap().len(), 3);
        assert_eq!(terms[0]["matchExpressions"][0], own);
        assert_eq!(terms[1]["matchExpressions"].as_array().unwrap().len(), 2);
        assert_eq!(pod["tolerations"][0]["key"], "cloud.google.com/gke-spot");
    }

    #[test]
    fn on_demand_is_told_by_the_absence_of_a_label_where_its_provider_does_so() {
        let mut pool = fixtures::pool("a", "");
        pool.capacity_type = CapacityType::OnDemand;
        let pod = bound(json!({"containers": []}), &pool, CapacityLabels::Aks);
        let text = pod.to_string();
        assert!(text.contains(r#""operator":"DoesNotExist""#), "{text}");
        assert_eq!(pod["tolerations"], json!([]));
    }
}
