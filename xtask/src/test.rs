//! `cargo xtask test`: everything that must hold, on a cluster that is started for it and ended after it.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Args as ClapArgs;
use serde_json::json;

use crate::access::Access;
use crate::cluster::{Cluster, Kind, PAUSE_IMAGE};
use crate::command::step;
use crate::host;
use crate::image::{build_for_tests, static_cargo};
use crate::install::{self, Images};
use crate::runtime;
use crate::workspace::Workspace;
use crate::{crds, fuzzer, manifests};

/// The name of the cluster that the tests run on, beside the one of `cargo xtask cluster up`.
const CLUSTER: &str = "test";
/// The namespaces that the operator in the cluster looks after; most tests have others, with operators of their own.
const NAMESPACES: [&str; 2] = ["gamekeeper-e2e", "gamekeeper-upgrade"];
/// How many tests run at once: they wait most of the time.
const THREADS: &str = "8";

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Only tests whose name contains this; no lints and no checks of generated files
    filter: Option<String>,
    /// Leave the cluster up, to look at it or for the next run with --keep
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    let workspace = Workspace::find()?;
    if args.filter.is_none() {
        check_code(&workspace)?;
    }
    eprintln!("== build the tests");
    let operator = build_for_tests(&workspace)?;
    if !host::is_root() {
        return without_cluster(&workspace, args);
    }
    let _reserved = Cluster::reserve(&workspace, CLUSTER)?;
    if !args.keep {
        Cluster::down(&workspace, CLUSTER)?;
    }
    let passed = on_cluster(&workspace, &operator, args);
    if !args.keep {
        Cluster::down(&workspace, CLUSTER)?;
    }
    passed?;
    println!("All passed after {:.0} s.", start.elapsed().as_secs_f32());
    Ok(())
}

/// What needs no cluster.
fn check_code(workspace: &Workspace) -> Result<()> {
    step("check the formatting", workspace.cargo().args(["fmt", "--all", "--check"]))?;
    let lints = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    step("check the lints", workspace.cargo().args(lints))?;
    crds::check(workspace)?;
    manifests::check(workspace)?;
    step("test the development commands", workspace.cargo().args(["test", "--package", "xtask"]))
}

fn on_cluster(workspace: &Workspace, operator: &Path, args: &Args) -> Result<()> {
    let fuzzer = fuzzer::ensure(workspace)?;
    let cluster = Cluster::up(workspace, CLUSTER, Kind::WithNode)?;
    let images = Images::import(workspace, &cluster, operator)?;
    let access = Access::embedded(&cluster);
    for namespace in NAMESPACES {
        ensure_namespace(&access, namespace)?;
    }
    let values = json!({"watchNamespaces": NAMESPACES, "replicas": 1});
    runtime::run(install::operator(workspace, &access, &images, &values))?;
    let mut tests = tests(workspace, args)?;
    let mut alone = tests_alone(workspace, args)?;
    for run in [&mut tests, &mut alone] {
        run.env("GAMEKEEPER_TEST_KUBECONFIG", cluster.kubeconfig())
            .env("GAMEKEEPER_TEST_AUDIT_LOG", cluster.audit_log())
            .env("GAMEKEEPER_TEST_KUBECTL", cluster.programs().kubectl())
            .env("GAMEKEEPER_TEST_HELM", cluster.programs().helm())
            .env("GAMEKEEPER_TEST_AGENT_IMAGE", &images.operator)
            .env("GAMEKEEPER_TEST_OPENARENA_IMAGE", &images.openarena)
            .env("GAMEKEEPER_TEST_SHELL_IMAGE", &images.shell)
            .env("GAMEKEEPER_TEST_SILENT_IMAGE", PAUSE_IMAGE)
            .env("GAMEKEEPER_TEST_SCHEMATHESIS", &fuzzer)
            .env("GAMEKEEPER_TEST_NODE_ADDRESS", node_address(&cluster)?)
            // No proxy knows the way to a cluster on this machine.
            .env("NO_PROXY", "*");
    }
    // An interrupt reaches the tests too, which end by themselves; then the cluster is to be ended as after any failure.
    runtime::run(async {
        let run = tokio::task::spawn_blocking(move || {
            let passed = step("test on the cluster", &mut tests);
            step("test what takes the operator away", &mut alone).and(passed)
        });
        run.await.context("the tests' thread has ended early")?
    })
    .with_context(|| {
        format!(
            "`cargo xtask test --keep` leaves the cluster up, with its logs in {}",
            cluster.dir().display()
        )
    })
}

/// The chart gives its rights in namespaces that are there.
fn ensure_namespace(access: &Access, name: &str) -> Result<()> {
    let there =
        access.kubectl().args(["get", "namespace", name, "--ignore-not-found", "--output", "name"]).output();
    let there = there.context("cannot start kubectl")?;
    if there.stdout.is_empty() {
        step("make a namespace for tests", access.kubectl().args(["create", "namespace", name]))?;
    }
    Ok(())
}

fn node_address(cluster: &Cluster) -> Result<String> {
    let address = cluster.node_address().context("the cluster of the tests has no node")?;
    Ok(address.to_string())
}

fn tests(workspace: &Workspace, args: &Args) -> Result<Command> {
    let mut tests = static_cargo(workspace)?;
    tests.args(["test", "--package", "gamekeeper", "--no-fail-fast", "--"]);
    tests.args(["--test-threads", THREADS]).args(args.filter.as_ref());
    Ok(tests)
}

/// The tests that no other may run beside: they take away what the others stand on, and bring it back.
fn tests_alone(workspace: &Workspace, args: &Args) -> Result<Command> {
    let mut tests = static_cargo(workspace)?;
    tests.args(["test", "--package", "gamekeeper", "--test", "cluster", "--no-fail-fast", "--"]);
    tests.args(["--ignored", "--test-threads", "1"]).args(args.filter.as_ref());
    Ok(tests)
}

/// Tests what can be tested, and fails: whoever reads only the end must not believe that all was.
fn without_cluster(workspace: &Workspace, args: &Args) -> Result<()> {
    let mut tests = static_cargo(workspace)?;
    tests.args(["test", "--package", "gamekeeper", "--lib", "--"]).args(args.filter.as_ref());
    step("test what needs no cluster", &mut tests)?;
    bail!(
        "the tests on a cluster were not run: they need a node that runs containers, which only root can make; \
         run this as root"
    )
}
