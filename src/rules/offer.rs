//! Row F11: which servers are on offer.

use super::observed::Member;
use super::seats;
use crate::api::{Health, Sharing, State};

/// Why a server is not on offer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Withheld {
    /// No pod of its group backs it.
    NoPod,
    /// It is not `StandingBy`.
    State,
    /// A claim holds it.
    Claimed,
    /// The game says it is unhealthy.
    Unhealthy,
    /// It is to end.
    Marked,
    /// Its pod is going, or its game has ended: it leaves the pool at once, however long the pod's
    /// grace period is (case C12).
    PodEnding,
    /// Its node goes (row F20).
    NodeEnding,
    /// Its pod is not ready, or its node is lost.
    PodNotReady,
    /// Where players reach it is not known yet.
    NoAddress,
    /// All of its seats are taken.
    Full,
}

/// Whether a claim may be given this server, or a seat on it where its group shares servers; else why not.
pub fn withheld(member: &Member, sharing: Option<&Sharing>) -> Option<Withheld> {
    let Some(server) = &member.server else { return Some(Withheld::NoPod) };
    let Some(pod) = member.pod.as_ref().filter(|pod| pod.group_uid == server.group_uid) else {
        return Some(Withheld::NoPod);
    };
    if pod.deleting || pod.ended().is_some() {
        return Some(Withheld::PodEnding);
    }
    if server.goes_with_its_node() {
        return Some(Withheld::NodeEnding);
    }
    if !pod.ready {
        return Some(Withheld::PodNotReady);
    }
    let open = match sharing {
        Some(_) => seats::is_open(server.state),
        None => server.state == State::StandingBy,
    };
    if !open {
        return Some(Withheld::State);
    }
    // Also one that somebody has for himself since before its group began to share.
    let by_seats = sharing.is_some() && server.claim.is_none();
    if server.is_claimed() && !by_seats {
        return Some(Withheld::Claimed);
    }
    if server.health != Health::Healthy {
        return Some(Withheld::Unhealthy);
    }
    if server.is_marked() {
        return Some(Withheld::Marked);
    }
    if server.address.is_none() {
        return Some(Withheld::NoAddress);
    }
    if sharing.is_some_and(|sharing| seats::free(sharing, server) < 1) {
        return Some(Withheld::Full);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ClaimStatus, InstanceStatus, Shutdown};
    use crate::rules::fixtures::standing_by;

    fn because(change: impl FnOnce(&mut Member)) -> Option<Withheld> {
        let mut member = standing_by("a");
        change(&mut member);
        withheld(&member, None)
    }

    #[test]
    fn a_ready_server_is_on_offer() {
        assert_eq!(because(|_| {}), None);
    }

    /// Invariant I1: a match that began before its group shared servers has its server for itself.
    #[test]
    fn a_game_of_a_claim_of_its_own_takes_nobody_else() {
        let sharing = Sharing { capacity: 8, prefer: crate::api::Prefer::Fullest };
        let mut member = crate::rules::fixtures::claimed("a", "match-1", 60);
        assert_eq!(withheld(&member, Some(&sharing)), Some(Withheld::Claimed));
        member.server.as_mut().unwrap().state = State::Active;
        assert_eq!(withheld(&member, Some(&sharing)), Some(Withheld::Claimed));
        member.server.as_mut().unwrap().claim_status = ClaimStatus::Unclaimed;
        assert_eq!(withheld(&member, Some(&sharing)), None);
    }

    #[test]
    fn what_withholds_a_server() {
        fn server(member: &mut Member) -> &mut crate::rules::observed::Server {
            member.server.as_mut().unwrap()
        }
        assert_eq!(because(|m| m.pod = None), Some(Withheld::NoPod));
        assert_eq!(because(|m| m.pod.as_mut().unwrap().group_uid = "other".into()), Some(Withheld::NoPod));
        assert_eq!(because(|m| m.pod.as_mut().unwrap().deleting = true), Some(Withheld::PodEnding));
        let ends =
            |m: &mut Member| server(m).instance.as_mut().unwrap().status = InstanceStatus::SpotTerminating;
        assert_eq!(because(ends), Some(Withheld::NodeEnding));
        assert_eq!(because(|m| m.pod.as_mut().unwrap().ready = false), Some(Withheld::PodNotReady));
        assert_eq!(because(|m| server(m).state = State::Active), Some(Withheld::State));
        assert_eq!(because(|m| server(m).claim_status = ClaimStatus::Claimed), Some(Withheld::Claimed));
        assert_eq!(because(|m| server(m).health = Health::Unhealthy), Some(Withheld::Unhealthy));
        assert_eq!(because(|m| server(m).shutdown = Shutdown::WhenIdle), Some(Withheld::Marked));
        assert_eq!(because(|m| server(m).deleting = true), Some(Withheld::Marked));
        assert_eq!(because(|m| server(m).address = None), Some(Withheld::NoAddress));
    }
}
