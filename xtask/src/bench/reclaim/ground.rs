//! The pools that are lost, and the group that is spread over them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gamekeeper::api::GameServerGroup;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::bench::fleet::LONG_SECONDS;
use crate::bench::stage::NAMESPACE;
use crate::cluster::{Cluster, FakeNodes, PAUSE_IMAGE};

/// How many pools there are.
pub(super) const POOLS: u32 = 12;
/// How many of them are lost.
pub(super) const LOST: u32 = 10;
/// How many nodes each pool has: two pools can take all servers, and those that are made ahead.
const NODES: u32 = 4;
/// Where all of them are.
pub(super) const ZONE: &str = "zone-a";

/// How long the cluster may take for what nobody measures.
const PATIENCE: Duration = Duration::from_mins(3);

/// Twelve spot pools and the group on them, which have their names from the run that they are for.
pub(super) struct Ground {
    /// The run, and its group.
    pub(super) name: &'static str,
    client: Client,
}

/// A node of a pool.
#[derive(Clone, Debug)]
pub(super) struct PoolNode {
    pub(super) name: String,
    pub(super) pool: u32,
}

impl Ground {
    pub(super) fn new(client: &Client, name: &'static str) -> Self {
        Self { name, client: client.clone() }
    }

    /// The instance type of a pool.
    pub(super) fn instance_type(&self, pool: u32) -> String {
        format!("{}-{pool:02}", self.name)
    }

    fn fake(&self, pool: u32) -> FakeNodes {
        FakeNodes {
            count: NODES,
            labels: Vec::new(),
            instance_type: self.instance_type(pool),
            zones: vec![ZONE.to_owned()],
            capacity_type: "spot".to_owned(),
        }
    }

    /// The nodes that are lost, pool by pool.
    pub(super) fn doomed(&self) -> Vec<PoolNode> {
        let of_pool = |pool| {
            let nodes = self.fake(pool);
            (0..NODES).map(move |number| PoolNode { name: nodes.name(number), pool })
        };
        (0..LOST).flat_map(of_pool).collect()
    }

    /// Makes the nodes of all pools.
    pub(super) fn make(&self, cluster: &Cluster) -> Result<()> {
        (0..POOLS).try_for_each(|pool| cluster.ensure_fake_nodes(&self.fake(pool)))
    }

    /// Applies the group with so many servers.
    pub(super) async fn apply(&self, servers: u16) -> Result<GameServerGroup> {
        let params = PatchParams::apply("gamekeeper-bench").force();
        let group = Patch::Apply(self.group(servers));
        self.groups().patch(self.name, &params, &group).await.context("cannot apply the group")
    }

    /// A group whose pods no container runs for.
    fn group(&self, servers: u16) -> Value {
        let types = (0..POOLS).map(|pool| json!({"instanceType": self.instance_type(pool)}));
        json!({
            "apiVersion": "gamekeeper.dev/v1alpha1",
            "kind": "GameServerGroup",
            "metadata": {"name": self.name},
            "spec": {
                "replicas": servers,
                "instanceDefinitions": types.collect::<Vec<_>>(),
                "balancingStrategy": "SpotPreferred",
                "ports": [{"name": "game", "containerPort": 7777, "policy": "PodIP"}],
                "claim": {"timeoutSeconds": 60},
                "launchTimeoutSeconds": LONG_SECONDS,
                "deletionPolicy": "Force",
                "template": {"spec": {
                    "tolerations": [
                        {"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"},
                    ],
                    "containers": [{"name": "game", "image": PAUSE_IMAGE}],
                }},
            },
        })
    }

    /// Waits until the operator has made the account of the namespace's games.
    pub(super) async fn account(&self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        let name = gamekeeper::api::names::GAME_ACCOUNT;
        self.until("the games have an account", async || Ok(accounts.get_opt(name).await?.is_some())).await
    }

    /// Deletes the group, and waits until nothing of it is left.
    pub(super) async fn clear(&self) -> Result<()> {
        let params = DeleteParams::default();
        self.groups().delete(self.name, &params).await.context("cannot delete the group")?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let all = ListParams::default();
        self.until("the group is gone", async || {
            let gone = self.groups().get_opt(self.name).await?.is_none();
            Ok(gone && pods.list_metadata(&all).await?.items.is_empty())
        })
        .await
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !holds().await? {
            ensure!(begun.elapsed() < PATIENCE, "after {} s it is not so that {what}", PATIENCE.as_secs());
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    fn groups(&self) -> Api<GameServerGroup> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}
