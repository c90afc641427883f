//! The claim service: pick, take, confirm. One engine behind every door, on every replica: no lock and no
//! leader, the API server decides (rows F12 and F14, invariants I1 and I2).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use tokio::time::sleep;

use crate::api::{Claim, ClaimStatus, GameServerGroup, State};
use crate::metrics::{Metrics, OfGroup};
use crate::rules::claim::{self, Malformed};
use crate::rules::life::Change;
use crate::rules::names::spread;
use crate::rules::observed::Server;
use crate::rules::{lapse, news};
use crate::view::{Held, Key, View};
use crate::write::{Events, Subject, WriteError, Writer};

/// How long a claim may take, all its tries and waits together.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// The wait before a write is tried again that the API server was too busy for.
const BUSY_WAIT: Duration = Duration::from_millis(50);

/// What is asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// The caller's id: asked again with it, the answer is the same.
    pub id: String,
    /// The groups to take a server of, the first that has one.
    pub groups: Vec<String>,
}

/// Why no server is given.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The request's words are out of bounds.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// None of the groups is there.
    #[error("there is no GameServerGroup {groups} in namespace {namespace}")]
    NoSuchGroup {
        /// Their names.
        groups: String,
        /// The namespace.
        namespace: String,
    },
    /// All the groups are being deleted.
    #[error("being deleted: {groups}")]
    Deleting {
        /// Their names.
        groups: String,
    },
    /// No server is on offer.
    #[error("no server of {} is on offer", groups.join(", "))]
    OutOfCapacity {
        /// The groups that were tried.
        groups: Vec<String>,
    },
    /// The claim of this id has lapsed.
    #[error("claim {id} lapsed: its game was not Active by its deadline; claim anew with another id")]
    Expired {
        /// The id.
        id: String,
    },
    /// The game of this id is over.
    #[error("the game of claim {id} is over; claim anew with another id")]
    Over {
        /// The id.
        id: String,
    },
    /// Time ran out. The claim may hold all the same: asked again, the answer is the same.
    #[error("no answer within {} s; ask again with the same id", DEADLINE.as_secs())]
    Slow,
    /// The API server could not be reached, or refused. The claim may hold all the same.
    #[error("take a server; ask again with the same id")]
    Write(#[source] WriteError),
}

/// A server that is the caller's.
pub type Granted = Server;

/// The claim service.
#[derive(Clone)]
pub struct Claims {
    view: View,
    writer: Writer,
    events: Events,
    metrics: Metrics,
}

impl Claims {
    /// A service on these.
    pub fn new(view: View, writer: Writer, events: Events, metrics: Metrics) -> Self {
        Self { view, writer, events, metrics }
    }

    /// Claims a server in `namespace` for `user`.
    ///
    /// # Errors
    /// Why there is none; each says what to do.
    pub async fn claim(&self, namespace: &str, request: &Request, user: &str) -> Result<Granted, ClaimError> {
        claim::check(&request.id, &request.groups)?;
        let work = self.claim_checked(namespace, request, user);
        tokio::time::timeout(DEADLINE, work).await.unwrap_or(Err(ClaimError::Slow))
    }

    async fn claim_checked(
        &self,
        namespace: &str,
        request: &Request,
        user: &str,
    ) -> Result<Granted, ClaimError> {
        if let Some(holder) = self.holder(namespace, &request.id).await {
            return answer(holder);
        }
        let groups = self.open_groups(namespace, &request.groups)?;
        let mut taken = self.take_one(&groups, request, user).await?;
        if taken.is_none() {
            // Before anybody goes without, whatever is due is freed: that does not wait for the leader.
            self.lapse_due(&groups).await;
            taken = self.take_one(&groups, request, user).await?;
        }
        match taken {
            Some(taken) => self.confirm(namespace, taken, &request.id).await,
            // One of our writes may have got through although its answer did not.
            None => match self.holder(namespace, &request.id).await {
                Some(holder) => answer(holder),
                None => Err(ClaimError::OutOfCapacity { groups: request.groups.clone() }),
            },
        }
    }

    /// Invariant I2: the server that bears a claim of this id already; of several, the one whose claim came first.
    ///
    /// It answers only when what was seen of it has come back on the watch: by then every earlier claim of this id
    /// has been seen, whichever replica took it. The view alone may know of a claim from our own write's answer.
    async fn holder(&self, namespace: &str, id: &str) -> Option<Server> {
        let first = |bearers: Vec<Server>| {
            let claimed = bearers.iter().position(Server::is_claimed);
            bearers.into_iter().nth(claimed.unwrap_or(0))
        };
        let seen = first(self.view.claimed_with(namespace, id))?;
        self.view.echoed(namespace, seen.version).await;
        first(self.view.claimed_with(namespace, id))
    }

    /// The groups that a server may be taken of: those that are there, as a canary need not be, and are not being
    /// deleted.
    fn open_groups(
        &self,
        namespace: &str,
        names: &[String],
    ) -> Result<Vec<(Key, SignedDuration)>, ClaimError> {
        let keys = names.iter().map(|name| Key::new(namespace, name));
        let found: Vec<_> = keys.filter_map(|key| self.view.group(&key).map(|group| (key, group))).collect();
        if found.is_empty() {
            let (groups, namespace) = (names.join(", "), namespace.to_owned());
            return Err(ClaimError::NoSuchGroup { groups, namespace });
        }
        let open: Vec<_> = found
            .into_iter()
            .filter(|(_, group)| group.metadata.deletion_timestamp.is_none())
            .map(|(key, group)| (key, timeout(&group)))
            .collect();
        if open.is_empty() { Err(ClaimError::Deleting { groups: names.join(", ") }) } else { Ok(open) }
    }

    /// Takes the first server that can be had. A loser goes to the next candidate.
    async fn take_one(
        &self,
        groups: &[(Key, SignedDuration)],
        request: &Request,
        user: &str,
    ) -> Result<Option<Server>, ClaimError> {
        let seed = spread(&request.id);
        for (group, timeout) in groups {
            while let Some(held) = self.view.hold_one(group, seed) {
                let claim = claim::made(&request.id, user, *timeout, Timestamp::now());
                if let Some(taken) = self.take(held, &claim).await? {
                    return Ok(Some(taken));
                }
            }
        }
        Ok(None)
    }

    /// Takes this server for `claim`, if it still can be had.
    async fn take(&self, held: Held, claim: &Claim) -> Result<Option<Server>, ClaimError> {
        loop {
            match self.writer.patch_status(held.key(), claim::take(held.server(), claim)).await {
                Ok(taken) => return Ok(Some(taken)),
                Err(WriteError::Lost | WriteError::Gone) => {
                    self.metrics.conflict(&of_group(held.key(), held.server()));
                    held.lost();
                    return Ok(None);
                }
                // Whether it happened is in the resource: nothing is taken twice for a lost answer.
                Err(WriteError::Busy { .. } | WriteError::Silence | WriteError::Unreachable(_)) => {
                    sleep(BUSY_WAIT).await;
                    if let Ok(Some(there)) = self.writer.find_server(held.key()).await
                        && there.claim.as_ref() == Some(claim)
                    {
                        return Ok(Some(there));
                    }
                }
                Err(error @ (WriteError::Exists | WriteError::Refused { .. })) => {
                    return Err(ClaimError::Write(error));
                }
            }
        }
    }

    /// Where two replicas took a server each for one id, the earlier claim keeps its own and ours is given back.
    async fn confirm(&self, namespace: &str, taken: Server, id: &str) -> Result<Granted, ClaimError> {
        match self.holder(namespace, id).await {
            Some(first) if first.uid != taken.uid => {
                if let Some(claim) = &taken.claim {
                    let key = Key::new(namespace, &taken.name);
                    // Should this fail, the lapse frees it.
                    let _ = self.writer.patch_status(&key, claim::release(&taken, claim)).await;
                }
                answer(first)
            }
            Some(first) => answer(first),
            // It went while we waited.
            None => Err(ClaimError::Over { id: id.to_owned() }),
        }
    }

    /// Frees the servers of `groups` whose claims are due (row F14).
    async fn lapse_due(&self, groups: &[(Key, SignedDuration)]) {
        for (group, _) in groups {
            for server in self.view.claimed_in(group) {
                let now = Timestamp::now();
                let Some(patch) = lapse::lapse(&server, now) else { continue };
                let key = Key::new(&group.namespace, &server.name);
                // Lost, whoever freed it first tells; else the leader tries again.
                if self.writer.patch_status(&key, patch).await.is_err() {
                    continue;
                }
                self.metrics.lapse(&of_group(&key, &server));
                if let Some(news) = news::of_server(&Change::Lapsed, server.claim.as_ref()) {
                    self.events.send(Subject::Server(key, server.uid), news);
                }
            }
        }
    }
}

fn of_group(key: &Key, server: &Server) -> OfGroup {
    OfGroup { namespace: key.namespace.clone(), group: server.group.clone() }
}

/// What an id's server answers for it.
fn answer(holder: Server) -> Result<Granted, ClaimError> {
    let id = holder.claim.as_ref().map(|claim| claim.id.clone()).unwrap_or_default();
    match (holder.state, holder.claim_status) {
        (State::Terminating | State::Terminated, _) => Err(ClaimError::Over { id }),
        (_, ClaimStatus::Claimed) => Ok(holder),
        (_, ClaimStatus::Unclaimed) => Err(ClaimError::Expired { id }),
    }
}

fn timeout(group: &GameServerGroup) -> SignedDuration {
    SignedDuration::from_secs(i64::from(group.spec.claim.timeout_seconds))
}
