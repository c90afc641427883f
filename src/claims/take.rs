//! Takes one server for a call: the first that can be had, by one conditional patch.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Call, ClaimError, Claims, Granted, of_group, words};
use crate::api::{Claim, ClaimableStatus, GameServerGroup, Sharing};
use crate::rules::observed::Server;
use crate::rules::queue::Owed;
use crate::rules::request::Request;
use crate::rules::{claim, lapse, news, seats};
use crate::view::{Held, Key};
use crate::write::{Subject, WriteError};

/// How often a claim looks again for seats of servers that are being written just now.
const SEAT_TRIES: usize = 10;

/// A group that a server may be taken of.
pub(super) struct Open {
    pub(super) key: Key,
    timeout: SignedDuration,
    sharing: Option<Sharing>,
}

impl Open {
    pub(super) fn new(key: Key, group: &GameServerGroup) -> Self {
        let claim = &group.spec.claim;
        let timeout = SignedDuration::from_secs(i64::from(claim.timeout_seconds));
        Self { key, timeout, sharing: claim.sharing }
    }

    /// Whether `server`, which is on offer, has what is asked for.
    pub(super) fn fits(&self, request: &Request, server: &Server) -> bool {
        self.wants(request, server).is_some_and(|wanted| wanted <= self.room(server))
    }

    /// How many claims, or seats, `server` has room for.
    fn room(&self, server: &Server) -> i32 {
        self.sharing.as_ref().map_or(1, |sharing| seats::free(sharing, server))
    }

    /// How many seats a claim may ask for: where servers are not shared it has the whole server, however many come.
    fn seats(&self) -> i32 {
        self.sharing.as_ref().map_or(i32::MAX, |sharing| sharing.capacity)
    }

    /// How much of that this request wants, if it may have this server. What holds seats there already takes no more:
    /// another replica was first (invariant I2).
    fn wants(&self, request: &Request, server: &Server) -> Option<i32> {
        let wanted = if self.sharing.is_some() { request.seats } else { 1 };
        (request.fits(server) && !server.is_held_by(&request.id)).then_some(wanted)
    }

    /// The claim as it will stand on a server of the group.
    pub(super) fn claim(&self, request: &Request, by: &str, now: Timestamp) -> Claim {
        let claim = claim::made(request, by, self.timeout, now);
        if self.sharing.is_some() { seats::asked_for(claim, request) } else { claim }
    }
}

impl Claims {
    /// Takes a server, or says why there is none; nothing if somebody else has taken one for this id meanwhile. `object`
    /// is the UID of the `GameServerClaim` that waits by this id, if one does.
    pub(super) async fn take(
        &self,
        call: &Call,
        object: Option<&str>,
    ) -> Result<Option<Granted>, ClaimError> {
        let open = self.open_groups(call)?;
        if let Some(taken) = self.take_first(call, &open, object).await? {
            return Ok(Some(taken));
        }
        // A shared server is out of the offer while another seat of it is being taken.
        let in_hand = |group: &Open| {
            group.sharing.is_some()
                && self.view.is_in_hand(&group.key, |server| group.fits(&call.request, server))
        };
        for _ in 0..SEAT_TRIES {
            if !open.iter().any(in_hand) {
                break;
            }
            call.pause().await?;
            if let Some(taken) = self.take_first(call, &open, object).await? {
                return Ok(Some(taken));
            }
        }
        // Before anybody goes without, whatever is due is freed: that does not wait for the leader.
        while self.lapse_due(call, &open).await? {
            if let Some(taken) = self.take_first(call, &open, object).await? {
                return Ok(Some(taken));
            }
        }
        if self.is_served(call) { Ok(None) } else { Err(self.why_none(call, &open)) }
    }

    /// Whether a server is held by the call's id.
    fn is_served(&self, call: &Call) -> bool {
        let bearers = self.view.claimed_with(&call.namespace, call.id());
        bearers.iter().any(|server| server.is_held_by(call.id()))
    }

    /// The groups that a server may be taken of: those that are there, as a canary need not be, and are not being
    /// deleted.
    fn open_groups(&self, call: &Call) -> Result<Vec<Open>, ClaimError> {
        let namespace = &call.namespace;
        let groups = match &call.request.server {
            None => call.request.groups.clone(),
            Some(name) => {
                let server = self.view.server(&Key::new(namespace, name));
                let server = server.filter(|server| call.request.fits(server));
                let none = || ClaimError::NoSuchServer { server: name.clone(), namespace: namespace.clone() };
                vec![server.ok_or_else(none)?.group]
            }
        };
        let keys = groups.iter().map(|name| Key::new(namespace, name));
        let found: Vec<(Key, Arc<GameServerGroup>)> =
            keys.filter_map(|key| self.view.group(&key).map(|group| (key, group))).collect();
        let groups = groups.join(", ");
        if found.is_empty() {
            return Err(ClaimError::NoSuchGroup { groups, namespace: namespace.clone() });
        }
        let open: Vec<Open> = found
            .into_iter()
            .filter(|(_, group)| group.metadata.deletion_timestamp.is_none())
            .map(|(key, group)| Open::new(key, &group))
            .collect();
        if open.is_empty() {
            return Err(ClaimError::Deleting { groups });
        }
        // Waiting would not help.
        let (seats, most) = (call.request.seats, open.iter().map(Open::seats).max().unwrap_or(i32::MAX));
        if seats > most { Err(ClaimError::TooManySeats { seats, most, groups }) } else { Ok(open) }
    }

    /// Takes the first server that can be had. A loser goes to the next candidate.
    async fn take_first(
        &self,
        call: &Call,
        open: &[Open],
        object: Option<&str>,
    ) -> Result<Option<Granted>, ClaimError> {
        // Who came later queues behind who waits.
        let ahead = self.view.waiting(&call.namespace, Timestamp::now());
        for group in open {
            while !self.is_served(call) {
                let mut owed = Owed::to(ahead.iter().filter(|asked| asked.id() != call.id()));
                let free = |server: &Server| {
                    let left = owed.left(group.room(server), |asked| group.wants(&asked.request, server));
                    group.wants(&call.request, server).is_some_and(|wanted| wanted <= left)
                };
                let Some(held) = self.view.hold_one(&group.key, free) else { break };
                let claim = group.claim(&call.request, &call.user, Timestamp::now());
                let claim = Claim { object: object.map(str::to_owned), ..claim };
                if let Some(taken) = self.take_this(call, held, &claim).await? {
                    return Ok(Some(taken));
                }
            }
        }
        Ok(None)
    }

    /// Takes this server for `claim`, if it still can be had.
    pub(super) async fn take_this(
        &self,
        call: &Call,
        held: Held,
        claim: &Claim,
    ) -> Result<Option<Granted>, ClaimError> {
        call.goes_on()?;
        loop {
            match self
                .writer
                .patch_status(held.key(), claim::take(held.server(), claim, claim.claimed_at.0))
                .await
            {
                Ok(server) => return Ok(Some(Granted { server, claim: claim.clone() })),
                Err(WriteError::Lost | WriteError::Gone) => {
                    self.metrics.conflict(&of_group(held.key(), held.server()));
                    held.lost();
                    return Ok(None);
                }
                // Whether it happened is in the resource: nothing is taken twice for a lost answer.
                Err(WriteError::Busy { .. } | WriteError::Silence | WriteError::Unreachable(_)) => {
                    let waited = call.pause().await;
                    if let Ok(Some(server)) = self.writer.find_server(held.key()).await
                        && server.claim_of(&claim.id) == Some(claim)
                    {
                        return Ok(Some(Granted { server, claim: claim.clone() }));
                    }
                    waited?;
                }
                Err(error @ (WriteError::Exists | WriteError::Refused { .. })) => {
                    return Err(ClaimError::Write(error));
                }
            }
        }
    }

    /// Frees a server of `open` whose claim is due (row F14), and says whether to look for one again.
    async fn lapse_due(&self, call: &Call, open: &[Open]) -> Result<bool, ClaimError> {
        for Open { key: group, .. } in open {
            for server in self.view.due_in(group, Timestamp::now()) {
                // What is freed on a node that goes is not on offer.
                if !call.request.fits(&server) || server.goes_with_its_node() {
                    continue;
                }
                let Some(patch) = lapse::lapse(&server, Timestamp::now()) else { continue };
                let key = Key::new(&group.namespace, &server.name);
                match self.writer.patch_status(&key, patch).await {
                    Ok(after) => {
                        self.writer.poke_soon(&key);
                        let lapsed = lapse::lapsed(&server, &after);
                        self.metrics.lapses(&of_group(&key, &server), lapsed.len());
                        for news in news::of_lapses(&server, &lapsed) {
                            self.events.send(Subject::Server(key.clone(), server.uid.clone()), news);
                        }
                    }
                    // Somebody else has freed it: what has become of it is known in a moment.
                    Err(WriteError::Lost) => call.pause().await?,
                    // The leader tries again.
                    Err(_) => continue,
                }
                call.goes_on()?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Why there is no server that fits.
    fn why_none(&self, call: &Call, open: &[Open]) -> ClaimError {
        let request = &call.request;
        let groups = request.groups.clone();
        if let Some(name) = &request.server {
            let withheld = self.view.withheld(&Key::new(&call.namespace, name));
            // In the hands of another claim of this replica it is as good as taken.
            let why = withheld.map_or("another claim is about to have it", words);
            return ClaimError::Taken { server: name.clone(), why };
        }
        let draining_is_refused = !request.instance_status.is_empty()
            && !request.instance_status.contains(&ClaimableStatus::Draining);
        let mut any = request.clone();
        any.instance_status.clear();
        let drains = |open: &Open| {
            self.view.offers(&open.key, |server| open.fits(&any, server) && !request.fits(server))
        };
        if draining_is_refused && open.iter().any(drains) {
            return ClaimError::Draining { groups };
        }
        ClaimError::OutOfCapacity { groups }
    }
}
