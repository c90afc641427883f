//! What the operator holds in memory, and how soon it serves.

use anyhow::{Context as _, Result};
use clap::Args as ClapArgs;
use serde::Serialize;
use tokio::time::{Duration, sleep};

use super::fleet::{self, Fleet, Options};
use super::load::rounded;

/// What `--help` says.
pub(super) const METHOD: &str = "\
How much memory the operator takes with N servers (10,000), and how soon after its start it serves.

The servers are on nodes that kwok answers for, and all stand by. Then the operator, one process on this machine, a \
release build with the account, rights and log settings of the chart, is killed and started anew. cold_start_seconds runs \
from the start of that process to the answer of the first claim over its HTTP API (TLS, token, rights) that is granted; \
one is tried every 10 ms. Then it leads, looks at every server once, and rests: 60 s after its start resident_mb is its \
resident set (VmRSS), and peak_mb the largest that it has had so far (VmHWM), in millions of bytes. The targets: 150 MB \
and 10 s.

The embedded cluster `bench` is made for this and removed after it; with --keep it stays, and is used again. The last \
line is one JSON object.";

/// How long after its start it is looked at.
const SETTLED: Duration = Duration::from_mins(1);
/// How long it may take until it serves.
const PATIENCE: Duration = Duration::from_mins(2);

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How many game servers
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(100..=10_000))]
    servers: u16,
    #[command(flatten)]
    options: Options,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    servers: u16,
    resident_mb: f64,
    peak_mb: f64,
    cold_start_seconds: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    fleet::measured(args.servers, &args.options, async |fleet| measure(fleet).await)
}

async fn measure(fleet: &mut Fleet) -> Result<Summary> {
    fleet.start_anew()?;
    let begun = fleet.operator.begun;
    let first = first_claim(fleet);
    let cold_start = tokio::time::timeout(PATIENCE, first).await.context("no claim is served")??;
    sleep(SETTLED.saturating_sub(begun.elapsed())).await;
    let memory = fleet.operator.memory()?;
    fleet.free().await?;
    Ok(Summary {
        servers: fleet.servers,
        resident_mb: rounded(memory.resident_mb, 1),
        peak_mb: rounded(memory.peak_mb, 1),
        cold_start_seconds: rounded(cold_start.as_secs_f64(), 2),
    })
}

/// The time from the operator's start to its first claim.
async fn first_claim(fleet: &Fleet) -> Result<std::time::Duration> {
    let matchmaker = fleet.matchmaker().await?;
    loop {
        // Nobody listens yet, or there is no certificate, or the picture is not whole.
        if let Ok(mut line) = matchmaker.connect().await
            && let Ok(Ok(_)) = line.claim("cold-start").await
        {
            return Ok(fleet.operator.begun.elapsed());
        }
        sleep(Duration::from_millis(10)).await;
    }
}
