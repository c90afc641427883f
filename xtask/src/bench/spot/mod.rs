//! A day in a spot market, in virtual time: how many games are lost, and what it costs.

mod compared;
mod demand;
mod fleet;
mod keeper;
mod market;
mod member;
mod plain;
mod policy;
mod sweep;

use anyhow::Result;
use clap::Args as ClapArgs;
use gamekeeper::rules::viability;
use serde::Serialize;

use compared::Compared;

/// What `--help` says.
pub(super) const METHOD: &str = "\
How many games are lost to interruptions in a market of 6 spot pools (three types in two zones) over 24 hours, and what that \
costs: the operator's own rules, in virtual time, beside others in the same market with the same players.

A group keeps 240 servers, 8 a node; 7 of 10 are in use, for 20 minutes on average. Each session takes a server that is ready, on \
no node that had its notice; it is lost when its node goes, 120 s after the notice, before it is over. Nodes take 60 s to start and \
servers 10 s; an empty node goes after 10 minutes; a pod that has found no node after 300 s speaks against its pool.

The market is drawn from a seed. Pools are calm for 12 hours on average, then in a crunch for 3. A crunch opens with a wave, and \
others follow every 40 minutes on average; a wave takes each node with a chance of 1 in 2, 92 of 100 within 3 minutes (arXiv \
2604.16457). For 6 tenths of a crunch no node can be had, an hour at a time. A node that no wave takes lives on as in the best \
tenths of the market: 5 of 100 are interrupted in a month. Spot costs 0.3 to 0.5 of on demand. Only the 92 of 100, the 5 of 100 and \
the prices have a source; the rest is a bad day, and --sweep varies it. The control has as many interruptions on average, each by \
itself, and nodes can always be had.

Compared are: gamekeeper (SpotPreferred, FullProtection; verdicts learnt from what happens); plain (a Deployment over the same \
pools, each pod made for the emptiest pool that has a node at that moment, which nobody needs to try; its pods on a node with a \
notice are let play on); clairvoyant (the same group, told by the market itself when a crunch opens and ends); foresight (told 30 \
minutes before); on-demand.

lost_ratio is gamekeeper's losses by plain's. clairvoyant_ratio is gamekeeper's by the clairvoyant's, both plus one. cost_ratio is \
gamekeeper's cost by that of on-demand. floor_broken_seconds counts from when a rule ended a server that was ready and fewer than \
240 were left, until there are as many again. The rules' parameters were chosen with --sweep on the seeds 1001 to 1006, before the \
reported ones, 2001 to 2020, were drawn. Targets: lost_ratio at most 0.4, clairvoyant_ratio at most 1.5, cost_ratio at most 0.5, \
floor_broken_seconds 0. The last line is one JSON object.";

/// Those that are reported.
const SEEDS: std::ops::RangeInclusive<u64> = 2001..=2020;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Vary the market, and the rules' parameters, on other seeds than the reported ones
    #[arg(long)]
    sweep: bool,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    clustered: Compared,
    control: Compared,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.sweep {
        return sweep::run();
    }
    let (clustered, control) = (market::Terms::default(), market::Terms::default().alone());
    let rules = viability::Terms::default();
    let clustered = compared::over(SEEDS, "clustered", clustered, rules)?;
    clustered.print();
    let control = compared::over(SEEDS, "poisson", control, rules)?;
    control.print();
    println!(
        "{}",
        serde_json::to_string(&Summary { clustered: clustered.compared(), control: control.compared() })?
    );
    Ok(())
}
