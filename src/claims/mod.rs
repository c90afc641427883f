//! The claim service: pick, take, confirm. One engine behind every door, on every replica: no lock and no
//! leader, the API server decides (rows F12 and F14, invariants I1 and I2).

mod report;
mod take;
mod turns;
mod waiting;

pub use report::ReportError;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::api::{Claim, Confirmation};
use crate::metrics::{Metrics, OfGroup};
use crate::rules::claim::{self, Malformed, Request};
use crate::rules::observed::{Fate, Server};
use crate::rules::offer::Withheld;
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

/// Why no server is given.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The request's words are out of bounds.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Too many wait at this replica.
    #[error("{MOST_WAITING} callers wait for a server at this replica; ask again, or another replica")]
    Crowded,
    /// None of the groups is there.
    #[error("there is no GameServerGroup {groups} in namespace {namespace}")]
    NoSuchGroup {
        /// Their names.
        groups: String,
        /// The namespace.
        namespace: String,
    },
    /// There is no server of this name, in these groups.
    #[error("there is no GameServer {server} in namespace {namespace} that fits")]
    NoSuchServer {
        /// Its name.
        server: String,
        /// The namespace.
        namespace: String,
    },
    /// The server that is asked for cannot be had.
    #[error("GameServer {server} cannot be claimed: {why}")]
    Taken {
        /// Its name.
        server: String,
        /// What keeps it.
        why: &'static str,
    },
    /// All the groups are being deleted.
    #[error("being deleted: {groups}")]
    Deleting {
        /// Their names.
        groups: String,
    },
    /// No server is on offer that fits.
    #[error("no server of {} is on offer that fits", groups.join(", "))]
    OutOfCapacity {
        /// The groups that were tried.
        groups: Vec<String>,
    },
    /// There would be servers, on instances that drain.
    #[error("all servers of {} that are on offer are on instances that drain; allow instanceStatus Draining", groups.join(", "))]
    Draining {
        /// The groups that were tried.
        groups: Vec<String>,
    },
    /// The id is that of another request.
    #[error("claim {id} was made with another request; use another id")]
    IdReused {
        /// The id.
        id: String,
    },
    /// There is no claim of this id.
    #[error("there is no claim {id} in namespace {namespace}")]
    NoSuchClaim {
        /// The id.
        id: String,
        /// The namespace.
        namespace: String,
    },
    /// The claim of this id has lapsed.
    #[error("claim {id} lapsed: its game was not Active by its deadline; claim anew with another id")]
    Expired {
        /// The id.
        id: String,
    },
    /// The claim of this id has been given back.
    #[error("claim {id} was released; claim anew with another id")]
    Released {
        /// The id.
        id: String,
    },
    /// The game of this id is over.
    #[error("the game of claim {id} is over; claim anew with another id")]
    Over {
        /// The id.
        id: String,
    },
    /// The game of this id is on, so its claim cannot be given back.
    #[error(
        "the game of claim {id} is Active: it ends by itself, or by spec.shutdown of GameServer {server}"
    )]
    Playing {
        /// The id.
        id: String,
        /// The server.
        server: String,
    },
    /// Time ran out. Nothing is kept for the caller; asked again, the answer may be a server.
    #[error("no answer within {} s; ask again with the same id", DEADLINE.as_secs())]
    Slow,
    /// The caller has gone; nobody reads this.
    #[error("the caller has gone")]
    Abandoned,
    /// The API server could not be reached, or refused. The claim may hold all the same.
    #[error("take a server; ask again with the same id")]
    Write(#[source] WriteError),
    /// The work was torn down, as when the operator stops. The claim may hold all the same.
    #[error("this replica stops; ask again with the same id")]
    Stopped,
}

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

    /// Its holder gives back what claim `id` holds, and gets what that was; nothing if it still waited for a server.
    ///
    /// # Errors
    /// Its game is on or over, or it is not held any more.
    pub async fn release(&self, namespace: &str, id: &str) -> Result<Option<Granted>, ClaimError> {
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            if self.withdrawn(&Key::new(namespace, id)).await? {
                return Ok(None);
            }
            let Granted { server, claim } =
                self.remembered(namespace, id, self.holder(namespace, id)).await?;
            let patch = match server.fate(&claim) {
                Fate::Held => claim::release(&server, &claim, Timestamp::now()),
                Fate::Confirmed | Fate::Lapsed | Fate::Released => None,
            };
            // Seats that are due and have not been swept yet.
            if patch.is_none() && server.fate(&claim) == Fate::Held && claim.expires_at.0 <= Timestamp::now()
            {
                return Err(ClaimError::Expired { id: id.to_owned() });
            }
            let Some(patch) = patch else {
                return Err(ClaimError::Playing { id: id.to_owned(), server: server.name });
            };
            let key = Key::new(namespace, &server.name);
            match self.writer.patch_status(&key, patch).await {
                Ok(released) => {
                    self.writer.poke_soon(&key);
                    self.release_surplus(namespace, id, &released.uid).await;
                    let over = || ClaimError::Over { id: id.to_owned() };
                    return Granted::of(released, id).map(Some).ok_or_else(over);
                }
                // The game went Active, or the claim lapsed: the API server's own word says which.
                Err(WriteError::Lost | WriteError::Gone) => {
                    sleep(BUSY_WAIT).await;
                    self.writer.find_server(&key).await.map_err(ClaimError::Write)?;
                }
                Err(error) => return Err(ClaimError::Write(error)),
            }
        }
        Err(ClaimError::Slow)
    }

    /// Gives back what else is held by claim `id`: a replica that was killed may have taken a server for it that nobody
    /// heard of.
    async fn release_surplus(&self, namespace: &str, id: &str, released: &str) {
        let mut bearers = self.view.claimed_with(namespace, id);
        bearers.retain(|server| server.uid != released && server.is_held_by(id));
        self.give_back(namespace, id, bearers).await;
    }

    /// Gives back what `servers` hold for claim `id`, where nobody plays yet.
    async fn give_back(&self, namespace: &str, id: &str, servers: Vec<Server>) {
        let surplus = servers.into_iter().filter_map(|server| Granted::of(server, id));
        for surplus in surplus.filter(|surplus| surplus.fate() == Fate::Held) {
            self.give_up(namespace, &surplus).await;
        }
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

    /// Gives back, until that is done or cannot be any more, what was taken and nobody hears of.
    async fn give_up(&self, namespace: &str, taken: &Granted) {
        let Granted { server, claim } = taken;
        let key = Key::new(namespace, &server.name);
        let until = Instant::now() + DEADLINE;
        // Should the API server ail for longer than that, the claim lapses.
        while Instant::now() < until {
            // Seats are given back of the server as it is now, whoever has come to it since.
            let now = self.view.server(&key).filter(|now| now.uid == server.uid);
            let Some(patch) = now.and_then(|now| claim::forget(&now, claim, Timestamp::now())) else {
                return;
            };
            match self.writer.patch_status(&key, patch).await {
                Err(WriteError::Busy { .. } | WriteError::Silence | WriteError::Unreachable(_)) => {
                    sleep(BUSY_WAIT).await;
                }
                Err(WriteError::Lost) if claim.seats.is_some() => {
                    sleep(BUSY_WAIT).await;
                    let _ = self.writer.find_server(&key).await;
                }
                Ok(_) => return self.writer.poke_soon(&key),
                Err(
                    WriteError::Lost | WriteError::Gone | WriteError::Exists | WriteError::Refused { .. },
                ) => {
                    return;
                }
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
        Withheld::PodNotReady => "its pod is not ready",
        Withheld::NoAddress => "its address is not known yet",
        Withheld::Full => "its seats are taken",
    }
}
