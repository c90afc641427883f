//! Nodes that are interrupted: their sign, and their end.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::ground::PoolNode;
use super::sight::version;
use crate::bench::stage::NAMESPACE;

/// The taint of the AWS node termination handler.
const SIGN: &str = "aws-node-termination-handler/spot-itn";
/// What keeps ordinary pods off fake nodes.
const FAKE: &str = "kwok.x-k8s.io/node";

/// A notice that a node has been given.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    pub(super) node: String,
    pub(super) pool: u32,
    /// When the API server's answer was here.
    pub(super) at: Timestamp,
    /// Where it stands in the order of all writes of the cluster.
    pub(super) version: u64,
}

/// Nodes that have their notice, and what takes them away.
pub(super) struct Loss {
    pub(super) notices: Vec<Notice>,
    ends: JoinSet<Result<()>>,
}

/// Gives these nodes their notice, evenly over this time, and lets each go with its pods so long after it.
pub(super) async fn lose(
    client: &Client,
    nodes: Vec<PoolNode>,
    over: Duration,
    notice: Duration,
) -> Result<Loss> {
    let begun = Instant::now();
    let each = over.checked_div(u32::try_from(nodes.len())?).unwrap_or_default();
    let given = (0..).zip(nodes).map(async |(number, node): (u32, PoolNode)| {
        sleep_until(begun + each * number).await;
        interrupt(client, node).await
    });
    let mut given: FuturesUnordered<_> = given.collect();
    let (mut notices, mut ends) = (Vec::new(), JoinSet::new());
    while let Some(given) = given.next().await {
        let given: Notice = given?;
        let (client, node) = (client.clone(), given.node.clone());
        ends.spawn(async move {
            sleep(notice).await;
            remove(&client, &node).await
        });
        notices.push(given);
    }
    Ok(Loss { notices, ends })
}

impl Loss {
    /// Waits until all nodes have gone.
    pub(super) async fn complete(self) -> Result<()> {
        self.ends.join_all().await.into_iter().collect()
    }
}

/// As the handler puts it there: its value is the handler's id of the event, which it cuts to what a value may have.
async fn interrupt(client: &Client, node: PoolNode) -> Result<Notice> {
    let nodes: Api<Node> = Api::all(client.clone());
    let event: String = format!("spot-itn-event-{}", node.name).chars().take(63).collect();
    let taints = json!([
        {"key": FAKE, "value": "fake", "effect": "NoSchedule"},
        {"key": SIGN, "value": event, "effect": "NoSchedule"},
    ]);
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    let tainted = nodes.patch(&node.name, &PatchParams::default(), &patch).await;
    let tainted = tainted.with_context(|| format!("cannot give {} its notice", node.name))?;
    Ok(Notice { node: node.name, pool: node.pool, at: Timestamp::now(), version: version(&tainted)? })
}

/// As the cloud's node controller and the collector of pods without a node do.
async fn remove(client: &Client, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.delete(node, &DeleteParams::default()).await.with_context(|| format!("cannot delete {node}"))?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let there =
        pods.list_metadata(&there).await.with_context(|| format!("cannot list the pods of {node}"))?;
    let at_once = DeleteParams::default().grace_period(0);
    let ends = there.items.iter().map(async |pod| match pods.delete(&pod.name_any(), &at_once).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        ended => ended.map(drop).with_context(|| format!("cannot delete the pod {}", pod.name_any())),
    });
    join_all(ends).await.into_iter().collect()
}
