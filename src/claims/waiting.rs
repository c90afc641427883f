//! Waiting for a server, first come, first served over all replicas: who waits is a `GameServerClaim` in the API server,
//! in no replica's memory.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use super::{BUSY_WAIT, Call, ClaimError, Claims, DEADLINE, Granted, answer};
use crate::api::names::LABEL_CALLER_WAITS;
use crate::api::{ClaimPhase, GameServerClaim, GameServerClaimSpec, ServerSelector};
use crate::metrics::OfGroup;
use crate::rules::observed::{Asked, AskedBy, Server};
use crate::rules::settle;
use crate::view::Key;
use crate::write::WriteError;

/// How long a claim that came through the HTTP API stays once it is over, in seconds.
const STAYS_SECONDS: i32 = 60;
/// How long a wait goes on without a word of the watch before the API server is asked.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

impl Claims {
    /// Releases claim `id` if it waits for a server, and says whether it has. Whoever waits by it hears that.
    pub(super) async fn withdrawn(&self, key: &Key) -> Result<bool, ClaimError> {
        let until = Instant::now() + DEADLINE;
        while let Some(asked) = self.view.asked(key).filter(|asked| asked.is_pending() && !asked.deleting) {
            let released = settle::withdrawn(&asked, Timestamp::now());
            match self.writer.set_claim_status(key, &asked, &released).await {
                Ok(()) | Err(WriteError::Gone) => return Ok(true),
                // It may have a server by now.
                Err(WriteError::Lost) if Instant::now() < until => {
                    self.writer.find_claim(key).await.map_err(ClaimError::Write)?;
                }
                Err(error) => return Err(ClaimError::Write(error)),
            }
        }
        Ok(false)
    }

    /// Waits for a server in the queue.
    pub(super) async fn wait(&self, call: &Call) -> Result<Granted, ClaimError> {
        let _place = self.places.try_acquire().map_err(|_| ClaimError::Crowded)?;
        let group = call
            .request
            .groups
            .iter()
            .find(|group| self.view.group(&Key::new(&call.namespace, group.as_str())).is_some());
        let group = group.map(|group| OfGroup { namespace: call.namespace.clone(), group: group.clone() });
        let _waiter = self.metrics.waiter(&group.unwrap_or_default());
        let key = Key::new(&call.namespace, call.id());
        let ear = self.view.listen(&key);
        let until = call.until + call.wait;
        let mut waited_on = None;
        loop {
            let mut heard = std::pin::pin!(ear.notified());
            heard.as_mut().enable();
            if call.gone.is_cancelled() {
                self.leave(&key).await;
                return Err(ClaimError::Abandoned);
            }
            if Instant::now() > until + DEADLINE {
                return Err(none(call));
            }
            let asked = self.view.asked(&key).filter(|asked| !asked.deleting);
            match &asked {
                None => {
                    if self.view.asked(&key).is_some() {
                        // It is being deleted, and somebody's finalizer keeps it: it goes, or this call's time is over.
                        sleep(BUSY_WAIT).await;
                    }
                    self.ask(call, &key).await?;
                    continue;
                }
                Some(asked) if asked.request.fingerprint() != call.request.fingerprint() => {
                    return Err(ClaimError::IdReused { id: call.id().to_owned() });
                }
                Some(asked) => match self.outcome(&key, asked).await? {
                    Outcome::Served(granted) => return Ok(*granted),
                    Outcome::Waits => waited_on = Some(asked.uid.clone()),
                    // One that failed before this call is over: another takes its place.
                    Outcome::Failed
                        if waited_on.as_ref() != Some(&asked.uid) && asked.owner == AskedBy::Caller =>
                    {
                        self.withdraw(&key, asked).await?;
                        sleep(BUSY_WAIT).await;
                        continue;
                    }
                    Outcome::Failed => return Err(none(call)),
                },
            }
            tokio::select! {
                () = heard => {}
                () = sleep(LOOK_AGAIN) => {
                    let _ = self.writer.find_claim(&key).await;
                }
                () = sleep_until(until) => match &asked {
                    // It waits on for whoever has applied it.
                    Some(asked) if asked.owner == AskedBy::Somebody => return Err(none(call)),
                    Some(asked) if self.withdraw(&key, asked).await? => return Err(none(call)),
                    Some(_) | None => {}
                },
                () = self.stop.cancelled() => return Err(ClaimError::Stopped),
                () = call.gone.cancelled() => {
                    self.leave(&key).await;
                    return Err(ClaimError::Abandoned);
                }
            }
        }
    }

    /// Puts the call into the queue.
    async fn ask(&self, call: &Call, key: &Key) -> Result<(), ClaimError> {
        match self.writer.create_claim(&key.namespace, &object(call)).await {
            // It is there, and the view has not heard of it.
            Ok(()) | Err(WriteError::Exists) => {}
            Err(
                WriteError::Busy { .. } | WriteError::Silence | WriteError::Unreachable(_) | WriteError::Lost,
            ) => {
                sleep(BUSY_WAIT).await;
                if call.gone.is_cancelled() {
                    return Err(ClaimError::Abandoned);
                }
                return Ok(());
            }
            Err(error @ (WriteError::Gone | WriteError::Refused { .. })) => {
                return Err(ClaimError::Write(error));
            }
        }
        if self.view.asked(key).is_none() {
            self.writer.find_claim(key).await.map_err(ClaimError::Write)?;
        }
        Ok(())
    }

    /// How a claim stands by its object, which remembers it longer than a server does.
    pub(super) async fn outcome(&self, key: &Key, asked: &Asked) -> Result<Outcome, ClaimError> {
        let id = key.name.clone();
        match asked.status.phase {
            ClaimPhase::Pending => Ok(Outcome::Waits),
            ClaimPhase::Failed => Ok(Outcome::Failed),
            ClaimPhase::Expired => Err(ClaimError::Expired { id }),
            ClaimPhase::Released => Err(ClaimError::Released { id }),
            ClaimPhase::Bound | ClaimPhase::Confirmed => {
                let name = asked.status.server.clone().unwrap_or_default();
                let server = Key::new(&key.namespace, name);
                let ours = |server: &Server| asked.status.server_uid.as_ref() == Some(&server.uid);
                let found = match self.view.server(&server).filter(ours) {
                    Some(server) => Some(server),
                    None => self.writer.find_server(&server).await.map_err(ClaimError::Write)?,
                };
                let granted = found.filter(ours).and_then(|server| Granted::of(server, &id));
                Ok(Outcome::Served(Box::new(answer(granted.ok_or(ClaimError::Over { id })?)?)))
            }
        }
    }

    /// Takes a claim out of the queue whose caller has gone. One that has been served meanwhile lapses.
    async fn leave(&self, key: &Key) {
        let until = Instant::now() + DEADLINE;
        while let Some(asked) = self.view.asked(key)
            && asked.is_pending()
            && asked.owner == AskedBy::Caller
            && Instant::now() < until
        {
            match self.withdraw(key, &asked).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    warn!(claim = %key, %error, "take a claim out of the queue");
                    sleep(BUSY_WAIT).await;
                }
            }
        }
    }

    /// Takes a claim that has not been served out of the queue, and says whether that came first.
    async fn withdraw(&self, key: &Key, asked: &Asked) -> Result<bool, ClaimError> {
        match self.writer.withdraw_claim(key, asked).await {
            Ok(()) | Err(WriteError::Gone) => Ok(true),
            Err(WriteError::Lost) => {
                self.writer.find_claim(key).await.map_err(ClaimError::Write)?;
                Ok(false)
            }
            Err(error) => Err(ClaimError::Write(error)),
        }
    }
}

/// How a claim stands by its object.
pub(super) enum Outcome {
    /// It waits for a server.
    Waits,
    /// It has one.
    Served(Box<Granted>),
    /// It had none in time.
    Failed,
}

fn none(call: &Call) -> ClaimError {
    ClaimError::OutOfCapacity { groups: call.request.groups.clone() }
}

/// The call as an object that waits.
fn object(call: &Call) -> GameServerClaim {
    let request = &call.request;
    let match_labels = request.labels.clone();
    let spec = GameServerClaimSpec {
        groups: request.groups.clone(),
        server: request.server.clone(),
        selector: (!match_labels.is_empty()).then_some(ServerSelector { match_labels }),
        instance_status: request.instance_status.clone(),
        data: request.data.clone(),
        seats: request.seats,
        wait_seconds: i32::try_from(call.wait.as_secs()).unwrap_or(i32::MAX),
        requested_at: Some(MicroTime(call.started)),
        ttl_seconds_after_finished: STAYS_SECONDS,
    };
    let labels = BTreeMap::from([(LABEL_CALLER_WAITS.to_owned(), "true".to_owned())]);
    let mut object = GameServerClaim::new(call.id(), spec);
    object.metadata.labels = Some(labels);
    object
}
