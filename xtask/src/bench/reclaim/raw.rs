//! The same pods and game servers, made without an operator: what its creations are measured by.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gamekeeper::api::{CapacityType, GameServer, GameServerGroup};
use gamekeeper::rules::hold::Launch;
use gamekeeper::rules::place::CapacityLabels;
use gamekeeper::rules::pod;
use gamekeeper::rules::pool::Pool;
use gamekeeper::view::{Key, View};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep};

use super::account::{self, Span};
use super::ground::{Ground, POOLS, ZONE};
use crate::bench::audit;
use crate::bench::load::median;
use crate::bench::stage::NAMESPACE;
use crate::cluster::Cluster;

/// As many as the operator has under way.
const AT_ONCE: usize = 32;
const ROUNDS: usize = 3;
/// How long the cluster may take to clean up after a round.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long it rests before a round.
const REST: Duration = Duration::from_secs(3);

/// How many pods with a game server each are made a second: the median of the rounds.
pub(super) async fn rate(
    client: &Client,
    cluster: &Cluster,
    administrator: &Client,
    ground: &Ground,
    group: &GameServerGroup,
    count: u16,
) -> Result<f64> {
    let raw = Raw::of(client);
    let cleaner = Raw::of(administrator);
    let mut rates = Vec::new();
    for round in 1..=ROUNDS {
        sleep(REST).await;
        let begin = Timestamp::now();
        stream::iter(0..count)
            .map(|number| raw.make(ground, group, u32::from(number), round))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        let span = Span { begin, end: Timestamp::now() };
        let requests = audit::read(&cluster.audit_log())?;
        let rate = account::creations(&requests, span).rate(usize::from(count));
        println!("raw, round {round}: {rate:.1} pods with a game server a second");
        rates.push(rate);
        cleaner.clear().await?;
    }
    Ok(median(rates.into_iter()))
}

struct Raw {
    pods: Api<Pod>,
    servers: Api<GameServer>,
}

impl Raw {
    fn of(client: &Client) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), NAMESPACE),
            servers: Api::namespaced(client.clone(), NAMESPACE),
        }
    }

    /// First the pod, then its game server. Without its finalizer: nobody is there to take it off.
    async fn make(&self, ground: &Ground, group: &GameServerGroup, number: u32, round: usize) -> Result<()> {
        let pool = Pool {
            capacity_type: CapacityType::Spot,
            instance_type: ground.instance_type(number % POOLS),
            zone: ZONE.to_owned(),
        };
        let name = format!("{}-raw-{round}-{number}", ground.name);
        let launch = Launch { slot: number, name: name.clone(), after: None, pool: Some(pool) };
        // The image of an agent, which the group has none of.
        let pod = pod::build(group, &launch, &[], "", CapacityLabels::Karpenter);
        let made = self.pods.create(&PostParams::default(), &pod).await.context("cannot create a pod")?;
        let view = View::of_replica("bench");
        view.wrote_pod(&made);
        let seen = view.member(&Key::new(NAMESPACE, name)).pod.context("the pod is not one of a group")?;
        let mut server = pod::game_server(NAMESPACE, &seen);
        server.metadata.finalizers = None;
        self.servers.create(&PostParams::default(), &server).await.context("cannot create a game server")?;
        Ok(())
    }

    async fn clear(&self) -> Result<()> {
        let (at_once, all) = (DeleteParams::default().grace_period(0), ListParams::default());
        self.servers.delete_collection(&at_once, &all).await.context("cannot delete the game servers")?;
        self.pods.delete_collection(&at_once, &all).await.context("cannot delete the pods")?;
        let begun = Instant::now();
        loop {
            let left = self.pods.list_metadata(&all).await?.items.len()
                + self.servers.list_metadata(&all).await?.items.len();
            if left == 0 {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "{left} pods and game servers are not gone");
            sleep(Duration::from_millis(200)).await;
        }
    }
}
