//! Row F11: which servers are on offer.

use crate::api::{Health, State};

use super::observed::Member;

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
    /// Its pod is not ready, or its node is lost.
    PodNotReady,
    /// Where players reach it is not known yet.
    NoAddress,
}

/// Whether a claim may be given this server, else why not.
pub fn withheld(member: &Member) -> Option<Withheld> {
    let Some(server) = &member.server else { return Some(Withheld::NoPod) };
    let Some(pod) = member.pod.as_ref().filter(|pod| pod.group_uid == server.group_uid) else {
        return Some(Withheld::NoPod);
    };
    if pod.deleting || pod.ended().is_some() {
        return Some(Withheld::PodEnding);
    }
    if !pod.ready {
        return Some(Withheld::PodNotReady);
    }
    if server.state != State::StandingBy {
        return Some(Withheld::State);
    }
    if server.is_claimed() {
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
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ClaimStatus, Shutdown};
    use crate::rules::fixtures::standing_by;

    fn because(change: impl FnOnce(&mut Member)) -> Option<Withheld> {
        let mut member = standing_by("a");
        change(&mut member);
        withheld(&member)
    }

    #[test]
    fn a_ready_server_is_on_offer() {
        assert_eq!(because(|_| {}), None);
    }

    #[test]
    fn what_withholds_a_server() {
        fn server(member: &mut Member) -> &mut crate::rules::observed::Server {
            member.server.as_mut().unwrap()
        }
        assert_eq!(because(|m| m.pod = None), Some(Withheld::NoPod));
        assert_eq!(because(|m| m.pod.as_mut().unwrap().group_uid = "other".into()), Some(Withheld::NoPod));
        assert_eq!(because(|m| m.pod.as_mut().unwrap().deleting = true), Some(Withheld::PodEnding));
        assert_eq!(because(|m| m.pod.as_mut().unwrap().ready = false), Some(Withheld::PodNotReady));
        assert_eq!(because(|m| server(m).state = State::Active), Some(Withheld::State));
        assert_eq!(because(|m| server(m).claim_status = ClaimStatus::Claimed), Some(Withheld::Claimed));
        assert_eq!(because(|m| server(m).health = Health::Unhealthy), Some(Withheld::Unhealthy));
        assert_eq!(because(|m| server(m).shutdown = Shutdown::WhenIdle), Some(Withheld::Marked));
        assert_eq!(because(|m| server(m).deleting = true), Some(Withheld::Marked));
        assert_eq!(because(|m| server(m).address = None), Some(Withheld::NoAddress));
    }
}
