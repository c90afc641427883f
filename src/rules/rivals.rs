//! Invariant I2: one id, one server. A replica gives back what it took for an id when another was first, unless it is
//! killed before that; then somebody else does.

use jiff::{SignedDuration, Timestamp};

use super::claim;
use super::observed::{Fate, Server};
use super::patch::ServerPatch;
use crate::api::Claim;

/// How long whoever took a server has to give it back itself.
const OWN: SignedDuration = SignedDuration::from_secs(2);
/// How long one who cannot tell which claim was first leaves that to those who can: a leader is lost, and the next one
/// has looked.
const OTHERS: SignedDuration = SignedDuration::from_secs(20);

/// What holds servers by one id.
#[derive(Clone, Debug, PartialEq)]
pub enum Rivals {
    /// One server at most.
    None,
    /// These too, whose claims were made after that of the first.
    Later(Vec<Server>),
    /// Several, and it cannot be told which claim was first: they were there before the watch. The last one was made at
    /// this time.
    Unordered(Timestamp),
}

impl Rivals {
    /// The rivals among `bearers` of claim `id`, which stand in the order of their claims if that is known.
    pub fn among<'a>(bearers: impl Iterator<Item = &'a Server>, id: &str, in_order: Order) -> Self {
        let mut held = bearers.filter(|server| server.is_held_by(id)).peekable();
        let Some(first) = held.next().filter(|_| held.peek().is_some()) else {
            return Self::None;
        };
        match in_order {
            Order::Known => Self::Later(held.cloned().collect()),
            Order::Unknown => {
                let times = held.chain([first]).filter_map(|server| server.claim_of(id));
                times.map(|claim| claim.claimed_at.0).max().map_or(Self::None, Self::Unordered)
            }
        }
    }

    /// Whether it is left to others which of them stays.
    pub fn are_settling(&self, now: Timestamp) -> bool {
        match self {
            Self::Unordered(last) => last.checked_add(OTHERS).is_ok_and(|until| now < until),
            Self::None | Self::Later(_) => false,
        }
    }
}

/// The server that has claim `id`, of those that bear it in the order of their claims: the first that is held by it, or
/// else the one that remembers it.
pub fn first<'a>(bearers: &'a [Server], id: &str) -> Option<&'a Server> {
    bearers.iter().find(|server| server.is_held_by(id)).or_else(|| bearers.first())
}

/// Whether the order of claims is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// As the API server took them.
    Known,
    /// By the clocks of those who made them, at best.
    Unknown,
}

/// When the first of `surplus` is given back: claims of `server` whose ids held another before.
pub fn due(server: &Server, surplus: &[Claim]) -> Option<Timestamp> {
    given_back(server, surplus).filter_map(|claim| claim.claimed_at.0.checked_add(OWN).ok()).min()
}

/// Gives back one that is due.
pub fn give_back(server: &Server, surplus: &[Claim], now: Timestamp) -> Option<(Claim, ServerPatch)> {
    let is_due = |claim: &&Claim| claim.claimed_at.0.checked_add(OWN).is_ok_and(|due| due <= now);
    let claim = given_back(server, surplus).find(is_due)?;
    Some((claim.clone(), claim::forget(server, claim, now)?))
}

/// Where players have come already, they stay.
fn given_back<'a>(server: &'a Server, surplus: &'a [Claim]) -> impl Iterator<Item = &'a Claim> {
    surplus.iter().filter(|claim| server.fate(claim) == Fate::Held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{active, at, claimed, server_json, standing_by};

    fn server(name: &str) -> Server {
        claimed(name, "match-1", 60).server.as_deref().unwrap().clone()
    }

    #[test]
    fn those_after_the_first_are_surplus() {
        let servers = [standing_by("free").server.as_deref().unwrap().clone(), server("a"), server("b")];
        let rivals = |servers: &[Server]| Rivals::among(servers.iter(), "match-1", Order::Known);
        assert_eq!(rivals(&servers[..2]), Rivals::None);
        assert_eq!(rivals(&servers), Rivals::Later(vec![server("b")]));
    }

    #[test]
    fn who_cannot_tell_the_order_leaves_it_to_others_for_a_while() {
        let mut late = server("b");
        late.claim.as_mut().unwrap().claimed_at.0 = at(5);
        let rivals = Rivals::among([server("a"), late].iter(), "match-1", Order::Unknown);
        assert_eq!(rivals, Rivals::Unordered(at(5)));
        assert!(rivals.are_settling(at(24)) && !rivals.are_settling(at(25)));
    }

    #[test]
    fn what_is_surplus_is_given_back_as_if_it_had_never_been_claimed() {
        let server = server("b");
        let surplus: Vec<Claim> = server.claims().cloned().collect();
        assert_eq!(due(&server, &surplus), Some(at(2)));
        assert_eq!(give_back(&server, &surplus, at(1)), None);
        let (_, patch) = give_back(&server, &surplus, at(2)).unwrap();
        let mut json = server_json(&server);
        json_patch::patch(&mut json, &patch.into_json()).unwrap();
        assert_eq!(json["status"]["claimStatus"], "Unclaimed");
        assert!(json["status"]["claim"].is_null());
    }

    /// Invariant I3.
    #[test]
    fn a_game_that_is_on_stays() {
        let mut plays = active("b").server.unwrap();
        (plays.claim, plays.claim_status) = (server("b").claim, server("b").claim_status);
        let surplus: Vec<Claim> = plays.claims().cloned().collect();
        assert_eq!((due(&plays, &surplus), give_back(&plays, &surplus, at(9))), (None, None));
    }
}
