//! Gamekeeper's development commands: `cargo xtask --help` lists them.

mod cluster;
mod command;
mod crds;
mod host;
mod image;
mod programs;
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
    /// A real Kubernetes on this machine, made from programs that are built here
    Cluster(cluster::cli::Args),
    /// Write crds/ from the types
    Crds(crds::Args),
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
    }
}
