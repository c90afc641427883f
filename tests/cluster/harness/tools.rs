//! What a test learns of the operator from outside: its lease, the audit log, kubectl and helm.

use std::path::Path;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::wait::eventually;
use super::world::{LEASE, World, setting};

/// The chart.
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/gamekeeper");

/// Runs helm in the operator's namespace, and returns what it prints.
async fn helm(arguments: &[&str]) -> String {
    let output = tokio::process::Command::new(setting("GAMEKEEPER_TEST_HELM"))
        .args(["--kubeconfig", &setting("GAMEKEEPER_TEST_KUBECONFIG"), "--namespace", "gamekeeper-system"])
        .args(arguments)
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "helm {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

impl World {
    // The lease.

    fn lease_api(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits until the leader has renewed its lease: some ten seconds in which it could have done something.
    pub(crate) async fn lease_renewed(&self) {
        let renewed = || async {
            let lease = self.lease_api().get_opt(LEASE).await.unwrap();
            lease.and_then(|lease| lease.spec?.renew_time)
        };
        let before = renewed().await;
        eventually("the lease is renewed", renewed, |now| now.is_some() && *now != before).await;
    }

    /// Makes somebody hold the lease for an hour.
    pub(crate) async fn take_lease(&self, holder: &str) {
        let spec = json!({
            "holderIdentity": holder, "leaseDurationSeconds": 3600,
            "renewTime": MicroTime(Timestamp::now()), "acquireTime": MicroTime(Timestamp::now()),
        });
        let patch = Patch::Merge(json!({"spec": spec}));
        self.lease_api().patch(LEASE, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Makes the lease nobody's.
    pub(crate) async fn give_back_lease(&self) {
        self.lease_api().delete(LEASE, &DeleteParams::default()).await.unwrap();
    }

    // The audit log.

    /// All writes of this world's operators so far, in order.
    pub(crate) fn audited_writes(&self) -> Vec<Value> {
        let user = format!("system:serviceaccount:{}:operator", self.namespace);
        let log = std::fs::read_to_string(setting("GAMEKEEPER_TEST_AUDIT_LOG")).unwrap();
        // The last line may be under way.
        let writes = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        writes.filter(|write| write["user"]["username"] == user).collect()
    }

    /// The writes of this kind.
    pub(crate) fn audited(&self, verb: &str, resource: &str) -> Vec<Value> {
        let mut writes = self.audited_writes();
        writes.retain(|write| write["verb"] == verb && write["objectRef"]["resource"] == resource);
        writes
    }

    // kubectl.

    /// Runs kubectl in this namespace, and returns what it prints.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> String {
        let output = tokio::process::Command::new(setting("GAMEKEEPER_TEST_KUBECTL"))
            .args(["--kubeconfig", &setting("GAMEKEEPER_TEST_KUBECONFIG"), "--namespace", &self.namespace])
            .args(arguments)
            .output()
            .await
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether `kubectl auth can-i` says yes.
    pub(crate) async fn can_i(&self, question: &[&str]) -> bool {
        let output = tokio::process::Command::new(setting("GAMEKEEPER_TEST_KUBECTL"))
            .args(["--kubeconfig", &setting("GAMEKEEPER_TEST_KUBECONFIG"), "--namespace", &self.namespace])
            .args(["auth", "can-i"])
            .args(question)
            .output()
            .await
            .unwrap();
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(matches!(answer.trim(), "yes" | "no"), "{question:?}: {answer}");
        answer.trim() == "yes"
    }

    /// Upgrades the operator that Helm installed, and waits until the new one is there.
    pub(crate) async fn helm_upgrade(&self, options: &[&str]) {
        helm(&[&["upgrade", "gamekeeper", CHART, "--reuse-values", "--wait"], options].concat()).await;
    }

    /// Takes away the operator that Helm installed, and returns the values that it was installed with.
    pub(crate) async fn helm_uninstall(&self) -> String {
        let values = helm(&["get", "values", "gamekeeper", "--output", "yaml"]).await;
        helm(&["uninstall", "gamekeeper", "--wait"]).await;
        values
    }

    /// Installs the operator with these values, and waits until it is there.
    pub(crate) async fn helm_install(&self, values: &str) {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.values", self.namespace));
        std::fs::write(&file, values).unwrap();
        let file = file.to_str().unwrap();
        helm(&["install", "gamekeeper", CHART, "--skip-crds", "--wait", "--values", file]).await;
    }

    /// Runs the first of the README's shell blocks that begins with these words, as a user of this cluster would.
    pub(crate) async fn as_the_readme_says(&self, beginning: &str) {
        let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
        let mut blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        let script = blocks.find(|block| block.starts_with(beginning)).unwrap();
        let kubectl = setting("GAMEKEEPER_TEST_KUBECTL");
        let folder = Path::new(&kubectl).parent().unwrap().display();
        let output = tokio::process::Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap()))
            .env("KUBECONFIG", setting("GAMEKEEPER_TEST_KUBECONFIG"))
            .output()
            .await
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {errors}");
    }

    /// Runs a command in a container of a pod, which may end by it before the command has.
    pub(crate) async fn exec(&self, pod: &str, container: &str, command: &[&str]) {
        let output = tokio::process::Command::new(setting("GAMEKEEPER_TEST_KUBECTL"))
            .args(["--kubeconfig", &setting("GAMEKEEPER_TEST_KUBECONFIG"), "--namespace", &self.namespace])
            .args(["exec", pod, "--container", container, "--"])
            .args(command)
            .output()
            .await
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let killed = errors.contains("exit code 137");
        assert!(output.status.success() || killed, "kubectl exec {command:?}: {errors}");
    }
}
