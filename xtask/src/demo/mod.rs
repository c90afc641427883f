//! `cargo xtask demo`: real game servers, a claim, a player, and the end of a game, before one's eyes.

pub(crate) mod claim;
mod story;
mod timeline;

use anyhow::{Result, bail};
use clap::Args as ClapArgs;
use serde_json::json;

use crate::access::Access;
use crate::cluster::{Cluster, DEFAULT_NAME, Kind};
use crate::host;
use crate::image::{Profile, build_operator};
use crate::install::{self, Images};
use crate::runtime;
use crate::workspace::Workspace;
pub(crate) use timeline::Timeline;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How many game servers to keep
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(i32).range(1..=1000))]
    servers: i32,
    #[command(flatten)]
    site: Site,
}

/// Which cluster to use.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Site {
    /// A context of your kubeconfig, instead of the embedded cluster
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// With --context: where its nodes pull the images from, such as ghcr.io/studio
    #[arg(long, value_name = "PREFIX", requires = "context")]
    pub(crate) registry: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut timeline = Timeline::start();
    let workspace = Workspace::find()?;
    let ground = prepare(&workspace, &args.site, DEFAULT_NAME, &mut timeline)?;
    runtime::run(async {
        install::operator(&workspace, &ground.access, &ground.images, &json!({})).await?;
        timeline.tell("the operator is installed and ready");
        story::tell(&workspace, &ground, args.servers, timeline).await
    })
}

/// A cluster with the images in it.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) access: Access,
    pub(crate) images: Images,
    /// None for a cluster of the user's own.
    pub(crate) cluster: Option<Cluster>,
}

/// Starts the embedded cluster of this name with all images, or finds the user's own.
pub(crate) fn prepare(
    workspace: &Workspace,
    site: &Site,
    name: &str,
    timeline: &mut Timeline,
) -> Result<Ground> {
    if let Some(context) = &site.context {
        let images = Images::expected(site.registry.as_deref());
        eprintln!("{}", images.instructions());
        return Ok(Ground { access: Access::context(workspace, context)?, images, cluster: None });
    }
    if !host::is_root() {
        bail!(
            "game servers need a node that runs containers, which only root can make here; run this as root, or use \
             a cluster that you have with --context NAME"
        );
    }
    let cluster = Cluster::up(workspace, name, Kind::WithNode)?;
    timeline.tell("the cluster is up");
    let program = build_operator(workspace, Profile::Release)?;
    timeline.tell("the operator is built");
    let images = Images::import(workspace, &cluster, &program)?;
    timeline.tell("the images are in the node");
    Ok(Ground { access: Access::embedded(&cluster), images, cluster: Some(cluster) })
}
