//! What is written while nothing happens.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args as ClapArgs;
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::audit::{self, Request, Writer};
use super::{crowd, stage};
use crate::cluster::Cluster;
use crate::demo::Ground;
use crate::progress::Progress;
use crate::workspace::Workspace;

/// What `--help` says.
pub(super) const METHOD: &str = "\
What the operator and the agents write and ask while nothing happens.

One group keeps OpenArena servers on the real node, each with the agent (30); another keeps servers on nodes that kwok \
answers for (1,000), which this command reports StandingBy as their games would. When all stand by, and nobody but \
Kubernetes itself has written anything for 20 s (Leases apart), the time begins.

operator_writes and agent_writes are the create, update, patch and delete requests that the API server got in that time \
from all replicas of the operator, Leases apart, and from the account gamekeeper-game, whatever the answer, as the \
audit log has them. operator_requests are all requests of the operator that it got in that time, of any verb, Leases \
included: the audit policy of the embedded cluster logs the reads of the operator's account as well. Watches that were \
open before do not count; one that is taken up again does. The target is 0 writes.

The lines before say what the requests were, and who wrote to pods, GameServers and groups in that time.

The embedded cluster `bench` is made for this and removed after it. The last line is one JSON object.";

/// How long nothing must have been written before it counts as rest.
const QUIET: Duration = Duration::from_secs(20);
/// How long to wait for that; after it the time begins all the same, and shows what goes on.
const QUIET_PATIENCE: Duration = Duration::from_mins(3);

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How long to look on, in seconds
    #[arg(long, value_name = "N", default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// How many real game servers
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(0..=1000))]
    real: u16,
    /// How many on fake nodes
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    fake: u16,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    servers: u32,
    seconds: u64,
    operator_writes: usize,
    agent_writes: usize,
    operator_requests: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    stage::measured(&stage::EMBEDDED, async |workspace, ground| measure(workspace, ground, args).await)
}

async fn measure(workspace: &Workspace, ground: &Ground, args: &Args) -> Result<Summary> {
    let cluster = ground.cluster.as_ref().context("there is no embedded cluster with an audit log")?;
    crowd::stand_by(workspace, ground, args.real, args.fake).await?;
    quiet(cluster).await?;
    let begin = Timestamp::now();
    look_on(Duration::from_secs(args.seconds)).await;
    let end = Timestamp::now();
    let requests: Vec<Request> = audit::read(&cluster.audit_log())?
        .into_iter()
        .filter(|request| (begin..end).contains(&request.received))
        .collect();
    print(&requests);
    let of = |writer: Writer| requests.iter().filter(move |request| request.writer() == writer);
    Ok(Summary {
        servers: u32::from(args.real) + u32::from(args.fake),
        seconds: args.seconds,
        operator_writes: of(Writer::Operator).filter(|request| is_write(request)).count(),
        agent_writes: of(Writer::Agent).filter(|request| is_write(request)).count(),
        operator_requests: of(Writer::Operator).count(),
    })
}

/// A write, but of a Lease.
fn is_write(request: &Request) -> bool {
    request.is_write() && request.resource() != "leases"
}

/// A write that nothing at rest is to cause: by us, or to what is ours.
fn disturbs(request: &Request) -> bool {
    let is_ours = matches!(request.writer(), Writer::Operator | Writer::Agent);
    let to_ours = matches!(request.resource(), "pods" | "gameservers" | "gameservergroups");
    is_write(request) && (is_ours || to_ours)
}

async fn quiet(cluster: &Cluster) -> Result<()> {
    let mut progress = Progress::start("waiting until nothing is written any more");
    let start = Instant::now();
    loop {
        let requests = audit::read(&cluster.audit_log())?;
        let last = requests.iter().filter(|request| disturbs(request)).max_by_key(|request| request.received);
        let since = last.map(|request| Timestamp::now().duration_since(request.received).unsigned_abs());
        if since.is_none_or(|since| since >= QUIET) || start.elapsed() >= QUIET_PATIENCE {
            progress.finish();
            return Ok(());
        }
        if let Some(request) = last {
            progress.note(format!("{}: {} {}", request.writer(), request.verb, request.target()));
        }
        sleep(Duration::from_secs(2)).await;
    }
}

async fn look_on(time: Duration) {
    let mut progress = Progress::start(format!("looking on for {} s", time.as_secs()));
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        progress.tick();
        sleep(left.min(Duration::from_secs(1))).await;
    }
    progress.finish();
}

fn print(requests: &[Request]) {
    println!("What the operator asked:");
    table(requests.iter().filter(|request| request.writer() == Writer::Operator));
    println!("\nWho wrote to pods, GameServers and groups, and what else operator and agents wrote:");
    table(requests.iter().filter(|request| disturbs(request)));
}

/// How often each happened.
pub(super) fn table<'a>(requests: impl Iterator<Item = &'a Request>) {
    let mut lines = BTreeMap::<(Writer, String), (usize, String)>::new();
    for request in requests {
        let answer = if request.is_done() { String::new() } else { format!("answered {} ", request.code()) };
        let changes = request.changes().join(", ");
        let what = format!("{:<7} {:<24} {answer}{changes}", request.verb, request.target());
        let (count, _) =
            lines.entry((request.writer(), what)).or_insert_with(|| (0, request.name().to_owned()));
        *count += 1;
    }
    if lines.is_empty() {
        println!("  nothing");
    }
    for ((writer, what), (count, first)) in lines {
        println!("  {count:>5}  {writer:<20} {what} (first: {first})");
    }
}
