//! Holds one group at its number, and takes it down when it is deleted.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::until;
use super::work::{AGAIN, Next};
use super::{Config, Context};
use crate::api::names::{GROUP_FINALIZER, SLOTS};
use crate::api::{GameServerGroup, GameServerGroupStatus};
use crate::rules::attempts::{Attempts, Step};
use crate::rules::balance::Balance;
use crate::rules::bounds::{self, InForce};
use crate::rules::hold::{self, Launch, Waiting, Wanted};
use crate::rules::idle::Retire;
use crate::rules::life::Change;
use crate::rules::names::{pod_name, revision};
use crate::rules::observed::Member;
use crate::rules::patch::ServerPatch;
use crate::rules::status::{self, Observed};
use crate::rules::trouble::{Trouble, TroubleKind};
use crate::rules::{adopt, delete, news, pod, ports, validate};
use crate::view::Key;
use crate::write::{Subject, WriteError};

/// The least time between two writes of a status in which only counts have changed.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// How many pods, at most, are made or retired before the group is looked at again: what it wants may have changed.
const PASS: usize = 128;

/// What this process remembers of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    attempts: Attempts,
    /// When the status was written last.
    written: Option<Instant>,
    /// Whether it has taken over what another group of its name left.
    adopted: bool,
}

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Next, WriteError> {
    let Some(group) = context.view.group(&key) else {
        context.forget_groups();
        if let Some((uid, why)) = context.view.unreadable(&key) {
            context.events.send(Subject::Group(key, uid), news::unreadable(&why));
        }
        return Ok(Next::Rest);
    };
    let held = group.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == GROUP_FINALIZER);
    match (group.metadata.deletion_timestamp.is_some(), held) {
        (true, true) if !waits(&group) => take_down(context, &key, &group).await,
        (true, false) => Ok(Next::Rest),
        (false, false) => context.writer.hold_group(&key, &group).await.map(|()| Next::Rest),
        (true | false, true) => hold_number(context, &key, &group).await,
    }
}

fn waits(group: &GameServerGroup) -> bool {
    let phase = group.status.as_ref().map(|status| status.phase).unwrap_or_default();
    delete::waits_for_activation(group.spec.deletion_policy, phase)
}

/// Row F10: retires what may go, and lets the group go when nothing is left.
async fn take_down(context: &Context, key: &Key, group: &Arc<GameServerGroup>) -> Result<Next, WriteError> {
    let members = members(context, key, group);
    let plan = delete::plan(group.spec.deletion_policy, &members, Timestamp::now());
    let more = plan.retire.len() > PASS;
    let retired = retire(context, key, plan.retire).await;
    serve(context, key, group, &plan.serve).await?;
    retain(context, key, plan.retain).await?;
    if plan.stage.is_none() {
        context.writer.release_group(key, group).await?;
        context.events.send(Subject::Group(key.clone(), identity(group).1.to_owned()), news::gone());
        return Ok(Next::Rest);
    }
    let reach = context.poked.reach(key, &members);
    let seen = Observed {
        members: &members,
        reach: &reach,
        in_force: InForce { desired: 0, waiting: 0, bound: None },
        waiting: &[],
        refused: None,
        balance: None,
        deletion: plan.stage,
        now: Timestamp::now(),
    };
    let written = write_status(context, key, group, &status::status(group, seen)).await?;
    // Nothing else is made any more.
    let refused = context.attempts(group);
    let again = refused.next().or_else(|| refused.serves_again()).filter(|_| !plan.serve.is_empty());
    retired.map(|()| if more { AGAIN } else { earliest(written, again, &[]) })
}

/// Row F2. The status is written whatever a step met: it is what says so.
async fn hold_number(context: &Context, key: &Key, group: &Arc<GameServerGroup>) -> Result<Next, WriteError> {
    adopt(context, key, group).await?;
    let revision = revision(&group.spec);
    let prepared = prepare(context, key, group, &revision).await;

    let in_force = bounds::in_force(&group.spec, context.view.demand(key, Timestamp::now()));
    let zones = context.view.zones(&context.config.zones);
    let balance = Balance::of(&group.spec, &zones, |pool| context.view.fitness(pool));
    let wanted = Wanted { group, revision: &revision, desired: in_force.desired, balance: balance.as_ref() };
    let plan = hold::plan(wanted, &members(context, key, group), Timestamp::now());
    let more =
        [plan.create.len(), plan.retire.len(), plan.give_up.len()].into_iter().any(|steps| steps > PASS);
    let retired = retire(context, key, plan.retire).await;
    let served = serve(context, key, group, &plan.serve).await;
    let given_up = give_up(context, key, &plan.give_up).await;
    let launches: Vec<Launch> = plan.create.into_iter().take(PASS).collect();
    let created = create(context, key, group, &revision, &launches).await;

    let members = members(context, key, group);
    if members.iter().all(|member| member.pod.is_none() || member.server.is_some()) {
        context.note(group, Attempts::served);
    }
    let attempts = context.attempts(group);
    let reach = context.poked.reach(key, &members);
    let seen = Observed {
        members: &members,
        reach: &reach,
        in_force,
        waiting: &plan.waiting,
        refused: attempts.trouble(),
        balance: balance.as_ref(),
        deletion: None,
        now: Timestamp::now(),
    };
    let written = write_status(context, key, group, &status::status(group, seen)).await?;
    prepared.and(retired).and(served).and(given_up).and(created)?;
    if more && attempts.trouble().is_none() {
        return Ok(AGAIN);
    }
    // The server of a pod is its own controller's to make, but for those that have not registered themselves.
    let unregistered = || attempts.serves_again().filter(|_| !plan.serve.is_empty());
    Ok(earliest(written, attempts.next().or_else(unregistered), &plan.waiting))
}

fn earliest(written: Next, retry: Option<Timestamp>, waiting: &[Waiting]) -> Next {
    let times = waiting.iter().map(|slot| slot.until).chain(retry).map(until);
    let status = match written {
        Next::Rest => None,
        Next::After(wait) => Some(wait),
    };
    times.chain(status).min().map_or(Next::Rest, Next::After)
}

fn identity(group: &GameServerGroup) -> (&str, &str) {
    (group.metadata.name.as_deref().unwrap_or_default(), group.metadata.uid.as_deref().unwrap_or_default())
}

fn members(context: &Context, key: &Key, group: &GameServerGroup) -> Vec<Member> {
    context.view.members(&key.namespace, identity(group).1)
}

/// What the API server said to a creation that it could refuse.
enum Outcome {
    Made,
    Refused(Trouble),
}

/// A refusal is a finding about the group; anything else is a failure to try again.
fn outcome(answer: Result<(), WriteError>) -> Result<Outcome, WriteError> {
    match answer {
        Ok(()) => Ok(Outcome::Made),
        Err(WriteError::Refused { code, message }) => Ok(Outcome::Refused(Trouble::refusal(code, &message))),
        Err(error) => Err(error),
    }
}

/// Makes the account of the namespace's games, and shows a new template to our rules and to the API server before
/// a pod is wanted: a bad one is refused early, also in a group of none.
async fn prepare(
    context: &Context,
    key: &Key,
    group: &GameServerGroup,
    revision: &str,
) -> Result<(), WriteError> {
    if !context.attempts(group).trial_is_due(revision, Timestamp::now()) {
        return Ok(());
    }
    let refused = match outcome(context.access.give(&key.namespace).await)? {
        Outcome::Refused(trouble) => Some(trouble),
        Outcome::Made => on_trial(context, key, group).await?,
    };
    if refused.is_some() {
        // It may be for want of an account that was there.
        context.access.doubt(&key.namespace);
    }
    context.note(group, |attempts| attempts.shown(revision, refused, Timestamp::now()));
    Ok(())
}

async fn on_trial(
    context: &Context,
    key: &Key,
    group: &GameServerGroup,
) -> Result<Option<Trouble>, WriteError> {
    if let Err(fault) = validate::check(&group.spec) {
        return Ok(Some(Trouble { kind: TroubleKind::TemplateRejected, message: fault.to_string() }));
    }
    let (name, uid) = identity(group);
    let trial = Launch { slot: SLOTS, name: pod_name(name, uid, SLOTS, "trial"), after: None, pool: None };
    let host_ports = match ports::pick(&group.spec.ports, &trial.name, &context.pool(), &ports::Held::new()) {
        Ok(host_ports) => host_ports,
        Err(fault) => return Ok(Some(exhausted(&fault))),
    };
    let pod = context.build(group, &trial, &host_ports);
    match outcome(context.writer.try_pod(&key.namespace, &pod).await)? {
        Outcome::Made => Ok(None),
        Outcome::Refused(trouble) => Ok(Some(trouble)),
    }
}

fn exhausted(fault: &ports::Exhausted) -> Trouble {
    Trouble { kind: TroubleKind::HostPortsExhausted, message: fault.to_string() }
}

/// Makes pods in batches that grow, and stops at the first refusal: what one pod is refused for, the others are as
/// well (case C14).
async fn create(
    context: &Context,
    key: &Key,
    group: &GameServerGroup,
    revision: &str,
    launches: &[Launch],
) -> Result<(), WriteError> {
    if launches.is_empty() {
        context.note(group, Attempts::nothing_wanted);
        return Ok(());
    }
    let attempts = context.attempts(group);
    if !attempts.creation_is_due(revision, Timestamp::now()) {
        return Ok(());
    }
    if let Outcome::Refused(trouble) = outcome(context.access.give(&key.namespace).await)? {
        context.note(group, |attempts| attempts.refused(Step::Creation, trouble, Timestamp::now()));
        return Ok(());
    }
    let (mut rest, mut size) = (launches, attempts.first_batch());
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(size.min(rest.len()));
        if let Outcome::Refused(trouble) = create_batch(context, key, group, batch).await? {
            if trouble.kind == TroubleKind::Forbidden {
                context.access.doubt(&key.namespace);
            }
            context.note(group, |attempts| attempts.refused(Step::Creation, trouble, Timestamp::now()));
            return Ok(());
        }
        context.note(group, Attempts::made);
        (rest, size) = (later, Attempts::next_batch(size));
    }
    Ok(())
}

async fn create_batch(
    context: &Context,
    key: &Key,
    group: &GameServerGroup,
    batch: &[Launch],
) -> Result<Outcome, WriteError> {
    let (pool, mut held) = (context.pool(), context.view.host_ports());
    let (mut pods, mut refused) = (Vec::new(), None);
    for launch in batch {
        match ports::pick(&group.spec.ports, &launch.name, &pool, &held) {
            Ok(host_ports) => {
                for (_, number) in &host_ports {
                    *held.entry(*number).or_default() += 1;
                }
                pods.push(make(context, key, group, launch, host_ports));
            }
            Err(fault) => refused = Some(exhausted(&fault)),
        }
    }
    for made in join_all(pods).await {
        if let Outcome::Refused(trouble) = made? {
            refused = Some(trouble);
        }
    }
    Ok(refused.map_or(Outcome::Made, Outcome::Refused))
}

async fn make(
    context: &Context,
    key: &Key,
    group: &GameServerGroup,
    launch: &Launch,
    host_ports: Vec<(String, i32)>,
) -> Result<Outcome, WriteError> {
    let pod = context.build(group, launch, &host_ports);
    match context.writer.create_pod(&key.namespace, &pod).await {
        // Another leader made it, or an earlier answer was lost: the view takes it up from the API server.
        Err(WriteError::Exists) => {
            let there = context.writer.find_pod(&Key::new(&key.namespace, &launch.name)).await?;
            let ours = there.is_none_or(|there| adopt::owner(&there) == Some(identity(group).1));
            let message = format!("a pod {} that is not of this group exists; delete it", launch.name);
            let taken = Trouble { kind: TroubleKind::CreateRefused, message };
            Ok(if ours { Outcome::Made } else { Outcome::Refused(taken) })
        }
        answer => outcome(answer),
    }
}

/// Marks servers as left running, at most [`PASS`] of them.
async fn retain(context: &Context, key: &Key, servers: Vec<(String, ServerPatch)>) -> Result<(), WriteError> {
    let mut work = Vec::new();
    for (name, patch) in servers.into_iter().take(PASS) {
        let key = Key::new(&key.namespace, name);
        work.push(async move { context.writer.patch_spec(&key, patch).await });
    }
    all(work).await
}

/// Takes over what a group of this name left running, before anything is made: once in the life of a group.
async fn adopt(context: &Context, key: &Key, group: &GameServerGroup) -> Result<(), WriteError> {
    let (name, uid) = identity(group);
    if context.memory.lock().get(uid).is_some_and(|memory| memory.adopted) {
        return Ok(());
    }
    let mut work = Vec::new();
    for member in context.view.named(&key.namespace, name) {
        if adopt::is_adopted(&member, name, uid) {
            work.push(adopt_one(context, &key.namespace, uid, member));
        }
    }
    all(work).await?;
    context.memory.lock().entry(uid.to_owned()).or_default().adopted = true;
    Ok(())
}

/// First the pod: until its server follows, that one still asks to be adopted.
async fn adopt_one(
    context: &Context,
    namespace: &str,
    group_uid: &str,
    member: Member,
) -> Result<(), WriteError> {
    let key = Key::new(namespace, member.name());
    if let Some(pod) = member.pod.as_ref().filter(|pod| pod.group_uid != group_uid) {
        context.writer.relabel_pod(&key, adopt::adopt_pod(&pod.uid, group_uid)).await?;
    }
    match member.server {
        Some(server) => context.writer.patch_spec(&key, adopt::adopt_server(&server, group_uid)).await,
        None => Ok(()),
    }
}

/// Retires servers, at most [`PASS`] of them.
async fn retire(context: &Context, key: &Key, servers: Vec<Retire>) -> Result<(), WriteError> {
    let mut work = Vec::new();
    for server in servers.into_iter().take(PASS) {
        work.push(retire_one(context, key, server));
    }
    all(work).await
}

async fn retire_one(context: &Context, key: &Key, server: Retire) -> Result<(), WriteError> {
    let Retire { name, patch, reason, message } = server;
    let server = Key::new(&key.namespace, name);
    match context.writer.patch_status(&server, patch).await {
        Ok(after) => {
            if let Some(news) = news::of_server(&Change::Retired(reason, message)) {
                context.events.send(Subject::Server(server, after.uid), news);
            }
            Ok(())
        }
        // A claim landed first, or it ended by itself: the next look tells.
        Err(WriteError::Lost | WriteError::Gone) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes servers for pods whose process has not registered itself, at most [`PASS`] of them.
async fn serve(
    context: &Context,
    key: &Key,
    group: &GameServerGroup,
    names: &[String],
) -> Result<(), WriteError> {
    if !context.attempts(group).is_due(Timestamp::now()) {
        return Ok(());
    }
    let mut work = Vec::new();
    for name in names.iter().take(PASS) {
        work.push(async move {
            let key = Key::new(&key.namespace, name);
            match context.view.member(&key).pod {
                Some(pod) => super::server::create(context, &key, &pod).await.map(drop),
                None => Ok(()),
            }
        });
    }
    all(work).await
}

/// Lets failed servers go that are kept no longer, at most [`PASS`] of them.
async fn give_up(context: &Context, key: &Key, names: &[String]) -> Result<(), WriteError> {
    let mut work = Vec::new();
    for name in names.iter().take(PASS) {
        work.push(give_up_one(context, Key::new(&key.namespace, name)));
    }
    all(work).await
}

/// First the pod; once that is gone, its server.
async fn give_up_one(context: &Context, key: Key) -> Result<(), WriteError> {
    let member = context.view.member(&key);
    let outcome = match &member.pod {
        Some(pod) => context.writer.delete_pod(&key, &pod.uid).await,
        None => super::server::bury(context, &key, &member).await.map(drop),
    };
    match outcome {
        Ok(()) | Err(WriteError::Gone | WriteError::Lost) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Does all of these, some at once, and says what the first that failed met.
async fn all<F: Future<Output = Result<(), WriteError>>>(work: Vec<F>) -> Result<(), WriteError> {
    let done: Vec<_> = stream::iter(work).buffer_unordered(super::CONCURRENCY).collect().await;
    done.into_iter().collect()
}

impl Context {
    /// What this process remembers of its attempts at `group`.
    fn attempts(&self, group: &GameServerGroup) -> Attempts {
        let memory = self.memory.lock();
        memory.get(identity(group).1).map(|memory| memory.attempts.clone()).unwrap_or_default()
    }

    /// The pod for `launch`.
    fn build(&self, group: &GameServerGroup, launch: &Launch, host_ports: &[(String, i32)]) -> Pod {
        let Config { agent_image, capacity_labels, .. } = &self.config;
        pod::build(group, launch, host_ports, agent_image, *capacity_labels)
    }

    /// The host ports that there are.
    fn pool(&self) -> ports::Pool {
        ports::Pool { range: self.config.host_ports.clone(), nodes: self.view.node_count() }
    }

    fn note(&self, group: &GameServerGroup, change: impl FnOnce(&mut Attempts)) {
        self.note_of(identity(group).1, change);
    }

    /// Notes how an attempt for the group with this UID went.
    pub(super) fn note_of(&self, group_uid: &str, change: impl FnOnce(&mut Attempts)) {
        change(&mut self.memory.lock().entry(group_uid.to_owned()).or_default().attempts);
    }

    /// Forgets the groups that have gone.
    fn forget_groups(&self) {
        let there = self.view.group_uids();
        self.memory.lock().retain(|uid, _| there.contains(uid));
    }
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
    let written = context.memory.lock().get(identity(group).1).and_then(|memory| memory.written);
    let wait = written.map_or(Duration::ZERO, |then| STATUS_INTERVAL.saturating_sub(then.elapsed()));
    if only_counts_differ(&before, after) && !wait.is_zero() {
        return Ok(Next::After(wait));
    }
    context.writer.set_group_status(key, group, after).await?;
    let uid = identity(group).1;
    context.memory.lock().entry(uid.to_owned()).or_default().written = Some(Instant::now());
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
