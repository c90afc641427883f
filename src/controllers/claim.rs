//! Keeps the status of one `GameServerClaim`, removes it some time after its end, and gives the server of one back
//! that was deleted.

use std::time::Duration;

use jiff::Timestamp;

use super::Context;
use super::until;
use super::work::Next;
use crate::api::{Claim, Confirmation, GameServerClaimStatus};
use crate::rules::observed::{Asked, Fate, Server};
use crate::rules::settle::{self, Settled};
use crate::rules::{claim, news, rivals};
use crate::view::Key;
use crate::write::{Subject, WriteError};

/// The time between two looks at a claim of which it cannot be told yet which server it has.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Next, WriteError> {
    let bearers = context.view.claimed_with(&key.namespace, &key.name);
    let Some(asked) = context.view.asked(&key) else { return give_back(context, &key, bearers).await };
    if asked.deleting {
        return Ok(Next::Rest);
    }
    if asked.is_pending() && context.view.rivals(&key.namespace, &key.name).are_settling(Timestamp::now()) {
        return Ok(Next::After(LOOK_AGAIN));
    }
    let own = own(context, &key, &asked);
    let holder = own.as_ref().or_else(|| rivals::first(&bearers, asked.id()));
    let confirmation = holder.map_or(Confirmation::Game, |server| confirmation(context, &key, server));
    match settle::step(&asked, holder, confirmation, Timestamp::now()) {
        Settled::Rest(None) => Ok(Next::Rest),
        Settled::Rest(Some(then)) => Ok(Next::After(until(then))),
        Settled::Delete => match context.writer.delete_claim(&key, &asked.uid).await {
            Ok(()) | Err(WriteError::Gone) => Ok(Next::Rest),
            Err(error) => Err(error),
        },
        Settled::Begin => begin(context, &key, holder).await,
        Settled::Write(status) => write(context, key, &asked, &status).await,
        Settled::ConfirmGone(status) => {
            let name = asked.status.server.clone().unwrap_or_default();
            let found = context.writer.find_server(&Key::new(&key.namespace, name)).await?;
            if found.is_some_and(|server| asked.status.server_uid.as_ref() == Some(&server.uid)) {
                // The watch is behind. The view has it now, and this comes by again.
                return Err(WriteError::Lost);
            }
            write(context, key, &asked, &status).await
        }
    }
}

async fn write(
    context: &Context,
    key: Key,
    asked: &Asked,
    status: &GameServerClaimStatus,
) -> Result<Next, WriteError> {
    context.writer.set_claim_status(&key, asked, status).await?;
    if let Some(news) = news::of_claim(&asked.status, status) {
        context.events.send(Subject::Claim(key, asked.uid.clone()), news);
    }
    Ok(Next::Rest)
}

/// How the group of `server` has claims confirmed.
fn confirmation(context: &Context, key: &Key, server: &Server) -> Confirmation {
    let group = context.view.group(&Key::new(&key.namespace, &server.group));
    group.map_or(Confirmation::Game, |group| group.spec.claim.confirmation)
}

/// Makes the game of the claim's server Active.
async fn begin(context: &Context, key: &Key, holder: Option<&Server>) -> Result<Next, WriteError> {
    let Some((server, claim)) = holder.and_then(|server| Some((server, server.claim_of(&key.name)?))) else {
        return Ok(Next::Rest);
    };
    let server_key = Key::new(&key.namespace, &server.name);
    match context.writer.patch_status(&server_key, claim::activate(server, claim)).await {
        Ok(_) => {
            context.writer.poke_soon(&server_key);
            Ok(Next::Rest)
        }
        Err(WriteError::Gone) => Err(WriteError::Lost),
        Err(error) => Err(error),
    }
}

/// The claim's own server, once it has one, whatever it bears now.
fn own(context: &Context, key: &Key, asked: &Asked) -> Option<Server> {
    let server = context.view.server(&Key::new(&key.namespace, asked.status.server.clone()?))?;
    (asked.status.server_uid.as_ref() == Some(&server.uid)).then_some(server)
}

/// The claim is seen no more: what it held until its game began is on offer again.
async fn give_back(context: &Context, key: &Key, bearers: Vec<Server>) -> Result<Next, WriteError> {
    for server in bearers {
        let held = |claim: &&Claim| claim.object.is_some() && server.fate(claim) == Fate::Held;
        let Some(held) = server.claim_of(&key.name).filter(held) else { continue };
        if context.writer.find_claim(key).await?.is_some_and(|uid| held.object.as_ref() == Some(&uid)) {
            // The watch will bring it.
            return Err(WriteError::Lost);
        }
        let Some(patch) = claim::release(&server, held, Timestamp::now()) else { continue };
        let server = Key::new(&key.namespace, &server.name);
        match context.writer.patch_status(&server, patch).await {
            Ok(_) => context.writer.poke_soon(&server),
            // Lost: its game is on, or it has lapsed.
            Err(WriteError::Lost | WriteError::Gone) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Next::Rest)
}
