//! `cargo xtask bench`: what Gamekeeper costs, as ratios and counts measured in one run.

mod audit;
mod burst;
mod claims;
mod cpu;
mod crowd;
mod expiry;
mod fleet;
mod ledger;
mod lifecycle;
mod lives;
mod load;
mod matchmaker;
mod memory;
mod openarena;
mod operator;
mod poke;
mod reclaim;
mod rest;
mod round;
mod spot;
mod stage;

use std::env;
use std::os::unix::process::CommandExt as _;

use anyhow::{Context as _, Result};
use clap::{Args as ClapArgs, Subcommand};

use crate::workspace::Workspace;

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
    /// Claims a second over 5,000 ready servers, beside the bare patch that each comes down to
    #[command(long_about = claims::METHOD)]
    Claims(claims::Args),
    /// How long claims take that come all at once, and that come as players do
    #[command(long_about = burst::METHOD)]
    Burst(burst::Args),
    /// How late claims lapse
    #[command(long_about = expiry::METHOD)]
    Expiry(expiry::Args),
    /// The operator's memory with 10,000 ready servers, and how soon after its start it serves
    #[command(long_about = memory::METHOD)]
    Memory(memory::Args),
    /// What it costs to lose ten capacity pools within three minutes, while players come
    #[command(long_about = reclaim::METHOD)]
    Reclaim(reclaim::Args),
    /// How soon the agent of a claimed server knows of the claim
    #[command(long_about = poke::METHOD)]
    Poke(poke::Args),
    /// How many games are lost in a spot market, and what it costs, beside others
    #[command(long_about = spot::METHOD)]
    Spot(spot::Args),
}

/// Measures in a program that is compiled as what it measures is: the load would cost more than what it is a load on.
fn optimised(measure: impl FnOnce() -> Result<()>) -> Result<()> {
    if !cfg!(debug_assertions) {
        return measure();
    }
    let mut cargo = Workspace::find()?.cargo();
    cargo.args(["run", "--release", "--package", "xtask", "--"]).args(env::args_os().skip(1));
    Err(cargo.exec()).context("cannot start cargo")
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.bench {
        Bench::Openarena(args) => openarena::run(args),
        Bench::Lifecycle(args) => lifecycle::run(args),
        Bench::Rest(args) => rest::run(args),
        Bench::Claims(args) => optimised(|| claims::run(args)),
        Bench::Burst(args) => optimised(|| burst::run(args)),
        Bench::Expiry(args) => optimised(|| expiry::run(args)),
        Bench::Memory(args) => optimised(|| memory::run(args)),
        Bench::Reclaim(args) => optimised(|| reclaim::run(args)),
        Bench::Poke(args) => poke::run(args),
        Bench::Spot(args) => optimised(|| spot::run(args)),
    }
}
