//! Nodes that kwok answers for: thousands of pods that cost no more than their objects.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::component::{Component, Place};
use super::kubectl::kubectl;
use super::state::{Home, Plan};
use crate::command::output;

/// How many fake nodes there shall be, and what they claim to be.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FakeNodes {
    /// How many fake nodes of this instance and capacity type the cluster shall have
    #[arg(long = "fake-nodes", value_name = "N", default_value_t = 0)]
    pub(crate) count: u32,
    /// Labels of the fake nodes, as key=value
    #[arg(long = "fake-node-labels", value_name = "LABELS", value_delimiter = ',', value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Instance type of the fake nodes
    #[arg(long = "fake-instance-type", value_name = "TYPE", default_value = "fake")]
    pub(crate) instance_type: String,
    /// Zones that the fake nodes are spread over, in turn
    #[arg(long = "fake-zones", value_name = "ZONES", value_delimiter = ',', default_value = "zone-a")]
    pub(crate) zones: Vec<String>,
    /// Capacity type of the fake nodes
    #[arg(long = "fake-capacity-type", value_name = "TYPE", default_value = "on-demand")]
    pub(crate) capacity_type: String,
}

/// kwok, which looks after the nodes with the annotation that [`FakeNodes`] sets.
pub(crate) fn kwok(home: &Home, plan: &Plan) -> Component {
    Component::new("kwok", plan.programs.kwok(), Place::Host)
        .flag("kubeconfig", home.path("kubeconfigs/kwok"))
        .flag("config", plan.programs.kwok_stages())
        .flag("manage-nodes-with-annotation-selector", format!("{MANAGED}=fake"))
        .flag("node-lease-duration-seconds", "40")
        .flag("cidr", plan.network.fake_pods())
}

const MANAGED: &str = "kwok.x-k8s.io/node";

impl FakeNodes {
    /// Creates those that the cluster does not have yet.
    pub(crate) fn ensure(&self, home: &Home, plan: &Plan) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        if self.zones.is_empty() {
            bail!("fake nodes need a zone to be in; name at least one with --fake-zones");
        }
        let present =
            output(kubectl(home, plan).args(["get", "nodes", "--output=jsonpath={.items[*].metadata.name}"]))
                .context("cannot list the nodes of the cluster")?;
        let present: BTreeSet<&str> = present.split_whitespace().collect();
        let missing: Vec<Value> = (0..self.count)
            .zip(self.zones.iter().cycle())
            .map(|(number, zone)| (self.name(number), zone))
            .filter(|(name, _)| !present.contains(name.as_str()))
            .map(|(name, zone)| self.node(&name, zone))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let list = home
            .write_json("fake-nodes.json", &json!({"apiVersion": "v1", "kind": "List", "items": missing}))?;
        output(kubectl(home, plan).args(["create", "--filename"]).arg(list))
            .context("cannot create the fake nodes")
            .map(drop)
    }

    /// Whether every one of them is Ready; kwok writes the phase together with that condition.
    pub(crate) fn are_ready(&self, home: &Home, plan: &Plan) -> bool {
        if self.count == 0 {
            return true;
        }
        let ready = output(kubectl(home, plan).args([
            "get",
            "nodes",
            "--selector=type=kwok",
            "--output=jsonpath={range .items[?(@.status.phase==\"Running\")]}{.metadata.name}{\"\\n\"}{end}",
        ]))
        .unwrap_or_default();
        let ready: BTreeSet<&str> = ready.lines().collect();
        (0..self.count).all(|number| ready.contains(self.name(number).as_str()))
    }

    /// The name of one of them: `fake-spot-0`, unless it is of another type.
    pub(crate) fn name(&self, number: u32) -> String {
        format!("{}-{}-{number}", self.instance_type, self.capacity_type)
    }

    fn node(&self, name: &str, zone: &str) -> Value {
        let mut labels = json!({
            "type": "kwok",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": self.instance_type,
            "topology.kubernetes.io/zone": zone,
            "karpenter.sh/capacity-type": self.capacity_type,
        });
        if let Some(labels) = labels.as_object_mut() {
            labels.extend(self.labels.iter().map(|(key, value)| (key.clone(), json!(value))));
        }
        let size = json!({"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "200"});
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels, "annotations": {MANAGED: "fake"}},
            // Ordinary pods are to run, and stay off.
            "spec": {"taints": [{"key": MANAGED, "value": "fake", "effect": "NoSchedule"}]},
            "status": {"capacity": size, "allocatable": size},
        })
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("`{text}` is no label: write it as key=value"))
}
