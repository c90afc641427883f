//! Thirty `OpenArena` servers in a group, beside the same pods in a Deployment.

use anyhow::Result;
use clap::Args as ClapArgs;
use serde::Serialize;

use super::round::{Bench, Round};
use super::stage;
use crate::demo::{Ground, Site};
use crate::workspace::Workspace;

/// What `--help` says.
pub(super) const METHOD: &str = "\
How long it takes from the request to the last of N OpenArena servers that a player can join, in a GameServerGroup and \
in a bare Deployment, in turn; the medians of all rounds, and their ratio.

Joinable is a server of the group when its GameServer says StandingBy and it has answered `getstatus` at the address and \
port in that status; a pod of the Deployment, when it has answered at its pod IP. Both are seen by the same code: one \
watch, and a question to each server as soon as its address is known. The Deployment's pods have the very spec that the \
operator gives the group's (policy PodIP for both), the agent included, as far as a Deployment can hold it: restartPolicy \
is Always, and the account is the namespace's default one, without rights, so that the agent runs and reports nowhere. \
One round of the Deployment goes first and is not counted. A round begins when all pods of the one before are gone.

operator_cpu_seconds is the CPU time of all replicas of the operator (two, as the chart has it) from the request to the \
last joinable server, from /proc; null on a cluster that is not on this machine.

The embedded cluster `bench` is made for this and removed after it. The last line is one JSON object.";

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// How many game servers
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(i32).range(1..=1000))]
    servers: i32,
    /// How many rounds of each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    #[command(flatten)]
    site: Site,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    servers: i32,
    deployment_seconds: Option<f64>,
    group_seconds: Option<f64>,
    ratio: Option<f64>,
    operator_cpu_seconds: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    stage::measured(&args.site, async |workspace, ground| measure(workspace, ground, args).await)
}

async fn measure(workspace: &Workspace, ground: &Ground, args: &Args) -> Result<Summary> {
    let bench = Bench::new(workspace, ground, args.servers).await?;
    let warm_up = bench.deployment().await?;
    println!("warm-up      deployment  {warm_up}");
    let (mut deployments, mut groups) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        let deployment = bench.deployment().await?;
        println!("round {round}      deployment  {deployment}");
        deployments.push(deployment);
        let group = bench.group().await?;
        println!("round {round}      group       {group}");
        groups.push(group);
    }
    bench.end().await?;
    let seconds = |rounds: &[Round]| median(rounds.iter().map(|round| round.last.as_secs_f64()));
    let (deployment, group) = (seconds(&deployments), seconds(&groups));
    let cpu: Option<Vec<f64>> = groups.iter().map(|round| round.operator_cpu_seconds).collect();
    let ratio = deployment.zip(group).map(|(deployment, group)| group / deployment);
    Ok(Summary {
        servers: args.servers,
        deployment_seconds: deployment.map(rounded),
        group_seconds: group.map(rounded),
        ratio: ratio.map(rounded),
        operator_cpu_seconds: cpu.and_then(|seconds| median(seconds.into_iter())).map(rounded),
    })
}

/// The middle one, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get(values.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

/// Milliseconds are as fine as this is.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median([].into_iter()), None);
    }
}
