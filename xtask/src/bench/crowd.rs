//! The servers that the bench `rest` looks on: real ones, and many on fake nodes.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gamekeeper::api::{GameServer, GameServerGroup, State};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::fleet;
use super::stage::NAMESPACE;
use crate::cluster::PAUSE_IMAGE;
use crate::demo::Ground;
use crate::openarena;
use crate::progress::Progress;
use crate::workspace::Workspace;

const REAL: &str = "arena";
const FAKE: &str = "crowd";

/// How many reports are on their way at once.
const REPORTS_AT_ONCE: usize = 16;

/// How long all may take until they stand by.
const PATIENCE: Duration = Duration::from_mins(10);

/// Makes both groups and waits until all of their servers stand by.
pub(super) async fn stand_by(workspace: &Workspace, ground: &Ground, real: u16, fake: u16) -> Result<()> {
    let cluster = ground.cluster.as_ref().context("there is no embedded cluster with fake nodes")?;
    cluster.ensure_fake_nodes(&fleet::nodes(fake))?;
    let client = ground.access.client().await?;
    openarena::ensure_namespace(&client, NAMESPACE).await?;
    let groups: Api<GameServerGroup> = Api::namespaced(client.clone(), NAMESPACE);
    let arena = openarena::group(workspace, REAL, i32::from(real), &ground.images.openarena)?;
    for group in [arena, crowd(fake)?] {
        groups.create(&PostParams::default(), &group).await.context("cannot create a group")?;
    }
    play(&client, usize::from(real) + usize::from(fake)).await
}

/// A group whose pods no container runs for.
fn crowd(servers: u16) -> Result<GameServerGroup> {
    serde_json::from_value(json!({
        "apiVersion": "gamekeeper.dev/v1alpha1",
        "kind": "GameServerGroup",
        "metadata": {"name": FAKE},
        "spec": {
            "replicas": servers,
            "ports": [{"name": "game", "containerPort": 7777, "policy": "PodIP"}],
            "template": {"spec": {
                "nodeSelector": {"type": "kwok"},
                "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}],
                "containers": [{"name": "game", "image": PAUSE_IMAGE}],
            }},
        },
    }))
    .context("cannot make the group on fake nodes")
}

/// Reports each server on a fake node StandingBy once it is Initializing, until all servers stand by.
async fn play(client: &Client, wanted: usize) -> Result<()> {
    let servers: Api<GameServer> = Api::namespaced(client.clone(), NAMESPACE);
    let mut progress = Progress::start("waiting until all servers stand by");
    let start = Instant::now();
    loop {
        let found = servers.list(&ListParams::default()).await.context("cannot list the servers")?.items;
        let in_state = |wanted: State| found.iter().filter(move |server| state(server) == wanted);
        let ready = in_state(State::StandingBy).count();
        if ready == wanted && found.len() == wanted {
            progress.finish();
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            bail!("{ready} of {wanted} servers stand by after {} s", PATIENCE.as_secs());
        }
        progress.note(format!("{ready} of {wanted}"));
        let playable = in_state(State::Initializing).filter(|server| server.spec.group == FAKE);
        let reports = playable.map(|server| report(&servers, server.name_any()));
        stream::iter(reports.collect::<Vec<_>>())
            .buffer_unordered(REPORTS_AT_ONCE)
            .try_collect::<()>()
            .await?;
        sleep(Duration::from_secs(1)).await;
    }
}

async fn report(servers: &Api<GameServer>, name: String) -> Result<()> {
    let ready = Patch::Merge(json!({"status": {"state": State::StandingBy}}));
    let reported = servers.patch_status(&name, &PatchParams::default(), &ready).await;
    reported.with_context(|| format!("cannot report {name} StandingBy")).map(drop)
}

fn state(server: &GameServer) -> State {
    server.status.as_ref().map(|status| status.state).unwrap_or_default()
}
