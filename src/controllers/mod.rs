//! The controllers: each observes through the view, asks the rules, and hands the plan to the writer. Only the
//! leader runs them; a second one by mistake does no harm.

mod bill;
mod claim;
mod group;
mod poke;
mod pools;
mod server;
mod work;

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::info;

use work::Pace;

use crate::metrics::Metrics;
use crate::rules::place::CapacityLabels;
use crate::rules::viability::Terms;
use crate::view::{Changed, View};
use crate::write::{Access, Events, Writer};

/// How many requests of one kind are under way at once.
const CONCURRENCY: usize = 32;
/// A group is looked at as a whole, so the changes of a moment are taken up together.
const GROUPS: Pace = Pace { concurrency: CONCURRENCY, rest: Duration::from_millis(50) };
/// A server is looked at alone, at once.
const SERVERS: Pace = Pace { concurrency: CONCURRENCY, rest: Duration::ZERO };

/// Capacity pools are looked at together, and soon: what takes the place of a lost server is launched by their verdicts.
const POOLS: Pace = Pace { concurrency: 1, rest: Duration::from_millis(100) };

/// Pokes wait for agents that may not answer.
const POKES: Pace = Pace { concurrency: 128, rest: Duration::ZERO };

/// What the controllers are told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The image of the agent.
    pub agent_image: String,
    /// The host ports that pods are given.
    pub host_ports: RangeInclusive<u16>,
    /// Whose labels tell spot capacity from other.
    pub capacity_labels: CapacityLabels,
    /// The zones of capacity pools; those of the nodes if empty.
    pub zones: BTreeSet<String>,
    /// Whose capacity pools these are: the operator's namespace.
    pub owner: String,
    /// How patient verdicts on capacity pools are.
    pub terms: Terms,
    /// How often they are renewed (row F3).
    pub pools_period: Duration,
}

/// What the controllers work with.
pub struct Context {
    /// The picture of the cluster.
    pub view: View,
    /// The hand that changes it.
    pub writer: Writer,
    /// Where news goes.
    pub events: Events,
    /// The accounts of games.
    pub access: Access,
    /// What is configured.
    pub config: Config,
    /// What is counted.
    pub metrics: Metrics,
    /// By the UID of each group: one applied again under the same name starts afresh.
    memory: Mutex<HashMap<String, group::Memory>>,
    poked: poke::Memory,
}

impl Context {
    /// A context without a memory of any group.
    pub fn new(
        view: View,
        writer: Writer,
        events: Events,
        access: Access,
        config: Config,
        metrics: Metrics,
    ) -> Self {
        Self {
            view,
            writer,
            events,
            access,
            config,
            metrics,
            memory: Mutex::default(),
            poked: poke::Memory::default(),
        }
    }
}

/// Runs the controllers until the future is dropped, as when the lease is lost.
pub async fn run(context: &Context) {
    context.view.ready().await;
    info!("the controllers start");
    let mut changes = context.view.subscribe();
    let (groups, group_changes) = mpsc::unbounded_channel();
    let (members, member_changes) = mpsc::unbounded_channel();
    let (agents, agent_changes) = mpsc::unbounded_channel();
    let (claims, claim_changes) = mpsc::unbounded_channel();
    let (pools, pool_changes) = mpsc::unbounded_channel();
    let split = async {
        while let Some(change) = changes.recv().await {
            // The receivers live as long as this future.
            let _ = match change {
                Changed::Group(key) => {
                    // It may name other pools now.
                    let _ = pools.send(pools::All);
                    groups.send(key)
                }
                Changed::Member(key) => agents.send(key.clone()).and_then(|()| members.send(key)),
                Changed::Claim(key) => claims.send(key),
                Changed::Pools => {
                    let _ = pools.send(pools::All);
                    Ok(())
                }
            };
        }
    };
    tokio::join!(
        split,
        bill::run(context),
        work::run("group", group_changes, GROUPS, &context.metrics, |key| group::reconcile(context, key)),
        work::run("pools", pool_changes, POOLS, &context.metrics, |all| pools::reconcile(context, all)),
        work::run("claim", claim_changes, SERVERS, &context.metrics, |key| claim::reconcile(context, key)),
        work::run("agent", agent_changes, POKES, &context.metrics, |key| poke::reconcile(context, key)),
        work::run("server", member_changes, SERVERS, &context.metrics, |key| server::reconcile(context, key)),
    );
}

/// The time until `then`, none if it has come.
fn until(then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(Timestamp::now())).unwrap_or_default()
}
