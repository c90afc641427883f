//! Ten pools of twelve that are lost at once, or one after the other, while players come.

mod account;
mod games;
mod ground;
mod loss;
mod players;
mod raw;
mod run;
mod sight;
mod tally;

use std::time::Duration;

use anyhow::Result;
use clap::Args as ClapArgs;
use serde::Serialize;

use super::fleet::{self, Fleet, Options};
use super::load::rounded;
use crate::cluster::Cluster;
use ground::{Ground, LOST};

/// What `--help` says.
pub(super) const METHOD: &str = "\
What the loss of ten capacity pools costs that are interrupted within three minutes, while players come.

A group (SpotPreferred) keeps N servers (500) on twelve spot pools: twelve instance types of equal weight, each with four \
nodes that kwok answers for, all in one zone. All stand by, then 30 % are claimed and played; no game ends by itself \
meanwhile. Then claims come over the HTTP API, 3 a second, one by one from 5 s before the first notice until all servers \
are ready again, and each claimed server's game is Active as soon as this command, which plays all games, sees the claim. \
So the group has servers to offer throughout: at that rate and without ends it could not do with more. The operator is one \
process on this machine, a release build, which leads (`bench claims --help` says more).

The loss: each node of ten pools gets the taint that the AWS node termination handler puts on a node with an interruption \
notice, and 120 s after it the node is deleted, and the pods that are still there. There are two runs, each on pools of its \
own: in `burst` all forty nodes get their notice at once, in `spread` one after the other, pool by pool, evenly over 180 s.

servers_lost is how many servers were on a pool when the first of its nodes got its notice: a pool is lost with all that is \
there, what the operator moves away in time included; a server that is replaced onto a pool that is lost later counts \
again. writes_per_lost are the creates, updates, patches and deletes of pods and GameServers and their subresources that the \
API server answered with success, by its audit log, from the first notice until all nodes are gone, all servers are ready and \
none has changed for 5 s: those of the operator, of whatever cause, and the games' reports of StandingBy, divided by \
servers_lost. So the end of each lost server counts as well as the whole way of its replacement until it is ready, and what \
the operator does then to even out. Claims (the patch that takes a server) and the reports of games that begin are left out, \
and so is what the scheduler, kwok and the collectors write. Both are of `spread`; the target is at most 12 writes.

claims were asked for from the first notice on. claims_on_lost landed on a server whose node had its notice, by the order in \
which the API server took both (resourceVersion). claims_misplaced are those of them that were sent when the API \
server's answer to the notice was here already, while another server was on offer where no notice was. All three are of both \
runs together; the target is 0 misplaced.

create_ratio: how fast replacements are made in `burst`, beside the bare creation of the same. A creation is a pod with its \
GameServer. Their rate runs from the API server's receipt of the first pod to its answer for the GameServer of the last of \
as many as servers are lost, so that what evens out later does not count. The bare rate is measured before, by the same \
clock, with the operator ended: this command makes as many pods as the group has servers, of the very spec, for the \
same pools, each followed by its GameServer (but for the finalizer), 32 at once on one client with the operator's account and \
settings; the median of three rounds. While replacements are made the operator also ends what is lost, claims go on, and \
scheduler, kwok and games do their part for both. The target is 0.7.

ready_again_seconds runs from the last notice of `spread` until N servers are StandingBy or Active on nodes without notice.

The embedded cluster `bench` is made for this and removed after it; with --keep it stays. The last line is one JSON object.";

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How many game servers
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u16).range(24..=600))]
    servers: u16,
    /// Over how many seconds the notices of the run `spread` are given
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(0..=3600))]
    over: u64,
    /// How many seconds after its notice a node is gone
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(0..=600))]
    notice: u64,
    /// How many of a hundred servers are played when the first node is interrupted
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u16).range(0..=90))]
    active: u16,
    /// How many claims come a second
    #[arg(long, value_name = "RATE", default_value_t = 3.0)]
    claims_per_second: f64,
    #[command(flatten)]
    options: Options,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    servers: u16,
    pools_lost: u32,
    servers_lost: usize,
    writes_per_lost: f64,
    claims: usize,
    claims_misplaced: usize,
    claims_on_lost: usize,
    create_ratio: f64,
    ready_again_seconds: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    fleet::measured_empty(&args.options, async |fleet, cluster| measure(fleet, cluster, args).await)
}

async fn measure(fleet: &mut Fleet, cluster: &Cluster, args: &Args) -> Result<Summary> {
    let at_once = Ground::new(&fleet.client, "burst");
    at_once.make(cluster)?;
    let group = at_once.apply(0).await?;
    at_once.account().await?;
    fleet.operator.end();
    let client = fleet.operators_client().await?;
    let raw = raw::rate(&client, cluster, &fleet.client, &at_once, &group, args.servers).await?;
    fleet.start_anew()?;
    fleet.operator.ready().await?;

    let burst = run::run(fleet, cluster, &at_once, args, Duration::ZERO).await?;
    burst.print("burst");
    at_once.clear().await?;

    let in_turn = Ground::new(&fleet.client, "spread");
    in_turn.make(cluster)?;
    let spread = run::run(fleet, cluster, &in_turn, args, Duration::from_secs(args.over)).await?;
    spread.print("spread");
    in_turn.clear().await?;

    Ok(Summary {
        servers: args.servers,
        pools_lost: LOST,
        servers_lost: spread.lost,
        writes_per_lost: rounded(spread.writes_per_lost(), 2),
        claims: burst.claims + spread.claims,
        claims_misplaced: burst.misplaced() + spread.misplaced(),
        claims_on_lost: burst.on_lost() + spread.on_lost(),
        create_ratio: rounded(burst.creation_rate() / raw, 3),
        ready_again_seconds: rounded(spread.ready_again_seconds(), 2),
    })
}
