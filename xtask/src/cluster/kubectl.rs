//! Asking the API server, by the command line of Kubernetes.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use super::state::{Home, Plan};
use crate::command::output;

/// kubectl as the cluster's administrator.
pub(crate) fn kubectl(home: &Home, plan: &Plan) -> Command {
    let mut command = Command::new(plan.programs.kubectl());
    command
        .arg("--kubeconfig")
        .arg(home.kubeconfig())
        // Not in the user's own folder, where it would outlive the cluster.
        .arg("--cache-dir")
        .arg(home.path("kubectl-cache"))
        .arg("--request-timeout=5s")
        // No proxy of the user's knows the way to a cluster on this machine.
        .env("NO_PROXY", "*");
    command
}

/// Whether the API server says that it is ready.
pub(crate) fn api_is_ready(home: &Home, plan: &Plan) -> bool {
    TcpStream::connect_timeout(&plan.api_server.into(), Duration::from_millis(200)).is_ok()
        && output(kubectl(home, plan).args(["get", "--raw", "/readyz"])).is_ok()
}
