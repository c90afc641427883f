//! Claims a second, beside the bare patch that each comes down to.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args as ClapArgs;
use serde::Serialize;

use super::fleet::{self, Fleet, Options};
use super::load::{self, Round, median, rounded};

/// What `--help` says.
pub(super) const METHOD: &str = "\
How many claims a second, and how fast, beside the bare conditional patch of the same servers.

A group keeps N servers (5,000) on nodes that kwok answers for, and all stand by. The operator is one process on this \
machine, beside the API server, a release build with the account, rights and log settings of the chart; it leads and \
watches throughout. With 1, 16 and 64 clients, in turn, a fifth, three and four fifths of the servers are claimed: in \
three rounds over the HTTP API, and in three rounds between these by the bare patch. Between rounds this command takes \
all claims off, and waits until the operator offers all servers and 2 s more: that is not timed. The claim timeout is \
3600 s, so no claim lapses meanwhile.

A claim over HTTP: each client has one TLS connection, which stays open (HTTP/1.1), and a token whose rights are \
checked with each request (the API server's word on it is believed for 10 s). What it pays: the request and its answer, \
the check, the pick, the patch by the operator's one client, the wait for the patch to come back on the operator's \
watch, and a line of log. The bare patch: the very JSON Patch of a claim (tests of uid, state, claimStatus, health, \
instance status and shutdown; then claimStatus and claim), sent by as many at once on one kube client with the \
operator's account and settings, its answer read as a GameServer. What it pays: that patch, from this process. On both \
sides the operator takes up each change from its watch, reconciles server and group, and writes the group's status; \
and clients, operator, API server, etcd and kwok share this machine's cores.

claims_per_second and raw_per_second, p50, p99 are the medians of the three rounds; ratio and p50_ratio are quotients of \
these. duplicates counts answers that gave a server which another answer of the round had given; errors counts requests \
without a server and answers that the cluster does not bear out, of all rounds on both sides. cpu_ms_per_claim is the \
CPU time of each process over a round, divided by its requests (medians): client is this command, others are the \
controller manager, the scheduler and kwok. The targets: at 64 clients a ratio of at least 0.9, no duplicates and no \
errors; at 1 client a p50_ratio of at most 1.3.

The embedded cluster `bench` is made for this and removed after it; with --keep it stays, and is used again. The last \
line is one JSON object.";

const ROUNDS: usize = 3;
/// How many clients there are, and how many fifths of the servers they claim.
const STAGES: [(usize, usize); 3] = [(1, 1), (16, 3), (64, 4)];

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How many game servers
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u16).range(100..=10_000))]
    servers: u16,
    #[command(flatten)]
    options: Options,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    claims: Vec<Stage>,
}

/// What a number of clients came to.
#[derive(Debug, Serialize)]
struct Stage {
    concurrency: usize,
    servers: u16,
    claims_per_second: f64,
    raw_per_second: f64,
    ratio: f64,
    p50_ms: f64,
    raw_p50_ms: f64,
    p50_ratio: f64,
    p99_ms: f64,
    raw_p99_ms: f64,
    duplicates: usize,
    errors: usize,
    cpu_ms_per_claim: BTreeMap<&'static str, f64>,
    raw_cpu_ms_per_claim: BTreeMap<&'static str, f64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    fleet::measured(args.servers, &args.options, async |fleet| measure(fleet).await)
}

async fn measure(fleet: &mut Fleet) -> Result<Summary> {
    let mut claims = Vec::new();
    for (concurrency, fifths) in STAGES {
        claims.push(stage(fleet, concurrency, usize::from(fleet.servers) * fifths / 5).await?);
    }
    Ok(Summary { claims })
}

async fn stage(fleet: &Fleet, concurrency: usize, count: usize) -> Result<Stage> {
    let (mut claimed, mut patched) = (Vec::new(), Vec::new());
    let (mut duplicates, mut errors) = (0, 0);
    for round in 1..=ROUNDS {
        for raw in [false, true] {
            let name = format!("{}-{concurrency}-{round}", if raw { "raw" } else { "claim" });
            let done = if raw {
                load::patches(fleet, concurrency, count, &name).await?
            } else {
                load::claims(fleet, concurrency, count, &name).await?
            };
            print(&name, &done);
            let (twice, failed) = load::faults(fleet, &done.done).await?;
            (duplicates, errors) = (duplicates + twice, errors + failed);
            if raw {
                patched.push(done);
            } else {
                claimed.push(done);
            }
            fleet.free().await?;
        }
    }
    let of = |rounds: &[Round], value: fn(&Round) -> f64| median(rounds.iter().map(value));
    let (rate, raw_rate) = (of(&claimed, Round::rate), of(&patched, Round::rate));
    let p50 = |rounds| of(rounds, |round| round.percentile_ms(50));
    let p99 = |rounds| of(rounds, |round| round.percentile_ms(99));
    Ok(Stage {
        concurrency,
        servers: fleet.servers,
        claims_per_second: rounded(rate, 1),
        raw_per_second: rounded(raw_rate, 1),
        ratio: rounded(rate / raw_rate, 3),
        p50_ms: rounded(p50(&claimed), 2),
        raw_p50_ms: rounded(p50(&patched), 2),
        p50_ratio: rounded(p50(&claimed) / p50(&patched), 3),
        p99_ms: rounded(p99(&claimed), 2),
        raw_p99_ms: rounded(p99(&patched), 2),
        duplicates,
        errors,
        cpu_ms_per_claim: cpu(&claimed),
        raw_cpu_ms_per_claim: cpu(&patched),
    })
}

/// The medians of each part.
fn cpu(rounds: &[Round]) -> BTreeMap<&'static str, f64> {
    let all: Vec<_> = rounds.iter().map(Round::cpu_ms).collect();
    let parts = all.iter().flat_map(BTreeMap::keys);
    parts
        .map(|part| (*part, rounded(median(all.iter().filter_map(|cpu| cpu.get(part)).copied()), 3)))
        .collect()
}

fn print(name: &str, round: &Round) {
    let cpu: Vec<String> = round.cpu_ms().iter().map(|(part, ms)| format!("{part} {ms:.2}")).collect();
    println!(
        "{name:<12} {:>7.1} a second, p50 {:>7.2} ms, p99 {:>7.2} ms; CPU ms each: {}",
        round.rate(),
        round.percentile_ms(50),
        round.percentile_ms(99),
        cpu.join(", ")
    );
}
