//! Row F14: a claim whose game has not gone Active by its deadline lapses, and the server is on offer again.
//!
//! Deadlines are written by the clock of the replica that claims and judged by the clock of the one
//! that lapses: a claim may lapse early or late by as much as these two differ.

use jiff::Timestamp;

use super::observed::{Fate, Server};
use super::patch::ServerPatch;
use super::seats;
use crate::api::{Claim, ClaimStatus, State};

/// When a claim on `server` lapses, if one holds it and nobody plays yet (row F13: an Active server's timer is gone), or
/// holds seats on it. On a node that goes it has lapsed already (row F20).
pub fn deadline(server: &Server) -> Option<Timestamp> {
    let deadline = written(server)?;
    Some(if server.goes_with_its_node() { Timestamp::MIN } else { deadline })
}

fn written(server: &Server) -> Option<Timestamp> {
    let seats = seats::deadline(server);
    let waits = server.is_claimed() && server.state == State::StandingBy && seats.is_none();
    seats.or_else(|| server.claim.as_ref().filter(|_| waits).map(|claim| claim.expires_at.0))
}

/// Frees `server` if its claim is due: the very claim that was seen, and only while it stands by. The
/// claim's id stays on the server until the next, so that a late caller can be told that it expired.
pub fn lapse(server: &Server, now: Timestamp) -> Option<ServerPatch> {
    if seats::are_awaited(server) {
        return seats::settle(server, now);
    }
    deadline(server).filter(|deadline| *deadline <= now)?;
    let claim = server.claim.as_ref()?;
    Some(
        ServerPatch::of(&server.uid)
            .test(&["status", "state"], State::StandingBy)
            .test(&["status", "claimStatus"], ClaimStatus::Claimed)
            .test(&["status", "claim", "id"], &claim.id)
            .test(&["status", "claim", "expiresAt"], &claim.expires_at)
            .set(&["status", "claimStatus"], ClaimStatus::Unclaimed),
    )
}

/// The claims of `after` that have lapsed since `before`.
pub fn lapsed(before: &Server, after: &Server) -> Vec<Claim> {
    let held = |id: &str| before.claim_of(id).is_some_and(|claim| before.fate(claim) == Fate::Held);
    let lapses = |claim: &&Claim| after.fate(claim) == Fate::Lapsed && held(&claim.id);
    after.claims().filter(lapses).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{at, claimed, server_json};

    #[test]
    fn claim_lapses_at_its_deadline_and_not_before() {
        let server = claimed("a", "match-1", 60).server.unwrap();
        assert_eq!(lapse(&server, at(59)), None);

        let mut json = server_json(&server);
        json_patch::patch(&mut json, &lapse(&server, at(60)).unwrap().into_json()).unwrap();

        assert_eq!(json["status"]["claimStatus"], "Unclaimed");
        assert_eq!(json["status"]["claim"]["id"], "match-1");
    }

    #[test]
    fn a_game_gone_active_in_time_keeps_its_claim() {
        let mut server = claimed("a", "match-1", 60).server.unwrap();
        let patch = lapse(&server, at(61)).unwrap();
        server.state = State::Active;
        assert_eq!(lapse(&server, at(61)), None);

        let mut json = server_json(&server);
        assert!(json_patch::patch(&mut json, &patch.into_json()).is_err());
    }

    /// Row F20.
    #[test]
    fn a_claim_on_a_node_that_goes_lapses_at_once() {
        let mut server = claimed("a", "match-1", 60).server.unwrap();
        server.instance.as_mut().unwrap().status = crate::api::InstanceStatus::SpotTerminating;
        assert!(lapse(&server, at(1)).is_some());
        let mut shared = crate::rules::fixtures::shared_by(&["match-1"]).server.unwrap();
        assert_eq!(lapse(&shared, at(1)), None);
        shared.instance.as_mut().unwrap().status = crate::api::InstanceStatus::SpotTerminating;
        let mut json = server_json(&shared);
        json_patch::patch(&mut json, &lapse(&shared, at(1)).unwrap().into_json()).unwrap();
        assert_eq!(json["status"]["reservations"][0]["seats"]["lapsed"], true);
    }

    #[test]
    fn a_later_claim_is_not_lapsed_in_its_place() {
        let server = claimed("a", "match-1", 60).server.unwrap();
        let mut json = server_json(&claimed("a", "match-2", 90).server.unwrap());
        assert!(json_patch::patch(&mut json, &lapse(&server, at(61)).unwrap().into_json()).is_err());
    }
}
