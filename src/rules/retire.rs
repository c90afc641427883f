//! Retiring: taking a server for its end, irrevocably, under the tests that its reason needs (invariant I3).

use jiff::Timestamp;

use super::observed::Server;
use super::patch::ServerPatch;
use crate::api::{ClaimStatus, EndReason, Shutdown, State};

/// A server that may be retired as idle: no game and no claim.
pub fn is_idle(server: &Server) -> bool {
    server.state <= State::StandingBy && !server.is_claimed()
}

/// Retires an idle server: nothing is taken if it was claimed or went Active in the meantime.
pub fn when_idle(server: &Server, reason: EndReason, message: &str, now: Timestamp) -> ServerPatch {
    ServerPatch::of(&server.uid)
        .test(&["status", "state"], server.state)
        .test(&["status", "claimStatus"], ClaimStatus::Unclaimed)
        .end(State::Terminating, reason, message, now)
}

/// Retires a server because of its mark, if the mark still stands: it can be taken back until then.
pub fn marked(server: &Server, now: Timestamp) -> ServerPatch {
    ServerPatch::of(&server.uid)
        .test(&["status", "state"], server.state)
        .test(&["status", "claimStatus"], ClaimStatus::Unclaimed)
        .test(&["spec", "shutdown"], Shutdown::WhenIdle)
        .end(State::Terminating, EndReason::Marked, "it was marked (spec.shutdown: WhenIdle) and idle", now)
}

/// Retires a server whoever plays: only for what invariant I3 lets end a game.
pub fn at_once(server: &Server, reason: EndReason, message: &str, now: Timestamp) -> ServerPatch {
    ServerPatch::of(&server.uid).test(&["status", "state"], server.state).end(
        State::Terminating,
        reason,
        message,
        now,
    )
}

/// Marks a server that somebody deleted by hand: it is never offered again, and goes when idle.
pub fn mark(server: &Server) -> ServerPatch {
    ServerPatch::of(&server.uid)
        .test(&["spec", "shutdown"], Shutdown::Never)
        .set(&["spec", "shutdown"], Shutdown::WhenIdle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{at, claimed, server_json, standing_by};

    #[test]
    fn a_claim_that_lands_first_wins() {
        let idle = standing_by("a").server.unwrap();
        let retire = when_idle(&idle, EndReason::ScaledIn, "3 of 2", at(0));

        let mut json = server_json(&claimed("a", "match-1", 60).server.unwrap());
        assert!(json_patch::patch(&mut json, &retire.clone().into_json()).is_err());

        let mut json = server_json(&idle);
        json_patch::patch(&mut json, &retire.into_json()).unwrap();
        assert_eq!(json["status"]["state"], "Terminating");
        assert_eq!(json["status"]["end"]["reason"], "ScaledIn");
    }

    #[test]
    fn a_mark_taken_back_in_time_retires_nothing() {
        let mut server = standing_by("a").server.unwrap();
        server.shutdown = Shutdown::WhenIdle;
        let retire = marked(&server, at(0));
        server.shutdown = Shutdown::Never;
        assert!(json_patch::patch(&mut server_json(&server), &retire.into_json()).is_err());
    }
}
