//! Gamekeeper's development commands: `cargo xtask --help` lists them.

mod access;
mod bench;
mod cluster;
mod command;
mod crds;
mod demo;
mod fuzzer;
mod host;
mod image;
mod install;
mod manifests;
mod openarena;
mod programs;
mod progress;
mod quake3;
mod roster;
mod runtime;
mod test;
mod trouble;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Real game servers on this machine: a claim, a player, the end of a game
    Demo(demo::Args),
    /// Run all tests, on a cluster that is started for them
    Test(test::Args),
    /// What Gamekeeper costs, in ratios and counts measured in one run
    Bench(bench::Args),
    /// A real Kubernetes on this machine, made from programs that are built here
    Cluster(cluster::cli::Args),
    /// Write crds/ from the types
    Crds(crds::Args),
    /// Write deploy/gamekeeper.yaml from the chart
    Manifests(manifests::Args),
    /// The images of the operator and the samples, built without a registry
    Image(image::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Cluster(args) => cluster::cli::run(args),
        Task::Crds(args) => crds::run(&args),
        Task::Image(args) => image::run(args),
        Task::Manifests(args) => manifests::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Bench(args) => bench::run(&args),
    }
}
