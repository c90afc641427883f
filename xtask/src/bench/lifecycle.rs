//! Whole lives of `OpenArena` servers, and every write that they took.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use clap::Args as ClapArgs;
use serde::Serialize;

use super::ledger::Ledger;
use super::lives;
use super::{audit, stage};
use crate::demo::Ground;
use crate::workspace::Workspace;

/// What `--help` says.
pub(super) const METHOD: &str = "\
How many writes the API server takes for the whole life of a game server, from its creation until it is gone.

A group keeps N OpenArena servers with the agent. N times one of them is claimed over the HTTP API; two players join it \
and leave, one after the other; 5 s after the last (emptySeconds) its session is over, and it goes with its pod. The \
servers counted are those N, each whole: the replacements that the group makes meanwhile are not.

Counted are the create, update, patch and delete requests that the API server answered with success, as its audit log \
has them, to the pods and GameServers of these names and their subresources, by the operator (a claim is its write too) \
and by the agent (the account gamekeeper-game). Apart, under `others`: the agent's patches of nothing but the number of \
players (player_counts); the operator's events about these servers; its writes to the group (group_status) and the \
reviews of the claimers' tokens (access_reviews), of the whole run; and whatever kubelet, scheduler, garbage collector, \
namespace controller and anybody else wrote to these pods, GameServers and their events. Leases are left out.

All numbers are a server's: the mean of the N. The target is at most 10 writes. The lines before show each write of the \
server that took the most, in order.

The embedded cluster `bench` is made for this and removed after it. The last line is one JSON object.";

/// The most writes that a life is to take.
const TARGET: usize = 10;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How many game servers
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    servers: u16,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    servers: usize,
    writes_per_server: f64,
    by_writer: BTreeMap<String, f64>,
    others: BTreeMap<String, f64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    stage::measured(&stage::EMBEDDED, async |workspace, ground| measure(workspace, ground, args).await)
}

async fn measure(workspace: &Workspace, ground: &Ground, args: &Args) -> Result<Summary> {
    let lived = lives::live(workspace, ground, args.servers).await?;
    let cluster = ground.cluster.as_ref().context("there is no embedded cluster with an audit log")?;
    let requests = audit::read(&cluster.audit_log())?;
    let ledger = Ledger::of(&requests, &lived);
    ledger.print(TARGET);
    let mean = |count: usize| ratio(count, lived.len());
    Ok(Summary {
        servers: lived.len(),
        writes_per_server: mean(ledger.by_writer().values().sum()),
        by_writer: ledger
            .by_writer()
            .iter()
            .map(|(writer, count)| (writer.to_string(), mean(*count)))
            .collect(),
        others: ledger.others().iter().map(|(what, count)| (what.clone(), mean(*count))).collect(),
    })
}

/// To two decimals.
fn ratio(count: usize, servers: usize) -> f64 {
    let [count, servers] =
        [count, servers].map(|number| f64::from(u32::try_from(number).unwrap_or(u32::MAX)));
    (count / servers * 100.0).round() / 100.0
}
