//! How soon the agent of a claimed server knows of the claim.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;
use gamekeeper::api::names::AGENT_CONTAINER;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::stage::{self, NAMESPACE};
use crate::demo::Ground;
use crate::demo::claim::{self, Forward};
use crate::openarena;
use crate::progress::Progress;
use crate::workspace::Workspace;

/// What `--help` says.
pub(super) const METHOD: &str = "\
How long it takes from a claim until the agent in the server's pod knows of it, and so can tell the game.

A group keeps OpenArena servers with the agent on the real node (30). They are claimed over the HTTP API, with TLS, one \
claim after another (300); the next is made when the agent has heard of the one before. The 15 newest claims are held \
and older ones released, so that claims go round the servers; an agent hears of its claim's release by a poke as well.

Each time is from claimedAt, which the operator sets just before it asks the API server for the claim, to the moment at \
which the agent has been poked, has read its GameServer and found the claim there, as its log has it: on the embedded \
cluster both are of this machine's clock. So the API server's part is in it twice: the claim's write, and the agent's \
reading. A poke that was lost shows as the seconds until the leader's next; a claim of which no agent hears within \
30 s ends the bench. poke_p50_ms and poke_p99_ms are those times that half, and 99 in 100, of the claims do not exceed. \
The target is 100 ms at p99.

The embedded cluster `bench` is made for this and removed after it. The last line is one JSON object.";

const GROUP: &str = "arena";

/// How many servers and claims there are, unless others are asked for.
const SERVERS: u16 = 30;
const CLAIMS: u32 = 300;

/// How many claims are held at once.
const HELD: usize = 15;

/// How long an agent may take to hear of a claim.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two looks at an agent's log.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How much of the log is looked at.
const LINES: i64 = 20;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How many game servers
    #[arg(long, value_name = "N", default_value_t = SERVERS, value_parser = clap::value_parser!(u16).range(16..=200))]
    servers: u16,
    /// How many claims
    #[arg(long, value_name = "N", default_value_t = CLAIMS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    claims: u32,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    claims: usize,
    poke_p50_ms: Option<f64>,
    poke_p99_ms: Option<f64>,
}

/// [`poke_p99_ms`](Summary::poke_p99_ms) of a run with default values, on an embedded cluster of its own.
pub(super) fn p99_ms() -> Result<Option<f64>> {
    let args = Args { servers: SERVERS, claims: CLAIMS };
    stage::on_site(&stage::EMBEDDED, "poke", async |workspace, ground| {
        measure(workspace, ground, &args).await
    })
    .map(|summary| summary.poke_p99_ms)
}

pub(crate) fn run(args: &Args) -> Result<()> {
    stage::measured(&stage::EMBEDDED, async |workspace, ground| measure(workspace, ground, args).await)
}

async fn measure(workspace: &Workspace, ground: &Ground, args: &Args) -> Result<Summary> {
    let client = ground.access.client().await?;
    openarena::ensure_namespace(&client, NAMESPACE).await?;
    let group = openarena::group(workspace, GROUP, i32::from(args.servers), &ground.images.openarena)?;
    stage::launch(&client, &group).await?;
    let bench = Bench {
        pods: Api::namespaced(client.clone(), NAMESPACE),
        token: claim::token(workspace, &ground.access, &client, NAMESPACE).await?,
        forward: Forward::open(&ground.access, &client).await?,
    };
    let mut times = bench.claims(args.claims).await?;
    times.sort_unstable();
    Ok(Summary {
        claims: times.len(),
        poke_p50_ms: percentile(&times, 50),
        poke_p99_ms: percentile(&times, 99),
    })
}

/// Who claims.
struct Bench {
    pods: Api<Pod>,
    token: String,
    forward: Forward,
}

impl Bench {
    /// How long the agents took to hear of so many claims.
    async fn claims(&self, claims: u32) -> Result<Vec<Duration>> {
        let mut progress = Progress::start("claiming");
        let (mut times, mut held) = (Vec::new(), VecDeque::new());
        for number in 1..=claims {
            let id = format!("poke-{number}");
            let (answer, granted) = claim::claim(&self.forward, &self.token, NAMESPACE, GROUP, &id).await?;
            let claimed: Timestamp = answer
                .get("claimedAt")
                .and_then(|time| time.as_str())
                .and_then(|time| time.parse().ok())
                .with_context(|| format!("there is no claimedAt in {answer}"))?;
            let heard = self.heard(&granted.server, &id).await?;
            let time = heard.duration_since(claimed);
            times.push(Duration::try_from(time).context("the agent heard of the claim before it was made")?);
            held.push_back(id);
            if held.len() > HELD
                && let Some(oldest) = held.pop_front()
            {
                claim::release(&self.forward, &self.token, NAMESPACE, &oldest).await?;
            }
            progress.note(format!("{number} of {claims}"));
        }
        progress.finish();
        Ok(times)
    }

    /// When the agent of this server has heard of this claim.
    async fn heard(&self, server: &str, id: &str) -> Result<Timestamp> {
        let start = Instant::now();
        let params = LogParams {
            container: Some(AGENT_CONTAINER.to_owned()),
            tail_lines: Some(LINES),
            ..LogParams::default()
        };
        loop {
            let log = self.pods.logs(server, &params).await;
            let log = log.with_context(|| format!("cannot read the log of the agent of {server}"))?;
            if let Some(time) = log.lines().find_map(|line| time_of(line, id)) {
                return Ok(time);
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "the agent of {server} has not heard of claim {id} after {} s; it says:\n{log}",
                PATIENCE.as_secs()
            );
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// The time of an agent's line, if that says that claim `id` holds its server.
fn time_of(line: &str, id: &str) -> Option<Timestamp> {
    let (head, claim) = line.split_once("the game server is claimed claim=")?;
    (claim.trim().trim_matches('"') == id).then_some(())?;
    head.split_whitespace().next()?.parse().ok()
}

/// In milliseconds, the least of `sorted` that so many in a hundred of them do not exceed.
fn percentile(sorted: &[Duration], hundredths: usize) -> Option<f64> {
    let rank = (sorted.len() * hundredths).div_ceil(100);
    let time = sorted.get(rank.checked_sub(1)?)?;
    // Hundredths are as fine as this is.
    Some((time.as_secs_f64() * 100_000.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_line_tells_when_it_heard_of_a_claim() {
        let line = "2026-03-01T18:00:00.123456Z  INFO gamekeeper::agent::known: the game server is claimed claim=\"poke-7\"";
        assert_eq!(time_of(line, "poke-7"), Some("2026-03-01T18:00:00.123456Z".parse().unwrap()));
        assert_eq!(time_of(line, "poke-70"), None);
        assert_eq!(time_of(&line.replace("claimed", "claimed no more"), "poke-7"), None);
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50), Some(100.0));
        assert_eq!(percentile(&times, 99), Some(198.0));
        assert_eq!(percentile(&times[..1], 99), Some(1.0));
        assert_eq!(percentile(&[], 99), None);
    }
}
