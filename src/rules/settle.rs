//! What becomes of a `GameServerClaim`: its status follows the server that bears its id. It is bound to one server and
//! to no other, and goes some time after it is over.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::observed::{Asked, Fate, Server};
use crate::api::{Claim, ClaimPhase, Confirmation, EndReason, GameServerClaimStatus};

/// How long the replica that took a server for a claim has to say so in the claim's status, and to begin its game.
const BINDING: SignedDuration = SignedDuration::from_secs(2);

/// What to do for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    /// Nothing until something changes, or this time has come.
    Rest(Option<Timestamp>),
    /// Write this status.
    Write(Box<GameServerClaimStatus>),
    /// Its server is not seen: when the API server says so too, write this status.
    ConfirmGone(Box<GameServerClaimStatus>),
    /// Make the game of its server Active.
    Begin,
    /// Its time after its end is over.
    Delete,
}

/// The next step for `asked`, when `holder` is the server that bears its id, and its group confirms claims like this.
pub fn step(asked: &Asked, holder: Option<&Server>, confirmation: Confirmation, now: Timestamp) -> Settled {
    let before = &asked.status;
    let after = match before.phase {
        ClaimPhase::Pending => pending(asked, holder, now),
        ClaimPhase::Bound => bound(asked, holder, now),
        ClaimPhase::Confirmed => confirmed(asked, holder, now),
        ClaimPhase::Expired | ClaimPhase::Released | ClaimPhase::Failed => None,
    };
    let bound = before.server_uid.is_some();
    match after.filter(|after| after != before) {
        Some(after) if bound && ours(asked, holder).is_none() => Settled::ConfirmGone(Box::new(after)),
        Some(after) => Settled::Write(Box::new(after)),
        None => match begins_at(asked, holder, confirmation) {
            Some(due) if due <= now => Settled::Begin,
            Some(due) => Settled::Rest(Some(due)),
            None => waits(asked, holder, now),
        },
    }
}

/// Row P3: when the game of a bound claim is made Active that confirms itself. The replica that took the server does so
/// at once, if it lives.
fn begins_at(asked: &Asked, holder: Option<&Server>, confirmation: Confirmation) -> Option<Timestamp> {
    match (asked.status.phase, confirmation) {
        (ClaimPhase::Bound, Confirmation::Immediate) => {
            let server = ours(asked, holder)?;
            let claim = server.claim_of(asked.id()).filter(|claim| server.fate(claim) == Fate::Held)?;
            claim.claimed_at.0.checked_add(BINDING).ok()
        }
        _ => None,
    }
}

/// The status of a claim that `server` has just been taken for.
pub fn bound_to(server: &Server, claim: &Claim) -> GameServerClaimStatus {
    let active = server.fate(claim) == Fate::Confirmed;
    GameServerClaimStatus {
        phase: if active { ClaimPhase::Confirmed } else { ClaimPhase::Bound },
        server: Some(server.name.clone()),
        server_uid: Some(server.uid.clone()),
        address: server.address.clone(),
        ports: server.ports.clone(),
        data: server.data.clone(),
        expires_at: Some(claim.expires_at.clone()),
        finished_at: None,
        message: None,
    }
}

fn pending(asked: &Asked, holder: Option<&Server>, now: Timestamp) -> Option<GameServerClaimStatus> {
    if let Some((server, claim)) = holder.and_then(|server| Some((server, server.claim_of(asked.id())?))) {
        let failure = match server.fate(claim) {
            _ if asked.request.differs_from(claim) => {
                "its name is the id of another claim, made with another request"
            }
            Fate::Held | Fate::Confirmed => {
                // The replica that took it says so itself, if it lives.
                let due = claim.claimed_at.0.checked_add(BINDING).is_ok_and(|due| due <= now);
                return due.then(|| bound_to(server, claim));
            }
            Fate::Released => "an earlier claim of its name was released; use another name",
            Fate::Lapsed => "an earlier claim of its name lapsed; use another name",
        };
        return Some(over(asked, ClaimPhase::Failed, failure.to_owned(), now));
    }
    let groups = asked.request.groups.join(", ");
    let what = asked.request.server.as_ref().map_or(groups, |server| format!("GameServer {server}"));
    if asked.deadline() <= now {
        let message = format!(
            "no server of {what} that fits was on offer within {} s (spec.waitSeconds)",
            asked.wait.as_secs()
        );
        return Some(over(asked, ClaimPhase::Failed, message, now));
    }
    let message = Some(format!("waits for a server of {what} that fits"));
    Some(GameServerClaimStatus { message, ..asked.status.clone() })
}

fn bound(asked: &Asked, holder: Option<&Server>, now: Timestamp) -> Option<GameServerClaimStatus> {
    let fate = ours(asked, holder).and_then(|server| Some(server.fate(server.claim_of(asked.id())?)));
    match fate {
        None => {
            let message = "its server went before its game was Active; claim anew".to_owned();
            Some(over(asked, ClaimPhase::Expired, message, now))
        }
        Some(Fate::Held) => None,
        Some(Fate::Confirmed) if ended_unplayed(asked, holder) => {
            let message = "its server ended before its game was Active; claim anew".to_owned();
            Some(over(asked, ClaimPhase::Expired, message, now))
        }
        Some(Fate::Confirmed) => {
            Some(GameServerClaimStatus { phase: ClaimPhase::Confirmed, ..asked.status.clone() })
        }
        Some(Fate::Released) => {
            Some(over(asked, ClaimPhase::Released, "its server was given back".to_owned(), now))
        }
        Some(Fate::Lapsed) => {
            let taken_along = ours(asked, holder).filter(|server| server.goes_with_its_node());
            let why = taken_along.map_or("its game was not Active in time", Server::cause);
            Some(over(asked, ClaimPhase::Expired, format!("{why}; claim anew"), now))
        }
    }
}

/// Whether its server ended otherwise than by the end of a session. A game that was not seen Active may have been so all
/// the same, as when no replica looked.
fn ended_unplayed(asked: &Asked, holder: Option<&Server>) -> bool {
    let end = ours(asked, holder).filter(|server| server.is_ending()).and_then(|server| server.end.as_ref());
    end.is_some_and(|end| end.reason != EndReason::SessionEnded)
}

fn confirmed(asked: &Asked, holder: Option<&Server>, now: Timestamp) -> Option<GameServerClaimStatus> {
    let plays = ours(asked, holder).is_some_and(|server| !server.is_ending());
    (!plays && asked.status.finished_at.is_none())
        .then(|| over(asked, ClaimPhase::Confirmed, "its game is over".to_owned(), now))
}

/// The server that it was bound to, as long as that bears its id.
fn ours<'a>(asked: &Asked, holder: Option<&'a Server>) -> Option<&'a Server> {
    holder.filter(|server| asked.status.server_uid.as_ref() == Some(&server.uid))
}

/// The status of a claim that was released before it had a server.
pub fn withdrawn(asked: &Asked, now: Timestamp) -> GameServerClaimStatus {
    over(asked, ClaimPhase::Released, "released before it had a server".to_owned(), now)
}

fn over(asked: &Asked, phase: ClaimPhase, message: String, now: Timestamp) -> GameServerClaimStatus {
    let (finished_at, message) = (Some(MicroTime(now)), Some(message));
    GameServerClaimStatus { phase, finished_at, message, ..asked.status.clone() }
}

/// Time decides next: how long it waits, or how long it stays.
fn waits(asked: &Asked, holder: Option<&Server>, now: Timestamp) -> Settled {
    match (&asked.status.finished_at, asked.status.phase) {
        (Some(finished), _) => {
            let stays = SignedDuration::from_secs(i64::from(asked.stays_seconds));
            match finished.0.checked_add(stays) {
                Ok(due) if due <= now => Settled::Delete,
                due => Settled::Rest(due.ok()),
            }
        }
        (None, ClaimPhase::Pending) => {
            let taken = holder.and_then(|server| server.claim_of(asked.id()));
            let bound = taken.and_then(|claim| claim.claimed_at.0.checked_add(BINDING).ok());
            Settled::Rest(Some(bound.unwrap_or_else(|| asked.deadline())))
        }
        (None, _) => Settled::Rest(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{active, asked, at, claimed, standing_by};

    fn written(asked: &Asked, holder: Option<&Server>, now: i64) -> GameServerClaimStatus {
        match step(asked, holder, Confirmation::Game, at(now)) {
            Settled::Write(status) | Settled::ConfirmGone(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn bound_claim() -> (Asked, Server) {
        let mut asked = asked("match-1", 0, 30);
        let server = claimed("a", "match-1", 60).server.unwrap();
        asked.status = bound_to(&server, server.claim.as_ref().unwrap());
        (asked, Server::clone(&server))
    }

    #[test]
    fn it_waits_says_so_once_and_fails_at_its_deadline() {
        let mut asked = asked("match-1", 0, 30);
        asked.status = written(&asked, None, 1);
        assert_eq!(asked.status.phase, ClaimPhase::Pending);
        assert_eq!(step(&asked, None, Confirmation::Game, at(2)), Settled::Rest(Some(at(30))));
        let failed = written(&asked, None, 30);
        assert_eq!(failed.phase, ClaimPhase::Failed);
        assert!(failed.message.unwrap().contains("within 30 s"));
    }

    #[test]
    fn a_server_that_bears_its_id_binds_it_and_its_game_confirms_it() {
        let (asked, server) = bound_claim();
        assert_eq!(asked.status.server_uid.as_deref(), Some("server-a"));
        assert_eq!(asked.status.address, server.address);
        assert_eq!(step(&asked, Some(&server), Confirmation::Game, at(5)), Settled::Rest(None));
        let playing = active("a")
            .server
            .map(|server| Server { claim: bound_claim().1.claim, ..Server::clone(&server) });
        assert_eq!(written(&asked, playing.as_ref(), 6).phase, ClaimPhase::Confirmed);
    }

    #[test]
    fn it_ends_as_its_server_s_claim_does() {
        let (asked, mut server) = bound_claim();
        server.claim_status = crate::api::ClaimStatus::Unclaimed;
        assert_eq!(written(&asked, Some(&server), 61).phase, ClaimPhase::Expired);
        server.claim.as_mut().unwrap().released_at = Some(MicroTime(at(20)));
        assert_eq!(written(&asked, Some(&server), 21).phase, ClaimPhase::Released);
        assert_eq!(written(&asked, None, 21).phase, ClaimPhase::Expired);
        assert!(matches!(step(&asked, None, Confirmation::Game, at(21)), Settled::ConfirmGone(_)));
    }

    /// Row P3, where the replica that took its server has ended before it said so.
    #[test]
    fn the_game_of_a_claim_that_confirms_itself_is_begun_by_whoever_leads() {
        let (asked, mut server) = bound_claim();
        let next = |server: &Server, now| step(&asked, Some(server), Confirmation::Immediate, at(now));
        assert_eq!(next(&server, 1), Settled::Rest(Some(at(2))));
        assert_eq!(next(&server, 2), Settled::Begin);
        server.state = crate::api::State::Active;
        assert!(matches!(next(&server, 2), Settled::Write(_)));
    }

    /// A game that crashed before it began was not played: whoever waits for it claims anew.
    #[test]
    fn a_server_that_ended_before_its_game_began_confirms_nothing() {
        let (asked, mut server) = bound_claim();
        server.state = crate::api::State::Terminated;
        for (reason, phase) in [
            (EndReason::Crashed, ClaimPhase::Expired),
            (EndReason::PodDeleted, ClaimPhase::Expired),
            (EndReason::SessionEnded, ClaimPhase::Confirmed),
        ] {
            server.end = Some(crate::api::End { reason, message: String::new(), time: MicroTime(at(5)) });
            assert_eq!(written(&asked, Some(&server), 6).phase, phase, "{reason:?}");
        }
    }

    /// Another server under its id, as for a name used again, never becomes its own.
    #[test]
    fn it_is_bound_to_one_server_and_no_other() {
        let (asked, _) = bound_claim();
        let other = claimed("b", "match-1", 60).server.unwrap();
        assert_eq!(written(&asked, Some(&other), 5).phase, ClaimPhase::Expired);
    }

    #[test]
    fn the_name_of_another_claim_fails() {
        let mut asked = asked("match-1", 0, 30);
        asked.request.data = Some("map=castle".to_owned());
        let server = claimed("a", "match-1", 60).server.unwrap();
        let failed = written(&asked, Some(&server), 1);
        assert_eq!(failed.phase, ClaimPhase::Failed);
        assert!(failed.server.is_none());
    }

    #[test]
    fn it_goes_some_time_after_it_is_over() {
        let mut asked = asked("match-1", 0, 30);
        asked.status = written(&asked, None, 30);
        assert_eq!(step(&asked, None, Confirmation::Game, at(31)), Settled::Rest(Some(at(630))));
        assert_eq!(step(&asked, None, Confirmation::Game, at(630)), Settled::Delete);
    }

    #[test]
    fn a_server_on_offer_is_not_its_own() {
        let asked = asked("match-1", 0, 30);
        let server = standing_by("a").server.unwrap();
        assert_eq!(written(&asked, Some(&server), 1).phase, ClaimPhase::Pending);
    }
}
