//! The claim service: pick, take, confirm. One engine behind every door, on every replica: no lock and no
//! leader, the API server decides (rows F12 and F14, invariants I1 and I2).

mod error;
mod release;
mod report;
mod serving;
mod take;
mod turns;
mod waiting;

pub use error::ClaimError;
pub use report::ReportError;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::api::{Claim, Confirmation};
use crate::metrics::{Metrics, OfGroup};
use crate::rules::claim;
use crate::rules::observed::{Fate, Server};
use crate::rules::offer::Withheld;
use crate::rules::request::Request;
use crate::rules::rivals::{self, Rivals};
use crate::view::{Key, View};
use crate::write::{Events, WriteError, Writer};
use turns::Turns;
use waiting::Outcome;

/// How long the tries of a claim may go on, their waits for the API server included. The last one may end some time later.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// The wait before something is looked at or tried again: a write that the API server was too busy for, or that was lost.
const BUSY_WAIT: Duration = Duration::from_millis(50);

/// How long a claim may wait for a server in the queue.
pub const LONGEST_WAIT: Duration = Duration::from_mins(10);

/// How many callers may wait in the queue at one replica: they must not keep those out who take what is there.
const MOST_WAITING: usize = 512;

/// A server, or seats on it, that is the caller's.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The server.
    pub server: Server,
    /// The claim as it stands on it.
    pub claim: Claim,
}

impl Granted {
    /// What `server` holds for the claim of this id.
    fn of(server: Server, id: &str) -> Option<Self> {
        let claim = server.claim_of(id)?.clone();
        Some(Self { server, claim })
    }

    fn fate(&self) -> Fate {
        self.server.fate(&self.claim)
    }
}

/// The claim service.
#[derive(Clone)]
pub struct Claims {
    view: View,
    writer: Writer,
    events: Events,
    metrics: Metrics,
    stop: CancellationToken,
    /// The places of those who wait.
    places: Arc<Semaphore>,
    turns: Turns,
}

/// One call under way.
struct Call {
    namespace: String,
    request: Request,
    user: String,
    /// Whether anybody still waits for the answer.
    gone: CancellationToken,
    started: Timestamp,
    /// When it is answered at the latest, waiting in the queue aside.
    until: Instant,
    /// How long it waits in the queue.
    wait: Duration,
}

impl Call {
    /// Before each step: what nobody waits for any more takes no server (case C4).
    fn goes_on(&self) -> Result<(), ClaimError> {
        if self.gone.is_cancelled() {
            return Err(ClaimError::Abandoned);
        }
        if Instant::now() >= self.until { Err(ClaimError::Slow) } else { Ok(()) }
    }

    async fn pause(&self) -> Result<(), ClaimError> {
        sleep(BUSY_WAIT).await;
        self.goes_on()
    }

    fn id(&self) -> &str {
        &self.request.id
    }
}

impl Claims {
    /// A service on these. Who waits in the queue is sent to another replica at `stop`, and keeps its place.
    pub fn new(
        view: View,
        writer: Writer,
        events: Events,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> Self {
        let places = Arc::new(Semaphore::new(MOST_WAITING));
        Self { view, writer, events, metrics, stop, places, turns: Turns::default() }
    }

    /// Claims a server in `namespace` for `user`, waiting for one for so long if there is none. Whoever drops this future
    /// has gone: a server that is taken for it after that is given back.
    ///
    /// # Errors
    /// Why there is none; each says what to do.
    pub async fn claim(
        &self,
        namespace: &str,
        request: Request,
        user: &str,
        wait: Duration,
    ) -> Result<Granted, ClaimError> {
        request.check()?;
        let gone = CancellationToken::new();
        let _going = gone.clone().drop_guard();
        let (namespace, user) = (namespace.to_owned(), user.to_owned());
        let (started, until) = (Timestamp::now(), Instant::now() + DEADLINE);
        let call = Call { namespace, request, user, gone, started, until, wait };
        let claims = self.clone();
        // A task of its own: a write in flight is not cut off, so what it did is known.
        let work = tokio::spawn(async move { claims.serve(&call).await });
        match timeout(DEADLINE + wait + DEADLINE, work).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(ClaimError::Stopped),
            Err(_) => Err(ClaimError::Slow),
        }
    }

    /// The server that claim `id` holds.
    ///
    /// # Errors
    /// There is none any more, or never was.
    pub async fn find(&self, namespace: &str, id: &str) -> Result<Granted, ClaimError> {
        self.remembered(namespace, id, self.only_holder(namespace, id)).await
    }

    async fn serve(&self, call: &Call) -> Result<Granted, ClaimError> {
        match self.in_turn(call).await {
            Err(
                ClaimError::OutOfCapacity { .. } | ClaimError::Draining { .. } | ClaimError::Taken { .. },
            ) if !call.wait.is_zero() => self.wait(call).await,
            answer => answer,
        }
    }

    async fn in_turn(&self, call: &Call) -> Result<Granted, ClaimError> {
        let turn = timeout_at(call.until, self.turns.wait(&call.namespace, call.id()));
        let _turn = turn.await.map_err(|_| ClaimError::Slow)?;
        self.find_or_take(call).await
    }

    /// The server of the call's id, or one that is on offer.
    async fn find_or_take(&self, call: &Call) -> Result<Granted, ClaimError> {
        let key = Key::new(&call.namespace, call.id());
        loop {
            call.goes_on()?;
            let asked = self.view.asked(&key);
            if asked.as_ref().is_some_and(|asked| asked.request.fingerprint() != call.request.fingerprint()) {
                return Err(ClaimError::IdReused { id: call.id().to_owned() });
            }
            let pending = asked.as_ref().filter(|asked| asked.is_pending() && !asked.deleting);
            let holder = timeout_at(call.until, self.only_holder(&call.namespace, call.id()));
            if let Some(holder) = holder.await.map_err(|_| ClaimError::Slow)? {
                if pending.is_some() && holder.claim.object.is_some() {
                    // Until its object says so too, whoever withdraws that has the server given back.
                    call.pause().await?;
                } else if let Some(granted) = self.repeated(call, holder).await? {
                    return self.activated(call, granted).await;
                }
                continue;
            }
            if let Some(asked) = &asked
                && let Outcome::Served(granted) = self.outcome(&key, asked).await?
            {
                return Ok(*granted);
            }
            let taken = self.take(call, pending.map(|asked| asked.uid.as_str())).await?;
            let Some(taken) = taken else { continue };
            let Some(granted) = self.kept(call, taken).await? else { continue };
            if let Some(object) = &granted.claim.object
                && !self.tell(&key, object, &granted).await
            {
                continue;
            }
            return self.activated(call, granted).await;
        }
    }

    /// What this call has taken, if it keeps it: none if another call of its id was first.
    async fn kept(&self, call: &Call, taken: Granted) -> Result<Option<Granted>, ClaimError> {
        let echo = timeout_at(call.until + DEADLINE, self.holder(&call.namespace, call.id()));
        let Ok(first) = echo.await else {
            // The watch is silent for longer than anybody waits.
            self.give_up(&call.namespace, &taken).await;
            return Err(ClaimError::Slow);
        };
        // It went while we waited.
        let first = first.ok_or_else(|| ClaimError::Over { id: call.id().to_owned() })?;
        let unheard = call.gone.is_cancelled();
        let own = &taken.server.uid;
        // Of two that may each have been first, both give up, and the next try finds which one is left.
        let disputed = self.view.is_disputed(&call.namespace, call.id(), own);
        if unheard || disputed || first.server.uid != *own {
            self.give_up(&call.namespace, &taken).await;
            return if unheard { Err(ClaimError::Abandoned) } else { Ok(None) };
        }
        let kept = answer(first)?;
        self.writer.poke_soon(&Key::new(&call.namespace, &kept.server.name));
        Ok(Some(kept))
    }

    /// Invariant I2: the server that bears a claim of this id already; of several, the one whose claim came first.
    ///
    /// It answers only when what was seen of it has come back on the watch: by then every earlier claim of this id
    /// has been seen, whichever replica took it. The view alone may know of a claim from our own write's answer.
    async fn holder(&self, namespace: &str, id: &str) -> Option<Granted> {
        let seen = rivals::first(&self.view.claimed_with(namespace, id), id)?.version;
        self.view.echoed(namespace, seen).await;
        Granted::of(rivals::first(&self.view.claimed_with(namespace, id), id)?.clone(), id)
    }

    /// What `holder` answers; or, where no server bears the id any more, its object.
    async fn remembered(
        &self,
        namespace: &str,
        id: &str,
        holder: impl Future<Output = Option<Granted>>,
    ) -> Result<Granted, ClaimError> {
        if let Some(holder) = timeout(DEADLINE, holder).await.map_err(|_| ClaimError::Slow)? {
            return answer(holder);
        }
        let key = Key::new(namespace, id);
        if let Some(asked) = self.view.asked(&key)
            && let Outcome::Served(granted) = self.outcome(&key, &asked).await?
        {
            return Ok(*granted);
        }
        Err(ClaimError::NoSuchClaim { id: id.to_owned(), namespace: namespace.to_owned() })
    }

    /// The [`holder`](Self::holder) of this id, once nothing else is held by it.
    async fn only_holder(&self, namespace: &str, id: &str) -> Option<Granted> {
        loop {
            let holder = self.holder(namespace, id).await?;
            let rivals = self.view.rivals(namespace, id);
            if rivals.are_settling(Timestamp::now()) {
                sleep(BUSY_WAIT).await;
                continue;
            }
            if let Rivals::Later(surplus) = rivals {
                Box::pin(self.give_back(namespace, id, surplus)).await;
            }
            return Some(holder);
        }
    }

    /// What an id's server answers to one who asks again; none if it is to be looked at anew.
    async fn repeated(&self, call: &Call, holder: Granted) -> Result<Option<Granted>, ClaimError> {
        if call.request.differs_from(&holder.claim) {
            return Err(ClaimError::IdReused { id: call.id().to_owned() });
        }
        let Some(patch) = claim::repeat(&holder.server, &holder.claim, Timestamp::now()) else {
            return answer(holder).map(Some);
        };
        let key = Key::new(&call.namespace, &holder.server.name);
        match self.writer.patch_status(&key, patch).await {
            Ok(server) => Granted::of(server, call.id()).map(answer).transpose(),
            Err(WriteError::Refused { code, message }) => {
                Err(ClaimError::Write(WriteError::Refused { code, message }))
            }
            Err(_) => {
                call.pause().await?;
                self.writer.find_server(&key).await.map(|_| None).map_err(ClaimError::Write)
            }
        }
    }

    /// Row P3: with `confirmation: Immediate` the claim itself makes the game Active. Not before its echo: until then
    /// another replica may turn out to have been first.
    async fn activated(&self, call: &Call, granted: Granted) -> Result<Granted, ClaimError> {
        let Granted { server, claim } = &granted;
        let group = self.view.group(&Key::new(&call.namespace, &server.group));
        let immediate = group.is_some_and(|group| match group.spec.claim.confirmation {
            Confirmation::Immediate => true,
            Confirmation::Game => false,
        });
        if !immediate || granted.fate() != Fate::Held || call.gone.is_cancelled() {
            return Ok(granted);
        }
        let over = || ClaimError::Over { id: call.id().to_owned() };
        let key = Key::new(&call.namespace, &server.name);
        loop {
            match self.writer.patch_status(&key, claim::activate(server, claim)).await {
                Ok(active) => return Granted::of(active, call.id()).ok_or_else(over),
                // The game said so itself, or it has ended.
                Err(WriteError::Lost | WriteError::Gone) => {
                    let there = self.writer.find_server(&key).await.map_err(ClaimError::Write)?;
                    let there = there.and_then(|server| Granted::of(server, call.id()));
                    return there.map_or_else(|| Err(over()), answer);
                }
                Err(WriteError::Busy { .. } | WriteError::Silence | WriteError::Unreachable(_)) => {
                    call.pause().await?;
                }
                Err(error @ (WriteError::Exists | WriteError::Refused { .. })) => {
                    return Err(ClaimError::Write(error));
                }
            }
        }
    }
}

/// The group that a claim's count stands under.
fn of_group(key: &Key, server: &Server) -> OfGroup {
    OfGroup { namespace: key.namespace.clone(), group: server.group.clone() }
}

/// What an id's server answers for it.
fn answer(holder: Granted) -> Result<Granted, ClaimError> {
    let id = holder.claim.id.clone();
    if holder.server.is_ending() {
        return Err(ClaimError::Over { id });
    }
    match holder.fate() {
        Fate::Held | Fate::Confirmed => Ok(holder),
        Fate::Released => Err(ClaimError::Released { id }),
        Fate::Lapsed => Err(ClaimError::Expired { id }),
    }
}

/// What keeps a server from being claimed, in words.
fn words(withheld: Withheld) -> &'static str {
    match withheld {
        Withheld::NoPod => "no pod of its group backs it",
        Withheld::State => "it is not StandingBy",
        Withheld::Claimed => "it is claimed",
        Withheld::Unhealthy => "it is Unhealthy",
        Withheld::Marked => "it is marked (spec.shutdown)",
        Withheld::PodEnding => "its pod ends",
        Withheld::NodeEnding => "its node goes",
        Withheld::PodNotReady => "its pod is not ready",
        Withheld::NoAddress => "its address is not known yet",
        Withheld::Full => "its seats are taken",
    }
}
