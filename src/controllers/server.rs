//! Carries one instance through its life (rules/life.rs): each call takes one step.

use std::sync::Arc;

use jiff::Timestamp;

use super::Context;
use super::until;
use super::work::Next;
use crate::api::{EndReason, GameServerGroup, State};
use crate::metrics::OfGroup;
use crate::rules::attempts::{Attempts, Step as Attempt};
use crate::rules::balance;
use crate::rules::eviction;
use crate::rules::lapse;
use crate::rules::life::{self, Change, Step, Surroundings};
use crate::rules::news::{self, News};
use crate::rules::observed::{Member, Pod};
use crate::rules::patch::ServerPatch;
use crate::rules::pod;
use crate::rules::trouble::Trouble;
use crate::view::Key;
use crate::write::{Subject, WriteError};

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Next, WriteError> {
    let member = context.view.member(&key);
    let group = its_group(context, &key, &member);
    let node = member.pod.as_ref().and_then(|pod| pod.node.as_deref());
    let node = node.and_then(|node| context.view.node(node));
    let surplus = context.view.surplus(&key);
    let pool_cause = group
        .as_ref()
        .zip(member.pod.as_ref())
        .and_then(|(group, pod)| balance::cause(&group.spec, pod, |pool| context.view.fitness(pool)));
    if let Some(change) = eviction::turn(&member) {
        // The view changes by that, so this comes by again.
        return settled(context.writer.relabel_pod(&key, change).await);
    }
    let around = Surroundings {
        group: group.as_deref(),
        node: node.as_ref(),
        surplus: &surplus,
        pool_cause: pool_cause.as_deref(),
        now: Timestamp::now(),
    };
    match life::step(&member, around) {
        Step::ConfirmGroup => collect(context, &key, &member).await,
        step => carry_out(context, &key, &member, step).await,
    }
}

/// The group that a member belongs to, where that is there.
pub(super) fn its_group(context: &Context, key: &Key, member: &Member) -> Option<Arc<GameServerGroup>> {
    let (name, uid) = group_of(member)?;
    let group = context.view.group(&Key::new(&key.namespace, name))?;
    (group.metadata.uid.as_deref() == Some(uid)).then_some(group)
}

fn group_of(member: &Member) -> Option<(&str, &str)> {
    match (&member.pod, &member.server) {
        (Some(pod), _) => Some((&pod.group, &pod.group_uid)),
        (None, Some(server)) => Some((&server.group, &server.group_uid)),
        (None, None) => None,
    }
}

async fn carry_out(context: &Context, key: &Key, member: &Member, step: Step) -> Result<Next, WriteError> {
    let writer = &context.writer;
    match step {
        Step::Rest(None) | Step::ConfirmGroup => {}
        Step::Rest(Some(then)) => return Ok(Next::After(until(then))),
        Step::CreateServer => {
            if let Some(owner) = &member.pod {
                return create(context, key, owner).await;
            }
        }
        Step::Patch(patch, change) => change_status(context, key, patch, &change).await?,
        Step::Mark(patch) => {
            writer.patch_spec(key, patch).await?;
            tell(context, key, member, news::marked());
        }
        Step::DeletePod(uid) => return settled(writer.delete_pod(key, &uid).await),
        Step::Tie => {
            if let (Some(pod), Some(server)) = (&member.pod, &member.server) {
                return settled(writer.tie_server(key, server, pod).await);
            }
        }
        Step::Disown => tell(context, key, member, news::without_pod()),
        Step::Bury => return bury(context, key, member).await,
    }
    Ok(Next::Rest)
}

/// Makes the server of a pod.
pub(super) async fn create(context: &Context, key: &Key, owner: &Pod) -> Result<Next, WriteError> {
    let server = pod::game_server(&key.namespace, owner);
    match context.writer.create_server(&key.namespace, &server).await {
        // It is there, and the view has not heard of it.
        Err(WriteError::Exists) => context.writer.find_server(key).await.map(|_| Next::Rest),
        Err(WriteError::Refused { code, message }) => {
            let group = Key::new(&key.namespace, &owner.group);
            let going =
                context.view.group(&group).is_none_or(|group| group.metadata.deletion_timestamp.is_some());
            // As when its definition is being deleted. A pod that has no server, and is to have none, goes.
            if going && context.writer.find_server(key).await?.is_none() {
                return settled(context.writer.delete_pod(key, &owner.uid).await);
            }
            let trouble = Trouble::refusal(code, &news::server_refused(&owner.name, &message));
            context.note_of(&owner.group_uid, |attempts| {
                attempts.refused(Attempt::Server, trouble, Timestamp::now());
            });
            context.view.look_again(&group);
            Err(WriteError::Refused { code, message })
        }
        Ok(()) => {
            context.note_of(&owner.group_uid, Attempts::served);
            Ok(Next::Rest)
        }
        outcome => settled(outcome),
    }
}

/// What is gone already needs no deletion. But the view has not heard of it: look again soon.
fn settled(outcome: Result<(), WriteError>) -> Result<Next, WriteError> {
    match outcome {
        Ok(()) => Ok(Next::Rest),
        Err(WriteError::Gone) => Err(WriteError::Lost),
        Err(error) => Err(error),
    }
}

async fn change_status(
    context: &Context,
    key: &Key,
    patch: ServerPatch,
    change: &Change,
) -> Result<(), WriteError> {
    let before = context.view.server(key);
    let server = context.writer.patch_status(key, patch).await?;
    if matches!(change, Change::Settled | Change::GivenBack(_)) || server.goes_with_its_node() {
        context.writer.poke_soon(key);
    }
    let lapsed = before.map(|before| lapse::lapsed(&before, &server)).unwrap_or_default();
    let group = OfGroup { namespace: key.namespace.clone(), group: server.group.clone() };
    context.metrics.lapses(&group, lapsed.len());
    for news in news::of_server(change).into_iter().chain(news::of_lapses(&server, &lapsed)) {
        context.events.send(Subject::Server(key.clone(), server.uid.clone()), news);
    }
    Ok(())
}

fn tell(context: &Context, key: &Key, member: &Member, news: News) {
    if let Some(server) = &member.server {
        context.events.send(Subject::Server(key.clone(), server.uid.clone()), news);
    }
}

/// No pod is seen for this server. A view can lag, so the API server is asked before what cannot be undone
/// (case C6).
pub(super) async fn bury(context: &Context, key: &Key, member: &Member) -> Result<Next, WriteError> {
    let Some(server) = &member.server else { return Ok(Next::Rest) };
    let found = context.writer.find_pod(key).await?;
    if let Some(pod) = found.filter(|pod| pod.metadata.uid.as_ref() == Some(&server.pod_uid)) {
        // The view will have it in a moment, or somebody has taken from it the labels that make it ours.
        return match pod::relabelled(server, &pod) {
            Some(labels) => context.writer.relabel_pod(key, labels).await.map(|()| Next::Rest),
            None => Ok(Next::Rest),
        };
    }
    if server.state != State::Terminated {
        // The view changes by that, so this comes by again for the finalizer.
        let step = life::terminated(server, EndReason::PodDeleted, "its pod is gone", Timestamp::now());
        return Box::pin(carry_out(context, key, member, step)).await;
    }
    settled(context.writer.release_server(key, server).await)
}

/// No group is seen for this instance: when the API server knows none either, it is collected.
async fn collect(context: &Context, key: &Key, member: &Member) -> Result<Next, WriteError> {
    let Some((name, uid)) = group_of(member) else { return Ok(Next::Rest) };
    let found = context.writer.find_group(&Key::new(&key.namespace, name)).await?;
    if found.is_some_and(|group| group.metadata.uid.as_deref() == Some(uid)) {
        // The watch will bring it, and this comes by again.
        return Err(WriteError::Lost);
    }
    let step = life::collect(member, Timestamp::now());
    carry_out(context, key, member, step).await
}
