//! Retiring: taking a server for its end, irrevocably, under the tests that its reason needs (invariant I3).

use jiff::Timestamp;

use super::observed::Server;
use super::patch::ServerPatch;
use super::seats;
use crate::api::{ClaimStatus, EndReason, Shutdown, State};

/// A server that may be retired as idle: no game and no claim.
pub fn is_idle(server: &Server) -> bool {
    server.state <= State::StandingBy && !server.is_claimed()
}

/// Row A4: an Active server that says that no session is played there any more. Its claim is confirmed, as it is
/// Active; a session that begins says so, and then it is none of these.
pub fn has_ended_its_last_session(server: &Server) -> bool {
    server.state == State::Active && server.sessions == Some(0) && !seats::are_awaited(server)
}

/// Retires an idle server: nothing is taken if it was claimed or went Active in the meantime.
pub fn when_idle(server: &Server, reason: EndReason, message: &str, now: Timestamp) -> ServerPatch {
    ServerPatch::of(&server.uid)
        .test(&["status", "state"], server.state)
        .test(&["status", "claimStatus"], ClaimStatus::Unclaimed)
        .end(State::Terminating, reason, message, now)
}

/// Retires a server because of its mark, if that still stands (it can be taken back until then) and the server is idle
/// or has ended its last session.
pub fn marked(server: &Server, now: Timestamp) -> Option<(ServerPatch, &'static str)> {
    let patch = ServerPatch::of(&server.uid)
        .test(&["status", "state"], server.state)
        .test(&["spec", "shutdown"], Shutdown::WhenIdle);
    let (patch, message) = if is_idle(server) {
        let message = "it was marked (spec.shutdown: WhenIdle) and idle";
        (patch.test(&["status", "claimStatus"], ClaimStatus::Unclaimed), message)
    } else if has_ended_its_last_session(server) {
        let message = "it was marked (spec.shutdown: WhenIdle) and its last session had ended";
        let patch = patch.test(&["status", "sessions"], 0);
        (patch.test(&["status", "claimStatus"], server.claim_status), message)
    } else {
        return None;
    };
    Some((patch.end(State::Terminating, EndReason::Marked, message, now), message))
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
    use crate::rules::fixtures::{active, at, claimed, server_json, standing_by};

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
        let (retire, _) = marked(&server, at(0)).unwrap();
        server.shutdown = Shutdown::Never;
        assert!(json_patch::patch(&mut server_json(&server), &retire.into_json()).is_err());
    }

    /// Row A4.
    #[test]
    fn a_session_that_begins_in_time_keeps_a_marked_server() {
        let mut server = active("a").server.unwrap();
        server.shutdown = Shutdown::WhenIdle;
        assert_eq!(marked(&server, at(0)), None);
        server.sessions = Some(0);
        let (retire, _) = marked(&server, at(0)).unwrap();
        json_patch::patch(&mut server_json(&server), &retire.clone().into_json()).unwrap();

        server.sessions = Some(1);
        assert_eq!(marked(&server, at(0)), None);
        assert!(json_patch::patch(&mut server_json(&server), &retire.into_json()).is_err());
    }

    /// It has a claim that its game has not taken up: that is no ended session.
    #[test]
    fn a_claimed_server_without_a_session_is_not_retired_for_its_mark() {
        let mut server = claimed("a", "match-1", 60).server.unwrap();
        (server.shutdown, server.sessions) = (Shutdown::WhenIdle, Some(0));
        assert_eq!(marked(&server, at(0)), None);
    }
}
