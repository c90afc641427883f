//! When a cluster can be used.

use std::net::{SocketAddrV4, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::NODE_NAME;
use super::fake_nodes::FakeNodes;
use super::kubectl::{api_is_ready, kubectl};
use super::state::{Home, Kind, Plan};
use crate::command::{output, tail};

/// How long a cluster may take, on a slow machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// What a cluster waits for, in this order.
#[derive(Clone, Copy, Debug)]
enum Condition {
    ApiServer,
    DefaultServiceAccount,
    Node,
    KubernetesService,
}

impl Condition {
    fn all(kind: Kind) -> &'static [Self] {
        match kind {
            Kind::WithNode => {
                &[Self::ApiServer, Self::DefaultServiceAccount, Self::Node, Self::KubernetesService]
            }
            Kind::ControlPlane => &[Self::ApiServer, Self::DefaultServiceAccount],
        }
    }

    fn holds(self, home: &Home, plan: &Plan) -> bool {
        match self {
            Self::ApiServer => api_is_ready(home, plan),
            Self::DefaultServiceAccount => {
                output(kubectl(home, plan).args(["get", "serviceaccount", "default"])).is_ok()
            }
            Self::Node => output(kubectl(home, plan).args([
                "get",
                "node",
                NODE_NAME,
                "--output=jsonpath={.status.conditions[?(@.type==\"Ready\")].status}",
            ]))
            .is_ok_and(|status| status == "True"),
            Self::KubernetesService => {
                let service = SocketAddrV4::new(plan.network.kubernetes_service(), 443);
                TcpStream::connect_timeout(&service.into(), Duration::from_millis(500)).is_ok()
            }
        }
    }

    /// What it is called, and the component whose log tells why it does not hold.
    fn explain(self) -> (&'static str, &'static str) {
        match self {
            Self::ApiServer => ("the API server is ready", "kube-apiserver"),
            Self::DefaultServiceAccount => ("the default service account exists", "kube-controller-manager"),
            Self::Node => ("the node is Ready", "kubelet"),
            Self::KubernetesService => ("the service `kubernetes` answers", "kube-proxy"),
        }
    }
}

/// Waits until the cluster can be used; the error says what it lacks.
pub(crate) fn wait(home: &Home, plan: &Plan) -> Result<()> {
    let start = Instant::now();
    for condition in Condition::all(plan.kind) {
        let (what, component) = condition.explain();
        wait_for(home, start, what, component, || condition.holds(home, plan))?;
    }
    Ok(())
}

/// Waits until the fake nodes are Ready.
pub(crate) fn wait_for_fake_nodes(home: &Home, plan: &Plan, nodes: &FakeNodes) -> Result<()> {
    wait_for(home, Instant::now(), "all fake nodes are Ready", "kwok", || nodes.are_ready(home, plan))
}

fn wait_for(
    home: &Home,
    start: Instant,
    what: &str,
    component: &str,
    holds: impl Fn() -> bool,
) -> Result<()> {
    // The supervisor's first act is to write who it is; until then its absence means nothing.
    const FIRST_ACT: Duration = Duration::from_secs(5);
    while !holds() {
        if let Some(failure) = home.failure() {
            bail!(
                "{}; its log is {}, and ends:\n{}`cargo xtask cluster up` starts anew",
                failure.cause,
                failure.log.display(),
                tail(&failure.log)
            );
        }
        if start.elapsed() > FIRST_ACT && home.supervisor().is_none() {
            let log = home.log("supervisor");
            bail!(
                "the cluster's supervisor has ended; its log is {}, and ends:\n{}\
                 `cargo xtask cluster up` starts anew",
                log.display(),
                tail(&log)
            );
        }
        if start.elapsed() > PATIENCE {
            let log = home.log(component);
            bail!(
                "not so after {} s: {what}; the log of {component} is {}, and ends:\n{}\
                 `cargo xtask cluster down` ends the cluster",
                PATIENCE.as_secs(),
                log.display(),
                tail(&log)
            );
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
