//! Nodes that kwok answers for: their pods are objects, and run nothing.

use gamekeeper::api::GameServerGroup;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::World;
use super::world::silent_group;

impl World {
    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Makes a node for this world alone, and gives its name.
    pub(crate) async fn fake_node(&self, name: &str) -> String {
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
        self.nodes().create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
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
        let patch = Patch::Merge(json!({"status": {"nodeInfo": {
            "bootID": id, "machineID": "", "systemUUID": "", "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeletVersion": "fake", "kubeProxyVersion": "",
            "operatingSystem": "linux", "architecture": "amd64",
        }}}));
        self.nodes().patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Removes the nodes of this world.
    pub(super) async fn remove_nodes(&self) {
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
