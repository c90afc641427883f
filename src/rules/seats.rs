//! Row A11: a server that several sessions or players share. Claims reserve seats on it, never more than there are;
//! as the player count rises the oldest reservations turn into players, so that none is counted twice.
//!
//! Reservations, players and marks meet on one object, so each write of reservations holds only for the very version
//! that it was decided on.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::observed::Server;
use super::patch::ServerPatch;
use super::request::Request;
use crate::api::{Claim, ClaimStatus, Seats, Sharing, State};

/// How long after its deadline the id of a reservation that is over is remembered, so that asking again with it gets
/// the same answer.
const REMEMBERED: SignedDuration = SignedDuration::from_mins(1);

/// How many reservations whose players have come are remembered: the object's size is the price of every claim.
const MOST_CONFIRMED: usize = 64;

/// How many reservations a server remembers at most: as many as the schema takes.
pub const LIMIT: usize = 256;

/// How many seats of `server` are free.
pub fn free(sharing: &Sharing, server: &Server) -> i32 {
    let players = server.players.unwrap_or_default();
    let reported = Some(players.capacity).filter(|capacity| *capacity > 0).unwrap_or(i32::MAX);
    let pending = pending(server);
    // Players who have come since are among both the reserved and the counted until they are settled.
    let arrived = players.count.saturating_sub(server.seated).clamp(0, pending);
    sharing
        .capacity
        .min(reported)
        .saturating_sub(players.count)
        .saturating_sub(pending.saturating_sub(arrived))
}

/// How many seats are reserved whose players have not come.
fn pending(server: &Server) -> i32 {
    server.reservations.iter().filter_map(|claim| claim.seats).map(|seats| seats.left).sum()
}

/// The claim that `request` makes as it will stand on a shared server.
pub fn asked_for(claim: Claim, request: &Request) -> Claim {
    let seats = Seats { reserved: request.seats, left: request.seats, lapsed: false };
    Claim { seats: Some(seats), ..claim }
}

/// Reserves the seats of `claim` on `server`.
pub fn reserve(server: &Server, claim: &Claim, now: Timestamp) -> ServerPatch {
    let mut reservations = settled(server, now);
    reservations.push(claim.clone());
    // The schema's limit: the oldest that is over makes room.
    if reservations.len() > LIMIT
        && let Some(over) = reservations.iter().position(|claim| !is_pending(claim))
    {
        reservations.remove(over);
    }
    rewritten(server, reservations)
}

/// What has changed about the reservations by itself: players have come, deadlines are over. None if nothing has.
pub fn settle(server: &Server, now: Timestamp) -> Option<ServerPatch> {
    let pending = server.reservations.iter().any(is_pending);
    let after = settled(server, now);
    let unsettled = pending && after != server.reservations;
    // A count that falls must be known before it rises again.
    let fallen = pending && server.players.unwrap_or_default().count < server.seated;
    (unsettled || fallen).then(|| rewritten(server, after))
}

/// When the next reservation lapses.
pub fn deadline(server: &Server) -> Option<Timestamp> {
    server.reservations.iter().filter(|claim| is_pending(claim)).map(|claim| claim.expires_at.0).min()
}

/// Changes the reservation of `id`, if it is still pending once what has happened by itself is settled.
pub fn change(server: &Server, id: &str, now: Timestamp, how: impl Fn(&mut Claim)) -> Option<ServerPatch> {
    let mut reservations = settled(server, now);
    let found = reservations.iter_mut().find(|claim| claim.id == id && is_pending(claim))?;
    how(found);
    Some(rewritten(server, reservations))
}

/// Takes back the reservation that was made as `claim`, as if it had never been: none of its players has come, and
/// nobody has asked for it again.
pub fn forget(server: &Server, claim: &Claim, now: Timestamp) -> Option<ServerPatch> {
    let mut reservations = settled(server, now);
    let place = reservations.iter().position(|there| there == claim)?;
    reservations.remove(place);
    Some(rewritten(server, reservations))
}

/// The newest reservation whose players are still awaited.
pub fn newest(server: &Server) -> Option<&Claim> {
    server.reservations.iter().rfind(|claim| is_pending(claim))
}

/// Whether players are still awaited.
pub fn are_awaited(server: &Server) -> bool {
    server.reservations.iter().any(is_pending)
}

fn is_pending(claim: &Claim) -> bool {
    claim.seats.is_some_and(|seats| seats.left > 0)
}

/// The reservations once arrivals have taken the oldest, what is due has lapsed, and what is long over is forgotten.
fn settled(server: &Server, now: Timestamp) -> Vec<Claim> {
    let mut arrived = server.players.unwrap_or_default().count.saturating_sub(server.seated).max(0);
    let mut reservations = server.reservations.clone();
    for seats in reservations.iter_mut().filter_map(|claim| claim.seats.as_mut()) {
        let taken = arrived.min(seats.left);
        seats.left -= taken;
        arrived -= taken;
    }
    for claim in &mut reservations {
        if let Some(seats) = claim.seats.as_mut().filter(|seats| seats.left > 0)
            && (claim.expires_at.0 <= now || server.goes_with_its_node())
        {
            // Those who came play on.
            let came = seats.reserved.saturating_sub(seats.left);
            *seats =
                Seats { reserved: if came > 0 { came } else { seats.reserved }, left: 0, lapsed: came == 0 };
        }
    }
    let over = |claim: &Claim| claim.released_at.is_some() || claim.seats.is_some_and(|seats| seats.lapsed);
    let remembered = |claim: &Claim| {
        let until = claim.expires_at.0.checked_add(REMEMBERED);
        !over(claim) || until.is_ok_and(|until| until > now)
    };
    reservations.retain(remembered);
    let confirmed = |claim: &Claim| !is_pending(claim) && !over(claim);
    let mut surplus =
        reservations.iter().filter(|claim| confirmed(claim)).count().saturating_sub(MOST_CONFIRMED);
    reservations.retain(|claim| {
        let goes = surplus > 0 && confirmed(claim);
        surplus -= usize::from(goes);
        !goes
    });
    reservations
}

/// The patch that writes these reservations, if the server is still the very one that was seen.
fn rewritten(server: &Server, reservations: Vec<Claim>) -> ServerPatch {
    let pending = reservations.iter().any(is_pending);
    let status = if pending { ClaimStatus::Claimed } else { ClaimStatus::Unclaimed };
    let patch =
        ServerPatch::of(&server.uid).test(&["metadata", "resourceVersion"], server.version.to_string());
    // Somebody had it for himself before its group began to share: that claim is over, and would be held again.
    let patch = if server.claim.is_some() { patch.remove(&["status", "claim"]) } else { patch };
    patch
        .set(&["status", "claimStatus"], status)
        .set(&["status", "seated"], server.players.unwrap_or_default().count)
        .set(&["status", "reservations"], reservations)
}

/// Releases a reservation at this time.
pub fn released(claim: &mut Claim, now: Timestamp) {
    claim.released_at = Some(MicroTime(now));
    if let Some(seats) = claim.seats.as_mut() {
        seats.left = 0;
    }
}

/// Whether a server in this state takes players.
pub fn is_open(state: State) -> bool {
    match state {
        State::StandingBy | State::Active => true,
        State::Creating | State::Initializing | State::Terminating | State::Terminated => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Players;
    use crate::rules::fixtures::{at, request, server_json, standing_by};
    use crate::rules::{claim, lapse};

    const SHARING: Sharing = Sharing { capacity: 10, prefer: crate::api::Prefer::Fullest };

    fn seats(id: &str, seats: i32, made: i64) -> Claim {
        let mut request = request(id);
        request.seats = seats;
        let claim = claim::made(&request, "matchmaker", SignedDuration::from_secs(60), at(made));
        asked_for(claim, &request)
    }

    fn server(players: i32, seated: i32, reservations: Vec<Claim>) -> Server {
        let mut server = Server::clone(&standing_by("a").server.unwrap());
        server.players = Some(Players { count: players, capacity: 0 });
        (server.seated, server.reservations) = (seated, reservations);
        if pending(&server) > 0 {
            server.claim_status = ClaimStatus::Claimed;
        }
        server
    }

    /// The server as a patch leaves it.
    fn patched(server: &Server, patch: ServerPatch) -> Server {
        let mut json = server_json(server);
        json_patch::patch(&mut json, &patch.into_json()).unwrap();
        let mut after = server.clone();
        after.claim_status = serde_json::from_value(json["status"]["claimStatus"].clone()).unwrap();
        after.seated = serde_json::from_value(json["status"]["seated"].clone()).unwrap();
        after.reservations = serde_json::from_value(json["status"]["reservations"].clone()).unwrap();
        after
    }

    /// Invariant I1: a claim that somebody had for himself before is not held again by the seats of others.
    #[test]
    fn an_earlier_claim_goes_with_the_first_seats() {
        let mut lapsed = server(0, 0, Vec::new());
        lapsed.claim = crate::rules::fixtures::claimed("a", "match-1", 60).server.unwrap().claim.clone();
        let mut json = server_json(&lapsed);
        json_patch::patch(&mut json, &reserve(&lapsed, &seats("a", 2, 70), at(70)).into_json()).unwrap();
        assert_eq!(json["status"]["claimStatus"], "Claimed");
        assert!(json["status"]["claim"].is_null());
    }

    #[test]
    fn seats_are_taken_by_players_and_by_reservations() {
        let one = server(4, 4, vec![seats("a", 3, 0)]);
        assert_eq!(free(&SHARING, &one), 3);
        let full = patched(&one, reserve(&one, &seats("b", 3, 1), at(1)));
        assert_eq!((free(&SHARING, &full), full.claim_status), (0, ClaimStatus::Claimed));
        let mut small = one;
        small.players = Some(Players { count: 4, capacity: 6 });
        assert_eq!(free(&SHARING, &small), -1);
    }

    /// Who has come is no longer waited for, also before that is written.
    #[test]
    fn arrivals_take_the_oldest_reservations_and_are_counted_once() {
        let before = server(0, 0, vec![seats("a", 2, 0), seats("b", 2, 1)]);
        let mut come = before.clone();
        come.players = Some(Players { count: 3, capacity: 0 });
        assert_eq!((free(&SHARING, &before), free(&SHARING, &come)), (6, 6));
        let after = patched(&come, settle(&come, at(2)).unwrap());
        let left: Vec<i32> = after.reservations.iter().map(|claim| claim.seats.unwrap().left).collect();
        assert_eq!((left, after.seated, free(&SHARING, &after)), (vec![0, 1], 3, 6));
        assert_eq!(settle(&after, at(2)), None);
        // One leaves, another comes: that one takes the last reservation.
        let mut fallen = after;
        fallen.players = Some(Players { count: 2, capacity: 0 });
        let mut risen = patched(&fallen, settle(&fallen, at(3)).unwrap());
        assert_eq!(risen.seated, 2);
        risen.players = Some(Players { count: 3, capacity: 0 });
        let done = patched(&risen, settle(&risen, at(4)).unwrap());
        assert_eq!((free(&SHARING, &done), done.claim_status), (7, ClaimStatus::Unclaimed));
    }

    /// Row F14, of seats.
    #[test]
    fn a_reservation_whose_players_do_not_come_lapses() {
        let server = server(0, 0, vec![seats("a", 2, 0), seats("b", 2, 30)]);
        assert_eq!((deadline(&server), settle(&server, at(59))), (Some(at(60)), None));
        let after = patched(&server, settle(&server, at(60)).unwrap());
        assert_eq!((free(&SHARING, &after), deadline(&after)), (8, Some(at(90))));
        let ids: Vec<String> = lapse::lapsed(&server, &after).into_iter().map(|claim| claim.id).collect();
        assert_eq!(ids, ["a"]);
        let last = patched(&after, settle(&after, at(90)).unwrap());
        assert_eq!((last.claim_status, last.reservations.len()), (ClaimStatus::Unclaimed, 2));
        // Remembered for a while, then not: the next reservation drops it.
        let next = patched(&last, reserve(&last, &seats("c", 1, 200), at(200)));
        assert_eq!(next.reservations.len(), 1);
    }

    #[test]
    fn another_version_takes_no_reservation() {
        let seen = server(4, 4, Vec::new());
        let patch = reserve(&seen, &seats("a", 1, 0), at(0));
        let mut newer = seen;
        newer.version += 1;
        assert!(json_patch::patch(&mut server_json(&newer), &patch.into_json()).is_err());
    }

    #[test]
    fn what_is_forgotten_or_released_frees_its_seats() {
        let claim = seats("a", 2, 0);
        let server = server(0, 0, vec![claim.clone()]);
        let forgotten = patched(&server, forget(&server, &claim, at(1)).unwrap());
        assert!(forgotten.reservations.is_empty() && forgotten.claim_status == ClaimStatus::Unclaimed);
        let given = patched(&server, change(&server, "a", at(5), |claim| released(claim, at(5))).unwrap());
        assert_eq!((free(&SHARING, &given), given.reservations.len()), (10, 1));
        assert_eq!(forget(&given, &claim, at(6)), None);
    }

    /// Who has come is taken off the seats before anything else is changed.
    #[test]
    fn a_release_loses_no_arrivals() {
        let server = server(3, 0, vec![seats("a", 3, 0), seats("b", 2, 1)]);
        let after = patched(&server, change(&server, "b", at(5), |claim| released(claim, at(5))).unwrap());
        assert_eq!((free(&SHARING, &after), after.seated, pending(&after)), (7, 3, 0));
        assert_eq!(change(&server, "a", at(5), |_| {}), None);
        assert_eq!(forget(&server, &server.reservations[0], at(5)), None);
    }

    /// Of four, three came: they play on, and their claim has not lapsed.
    #[test]
    fn a_claim_of_which_some_came_does_not_lapse() {
        let server = server(3, 0, vec![seats("a", 4, 0)]);
        let after = patched(&server, settle(&server, at(60)).unwrap());
        assert_eq!(after.reservations[0].seats.unwrap(), Seats { reserved: 3, left: 0, lapsed: false });
        assert!(lapse::lapsed(&server, &after).is_empty() && after.is_held_by("a"));
        assert_eq!(free(&SHARING, &after), 7);
        // It is known by its id for as long as it may.
        let later = patched(&after, reserve(&after, &seats("b", 1, 900), at(900)));
        assert!(later.is_held_by("a"));
    }

    /// Its group shares servers no more: who has it for himself keeps it.
    #[test]
    fn an_exclusive_claim_is_not_freed_for_seats_that_are_over() {
        let mut server = Server::clone(&crate::rules::fixtures::claimed("a", "match-1", 600).server.unwrap());
        let mut over = seats("old", 1, 0);
        over.seats = Some(Seats { reserved: 1, left: 0, lapsed: true });
        server.reservations = vec![over];
        assert_eq!(lapse::lapse(&server, at(100)), None);
        assert_eq!(lapse::deadline(&server), Some(at(600)));
        assert!(lapse::lapse(&server, at(600)).is_some());
    }
}
