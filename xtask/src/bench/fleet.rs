//! Thousands of ready servers on fake nodes, with an operator on this machine that looks after them: what the benches
//! of claims stand on.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args as ClapArgs;
use futures::stream::FuturesUnordered;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gamekeeper::api::{ClaimStatus, GameServer, GameServerGroup, State};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::cpu::Processes;
use super::matchmaker::Matchmaker;
use super::operator::{Operator, Setup};
use super::stage::{CLUSTER, EMBEDDED, NAMESPACE};
use crate::cluster::{Cluster, FakeNodes, PAUSE_IMAGE};
use crate::demo::{Ground, Timeline, claim, prepare};
use crate::image::{Profile, build_operator};
use crate::progress::Progress;
use crate::workspace::Workspace;
use crate::{install, openarena, runtime};

/// The group.
pub(super) const GROUP: &str = "fleet";
/// A claim that no bench outlasts.
pub(super) const LONG_SECONDS: u16 = 3600;
/// Of the 200 pods that a fake node takes.
const SERVERS_A_NODE: u16 = 180;
/// How many writes of ours are on their way at once.
const WRITES_AT_ONCE: usize = 64;
/// How long all may take until they stand by.
const PATIENCE: Duration = Duration::from_mins(30);
/// How long the operator may take to see what has been written.
const SIGHT: Duration = Duration::from_mins(1);
/// How long nothing happens before something is measured.
const REST: Duration = Duration::from_secs(2);

/// What the benches on a fleet have in common.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct Options {
    /// The operator to measure, a release build of another commit perhaps; the one of this checkout if left out
    #[arg(long, value_name = "PROGRAM")]
    operator: Option<PathBuf>,
    /// Leave the cluster up with its servers, for the next bench with --keep
    #[arg(long)]
    keep: bool,
}

/// A fleet, and the operator that looks after it.
pub(super) struct Fleet {
    /// Its administrator.
    pub(super) client: Client,
    pub(super) operator: Operator,
    pub(super) servers: u16,
    setup: Setup,
    cluster_folder: PathBuf,
    token: String,
}

/// Brings up a fleet of so many servers, measures there, and prints what that gives as the last line.
pub(super) fn measured<T: Serialize>(
    servers: u16,
    options: &Options,
    measure: impl AsyncFnOnce(&mut Fleet) -> Result<T>,
) -> Result<()> {
    on_ground(options, async |workspace, ground| {
        let mut fleet = Fleet::bring_up(workspace, ground, options, servers).await?;
        measure(&mut fleet).await
    })
}

/// Brings up a cluster with an operator and no servers, measures there, and prints what that gives as the last line.
pub(super) fn measured_empty<T: Serialize>(
    options: &Options,
    measure: impl AsyncFnOnce(&mut Fleet, &Cluster) -> Result<T>,
) -> Result<()> {
    on_ground(options, async |workspace, ground| {
        let mut fleet = Fleet::empty(workspace, ground, options).await?;
        measure(&mut fleet, embedded(ground)?).await
    })
}

fn on_ground<T: Serialize>(
    options: &Options,
    measure: impl AsyncFnOnce(&Workspace, &Ground) -> Result<T>,
) -> Result<()> {
    let workspace = Workspace::find()?;
    let _reserved = Cluster::reserve(&workspace, CLUSTER)?;
    if !options.keep {
        Cluster::down(&workspace, CLUSTER)?;
    }
    let measured = prepare(&workspace, &EMBEDDED, CLUSTER, &mut Timeline::start())
        .and_then(|ground| runtime::run(async { measure(&workspace, &ground).await }));
    if !options.keep {
        Cluster::down(&workspace, CLUSTER)?;
    }
    println!("{}", serde_json::to_string(&measured?)?);
    Ok(())
}

fn embedded(ground: &Ground) -> Result<&Cluster> {
    ground.cluster.as_ref().context("there is no embedded cluster with fake nodes")
}

impl Fleet {
    async fn bring_up(
        workspace: &Workspace,
        ground: &Ground,
        options: &Options,
        servers: u16,
    ) -> Result<Self> {
        let fleet = Self { servers, ..Self::empty(workspace, ground, options).await? };
        embedded(ground)?.ensure_fake_nodes(&nodes(servers))?;
        fleet.apply(LONG_SECONDS).await?;
        fleet.stand_by().await?;
        fleet.free().await?;
        Ok(fleet)
    }

    /// The operator alone.
    async fn empty(workspace: &Workspace, ground: &Ground, options: &Options) -> Result<Self> {
        let cluster = embedded(ground)?;
        // The chart with its rights and policies; its replicas would share the load.
        install::operator(workspace, &ground.access, &ground.images, &json!({"replicas": 0})).await?;
        let client = ground.access.client().await?;
        openarena::ensure_namespace(&client, NAMESPACE).await?;
        let built = || build_operator(workspace, Profile::Release);
        let program = options.operator.clone().map_or_else(built, Ok)?;
        let setup = Setup::new(&client, cluster, program, &ground.images.operator).await?;
        let mut operator = setup.start()?;
        operator.ready().await?;
        let token = claim::token(workspace, &ground.access, &client, NAMESPACE).await?;
        let cluster_folder = cluster.dir().to_path_buf();
        Ok(Self { client, operator, servers: 0, setup, cluster_folder, token })
    }

    /// Applies the group with this claim timeout.
    pub(super) async fn apply(&self, claim_seconds: u16) -> Result<()> {
        let groups: Api<GameServerGroup> = Api::namespaced(self.client.clone(), NAMESPACE);
        let group = group(self.servers, claim_seconds);
        let params = PatchParams::apply("gamekeeper-bench").force();
        groups.patch(GROUP, &params, &Patch::Apply(&group)).await.context("cannot apply the group")?;
        Ok(())
    }

    /// Plays the games of all servers until each stands by.
    async fn stand_by(&self) -> Result<()> {
        let wanted = usize::from(self.servers);
        let mut progress = Progress::start(format!("waiting until {wanted} servers stand by"));
        let start = Instant::now();
        let mut events = pin!(watcher::watcher(self.api(), watcher::Config::default()));
        let mut states = HashMap::<String, State>::new();
        let mut reported = HashSet::new();
        let mut reports = FuturesUnordered::new();
        loop {
            let ready = states.values().filter(|state| **state == State::StandingBy).count();
            if ready == wanted && states.len() == wanted {
                progress.finish();
                return Ok(());
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "{ready} of {wanted} servers stand by after {} s",
                PATIENCE.as_secs()
            );
            progress.note(format!("{ready} of {} there", states.len()));
            tokio::select! {
                event = events.next() => match event.context("the watch of the servers has ended")? {
                    Ok(Event::Init) => states.clear(),
                    Ok(Event::InitDone) => {}
                    Ok(Event::Apply(server) | Event::InitApply(server)) => {
                        let (name, uid) = (server.name_any(), server.uid());
                        let state = status(&server).state;
                        if state == State::Initializing && reported.insert(uid) {
                            reports.push(self.report(name.clone()));
                        }
                        states.insert(name, state);
                    }
                    Ok(Event::Delete(server)) => {
                        states.remove(&server.name_any());
                    }
                    Err(error) => eprintln!("the watch of the servers broke: {error}"),
                },
                Some(done) = reports.next() => done?,
                () = sleep(Duration::from_secs(1)) => {}
            }
        }
    }

    async fn report(&self, name: String) -> Result<()> {
        let ready = Patch::Merge(json!({"status": {"state": State::StandingBy}}));
        let reported = self.api().patch_status(&name, &PatchParams::default(), &ready).await;
        reported.with_context(|| format!("cannot report {name} StandingBy")).map(drop)
    }

    /// Takes the claims off all servers, waits until the operator offers them all, and then lets it rest.
    pub(super) async fn free(&self) -> Result<()> {
        let claimed = self.list().await?.into_iter().filter(|server| status(server).claim.is_some());
        let frees = claimed.map(|server| self.free_one(server.name_any())).collect::<Vec<_>>();
        stream::iter(frees).buffer_unordered(WRITES_AT_ONCE).try_collect::<()>().await?;
        let groups: Api<GameServerGroup> = Api::namespaced(self.client.clone(), NAMESPACE);
        let start = Instant::now();
        loop {
            let group = groups.get_status(GROUP).await.context("cannot read the group")?;
            let counts = group.status.and_then(|status| status.servers).unwrap_or_default();
            if counts.on_offer == i32::from(self.servers) {
                sleep(REST).await;
                return Ok(());
            }
            if start.elapsed() > SIGHT {
                bail!(
                    "{} of {} servers are on offer after {} s",
                    counts.on_offer,
                    self.servers,
                    SIGHT.as_secs()
                );
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn free_one(&self, name: String) -> Result<()> {
        let free = json!({"status": {"claimStatus": ClaimStatus::Unclaimed, "claim": null}});
        let freed = self.api().patch_status(&name, &PatchParams::default(), &Patch::Merge(free)).await;
        freed.with_context(|| format!("cannot take the claim off {name}")).map(drop)
    }

    /// All servers.
    pub(super) async fn list(&self) -> Result<Vec<GameServer>> {
        Ok(self.api().list(&ListParams::default()).await.context("cannot list the servers")?.items)
    }

    /// The servers, as their administrator has them.
    pub(super) fn api(&self) -> Api<GameServer> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The servers, as an operator has them.
    pub(super) async fn operators_api(&self) -> Result<Api<GameServer>> {
        Ok(Api::namespaced(self.operators_client().await?, NAMESPACE))
    }

    /// A client as an operator has it.
    pub(super) async fn operators_client(&self) -> Result<Client> {
        self.setup.client().await
    }

    /// One who may claim.
    pub(super) async fn matchmaker(&self) -> Result<Matchmaker> {
        self.matchmaker_of(GROUP).await
    }

    /// One who may claim from this group.
    pub(super) async fn matchmaker_of(&self, group: &str) -> Result<Matchmaker> {
        Matchmaker::new(&self.client, self.operator.address, &self.token, NAMESPACE, group).await
    }

    /// Ends the operator and starts another one, which is not ready yet.
    pub(super) fn start_anew(&mut self) -> Result<()> {
        self.operator.end();
        self.operator = self.setup.start()?;
        Ok(())
    }

    /// The processes that take part in a claim.
    pub(super) fn processes(&self) -> Result<Processes> {
        Processes::find(&self.cluster_folder, self.operator.id())
    }
}

/// What is known of a server.
pub(super) fn status(server: &GameServer) -> gamekeeper::api::GameServerStatus {
    server.status.clone().unwrap_or_default()
}

/// The fake nodes that so many servers take.
pub(super) fn nodes(servers: u16) -> FakeNodes {
    FakeNodes {
        count: u32::from(servers.div_ceil(SERVERS_A_NODE)),
        labels: Vec::new(),
        instance_type: "fake".to_owned(),
        zones: vec!["zone-a".to_owned()],
        capacity_type: "on-demand".to_owned(),
    }
}

/// A group whose pods no container runs for.
fn group(servers: u16, claim_seconds: u16) -> serde_json::Value {
    json!({
        "apiVersion": "gamekeeper.dev/v1alpha1",
        "kind": "GameServerGroup",
        "metadata": {"name": GROUP},
        "spec": {
            "replicas": servers,
            "ports": [{"name": "game", "containerPort": 7777, "policy": "PodIP"}],
            "claim": {"timeoutSeconds": claim_seconds},
            // This machine plays thousands of games: none is late.
            "launchTimeoutSeconds": 3600,
            "template": {"spec": {
                "nodeSelector": {"type": "kwok"},
                "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}],
                "containers": [{"name": "game", "image": PAUSE_IMAGE}],
            }},
        },
    })
}
