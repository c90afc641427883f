//! The cluster on which a bench measures: nothing else runs there.

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use crate::cluster::Cluster;
use crate::demo::{Ground, Site, Timeline, prepare};
use crate::install;
use crate::runtime;
use crate::workspace::Workspace;

/// The cluster's name.
pub(super) const CLUSTER: &str = "bench";

/// Where the servers are that are measured.
pub(super) const NAMESPACE: &str = "gamekeeper-bench";

/// Installs the operator on the site, runs `measure` there and prints what it returns as the last line. The embedded
/// cluster is made anew for it and removed after it, also where it fails.
pub(super) fn measured<T: Serialize>(
    site: &Site,
    measure: impl AsyncFnOnce(&Workspace, &Ground) -> Result<T>,
) -> Result<()> {
    let workspace = Workspace::find()?;
    let _reserved = Cluster::reserve(&workspace, CLUSTER)?;
    let embedded = site.context.is_none();
    if embedded {
        Cluster::down(&workspace, CLUSTER)?;
    }
    let measured = prepare(&workspace, site, CLUSTER, &mut Timeline::start()).and_then(|ground| {
        runtime::run(async {
            install::operator(&workspace, &ground.access, &ground.images, &json!({})).await?;
            measure(&workspace, &ground).await
        })
    });
    if embedded {
        Cluster::down(&workspace, CLUSTER)?;
    }
    println!("{}", serde_json::to_string(&measured?)?);
    Ok(())
}

/// The embedded cluster alone: its audit log is at hand.
pub(super) const EMBEDDED: Site = Site { context: None, registry: None };
