//! The claim service: pick, take, confirm. One engine behind every door, on every replica: no lock and no
//! leader, the API server decides (rows F12 and F14, invariants I1 and I2).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::api::{ClaimStatus, GameServer, GameServerGroup, State};
use crate::rules::claim::{self, Malformed};
use crate::rules::life::Change;
use crate::rules::names::spread;
use crate::rules::observed::{Server, Version};
use crate::rules::{lapse, news};
use crate::view::{Held, Key, View};
use crate::write::{Events, Subject, WriteError, Writer};

/// How long a claim may take, all its tries and waits together.
pub const DEADLINE: Duration = Duration::from_secs(5);

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
    /// A group is not there.
    #[error("there is no GameServerGroup {group} in namespace {namespace}")]
    NoSuchGroup {
        /// Its name.
        group: String,
        /// The namespace.
        namespace: String,
    },
    /// All the groups are being deleted.
    #[error("the groups {} are being deleted", groups.join(", "))]
    Deleting {
        /// Their names.
        groups: Vec<String>,
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
}

/// A server that was just taken.
struct Taken {
    key: Key,
    server: Server,
    version: Version,
}

impl Claims {
    /// A service on these.
    pub fn new(view: View, writer: Writer, events: Events) -> Self {
        Self { view, writer, events }
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
        if let Some(answer) = self.answered_before(namespace, &request.id) {
            return answer;
        }
        let groups = self.open_groups(namespace, &request.groups)?;
        let mut taken = self.take_one(&groups, request, user).await?;
        if taken.is_none() {
            // Before anybody goes without, whatever is due is freed: that does not wait for the leader.
            self.lapse_due(&groups).await;
            taken = self.take_one(&groups, request, user).await?;
        }
        let taken = taken.ok_or_else(|| ClaimError::OutOfCapacity { groups: request.groups.clone() })?;
        self.confirm(taken, &request.id).await
    }

    /// Invariant I2: an id that has a server already.
    fn answered_before(&self, namespace: &str, id: &str) -> Option<Result<Granted, ClaimError>> {
        let bearers = self.view.claimed_with(namespace, id);
        let holder = bearers.iter().find(|server| server.is_claimed()).or_else(|| bearers.first())?;
        let id = id.to_owned();
        Some(match (holder.state, holder.claim_status) {
            (State::Terminating | State::Terminated, _) => Err(ClaimError::Over { id }),
            (_, ClaimStatus::Claimed) => Ok(holder.clone()),
            (_, ClaimStatus::Unclaimed) => Err(ClaimError::Expired { id }),
        })
    }

    fn open_groups(
        &self,
        namespace: &str,
        names: &[String],
    ) -> Result<Vec<(Key, SignedDuration)>, ClaimError> {
        let find = |name: &String| {
            let key = Key::new(namespace, name);
            let missing = || ClaimError::NoSuchGroup { group: name.clone(), namespace: namespace.to_owned() };
            self.view.group(&key).map(|group| (key, group)).ok_or_else(missing)
        };
        let found: Vec<_> = names.iter().map(find).collect::<Result<_, _>>()?;
        let open: Vec<_> = found
            .into_iter()
            .filter(|(_, group)| group.metadata.deletion_timestamp.is_none())
            .map(|(key, group)| (key, timeout(&group)))
            .collect();
        if open.is_empty() { Err(ClaimError::Deleting { groups: names.to_vec() }) } else { Ok(open) }
    }

    /// Takes the first server that can be had. A loser goes to the next candidate.
    async fn take_one(
        &self,
        groups: &[(Key, SignedDuration)],
        request: &Request,
        user: &str,
    ) -> Result<Option<Taken>, ClaimError> {
        let seed = spread(&request.id);
        for (group, timeout) in groups {
            while let Some(held) = self.view.hold_one(group, seed) {
                if let Some(taken) = self.take(held, request, user, *timeout).await? {
                    return Ok(Some(taken));
                }
            }
        }
        Ok(None)
    }

    /// Takes this server, if it still can be had.
    async fn take(
        &self,
        held: Held,
        request: &Request,
        user: &str,
        timeout: SignedDuration,
    ) -> Result<Option<Taken>, ClaimError> {
        let key = held.key().clone();
        let Some(server) = self.view.server(&key) else { return Ok(None) };
        let claim = claim::made(&request.id, user, timeout, Timestamp::now());
        match self.writer.patch_status(&key, claim::take(&server, &claim)).await {
            Ok(written) => {
                let server = Server { claim_status: ClaimStatus::Claimed, claim: Some(claim), ..server };
                Ok(Some(Taken { key, server, version: version_of(&written) }))
            }
            Err(WriteError::Lost | WriteError::Gone) => {
                held.lost();
                Ok(None)
            }
            Err(error) => Err(ClaimError::Write(error)),
        }
    }

    /// Answers only when our own write has come back on the watch: by then every earlier claim of this id has
    /// been seen, whichever replica took it. The earliest keeps its server and ours is given back.
    async fn confirm(&self, taken: Taken, id: &str) -> Result<Granted, ClaimError> {
        self.view.echoed(&taken.key.namespace, taken.version).await;
        let bearers = self.view.claimed_with(&taken.key.namespace, id);
        let earliest = bearers.into_iter().find(Server::is_claimed);
        match earliest {
            Some(first) if first.uid != taken.server.uid => {
                if let Some(claim) = &taken.server.claim {
                    // Should this fail, the lapse frees it.
                    let _ = self.writer.patch_status(&taken.key, claim::release(&taken.server, claim)).await;
                }
                Ok(first)
            }
            Some(_) | None => Ok(taken.server),
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
                if self.writer.patch_status(&key, patch).await.is_ok()
                    && let Some(news) = news::of_server(&Change::Lapsed, server.claim.as_ref())
                {
                    self.events.send(Subject::Server(key, server.uid), news);
                }
            }
        }
    }
}

fn timeout(group: &GameServerGroup) -> SignedDuration {
    SignedDuration::from_secs(i64::from(group.spec.claim.timeout_seconds))
}

fn version_of(server: &GameServer) -> Version {
    server.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
