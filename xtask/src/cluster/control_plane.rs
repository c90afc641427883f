//! etcd, the API server, the controller manager and the scheduler.

use anyhow::Result;
use serde_json::json;

use super::component::{Component, Place};
use super::state::{Home, Kind, Plan};

/// The user that the operator is, to the API server.
pub(crate) const OPERATOR: &str = "system:serviceaccount:gamekeeper-system:gamekeeper";

/// etcd, keeping the cluster's objects.
pub(crate) fn etcd(home: &Home, plan: &Plan) -> Component {
    let [clients, peers] = plan.etcd.map(|address| format!("https://{address}"));
    let pki = |file: &str| home.path("pki").join(file);
    Component::new("etcd", plan.programs.etcd(), Place::Host)
        .flag("name", "default")
        .flag("data-dir", home.path("etcd"))
        .flag("listen-client-urls", &clients)
        .flag("advertise-client-urls", &clients)
        .flag("listen-peer-urls", &peers)
        .flag("initial-advertise-peer-urls", &peers)
        .flag("initial-cluster", format!("default={peers}"))
        .flag("client-cert-auth", "true")
        .flag("trusted-ca-file", pki("ca.crt"))
        .flag("cert-file", pki("etcd.crt"))
        .flag("key-file", pki("etcd.key"))
        .flag("peer-client-cert-auth", "true")
        .flag("peer-trusted-ca-file", pki("ca.crt"))
        .flag("peer-cert-file", pki("etcd.crt"))
        .flag("peer-key-file", pki("etcd.key"))
        // A cluster that loses its machine is made anew: it need not wait for the disk.
        .flag("unsafe-no-fsync", "true")
        .flag("log-level", "warn")
}

/// The API server, with every write, and all that the operator asks, in its audit log.
pub(crate) fn api_server(home: &Home, plan: &Plan) -> Result<Component> {
    let policy = home.write_json("audit-policy.json", &audit_policy())?;
    let pki = |file: &str| home.path("pki").join(file);
    let address = plan.api_server.ip().to_string();
    let component = Component::new("kube-apiserver", plan.programs.kubernetes("kube-apiserver"), Place::Host)
        .flag("bind-address", &address)
        .flag("advertise-address", &address)
        .flag("secure-port", plan.api_server.port().to_string())
        .flag("service-cluster-ip-range", plan.network.services())
        .flag("etcd-servers", format!("https://{}", plan.etcd[0]))
        .flag("etcd-cafile", pki("ca.crt"))
        .flag("etcd-certfile", pki("etcd.crt"))
        .flag("etcd-keyfile", pki("etcd.key"))
        .flag("client-ca-file", pki("ca.crt"))
        .flag("tls-cert-file", pki("apiserver.crt"))
        .flag("tls-private-key-file", pki("apiserver.key"))
        .flag("kubelet-client-certificate", pki("apiserver-to-kubelet.crt"))
        .flag("kubelet-client-key", pki("apiserver-to-kubelet.key"))
        .flag("kubelet-certificate-authority", pki("ca.crt"))
        // The node's name is in no DNS.
        .flag("kubelet-preferred-address-types", "InternalIP")
        .flag("service-account-issuer", "https://kubernetes.default.svc")
        .flag("service-account-key-file", pki("service-accounts.pub"))
        .flag("service-account-signing-key-file", pki("service-accounts.key"))
        .flag("authorization-mode", "Node,RBAC")
        .flag("enable-admission-plugins", "NodeRestriction")
        .flag("allow-privileged", "true")
        .flag("max-requests-inflight", "2000")
        .flag("max-mutating-requests-inflight", "1000")
        .flag("profiling", "false")
        .flag("audit-policy-file", policy)
        .flag("audit-log-path", home.audit_log())
        // Written at once, so that whoever got an answer finds it in the log.
        .flag("audit-log-mode", "blocking")
        // One file for the cluster's whole life: whoever reads it needs no second one.
        .flag("audit-log-maxsize", "0");
    Ok(match plan.kind {
        Kind::WithNode => component.flag("endpoint-reconciler-type", "lease"),
        // An address of the loopback is not allowed as an endpoint.
        Kind::ControlPlane => component.flag("endpoint-reconciler-type", "none"),
    })
}

/// The controllers of Kubernetes itself.
pub(crate) fn controller_manager(home: &Home, plan: &Plan) -> Component {
    Component::new(
        "kube-controller-manager",
        plan.programs.kubernetes("kube-controller-manager"),
        Place::Host,
    )
    .flag("kubeconfig", home.path("kubeconfigs/controller-manager"))
    .flag("root-ca-file", home.path("pki/ca.crt"))
    .flag("service-account-private-key-file", home.path("pki/service-accounts.key"))
    .flag("use-service-account-credentials", "true")
    .flag("concurrent-gc-syncs", "50")
    .flag("concurrent-namespace-syncs", "50")
    .flag("kube-api-qps", "200")
    .flag("kube-api-burst", "400")
    .flag("leader-elect", "false")
    .flag("profiling", "false")
    .flag("secure-port", "0")
}

/// The scheduler of Kubernetes.
pub(crate) fn scheduler(home: &Home, plan: &Plan) -> Result<Component> {
    let config = home.write_json(
        "scheduler.json",
        &json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": home.path("kubeconfigs/scheduler"),
                "qps": 200,
                "burst": 400,
            },
            "leaderElection": {"leaderElect": false},
        }),
    )?;
    Ok(Component::new("kube-scheduler", plan.programs.kubernetes("kube-scheduler"), Place::Host)
        .flag("config", config)
        .flag("secure-port", "0"))
}

/// Who wrote what, and when. Patches of game servers with their bodies, by which the benches tell a change of state
/// from a count of players. Reads are left out, but for the operator's where the chart put it.
fn audit_policy() -> serde_json::Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {
                "level": "Request",
                "verbs": ["patch"],
                "resources": [{"group": "gamekeeper.dev", "resources": ["gameservers", "gameservers/status"]}],
            },
            {
                "level": "Metadata",
                "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            },
            {"level": "Metadata", "users": [OPERATOR]},
            {"level": "None"},
        ],
    })
}
