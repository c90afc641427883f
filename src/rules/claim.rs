//! Rows F12, F13 and F16: which servers fit what is asked for, and the one conditional patch that takes one.

use jiff::{SignedDuration, Timestamp, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::observed::{Fate, Server};
use super::patch::ServerPatch;
use super::request::Request;
use super::seats;
use crate::api::{Claim, ClaimStatus, Health, Shutdown, State};

/// How long after its making a claim's first caller may still be about to be answered, or to give up, clocks that
/// differ included.
const FIRST_CALL: SignedDuration = SignedDuration::from_secs(60);

impl Request {
    /// Whether `server` is one that it asks for, leaving aside whether it is on offer.
    pub fn fits(&self, server: &Server) -> bool {
        let status = server.instance.as_ref().map(|instance| instance.status).unwrap_or_default();
        self.groups.contains(&server.group)
            && self.server.as_ref().is_none_or(|name| *name == server.name)
            && (self.instance_status.is_empty()
                || self.instance_status.iter().any(|wanted| wanted.admits(status)))
            && self.labels.iter().all(|(name, value)| server.labels.get(name) == Some(value))
    }
}

/// The claim as it will stand on the server.
pub fn made(request: &Request, by: &str, timeout: SignedDuration, now: Timestamp) -> Claim {
    // As the API holds times: what is read back must be what was written.
    let now = now.round(Unit::Microsecond).unwrap_or(now);
    // A timeout is at most an hour by the schema: the sum does not leave what a timestamp holds.
    let expires_at = now.checked_add(timeout).unwrap_or(now);
    Claim {
        id: request.id.clone(),
        claimed_at: MicroTime(now),
        expires_at: MicroTime(expires_at),
        by: by.chars().take(512).collect(),
        object: None,
        request: request.fingerprint(),
        data: request.data.clone(),
        repeated_at: None,
        released_at: None,
        seats: None,
    }
}

/// Takes `server` for `claim`, or the seats of it that are asked for, if it is still on offer when the API server gets
/// to it (invariant I1).
pub fn take(server: &Server, claim: &Claim, now: Timestamp) -> ServerPatch {
    if claim.seats.is_some() {
        return seats::reserve(server, claim, now);
    }
    let instance = server.instance.as_ref().map(|instance| instance.status).unwrap_or_default();
    ServerPatch::of(&server.uid)
        .test(&["status", "state"], State::StandingBy)
        .test(&["status", "claimStatus"], ClaimStatus::Unclaimed)
        .test(&["status", "health"], Health::Healthy)
        .test(&["status", "instance", "status"], instance)
        .test(&["spec", "shutdown"], Shutdown::Never)
        .set(&["status", "claimStatus"], ClaimStatus::Claimed)
        .set(&["status", "claim"], claim)
}

/// Row P3, `confirmation: Immediate`: the claim makes the game Active, if it still holds the server.
pub fn activate(server: &Server, claim: &Claim) -> ServerPatch {
    held_by(server, claim).set(&["status", "state"], State::Active)
}

/// Its holder gives back what `claim` holds of `server`, if nobody plays on it yet. The id stays on it, so that a late
/// caller hears of it. None if there is nothing to give back.
pub fn release(server: &Server, claim: &Claim, now: Timestamp) -> Option<ServerPatch> {
    if claim.seats.is_some() {
        return seats::change(server, &claim.id, now, |claim| seats::released(claim, now));
    }
    let patch = held_by(server, claim)
        .set(&["status", "claimStatus"], ClaimStatus::Unclaimed)
        .set(&["status", "claim", "releasedAt"], MicroTime(now));
    Some(patch)
}

/// Notes that `claim` on `server` is answered to somebody who asked again, so that [`forget`] finds another claim than
/// the one that was made. None where that cannot happen any more: the first caller has been answered or given up for
/// long, or somebody plays.
pub fn repeat(server: &Server, claim: &Claim, now: Timestamp) -> Option<ServerPatch> {
    let fresh = now.duration_since(claim.claimed_at.0) < FIRST_CALL && claim.repeated_at.is_none();
    if !fresh || server.fate(claim) != Fate::Held {
        return None;
    }
    if claim.seats.is_some() {
        return seats::change(server, &claim.id, now, |claim| claim.repeated_at = Some(MicroTime(now)));
    }
    Some(held_by(server, claim).set(&["status", "claim", "repeatedAt"], MicroTime(now)))
}

/// Gives back what `claim` holds of `server` as if it had never been claimed, if nobody plays on it yet and nobody has
/// asked again: its caller has gone without hearing of it, or another server was first. None if it holds nothing.
pub fn forget(server: &Server, claim: &Claim, now: Timestamp) -> Option<ServerPatch> {
    if claim.seats.is_some() {
        return seats::forget(server, claim, now);
    }
    let patch = held_by(server, claim)
        .test(&["status", "claim"], claim)
        .set(&["status", "claimStatus"], ClaimStatus::Unclaimed)
        .remove(&["status", "claim"]);
    Some(patch)
}

/// What must hold for `claim` to change anything about `server`, which it has for itself.
fn held_by(server: &Server, claim: &Claim) -> ServerPatch {
    ServerPatch::of(&server.uid)
        .test(&["status", "state"], State::StandingBy)
        .test(&["status", "claimStatus"], ClaimStatus::Claimed)
        .test(&["status", "claim", "id"], &claim.id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::ClaimableStatus;
    use crate::rules::fixtures::{self, at, claimed, server_json, standing_by};

    #[test]
    fn a_claim_takes_a_server_that_stands_by() {
        let server = standing_by("a").server.unwrap();
        let claim = made(&request(), "matchmaker", SignedDuration::from_secs(60), at(0));
        let mut json = server_json(&server);

        json_patch::patch(&mut json, &take(&server, &claim, at(0)).into_json()).unwrap();

        assert_eq!(json["status"]["claimStatus"], "Claimed");
        assert_eq!(json["status"]["claim"]["expiresAt"], "2026-01-01T00:01:00.000000Z");
    }

    #[test]
    fn it_takes_nothing_that_has_changed_since() {
        let server = standing_by("a").server.unwrap();
        let claim = made(&request(), "matchmaker", SignedDuration::from_secs(60), at(0));
        for (path, value) in [
            ("/status/state", "Terminating"),
            ("/status/claimStatus", "Claimed"),
            ("/status/health", "Unhealthy"),
            ("/spec/shutdown", "WhenIdle"),
            ("/status/instance/status", "Draining"),
            ("/metadata/uid", "another"),
        ] {
            let mut json = server_json(&server);
            *json.pointer_mut(path).unwrap() = value.into();
            assert!(
                json_patch::patch(&mut json, &take(&server, &claim, at(0)).into_json()).is_err(),
                "{path}"
            );
        }
    }

    /// A write whose answer was lost is known by the claim that stands there.
    #[test]
    fn a_claim_is_read_back_as_it_was_written() {
        let now = at(0).checked_add(SignedDuration::from_nanos(123_456_789)).unwrap();
        let claim = made(&request(), "matchmaker", SignedDuration::from_secs(60), now);
        let back: Claim = serde_json::from_value(serde_json::to_value(&claim).unwrap()).unwrap();
        assert_eq!(back, claim);
    }

    /// Row F16.
    #[test]
    fn a_server_fits_by_group_name_labels_and_instance() {
        let mut server = standing_by("a").server.unwrap();
        server.labels = BTreeMap::from([("map".to_owned(), "harbour".to_owned())]);
        let fits = |change: fn(&mut Request)| {
            let mut request = request();
            change(&mut request);
            request.fits(&server)
        };
        assert!(fits(|_| {}));
        assert!(!fits(|request| request.groups = vec!["canary".to_owned()]));
        assert!(fits(|request| request.server = Some("a".to_owned())));
        assert!(!fits(|request| request.server = Some("b".to_owned())));
        assert!(fits(|request| request.labels = [("map".to_owned(), "harbour".to_owned())].into()));
        assert!(!fits(|request| request.labels = [("map".to_owned(), "castle".to_owned())].into()));
        assert!(fits(|request| request.instance_status = vec![ClaimableStatus::Active]));
        assert!(!fits(|request| request.instance_status = vec![ClaimableStatus::Draining]));
    }

    #[test]
    fn what_a_caller_never_heard_of_is_as_if_it_had_not_been() {
        let member = claimed("a", "match-1", 60);
        let server = member.server.unwrap();
        let claim = server.claim.clone().unwrap();
        let before = server_json(&standing_by("a").server.unwrap());
        let mut json = server_json(&server);
        json_patch::patch(&mut json, &forget(&server, &claim, at(1)).unwrap().into_json()).unwrap();
        assert_eq!(json["status"]["claimStatus"], before["status"]["claimStatus"]);
        assert!(json["status"].get("claim").is_none());

        let mut playing = server_json(&server);
        playing["status"]["state"] = "Active".into();
        assert!(
            json_patch::patch(&mut playing, &forget(&server, &claim, at(1)).unwrap().into_json()).is_err()
        );
    }

    fn request() -> Request {
        fixtures::request("match-1")
    }
}
