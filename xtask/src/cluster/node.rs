//! The programs of the node: containerd, kubelet and kube-proxy, and their configuration.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::component::{Component, Place};
use super::state::{Home, Plan};
use super::{NODE_NAME, cgroups, pause_image};
use crate::host;

/// Where containerd listens, in the node's own /run.
pub(crate) const CONTAINERD: &str = "/run/containerd/containerd.sock";

/// The container runtime, with everything it keeps inside the cluster's folder.
pub(crate) fn containerd(home: &Home, plan: &Plan) -> Result<Component> {
    home.write_json("node/cni/10-gamekeeper.conflist", &cni(plan))?;
    let config = home.write("node/containerd.toml", containerd_config(home)?)?;
    Ok(Component::new("containerd", "containerd".into(), Place::Node).flag("config", config))
}

/// The agent that runs the node's pods.
pub(crate) fn kubelet(home: &Home, plan: &Plan) -> Result<Component> {
    // Nobody answers for names here: the node refuses at once, so that a lookup fails without delay.
    home.write("node/resolv.conf", format!("nameserver {}\n", plan.network.node()))?;
    let config = home.write_json("node/kubelet.json", &kubelet_config(home, plan))?;
    Ok(Component::new("kubelet", plan.programs.kubernetes("kubelet"), Place::Node)
        .flag("config", config)
        .flag("kubeconfig", home.path("kubeconfigs/kubelet"))
        .flag("hostname-override", NODE_NAME)
        .flag("node-ip", plan.network.node().to_string())
        .flag("node-labels", "topology.kubernetes.io/zone=zone-a,node.kubernetes.io/instance-type=embedded"))
}

/// What makes services reachable.
pub(crate) fn kube_proxy(home: &Home, plan: &Plan) -> Result<Component> {
    let config = home.write_json("node/kube-proxy.json", &kube_proxy_config(home, plan))?;
    Ok(Component::new("kube-proxy", plan.programs.kubernetes("kube-proxy"), Place::Node)
        .flag("config", config))
}

/// The plugin `ptp` routes every packet through the node, so that services work between pods
/// without the kernel's `br_netfilter`, which a `bridge` needs.
fn cni(plan: &Plan) -> serde_json::Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "gamekeeper",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": plan.network.pods()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni",
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn containerd_config(home: &Home) -> Result<String> {
    let root = quoted(&home.path("node/containerd"));
    let conf_dir = quoted(&home.path("node/cni"));
    let bin_dir = quoted(&host::cni_plugins()?);
    let pause = pause_image::NAME;
    // `opt` would create /opt/containerd. A container must not ask for a lower OOM score than its
    // parent's where the machine lacks CAP_SYS_RESOURCE: every sandbox would fail.
    Ok(format!(
        r#"version = 2
root = {root}
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
address = "{CONTAINERD}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {bin_dir}
conf_dir = {conf_dir}

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"#
    ))
}

/// A path as a TOML string, whose escapes are those of JSON.
fn quoted(path: &Path) -> String {
    json!(path).to_string()
}

fn kubelet_config(home: &Home, plan: &Plan) -> serde_json::Value {
    let node = plan.network.node();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": home.path("pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": home.path("pki/kubelet.crt"),
        "tlsPrivateKeyFile": home.path("pki/kubelet.key"),
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups::root(plan),
        // The machine may still have the older control groups, and it is shared: nothing of it is
        // set aside for pods.
        "failCgroupV1": false,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        // Not every machine lets a kubelet measure its root file system. Without, nothing is evicted
        // for the disk's sake, and a pod cannot ask for ephemeral storage on the node.
        "localStorageCapacityIsolation": false,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false,
        "clusterDNS": [node],
        "clusterDomain": "cluster.local",
        "resolvConf": home.path("node/resolv.conf"),
        "maxPods": 200,
        "serializeImagePulls": false,
        "registryPullQPS": 0,
        "eventRecordQPS": 50,
        "eventBurst": 100,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        // Images cannot be pulled again, and a disk that others have filled evicts no game.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
    })
}

fn kube_proxy_config(home: &Home, plan: &Plan) -> serde_json::Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": home.path("kubeconfigs/kube-proxy")},
        "hostnameOverride": NODE_NAME,
        "bindAddress": plan.network.node(),
        "healthzBindAddress": "127.0.0.1:10256",
        // The host reaches services too: its packets are from outside this range, and come back
        // by way of the node.
        "clusterCIDR": plan.network.pods(),
        "oomScoreAdj": 0,
        // The table of connections belongs to the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0},
    })
}
