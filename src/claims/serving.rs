//! Serves who waits, first come, first served over all replicas. The leader does; should it not, another replica does.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::take::Open;
use super::{BUSY_WAIT, Call, Claims, DEADLINE, Granted};
use crate::api::{Claim, ClaimPhase};
use crate::rules::observed::Asked;
use crate::rules::{news, settle};
use crate::view::{Held, Key};
use crate::write::{Subject, WriteError};

/// How long a replica that does not lead leaves a server to the leader.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many servers are being taken for claims that wait at once.
const CONCURRENCY: usize = 32;
/// How often the queue is looked at while much changes.
const PACE: Duration = Duration::from_millis(10);
/// How long a claim rests that could not be served for an error; it doubles up to [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_millis(200);
/// The longest such rest.
const LONGEST_REST: Duration = Duration::from_secs(30);

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
            // Where there is nothing, as is usual for who waits, nobody else is kept from the view.
            if !self.view.offers(&open.key, |server| open.fits(&asked.request, server)) {
                return None;
            }
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
