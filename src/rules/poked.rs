//! What is remembered of pokes, and where they go.

use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;

use super::observed::{Game, Member};
use crate::api::Claim;

/// What is remembered of the pokes of one pod's agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Poked {
    /// When the last one was.
    pub at: Timestamp,
    /// The id of the claim that it was about, if it was about one.
    pub claim: Option<String>,
    /// How many there were about this claim.
    pub count: u32,
    /// How many in a row were not answered, up to the last one.
    pub missed: u32,
    /// What the first of these met.
    pub error: Option<String>,
}

impl Poked {
    pub(super) fn is_about(&self, claim: &Claim) -> bool {
        self.claim.as_ref() == Some(&claim.id)
    }

    pub(super) fn has_told(&self, claim: &Claim) -> bool {
        self.is_about(claim) && self.missed == 0
    }

    /// What is remembered after one more poke, about the claim of this id if there is one.
    pub fn after(
        last: Option<Self>,
        claim: Option<String>,
        outcome: Result<(), String>,
        now: Timestamp,
    ) -> Self {
        let same = last.as_ref().is_some_and(|last| last.claim == claim);
        let count = last.as_ref().filter(|_| same).map_or(0, |last| last.count).saturating_add(1);
        let before = last.map(|last| (last.missed, last.error)).unwrap_or_default();
        let (missed, error) = match outcome {
            Ok(()) => (0, None),
            // The first one's words stay: a status that quotes them is to rest.
            Err(words) => (before.0.saturating_add(1), before.1.or(Some(words))),
        };
        Self { at: now, claim, count, missed, error }
    }
}

/// Where the agent of a member can be poked, if it has one that runs.
pub fn address(member: &Member) -> Option<SocketAddr> {
    let pod = member.pod.as_ref().filter(|pod| !pod.deleting && pod.game == Game::Running)?;
    let ip: IpAddr = pod.ips.first()?.parse().ok()?;
    Some(SocketAddr::new(ip, pod.poke_port?))
}
