//! Holds one group at its number, and takes it down when it is deleted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use tokio::time::Instant;

use super::Context;
use super::queue::Next;
use super::until;
use crate::api::names::GROUP_FINALIZER;
use crate::api::{GameServerGroup, GameServerGroupStatus};
use crate::rules::bounds::{self, InForce};
use crate::rules::hold::{self, Launch, Retire, Waiting, Wanted};
use crate::rules::life::Change;
use crate::rules::names::revision;
use crate::rules::status::{Observed, Trouble, TroubleKind};
use crate::rules::{delete, news, pod, ports, status, validate};
use crate::view::Key;
use crate::write::{Subject, WriteError};

/// The least time between two writes of a status in which only counts have changed.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// The wait after a refused pod; it doubles from there.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest wait after a refused pod: what a freed quota costs at most.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// What this process remembers of its attempts at a group. Nothing is lost with it: after a restart the next
/// attempt finds the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    /// The generation whose template has been shown to the API server.
    shown: Option<i64>,
    /// The last refusal.
    refused: Option<Trouble>,
    /// How many refusals in a row.
    refusals: u32,
    /// No pod is made before this.
    not_before: Option<Instant>,
    /// When the status was written last.
    written: Option<Instant>,
}

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Next, WriteError> {
    let Some(group) = context.view.group(&key) else {
        context.attempts.lock().remove(&key);
        return Ok(Next::Rest);
    };
    let held = group.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == GROUP_FINALIZER);
    match (group.metadata.deletion_timestamp.is_some(), held) {
        (true, true) => take_down(context, &key, &group).await,
        (true, false) => Ok(Next::Rest),
        (false, false) => context.writer.hold_group(&key, &group).await.map(|()| Next::Rest),
        (false, true) => hold_number(context, &key, &group).await,
    }
}

/// Row F10: retires what may go, and lets the group go when nothing is left.
async fn take_down(context: &Context, key: &Key, group: &Arc<GameServerGroup>) -> Result<Next, WriteError> {
    let members = members(context, key, group);
    let plan = delete::plan(group.spec.deletion_policy, &members, Timestamp::now());
    retire(context, key, plan.retire).await?;
    if plan.stage.is_none() {
        context.writer.release_group(key, group).await?;
        return Ok(Next::Rest);
    }
    let seen = Observed {
        members: &members,
        in_force: InForce { desired: 0, bound: None },
        waiting: &[],
        refused: None,
        deletion: plan.stage,
        now: Timestamp::now(),
    };
    write_status(context, key, group, &status::status(group, seen)).await
}

/// Row F2.
async fn hold_number(context: &Context, key: &Key, group: &Arc<GameServerGroup>) -> Result<Next, WriteError> {
    context.access.give(&key.namespace).await?;
    show_template(context, key, group).await?;

    let in_force = bounds::in_force(&group.spec);
    let (name, uid) = identity(group);
    let revision = revision(&group.spec.template);
    let wanted = Wanted { group: name, group_uid: uid, revision: &revision, desired: in_force.desired };
    let plan = hold::plan(wanted, &members(context, key, group), Timestamp::now());
    retire(context, key, plan.retire).await?;
    give_up(context, key, &plan.give_up).await?;
    let missing = !plan.create.is_empty();
    create(context, key, group, &plan.create).await?;

    let attempts = context.attempts.lock().get(key).cloned().unwrap_or_default();
    let members = members(context, key, group);
    let seen = Observed {
        members: &members,
        in_force,
        waiting: &plan.waiting,
        refused: attempts.refused.as_ref(),
        deletion: None,
        now: Timestamp::now(),
    };
    let written = write_status(context, key, group, &status::status(group, seen)).await?;
    let retry = attempts.not_before.filter(|_| missing || attempts.refused.is_some());
    let retry = retry.map(|then| then.saturating_duration_since(Instant::now()));
    Ok(earliest(written, retry, &plan.waiting))
}

fn earliest(written: Next, retry: Option<Duration>, waiting: &[Waiting]) -> Next {
    let slots = waiting.iter().map(|slot| until(slot.until));
    let status = match written {
        Next::Rest => None,
        Next::After(wait) => Some(wait),
    };
    slots.chain(retry).chain(status).min().map_or(Next::Rest, Next::After)
}

fn identity(group: &GameServerGroup) -> (&str, &str) {
    (group.metadata.name.as_deref().unwrap_or_default(), group.metadata.uid.as_deref().unwrap_or_default())
}

fn members(context: &Context, key: &Key, group: &GameServerGroup) -> Vec<crate::rules::observed::Member> {
    context.view.members(&key.namespace, identity(group).1)
}

/// Shows a new template to our rules and to the API server before a pod is wanted, so that a bad one is refused
/// early, also in a group of none.
async fn show_template(context: &Context, key: &Key, group: &GameServerGroup) -> Result<(), WriteError> {
    let generation = group.metadata.generation;
    let attempts = context.attempts.lock().get(key).cloned().unwrap_or_default();
    let due = attempts.not_before.is_none_or(|then| then <= Instant::now());
    let rejected =
        attempts.refused.as_ref().is_some_and(|trouble| trouble.kind == TroubleKind::TemplateRejected);
    if attempts.shown == generation && !(rejected && due) {
        return Ok(());
    }
    let trial = Launch { slot: 0, name: format!("{}-template", identity(group).0), attempt: 0 };
    let shown = match validate::check(&group.spec) {
        Err(fault) => Err(Trouble { kind: TroubleKind::TemplateRejected, message: fault.to_string() }),
        Ok(()) => match ports::pick(&group.spec.ports, &trial.name, &BTreeSet::new()) {
            Err(fault) => Err(Trouble { kind: TroubleKind::HostPortsExhausted, message: fault.to_string() }),
            Ok(host_ports) => {
                let pod = pod::build(group, &trial, &host_ports, &context.agent_image);
                refusal(context.writer.try_pod(&key.namespace, &pod).await)?
            }
        },
    };
    note(context, key, shown.err());
    context.attempts.lock().entry(key.clone()).or_default().shown = generation;
    Ok(())
}

/// Makes the pods in batches that double, and stops at the first refusal: what one pod is refused for, the
/// others are as well (case C14).
async fn create(
    context: &Context,
    key: &Key,
    group: &GameServerGroup,
    launches: &[Launch],
) -> Result<(), WriteError> {
    let not_before = context.attempts.lock().get(key).and_then(|attempts| attempts.not_before);
    if not_before.is_some_and(|then| then > Instant::now()) {
        return Ok(());
    }
    let mut used = context.view.host_ports();
    let (mut rest, mut size) = (launches, 1);
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(size.min(rest.len()));
        let mut made = Vec::new();
        for launch in batch {
            match ports::pick(&group.spec.ports, &launch.name, &used) {
                Ok(host_ports) => {
                    used.extend(host_ports.iter().map(|(_, number)| *number));
                    made.push(make(context, key, group, launch, host_ports));
                }
                Err(fault) => {
                    let kind = TroubleKind::HostPortsExhausted;
                    note(context, key, Some(Trouble { kind, message: fault.to_string() }));
                    return Ok(());
                }
            }
        }
        for outcome in join_all(made).await {
            if let Err(trouble) = outcome? {
                if trouble.kind == TroubleKind::Forbidden {
                    context.access.doubt(&key.namespace);
                }
                note(context, key, Some(trouble));
                return Ok(());
            }
        }
        (rest, size) = (later, (size * 2).min(super::CONCURRENCY));
    }
    if !launches.is_empty() {
        note(context, key, None);
    }
    Ok(())
}

async fn make(
    context: &Context,
    key: &Key,
    group: &GameServerGroup,
    launch: &Launch,
    host_ports: Vec<(String, i32)>,
) -> Result<Result<(), Trouble>, WriteError> {
    let pod = pod::build(group, launch, &host_ports, &context.agent_image);
    match context.writer.create_pod(&key.namespace, &pod).await {
        // Another leader made it, or an earlier answer was lost: the view takes it up from the API server.
        Err(WriteError::Exists) => {
            let there = context.writer.find_pod(&Key::new(&key.namespace, &launch.name)).await?;
            let ours = there.is_none_or(|there| {
                let labels = there.metadata.labels.unwrap_or_default();
                labels.get(crate::api::names::LABEL_GROUP_UID).map(String::as_str) == Some(identity(group).1)
            });
            let message = format!("a pod {} that is not of this group exists; delete it", launch.name);
            Ok(if ours { Ok(()) } else { Err(Trouble { kind: TroubleKind::CreateRefused, message }) })
        }
        outcome => refusal(outcome),
    }
}

/// A refusal is a finding about the group; anything else is a failure to try again.
fn refusal(outcome: Result<(), WriteError>) -> Result<Result<(), Trouble>, WriteError> {
    match outcome {
        Ok(()) => Ok(Ok(())),
        Err(WriteError::Refused { code, message }) => Ok(Err(Trouble::refusal(code, &message))),
        Err(error) => Err(error),
    }
}

/// Remembers how the last attempt went, and when the next one is due.
fn note(context: &Context, key: &Key, refused: Option<Trouble>) {
    let mut all = context.attempts.lock();
    let attempts = all.entry(key.clone()).or_default();
    attempts.refusals = if refused.is_some() { attempts.refusals.saturating_add(1) } else { 0 };
    attempts.not_before = refused.as_ref().map(|_| {
        let doublings = attempts.refusals.saturating_sub(1).min(16);
        Instant::now() + FIRST_RETRY.saturating_mul(1 << doublings).min(LONGEST_RETRY)
    });
    attempts.refused = refused;
}

async fn retire(context: &Context, key: &Key, servers: Vec<Retire>) -> Result<(), WriteError> {
    let retired = servers.into_iter().map(|Retire { name, patch, reason, message }| async move {
        let server = Key::new(&key.namespace, name);
        match context.writer.patch_status(&server, patch).await {
            Ok(after) => {
                let change = Change::Retired(reason, message);
                if let Some(news) = news::of_server(&change, None) {
                    let uid = after.metadata.uid.unwrap_or_default();
                    context.events.send(Subject::Server(server, uid), news);
                }
                Ok(())
            }
            // A claim landed first, or it ended by itself: the next look tells.
            Err(WriteError::Lost | WriteError::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    });
    join_all(retired).await.into_iter().collect()
}

async fn give_up(context: &Context, key: &Key, pods: &[(String, String)]) -> Result<(), WriteError> {
    let deleted = pods.iter().map(|(name, uid)| async move {
        match context.writer.delete_pod(&Key::new(&key.namespace, name), uid).await {
            Ok(()) | Err(WriteError::Gone | WriteError::Lost) => Ok(()),
            Err(error) => Err(error),
        }
    });
    join_all(deleted).await.into_iter().collect()
}

/// Writes the status if it has changed. Where only counts have, at most once a second.
async fn write_status(
    context: &Context,
    key: &Key,
    group: &GameServerGroup,
    after: &GameServerGroupStatus,
) -> Result<Next, WriteError> {
    let before = group.status.clone().unwrap_or_default();
    if before == *after {
        return Ok(Next::Rest);
    }
    let written = context.attempts.lock().get(key).and_then(|attempts| attempts.written);
    let wait = written.map_or(Duration::ZERO, |then| STATUS_INTERVAL.saturating_sub(then.elapsed()));
    if only_counts_differ(&before, after) && !wait.is_zero() {
        return Ok(Next::After(wait));
    }
    context.writer.set_group_status(key, group, after).await?;
    context.attempts.lock().entry(key.clone()).or_default().written = Some(Instant::now());
    let uid = identity(group).1;
    for news in news::of_group(&before, after) {
        context.events.send(Subject::Group(key.clone(), uid.to_owned()), news);
    }
    Ok(Next::Rest)
}

fn only_counts_differ(before: &GameServerGroupStatus, after: &GameServerGroupStatus) -> bool {
    let said = |status: &GameServerGroupStatus| {
        let conditions = status.conditions.iter();
        conditions
            .map(|condition| (condition.type_.clone(), condition.status.clone(), condition.reason.clone()))
            .collect::<Vec<_>>()
    };
    before.phase == after.phase
        && before.observed_generation == after.observed_generation
        && said(before) == said(after)
}
