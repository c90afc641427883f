//! Keeps the capacity pools: makes those that groups name, gathers what speaks against each, and writes the verdict.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;

use super::Context;
use super::work::Next;
use crate::api::{CapacityPool, CapacityPoolSpec, Evidence, Override, Viability};
use crate::rules::news;
use crate::rules::observed::SeenPool;
use crate::rules::pool::Pool;
use crate::rules::viability::Told;
use crate::write::{Subject, WriteError};

/// All pools: they are looked at together.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct All;

impl fmt::Display for All {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("capacity pools")
    }
}

pub(super) async fn reconcile(context: &Context, _: All) -> Result<Next, WriteError> {
    let now = Timestamp::now();
    let wanted = context.view.pools_wanted(&context.config.zones);
    let there = context.view.pools();
    if wanted.is_empty() && there.is_empty() {
        return Ok(Next::Rest);
    }
    for pool in wanted.iter().filter(|pool| there.iter().all(|seen| seen.pool != **pool)) {
        create(context, pool).await?;
    }
    let happened = context.view.happenings(now);
    for seen in there.iter().filter(|seen| !seen.deleting) {
        let new =
            happened.iter().filter(|(pool, _)| seen.pool.holds(pool)).map(|(_, evidence)| evidence.clone());
        settle(context, seen, new.collect(), &beside(seen, &there), now).await?;
        collect(context, seen, &wanted, now).await?;
    }
    Ok(Next::After(context.config.pools_period))
}

/// What happened in pools of the same type in other zones.
fn beside(seen: &SeenPool, there: &[SeenPool]) -> Vec<Evidence> {
    let others = there.iter().filter(|other| other.pool != seen.pool && other.pool.is_beside(&seen.pool));
    others.flat_map(|other| other.status.evidence.iter().cloned()).collect()
}

async fn create(context: &Context, pool: &Pool) -> Result<(), WriteError> {
    let spec = CapacityPoolSpec {
        instance_type: pool.instance_type.clone(),
        capacity_type: pool.capacity_type,
        zone: pool.zone.clone(),
        over: Override::Auto,
        advice: None,
    };
    let mut resource = CapacityPool::new(&pool.name(&context.config.owner), spec);
    resource.metadata.labels = Some(crate::rules::pool::labels(&context.config.owner));
    match context.writer.create_pool(&resource).await {
        // The watch will bring it.
        Ok(()) | Err(WriteError::Exists) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn settle(
    context: &Context,
    seen: &SeenPool,
    new: Vec<Evidence>,
    beside: &[Evidence],
    now: Timestamp,
) -> Result<(), WriteError> {
    let since = seen.status.since.as_ref().filter(|_| seen.status.verdict == Viability::Probing);
    let delivered = since.is_some_and(|since| context.view.has_delivered(&seen.pool, since.0));
    let told = Told { over: seen.over, advice: seen.advice.as_ref(), new, beside, delivered };
    let status = context.config.terms.status(&seen.status, &told, now);
    if status == seen.status {
        return Ok(());
    }
    context.writer.set_pool_status(seen, &status).await?;
    if let Some(news) = news::of_pool(&seen.status, &status) {
        context.events.send(Subject::Pool(seen.name.clone(), seen.uid.clone()), news);
    }
    Ok(())
}

/// Lets a pool go that no group names, unless somebody has said something about it, or evidence still counts.
async fn collect(
    context: &Context,
    seen: &SeenPool,
    wanted: &BTreeSet<Pool>,
    now: Timestamp,
) -> Result<(), WriteError> {
    let kept = seen.over != Override::Auto || context.config.terms.counts_still(&seen.status, now);
    if wanted.contains(&seen.pool) || kept {
        return Ok(());
    }
    match context.writer.delete_pool(seen).await {
        Ok(()) | Err(WriteError::Gone | WriteError::Lost) => Ok(()),
        Err(error) => Err(error),
    }
}
