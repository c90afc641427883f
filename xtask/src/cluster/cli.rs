//! `cargo xtask cluster`: the cluster on the command line.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Subcommand;

use super::{Cluster, FakeNodes, Kind, namespaces, supervisor};
use crate::host;
use crate::workspace::Workspace;

/// What to do with the cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start the cluster, or find that it runs
    Up {
        #[command(flatten)]
        name: Name,
        /// Start without a node that runs containers; the default where this is not root
        #[arg(long)]
        no_node: bool,
        #[command(flatten)]
        fake_nodes: FakeNodes,
    },
    /// End the cluster and remove everything of it
    Down(Name),
    /// Print what a shell needs to use the cluster: eval "$(cargo xtask cluster env)"
    Env(Name),
    /// Put a docker archive into the node
    ImportImage {
        /// The archive, as `docker save` writes it
        archive: PathBuf,
        #[command(flatten)]
        name: Name,
    },
    #[command(hide = true)]
    Supervise {
        #[arg(long)]
        dir: PathBuf,
    },
    #[command(hide = true)]
    NodeInit,
}

#[derive(Debug, clap::Args)]
struct Name {
    /// Which of this checkout's clusters
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

/// The name of the cluster that commands take unless told otherwise.
pub(crate) const DEFAULT_NAME: &str = "dev";

/// Runs `cargo xtask cluster`.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.action {
        Action::Up { name, no_node, fake_nodes } => up(&name.name, kind(no_node), &fake_nodes),
        Action::Down(name) => down(&name.name),
        Action::Env(name) => env(&name.name),
        Action::ImportImage { archive, name } => running(&name.name)?.import_image(&archive),
        Action::Supervise { dir } => supervisor::run(dir),
        Action::NodeInit => namespaces::first_process(),
    }
}

fn kind(no_node: bool) -> Kind {
    if no_node || !host::is_root() { Kind::ControlPlane } else { Kind::WithNode }
}

fn up(name: &str, kind: Kind, fake_nodes: &FakeNodes) -> Result<()> {
    let start = Instant::now();
    let cluster = Cluster::up(&Workspace::find()?, name, kind)?;
    cluster.ensure_fake_nodes(fake_nodes)?;
    let seconds = start.elapsed().as_secs_f32();
    println!("The cluster `{name}` is up after {seconds:.1} s.");
    match cluster.node_address() {
        Some(address) => println!("  node        {address} (host ports and node ports answer there)"),
        None => println!(
            "  node        none: there is a control plane only, and no container runs; \
             run as root for a node, or add --fake-nodes 3"
        ),
    }
    println!("  audit log   {}", cluster.audit_log().display());
    println!("  logs        {}", cluster.dir().join("logs").display());
    println!("  use it      eval \"$(cargo xtask cluster env{})\"", option(name));
    println!("  end it      cargo xtask cluster down{}", option(name));
    Ok(())
}

fn down(name: &str) -> Result<()> {
    Cluster::down(&Workspace::find()?, name)?;
    println!("Nothing of the cluster `{name}` is left.");
    Ok(())
}

fn env(name: &str) -> Result<()> {
    let cluster = running(name)?;
    let programs = cluster.programs();
    let folders: Vec<String> = [programs.kubectl(), programs.helm()]
        .iter()
        .filter_map(|program| program.parent())
        .map(|folder| folder.display().to_string())
        .collect();
    println!("export KUBECONFIG={}", quoted(&cluster.kubeconfig().display().to_string()));
    println!("export NO_PROXY=\"${{NO_PROXY:+$NO_PROXY,}}{}\"", cluster.addresses());
    println!("export PATH={}:\"$PATH\"", quoted(&folders.join(":")));
    Ok(())
}

fn running(name: &str) -> Result<Cluster> {
    Cluster::find(&Workspace::find()?, name)?.with_context(|| {
        format!(
            "no cluster `{name}` runs for this checkout; start it with `cargo xtask cluster up{}`",
            option(name)
        )
    })
}

fn option(name: &str) -> String {
    if name == DEFAULT_NAME { String::new() } else { format!(" --name {name}") }
}

/// One word for a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
