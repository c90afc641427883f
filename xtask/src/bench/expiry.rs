//! How late claims lapse.

use std::collections::HashMap;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;
use futures::StreamExt as _;
use futures::future::try_join_all;
use gamekeeper::api::{ClaimStatus, GameServer};
use jiff::Timestamp;
use kube::Api;
use kube::ResourceExt as _;
use kube::runtime::watcher::{self, Event};
use serde::Serialize;
use tokio::time::{sleep, sleep_until};

use super::fleet::{self, Fleet, LONG_SECONDS, Options, status};
use super::load::{number, percentile, rounded};
use super::matchmaker::Line;
use crate::progress::Progress;

/// What `--help` says.
pub(super) const METHOD: &str = "\
How late a claim lapses whose game is never Active.

A group keeps N servers on nodes that kwok answers for, and all stand by; the operator is one process on this machine, a \
release build, which leads (`bench claims --help` says more). 2,000 of them are claimed over the HTTP API, evenly over \
10 s, with a claim timeout of 15 s, and no game says a word.

A watch of the GameServers in this process shows each Unclaimed again: late is the time from the claim's expiresAt to the \
moment at which that arrives here, by the one clock of this machine. early counts those that arrive before their \
expiresAt. The targets: early 0, late_p99_seconds at most 1.

The embedded cluster `bench` is made for this and removed after it; with --keep it stays, and is used again. The last \
line is one JSON object.";

const SECONDS: f64 = 10.0;
const TIMEOUT_SECONDS: u16 = 15;
const LINES: usize = 32;
/// How long after the last deadline a claim may lapse at all.
const PATIENCE: Duration = Duration::from_mins(2);

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How many claims
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u16).range(1..=9000))]
    claims: u16,
    /// How many game servers; there must be more than claims
    #[arg(long, value_name = "N", default_value_t = 2500, value_parser = clap::value_parser!(u16).range(100..=10_000))]
    servers: u16,
    #[command(flatten)]
    options: Options,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    claims: usize,
    late_p50_seconds: f64,
    late_p99_seconds: f64,
    late_max_seconds: f64,
    early: usize,
    errors: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.claims < args.servers, "there must be more servers than claims");
    fleet::measured(args.servers, &args.options, async |fleet| measure(fleet, args.claims).await)
}

async fn measure(fleet: &mut Fleet, claims: u16) -> Result<Summary> {
    fleet.apply(TIMEOUT_SECONDS).await?;
    // The operator has seen it by then.
    fleet.free().await?;
    let watch = tokio::spawn(lapses(fleet.api(), usize::from(claims)));
    let errors = make(fleet, usize::from(claims)).await?;
    let late = watch.await.context("the watch has ended early")??;
    fleet.apply(LONG_SECONDS).await?;
    fleet.free().await?;
    Ok(Summary {
        claims: late.len(),
        late_p50_seconds: rounded(percentile(late.iter().copied(), 50), 3),
        late_p99_seconds: rounded(percentile(late.iter().copied(), 99), 3),
        late_max_seconds: rounded(percentile(late.iter().copied(), 100), 3),
        early: late.iter().filter(|late| **late < 0.0).count(),
        errors,
    })
}

/// Makes the claims, and counts those that got no server.
async fn make(fleet: &Fleet, claims: usize) -> Result<usize> {
    let mut lines = fleet.matchmaker().await?.connect_all(LINES).await?;
    try_join_all(lines.iter_mut().map(Line::warm)).await?;
    let begun = Instant::now();
    let tasks = (0..).zip(lines).map(|(first, mut line): (usize, Line)| {
        tokio::spawn(async move {
            let mut failed = 0;
            for claim in (first..claims).step_by(LINES) {
                let due = Duration::from_secs_f64(SECONDS * number(claim) / number(claims));
                sleep_until((begun + due).into()).await;
                failed += usize::from(line.claim(&format!("expiry-{claim}")).await?.is_err());
            }
            anyhow::Ok(failed)
        })
    });
    try_join_all(tasks).await.context("a matchmaker has ended early")?.into_iter().sum()
}

/// How many seconds after its deadline each claim was seen to have lapsed.
async fn lapses(servers: Api<GameServer>, claims: usize) -> Result<Vec<f64>> {
    let mut progress = Progress::start(format!("waiting until {claims} claims have lapsed"));
    let mut events = pin!(watcher::watcher(servers, watcher::Config::default()));
    let mut deadlines = HashMap::<String, Timestamp>::new();
    let mut late = Vec::with_capacity(claims);
    let longest = Duration::from_secs_f64(SECONDS) + Duration::from_secs(TIMEOUT_SECONDS.into()) + PATIENCE;
    let mut patience = pin!(sleep(longest));
    while late.len() < claims {
        let event = tokio::select! {
            event = events.next() => event.context("the watch of the servers has ended")?,
            () = &mut patience => break,
        };
        let now = Timestamp::now();
        let (Event::Apply(server) | Event::InitApply(server)) = event.context("the watch broke")? else {
            continue;
        };
        let (uid, status) = (server.uid().unwrap_or_default(), status(&server));
        match (status.claim_status, status.claim) {
            (ClaimStatus::Claimed, Some(claim)) => {
                deadlines.insert(uid, claim.expires_at.0);
            }
            (ClaimStatus::Unclaimed, _) => {
                late.extend(
                    deadlines.remove(&uid).map(|deadline| now.duration_since(deadline).as_secs_f64()),
                );
            }
            (ClaimStatus::Claimed, None) => {}
        }
        progress.note(format!("{} of {claims}", late.len()));
    }
    progress.finish();
    Ok(late)
}
