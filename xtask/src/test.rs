//! `cargo xtask test`: everything that must hold, on a cluster that is started for it and ended after it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args as ClapArgs;

use crate::cluster::{Cluster, Kind};
use crate::command::{Step, capture};
use crate::host;
use crate::image::{self, Profile};
use crate::install::{self, Release};
use crate::workspace::Workspace;
use crate::{crds, manifests};

/// The name of the cluster that the tests run on, beside the one of `cargo xtask cluster up`.
const CLUSTER: &str = "test";
/// The namespace that the operator in the cluster looks after; the tests have others, with operators of their own.
const NAMESPACE: &str = "gamekeeper-e2e";
/// How many tests run at once: they wait most of the time.
const THREADS: &str = "8";

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Only tests whose name contains this; no lints and no checks of generated files
    filter: Option<String>,
    /// Leave the cluster up, to look at it or for the next run
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    let workspace = Workspace::find()?;
    if args.filter.is_none() {
        check_code(&workspace)?;
    }
    let target = image::host_target()?;
    Step::new("build the tests")
        .run(image::static_cargo(&workspace, &target).args(["test", "--no-run", "--package", "gamekeeper"]))?;
    let passed = on_cluster(&workspace, &target, args);
    if !args.keep {
        Cluster::down(&workspace, CLUSTER)?;
    }
    passed?;
    println!("All passed after {:.0} s.", start.elapsed().as_secs_f32());
    Ok(())
}

/// What needs no cluster.
fn check_code(workspace: &Workspace) -> Result<()> {
    let cargo = || workspace.command("cargo");
    Step::new("check the formatting").run(cargo().args(["fmt", "--all", "--check"]))?;
    Step::new("check the lints")
        .run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;
    crds::check(workspace)?;
    manifests::check(workspace)?;
    Step::new("test the development commands").run(cargo().args(["test", "--package", "xtask"]))
}

fn on_cluster(workspace: &Workspace, target: &str, args: &Args) -> Result<()> {
    let kind = if host::is_root() { Kind::WithNode } else { Kind::ControlPlane };
    let cluster = Cluster::up(workspace, CLUSTER, kind)?;
    let images = install::images(workspace, &cluster, Profile::Debug)?;
    let release = Release {
        namespace: "gamekeeper-system",
        values: vec![format!("watchNamespaces={{{NAMESPACE}}}"), "replicas=1".to_owned()],
    };
    install::helm(workspace, &cluster, &release)?;
    let mut tests = image::static_cargo(workspace, target);
    tests
        .args(["test", "--package", "gamekeeper", "--"])
        .args(["--test-threads", THREADS])
        .args(args.filter.as_ref())
        .envs(settings(&cluster, &images.operator));
    Step::new("test on the cluster").run(&mut tests)
}
