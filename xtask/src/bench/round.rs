//! One launch, from the request to the last joinable server, and everything gone again after it.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gamekeeper::api::{DeletionPolicy, GameServer, GameServerGroup};
use gamekeeper::rules::hold::Launch;
use gamekeeper::rules::place::CapacityLabels;
use gamekeeper::rules::pod;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::cpu;
use super::stage::NAMESPACE;
use crate::demo::Ground;
use crate::install::{NAMESPACE as OPERATORS, SELECTOR};
use crate::openarena;
use crate::roster::{Entries, Entry, Host, Roster};
use crate::workspace::Workspace;

const NAME: &str = "arena";

/// How long a launch, or its removal, may take.
const PATIENCE: Duration = Duration::from_mins(5);
/// How long the cluster rests between rounds, for what kubelet and containerd clean up behind a pod that is gone.
const REST: Duration = Duration::from_secs(5);

/// What was measured.
#[derive(Debug)]
pub(super) struct Round {
    first: Duration,
    pub(super) last: Duration,
    pub(super) operator_cpu_seconds: Option<f64>,
}

impl fmt::Display for Round {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] = [self.first, self.last].map(|time| time.as_secs_f64());
        write!(formatter, "first {first:6.3} s, last {last:6.3} s")?;
        match self.operator_cpu_seconds {
            Some(seconds) => write!(formatter, ", operator {seconds:.2} s of CPU"),
            None => Ok(()),
        }
    }
}

/// The cluster and what is launched on it.
pub(super) struct Bench {
    client: Client,
    group: GameServerGroup,
    deployment: Deployment,
    /// The UIDs of the operator's pods, where these run on this machine.
    operators: Vec<String>,
}

impl Bench {
    pub(super) async fn new(workspace: &Workspace, ground: &Ground, servers: i32) -> Result<Self> {
        let client = ground.access.client().await?;
        openarena::ensure_namespace(&client, NAMESPACE).await?;
        let mut group = openarena::group(workspace, NAME, servers, &ground.images.openarena)?;
        openarena::use_pod_addresses(&mut group);
        group.spec.deletion_policy = DeletionPolicy::Force;
        let operators = match ground.cluster {
            Some(_) => operators(&client).await?,
            None => Vec::new(),
        };
        let deployment = deployment_of(&group, &ground.images.operator)?;
        let bench = Self { client, group, deployment, operators };
        bench.no_pods().await?;
        Ok(bench)
    }

    /// A launch of the Deployment.
    pub(super) async fn deployment(&self) -> Result<Round> {
        let api: Api<Deployment> = self.api();
        let roster = Roster::<Pod>::start(self.api(), watcher::Config::default());
        let begun = Instant::now();
        api.create(&PostParams::default(), &self.deployment).await.context("cannot create the deployment")?;
        let round = self.joined(roster, begun, "launching the deployment").await?;
        api.delete(NAME, &DeleteParams::foreground()).await.context("cannot delete the deployment")?;
        self.no_pods().await?;
        Ok(round)
    }

    /// A launch of the group.
    pub(super) async fn group(&self) -> Result<Round> {
        let api: Api<GameServerGroup> = self.api();
        let roster = Roster::<GameServer>::start(self.api(), watcher::Config::default());
        let cpu = cpu::seconds(&self.operators)?;
        let begun = Instant::now();
        api.create(&PostParams::default(), &self.group).await.context("cannot create the group")?;
        let mut round = self.joined(roster, begun, "launching the group").await?;
        round.operator_cpu_seconds =
            cpu::seconds(&self.operators)?.zip(cpu).map(|(after, before)| after - before);
        api.delete(NAME, &DeleteParams::default()).await.context("cannot delete the group")?;
        self.no_pods().await?;
        Ok(round)
    }

    /// Removes the namespace.
    pub(super) async fn end(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let params = DeleteParams::default();
        namespaces.delete(NAMESPACE, &params).await.context("cannot delete the namespace")?;
        Ok(())
    }

    async fn joined<K: Host + 'static>(
        &self,
        mut roster: Roster<K>,
        begun: Instant,
        title: &str,
    ) -> Result<Round> {
        let servers = usize::try_from(self.group.spec.replicas).unwrap_or_default();
        let look = |entries: &Entries<K>| {
            let joinable: Vec<Instant> = entries.values().filter_map(Entry::joinable).collect();
            match (joinable.iter().min(), joinable.iter().max()) {
                (Some(first), Some(last)) if joinable.len() == servers => Ok((*first, *last)),
                _ => Err(format!("{} of {servers} can be joined", joinable.len())),
            }
        };
        let (first, last) = roster.until(title, PATIENCE, look).await?;
        Ok(Round { first: first - begun, last: last - begun, operator_cpu_seconds: None })
    }

    /// Waits until nothing of a launch is left.
    async fn no_pods(&self) -> Result<()> {
        let (pods, groups): (Api<Pod>, Api<GameServerGroup>) = (self.api(), self.api());
        let start = Instant::now();
        loop {
            let left = pods.list_metadata(&ListParams::default()).await?.items.len()
                + groups.list_metadata(&ListParams::default()).await?.items.len();
            if left == 0 {
                sleep(REST).await;
                return Ok(());
            }
            anyhow::ensure!(
                start.elapsed() < PATIENCE,
                "{left} pods and groups in {NAMESPACE} are not gone after {} s; see `kubectl -n {NAMESPACE} get pods,gsg`",
                PATIENCE.as_secs()
            );
            sleep(Duration::from_millis(500)).await;
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}

/// The Deployment of the pods that the operator would make for the group.
fn deployment_of(group: &GameServerGroup, agent_image: &str) -> Result<Deployment> {
    let launch = Launch { slot: 0, name: NAME.to_owned(), after: None, pool: None };
    let mut spec = pod::build(group, &launch, &[], agent_image, CapacityLabels::default())
        .spec
        .context("the pod has no spec")?;
    spec.restart_policy = Some("Always".to_owned());
    spec.service_account_name = Some("default".to_owned());
    let labels = json!({"app": NAME});
    serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "spec": {
            "replicas": group.spec.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }))
    .context("cannot make a deployment of the group's pods")
}

async fn operators(client: &Client) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATORS);
    let found = pods.list(&ListParams::default().labels(SELECTOR)).await;
    let found = found.context("cannot list the operator's pods")?;
    Ok(found.iter().filter_map(ResourceExt::uid).collect())
}
