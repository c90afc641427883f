//! Waiting for a server, first come, first served over all replicas: who waits is a `GameServerClaim` in the API server,
//! in no replica's memory. The leader serves it; should it not, another replica does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::take::Open;
use super::{BUSY_WAIT, Call, ClaimError, Claims, DEADLINE, Granted, answer};
use crate::api::names::LABEL_CALLER_WAITS;
use crate::api::{Claim, ClaimPhase, GameServerClaim, GameServerClaimSpec, ServerSelector};
use crate::metrics::OfGroup;
use crate::rules::observed::{Asked, AskedBy, Server};
use crate::rules::{news, settle};
use crate::view::{Held, Key};
use crate::write::{Subject, WriteError};

/// How long a replica that does not lead leaves a server to the leader.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many servers are being taken for claims that wait at once.
const CONCURRENCY: usize = 32;
/// How long a claim that came through the HTTP API stays once it is over, in seconds.
const STAYS_SECONDS: i32 = 60;
/// How often the queue is looked at while much changes.
const PACE: Duration = Duration::from_millis(10);
/// How long a claim rests that could not be served for an error; it doubles up to [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_millis(200);
/// The longest such rest.
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How long a wait goes on without a word of the watch before the API server is asked.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

impl Claims {
    /// Serves who waits, for as long as it is polled. Every replica does, and `leads` says which one is to be first.
    pub async fn serve_waiting(&self, leads: watch::Receiver<bool>) {
        let mut changes = self.view.subscribe();
        let mut busy = Busy::default();
        let mut binds = JoinSet::new();
        loop {
            tokio::select! {
                change = changes.recv() => if change.is_none() { return },
                Some(done) = binds.join_next() => match done {
                    Ok((key, served)) => busy.done(key, served),
                    // Its key is not known any more: whoever is in hand is looked at again.
                    Err(error) => { warn!(%error, "a claim that waits"); busy.in_hand.clear(); }
                },
                () = sleep_until(busy.next()) => {}
            }
            // The changes of a moment are taken up together.
            sleep(PACE).await;
            while changes.try_recv().is_ok() {}
            let namespaces = self.view.namespaces_waiting();
            if namespaces.is_empty() {
                continue;
            }
            if *leads.borrow() {
                for namespace in namespaces {
                    self.serve_namespace(&namespace, |_| true, &mut busy, &mut binds);
                }
                continue;
            }
            let left: HashSet<Key> = namespaces.iter().flat_map(|name| self.servable(name)).collect();
            if left.is_empty() {
                continue;
            }
            // Whom the leader could have served, and has not.
            sleep(PATIENCE).await;
            for namespace in namespaces {
                self.serve_namespace(&namespace, |key| left.contains(key), &mut busy, &mut binds);
            }
        }
    }

    /// Who waits in `namespace` though a server that fits is on offer.
    fn servable(&self, namespace: &str) -> Vec<Key> {
        let waiting = self.view.waiting(namespace, Timestamp::now()).into_iter();
        let servable = waiting.filter(|asked| {
            self.open(namespace, asked)
                .any(|open| self.view.offers(&open.key, |server| open.fits(&asked.request, server)))
        });
        servable.map(|asked| Key::new(namespace, asked.id())).collect()
    }

    /// Gives each that waits in `namespace` and is `ours` to serve, the first first, a server that is on offer.
    fn serve_namespace(
        &self,
        namespace: &str,
        ours: impl Fn(&Key) -> bool,
        busy: &mut Busy,
        binds: &mut JoinSet<(Key, bool)>,
    ) {
        for asked in self.view.waiting(namespace, Timestamp::now()) {
            if binds.len() >= CONCURRENCY {
                return;
            }
            let key = Key::new(namespace, &asked.request.id);
            if !ours(&key) || busy.in_hand.contains(&key) || busy.rests(&key) {
                continue;
            }
            if let Some((open, held)) = self.hold_for(namespace, &asked) {
                busy.in_hand.insert(key.clone());
                let claims = self.clone();
                binds.spawn(async move {
                    let served = claims.bind(&key, &asked, &open, held).await;
                    (key, served)
                });
            }
        }
    }

    fn hold_for(&self, namespace: &str, asked: &Asked) -> Option<(Open, Held)> {
        self.open(namespace, asked).find_map(|open| {
            let held = self.view.hold_one(&open.key, |server| open.fits(&asked.request, server))?;
            Some((open, held))
        })
    }

    /// The groups that it may have a server of.
    fn open(&self, namespace: &str, asked: &Asked) -> impl Iterator<Item = Open> {
        asked.request.groups.iter().filter_map(move |group| {
            let key = Key::new(namespace, group.as_str());
            let group = self.view.group(&key).filter(|group| group.metadata.deletion_timestamp.is_none())?;
            Some(Open::new(key, &group))
        })
    }

    /// Takes the server in hand for a claim that waits, and says so in its status. False if it is to be tried again
    /// after a rest.
    async fn bind(&self, key: &Key, asked: &Asked, open: &Open, held: Held) -> bool {
        let call = Call {
            namespace: key.namespace.clone(),
            request: asked.request.clone(),
            user: format!("GameServerClaim {key}"),
            gone: CancellationToken::new(),
            started: Timestamp::now(),
            until: Instant::now() + DEADLINE,
            wait: Duration::ZERO,
        };
        let object = Some(asked.uid.clone());
        let claim = Claim { object, ..open.claim(&asked.request, &call.user, call.started) };
        let bound = match self.take_this(&call, held, &claim).await {
            Ok(Some(taken)) => self.kept(&call, taken).await,
            Ok(None) => return true,
            Err(error) => Err(error),
        };
        match bound {
            Ok(Some(granted)) => {
                // Until that is written, the claim may be withdrawn: only then is its game Active.
                if self.tell(key, &asked.uid, &granted).await
                    && let Err(error) = self.activated(&call, granted).await
                {
                    warn!(claim = %key, %error, "make the game of a claim Active");
                }
                true
            }
            Ok(None) => true,
            // It waits on, and is served again.
            Err(error) => {
                warn!(claim = %key, %error, "serve a claim that waits");
                false
            }
        }
    }

    /// Writes that a claim is bound, and says whether that is so. If it has gone or has failed meanwhile, its server is
    /// given back.
    pub(super) async fn tell(&self, key: &Key, uid: &str, granted: &Granted) -> bool {
        let until = Instant::now() + DEADLINE;
        // Should the API server ail for longer than that, the leader writes it.
        while Instant::now() < until {
            let asked = self.view.asked(key).filter(|asked| asked.uid == uid && !asked.deleting);
            let written = match asked {
                Some(asked) if asked.status.phase != ClaimPhase::Pending => {
                    let ours = asked.status.server_uid.as_ref() == Some(&granted.server.uid);
                    if !ours {
                        self.give_up(&key.namespace, granted).await;
                    }
                    return ours;
                }
                Some(asked) => {
                    let bound = settle::bound_to(&granted.server, &granted.claim);
                    let written = self.writer.set_claim_status(key, &asked, &bound).await;
                    if let Some(news) = news::of_claim(&asked.status, &bound).filter(|_| written.is_ok()) {
                        self.events.send(Subject::Claim(key.clone(), asked.uid.clone()), news);
                    }
                    written
                }
                None => Err(WriteError::Gone),
            };
            match written {
                Ok(()) => return true,
                Err(WriteError::Gone) => {
                    self.give_up(&key.namespace, granted).await;
                    return false;
                }
                Err(error) => {
                    if !matches!(error, WriteError::Lost) {
                        warn!(claim = %key, %error, "say that a claim is bound");
                        sleep(BUSY_WAIT).await;
                    }
                    let _ = self.writer.find_claim(key).await;
                }
            }
        }
        false
    }

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

/// The claims that are being served, and those that rest after an error.
#[derive(Default)]
struct Busy {
    in_hand: HashSet<Key>,
    resting: HashMap<Key, (Duration, Instant)>,
}

impl Busy {
    fn rests(&self, key: &Key) -> bool {
        self.resting.get(key).is_some_and(|(_, until)| *until > Instant::now())
    }

    fn done(&mut self, key: Key, served: bool) {
        self.in_hand.remove(&key);
        let rested = self.resting.remove(&key).map(|(rest, _)| rest);
        // Nobody comes back for what has long been rested.
        self.resting.retain(|_, (_, until)| until.elapsed() < LONGEST_REST);
        if !served {
            let rest = rested.map_or(FIRST_REST, |rest| (rest * 2).min(LONGEST_REST));
            self.resting.insert(key, (rest, Instant::now() + rest));
        }
    }

    /// When the next has rested.
    fn next(&self) -> Instant {
        let ends = self.resting.values().map(|(_, until)| *until).filter(|until| *until > Instant::now());
        ends.min().unwrap_or_else(|| Instant::now() + LONGEST_REST)
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
