//! `cargo xtask bench`: what Gamekeeper costs, as ratios measured in one run.

mod cpu;
mod openarena;
mod round;

use anyhow::Result;
use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// From the request to the last server that a player can join, beside a bare Deployment
    #[command(long_about = openarena::METHOD)]
    Openarena(openarena::Args),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.bench {
        Bench::Openarena(args) => openarena::run(args),
    }
}
