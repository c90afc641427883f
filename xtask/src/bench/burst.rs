//! Claims that do not wait for each other: all at once, and as they come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args as ClapArgs;
use futures::future::try_join_all;
use serde::Serialize;
use tokio::sync::{Barrier, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::fleet::{self, Fleet, Options};
use super::load::{self, Done, number, percentile_ms, rounded};
use super::matchmaker::Line;
use super::poke;

/// What `--help` says.
pub(super) const METHOD: &str = "\
How long claims take that come all at once, and that come as players do.

A group keeps N servers (10,000) on nodes that kwok answers for, and all stand by; the operator is one process on this \
machine, a release build, which leads (`bench claims --help` says more). Each matchmaker has a TLS connection that is \
open before, as a token whose rights are known.

burst: 300 matchmakers send a claim each at the same moment; burst_p50_ms and burst_p99_ms run from that moment to each \
answer, and burst_ms to the last.

poisson: first the raw rate is measured, that of the bare patch by 64 at once (`bench claims`). Then claims are due for \
20 s at half that rate, at moments drawn beforehand with exponential gaps from a fixed seed, whatever became of those \
before: each is sent when it is due, by a matchmaker that has no other under way, of 512. p50_ms and p99_ms run from the \
moment at which a claim was due to its answer, so that what waits behind something slow counts too.

poke_p99_ms, from a claim until the agent knows of it, is that of `bench poke`, which runs first, on real servers and an \
embedded cluster of its own.

duplicates and errors are those of `bench claims`, of both parts.

The embedded cluster `bench` is made for this and removed after it; with --keep it stays, and is used again. The last \
line is one JSON object.";

const BURST: usize = 300;
const RAW_CLIENTS: usize = 64;
const LINES: usize = 512;
const SECONDS: f64 = 20.0;
const SEED: u64 = 20_260_301;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How many game servers
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(600..=10_000))]
    servers: u16,
    #[command(flatten)]
    options: Options,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    servers: u16,
    burst: usize,
    burst_p50_ms: f64,
    burst_p99_ms: f64,
    burst_ms: f64,
    raw_per_second: f64,
    offered_per_second: f64,
    claims: usize,
    p50_ms: f64,
    p99_ms: f64,
    poke_p99_ms: Option<f64>,
    duplicates: usize,
    errors: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let poke_p99_ms = poke::p99_ms()?;
    fleet::measured(args.servers, &args.options, async |fleet| measure(fleet, poke_p99_ms).await)
}

async fn measure(fleet: &mut Fleet, poke_p99_ms: Option<f64>) -> Result<Summary> {
    let raw = load::patches(fleet, RAW_CLIENTS, usize::from(fleet.servers) * 2 / 5, "raw").await?.rate();
    fleet.free().await?;

    let burst = at_once(fleet).await?;
    let of_burst = load::faults(fleet, &burst).await?;
    fleet.free().await?;

    // There must be a server for each.
    let most = f64::from(fleet.servers) * 0.9 / SECONDS;
    let rate = (raw / 2.0).min(most);
    let claims = as_they_come(fleet, rate).await?;
    let of_claims = load::faults(fleet, &claims).await?;
    fleet.free().await?;
    Ok(Summary {
        servers: fleet.servers,
        burst: burst.len(),
        burst_p50_ms: rounded(percentile_ms(&burst, 50), 1),
        burst_p99_ms: rounded(percentile_ms(&burst, 99), 1),
        burst_ms: rounded(percentile_ms(&burst, 100), 1),
        raw_per_second: rounded(raw, 1),
        offered_per_second: rounded(number(claims.len()) / SECONDS, 1),
        claims: claims.len(),
        p50_ms: rounded(percentile_ms(&claims, 50), 2),
        p99_ms: rounded(percentile_ms(&claims, 99), 2),
        poke_p99_ms,
        duplicates: of_burst.0 + of_claims.0,
        errors: of_burst.1 + of_claims.1,
    })
}

async fn lines(fleet: &Fleet, count: usize) -> Result<Vec<Line>> {
    let mut lines = fleet.matchmaker().await?.connect_all(count).await?;
    try_join_all(lines.iter_mut().map(Line::warm)).await?;
    Ok(lines)
}

async fn at_once(fleet: &Fleet) -> Result<Vec<Done>> {
    let lines = lines(fleet, BURST).await?;
    let gate = Arc::new(Barrier::new(lines.len() + 1));
    let (announce, begun) = tokio::sync::watch::channel(Instant::now());
    let tasks: Vec<_> = (0..)
        .zip(lines)
        .map(|(number, mut line): (usize, Line)| {
            let (gate, begun) = (Arc::clone(&gate), begun.clone());
            tokio::spawn(async move {
                gate.wait().await;
                let sent = *begun.borrow();
                let id = format!("burst-{number}");
                let server = line.claim(&id).await?.map(|granted| granted.uid);
                anyhow::Ok(Done { took: sent.elapsed(), id, server })
            })
        })
        .collect();
    announce.send_replace(Instant::now());
    gate.wait().await;
    try_join_all(tasks).await.context("a matchmaker has ended early")?.into_iter().collect()
}

/// At so many a second in the mean.
async fn as_they_come(fleet: &Fleet, rate: f64) -> Result<Vec<Done>> {
    let (idle, mut free) = mpsc::unbounded_channel();
    for line in lines(fleet, LINES).await? {
        idle.send(line).context("nobody takes the matchmakers")?;
    }
    let mut running = JoinSet::new();
    let begun = Instant::now();
    for (number, due) in moments(rate).into_iter().enumerate() {
        let due = begun + due;
        sleep_until(due.into()).await;
        let (id, idle) = (format!("poisson-{number}"), idle.clone());
        let mut line = free.recv().await.context("no matchmaker is left")?;
        running.spawn(async move {
            let server = line.claim(&id).await?.map(|granted| granted.uid);
            let took = due.elapsed();
            // Taken up as long as there are claims to make.
            let _ = idle.send(line);
            anyhow::Ok(Done { took, id, server })
        });
    }
    running.join_all().await.into_iter().collect()
}

/// When claims are due, from the beginning on.
fn moments(rate: f64) -> Vec<Duration> {
    let mut draw = fastrand::Rng::with_seed(SEED);
    let mut at = 0.0;
    let mut moments = Vec::new();
    loop {
        at -= (1.0 - draw.f64()).ln() / rate;
        if at >= SECONDS {
            return moments;
        }
        moments.push(Duration::from_secs_f64(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_come_at_the_rate_and_are_the_same_each_time() {
        let count = moments(300.0).len();
        assert!((5_700..6_300).contains(&count), "{count}");
        assert_eq!(moments(300.0), moments(300.0));
    }
}
