//! `cargo xtask bench`: what Gamekeeper costs, as ratios and counts measured in one run.

mod audit;
mod cpu;
mod crowd;
mod ledger;
mod lifecycle;
mod lives;
mod openarena;
mod poke;
mod rest;
mod round;
mod stage;

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
    /// How many writes a server's whole life takes: made, ready, claimed, played, gone
    #[command(long_about = lifecycle::METHOD)]
    Lifecycle(lifecycle::Args),
    /// What is written while nothing happens, with 30 real servers and 1,000 fake ones ready
    #[command(long_about = rest::METHOD)]
    Rest(rest::Args),
    /// How soon the agent of a claimed server knows of the claim
    #[command(long_about = poke::METHOD)]
    Poke(poke::Args),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.bench {
        Bench::Openarena(args) => openarena::run(args),
        Bench::Lifecycle(args) => lifecycle::run(args),
        Bench::Rest(args) => rest::run(args),
        Bench::Poke(args) => poke::run(args),
    }
}
