//! Nodes that kwok answers for: their pods are objects, and run nothing.

use std::collections::BTreeMap;

use gamekeeper::api::names::LABEL_OWNER;
use gamekeeper::api::{CapacityPool, GameServerGroup};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::world::silent_group;
use super::{World, eventually};

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

impl World {
    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Makes a node for this world alone, and gives its name.
    pub(crate) async fn fake_node(&self, name: &str) -> String {
        self.labelled_node(name, &json!({})).await
    }

    /// Makes a node with these labels for this world alone, and gives its name.
    pub(crate) async fn labelled_node(&self, name: &str, labels: &Value) -> String {
        let name = format!("{}-{name}", self.namespace);
        let size = json!({"cpu": "64", "memory": "256Gi", "pods": "200"});
        let node = json!({
            "metadata": {
                "name": name,
                "labels": {"type": "kwok", "kubernetes.io/hostname": name, "world": self.namespace},
                "annotations": {"kwok.x-k8s.io/node": "fake"},
            },
            "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
            "status": {"capacity": size, "allocatable": size},
        });
        let mut node: Node = serde_json::from_value(node).unwrap();
        let labels: BTreeMap<String, String> = serde_json::from_value(labels.clone()).unwrap();
        node.metadata.labels.get_or_insert_default().extend(labels);
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
        name
    }

    /// Cordons a node, or takes that back, as `kubectl cordon` does.
    pub(crate) async fn cordon(&self, node: &str, cordoned: Value) {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
        self.nodes().patch(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Puts a taint on a node that its pods may not tolerate, beside that of fake nodes.
    pub(crate) async fn taint(&self, node: &str, key: &str) {
        let taints = json!([
            {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"},
            {"key": key, "effect": "NoSchedule"},
        ]);
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        self.nodes().patch(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Has a node started, as the kubelet of a machine would say.
    pub(crate) async fn boot(&self, node: &str, id: &str) {
        // What kwok says of a new node it says at once, and then no more.
        let look = || async { self.nodes().get_status(node).await.unwrap() };
        eventually("the node is ready", look, is_ready).await;
        let patch = Patch::Merge(json!({"status": {"nodeInfo": {
            "bootID": id, "machineID": "", "systemUUID": "", "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeletVersion": "fake", "kubeProxyVersion": "",
            "operatingSystem": "linux", "architecture": "amd64",
        }}}));
        self.nodes().patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Removes the nodes of this world, and its capacity pools.
    pub(super) async fn remove_nodes(&self) {
        let pools: Api<CapacityPool> = Api::all(self.client.clone());
        let of_operator = ListParams::default().labels(&format!("{LABEL_OWNER}={}", self.namespace));
        pools.delete_collection(&DeleteParams::default(), &of_operator).await.unwrap();
        let ours = ListParams::default().labels(&format!("world={}", self.namespace));
        self.nodes().delete_collection(&DeleteParams::default(), &ours).await.unwrap();
    }

    /// A group of silent servers on the fake nodes of this world.
    pub(crate) async fn group_on_fake_nodes(&self, name: &str, replicas: u32) -> GameServerGroup {
        self.apply(&self.on_fake_nodes(&silent_group(name, replicas))).await
    }

    /// The YAML of a group of silent servers, changed so that they are for the fake nodes of this world.
    pub(crate) fn on_fake_nodes(&self, yaml: &str) -> String {
        let pod = format!(
            "terminationGracePeriodSeconds: 1
              nodeSelector: {{world: {}}}
              tolerations: [{{key: kwok.x-k8s.io/node, operator: Exists}}]",
            self.namespace
        );
        yaml.replace("terminationGracePeriodSeconds: 1", &pod)
    }
}
