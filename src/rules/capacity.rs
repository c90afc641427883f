//! What a node's labels say of the capacity that it is: its instance type, how it is paid for, and its zone, in the words of
//! each provider.

use std::collections::BTreeMap;

use crate::api::{Capacity, CapacityType};

pub(super) const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// What tells spot capacity from other, label by label. The values are compared without regard to case.
const SCHEMES: [(&str, &str, CapacityType); 13] = [
    ("karpenter.sh/capacity-type", "spot", CapacityType::Spot),
    ("karpenter.sh/capacity-type", "on-demand", CapacityType::OnDemand),
    ("karpenter.sh/capacity-type", "reserved", CapacityType::OnDemand),
    ("eks.amazonaws.com/capacityType", "SPOT", CapacityType::Spot),
    ("eks.amazonaws.com/capacityType", "ON_DEMAND", CapacityType::OnDemand),
    ("cloud.google.com/gke-spot", "true", CapacityType::Spot),
    ("cloud.google.com/gke-preemptible", "true", CapacityType::Spot),
    ("cloud.google.com/gke-provisioning", "spot", CapacityType::Spot),
    ("cloud.google.com/gke-provisioning", "preemptible", CapacityType::Spot),
    ("cloud.google.com/gke-provisioning", "standard", CapacityType::OnDemand),
    ("kubernetes.azure.com/scalesetpriority", "spot", CapacityType::Spot),
    ("kubernetes.azure.com/priority", "spot", CapacityType::Spot),
    ("kubernetes.azure.com/priority", "regular", CapacityType::OnDemand),
];

/// What the labels of a node say; nothing where they say nothing.
pub fn of(labels: &BTreeMap<String, String>) -> Capacity {
    let says = |(label, value, _): &&(&str, &str, CapacityType)| {
        labels.get(*label).is_some_and(|there| there.eq_ignore_ascii_case(value))
    };
    Capacity {
        instance_type: labels.get(INSTANCE_TYPE).cloned(),
        capacity_type: SCHEMES.iter().find(says).map(|(.., capacity_type)| *capacity_type),
        zone: labels.get(ZONE).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity_type(label: &str, value: &str) -> Option<CapacityType> {
        of(&BTreeMap::from([(label.to_owned(), value.to_owned())])).capacity_type
    }

    #[test]
    fn each_providers_words_for_spot_are_known() {
        for (label, value) in [
            ("karpenter.sh/capacity-type", "spot"),
            ("eks.amazonaws.com/capacityType", "SPOT"),
            ("cloud.google.com/gke-spot", "true"),
            ("cloud.google.com/gke-preemptible", "true"),
            ("cloud.google.com/gke-provisioning", "spot"),
            ("cloud.google.com/gke-provisioning", "preemptible"),
            ("kubernetes.azure.com/scalesetpriority", "spot"),
            ("kubernetes.azure.com/priority", "Spot"),
        ] {
            assert_eq!(capacity_type(label, value), Some(CapacityType::Spot), "{label}={value}");
        }
        for (label, value) in [
            ("karpenter.sh/capacity-type", "reserved"),
            ("eks.amazonaws.com/capacityType", "ON_DEMAND"),
            ("cloud.google.com/gke-provisioning", "standard"),
            ("kubernetes.azure.com/priority", "regular"),
        ] {
            assert_eq!(capacity_type(label, value), Some(CapacityType::OnDemand), "{label}={value}");
        }
    }

    #[test]
    fn a_node_without_such_labels_says_nothing() {
        assert_eq!(of(&BTreeMap::new()), Capacity::default());
        assert_eq!(capacity_type("karpenter.sh/capacity-type", "other"), None);
    }
}
