//! The cluster on which a bench measures: nothing else runs there.

use std::time::Duration;

use anyhow::{Context as _, Result};
use gamekeeper::api::{GameServer, GameServerGroup};
use kube::api::PostParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde::Serialize;
use serde_json::json;

use crate::cluster::Cluster;
use crate::demo::{Ground, Site, Timeline, prepare};
use crate::install;
use crate::roster::{Entries, Entry, Roster};
use crate::runtime;
use crate::workspace::Workspace;

/// The cluster's name.
pub(super) const CLUSTER: &str = "bench";

/// Where the servers are that are measured.
pub(super) const NAMESPACE: &str = "gamekeeper-bench";

/// Measures on the site and prints what `measure` returns as the last line.
pub(super) fn measured<T: Serialize>(
    site: &Site,
    measure: impl AsyncFnOnce(&Workspace, &Ground) -> Result<T>,
) -> Result<()> {
    println!("{}", serde_json::to_string(&on_site(site, CLUSTER, measure)?)?);
    Ok(())
}

/// Installs the operator on the site and runs `measure` there. The embedded cluster, of that name, is made anew for it
/// and removed after it, also where it fails.
pub(super) fn on_site<T>(
    site: &Site,
    name: &str,
    measure: impl AsyncFnOnce(&Workspace, &Ground) -> Result<T>,
) -> Result<T> {
    let workspace = Workspace::find()?;
    let _reserved = Cluster::reserve(&workspace, name)?;
    let embedded = site.context.is_none();
    if embedded {
        Cluster::down(&workspace, name)?;
    }
    let measured = prepare(&workspace, site, name, &mut Timeline::start()).and_then(|ground| {
        runtime::run(async {
            install::operator(&workspace, &ground.access, &ground.images, &json!({})).await?;
            measure(&workspace, &ground).await
        })
    });
    if embedded {
        Cluster::down(&workspace, name)?;
    }
    measured
}

/// How long all servers of a group may take until they can be joined.
const LAUNCH_PATIENCE: Duration = Duration::from_mins(5);

/// Makes a group of real servers, and waits until all of them can be joined.
pub(super) async fn launch(client: &Client, group: &GameServerGroup) -> Result<()> {
    let servers = usize::try_from(group.spec.replicas).context("a group of fewer than none")?;
    let groups: Api<GameServerGroup> = Api::namespaced(client.clone(), NAMESPACE);
    groups.create(&PostParams::default(), group).await.context("cannot create the group")?;
    let look = |entries: &Entries<GameServer>| {
        let joinable = entries.values().filter_map(Entry::joinable).count();
        let missing = || format!("{joinable} of {servers} can be joined");
        (joinable == servers).then_some(()).ok_or_else(missing)
    };
    let api = Api::<GameServer>::namespaced(client.clone(), NAMESPACE);
    Roster::start(api, watcher::Config::default()).until("launching the group", LAUNCH_PATIENCE, look).await
}

/// The embedded cluster alone: its audit log is at hand.
pub(super) const EMBEDDED: Site = Site { context: None, registry: None };
