//! Rows F12 and F13: a claim takes one server by one conditional patch.

use jiff::{SignedDuration, Timestamp, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::observed::Server;
use super::patch::ServerPatch;
use crate::api::{Claim, ClaimStatus, Health, Shutdown, State};

/// The longest claim id, in characters.
pub const ID_LIMIT: usize = 128;

/// The most groups a claim may name.
pub const GROUPS_LIMIT: usize = 16;

/// What is wrong with a claim's words.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// The id is empty or too long.
    #[error("id has {found} characters; it needs 1 to {ID_LIMIT}")]
    Id {
        /// How many it has.
        found: usize,
    },
    /// No group, or too many.
    #[error("groups has {found} names; it needs 1 to {GROUPS_LIMIT}")]
    Groups {
        /// How many it has.
        found: usize,
    },
}

/// Checks what the schema of a resource would check.
///
/// # Errors
/// What is wrong, and what is right.
pub fn check(id: &str, groups: &[String]) -> Result<(), Malformed> {
    let found = id.chars().count();
    if !(1..=ID_LIMIT).contains(&found) {
        return Err(Malformed::Id { found });
    }
    if !(1..=GROUPS_LIMIT).contains(&groups.len()) {
        return Err(Malformed::Groups { found: groups.len() });
    }
    Ok(())
}

/// The claim as it will stand on the server.
pub fn made(id: &str, by: &str, timeout: SignedDuration, now: Timestamp) -> Claim {
    // As the API holds times: what is read back must be what was written.
    let now = now.round(Unit::Microsecond).unwrap_or(now);
    // A timeout is at most an hour by the schema: the sum does not leave what a timestamp holds.
    let expires_at = now.checked_add(timeout).unwrap_or(now);
    Claim {
        id: id.to_owned(),
        claimed_at: MicroTime(now),
        expires_at: MicroTime(expires_at),
        by: by.chars().take(512).collect(),
    }
}

/// Takes `server` for `claim`, if it is still on offer when the API server gets to it (invariant I1).
pub fn take(server: &Server, claim: &Claim) -> ServerPatch {
    ServerPatch::of(&server.uid)
        .test(&["status", "state"], State::StandingBy)
        .test(&["status", "claimStatus"], ClaimStatus::Unclaimed)
        .test(&["status", "health"], Health::Healthy)
        .test(&["spec", "shutdown"], Shutdown::Never)
        .set(&["status", "claimStatus"], ClaimStatus::Claimed)
        .set(&["status", "claim"], claim)
}

/// Gives `server` back, if `claim` still holds it and nobody plays.
pub fn release(server: &Server, claim: &Claim) -> ServerPatch {
    ServerPatch::of(&server.uid)
        .test(&["status", "state"], State::StandingBy)
        .test(&["status", "claimStatus"], ClaimStatus::Claimed)
        .test(&["status", "claim", "id"], &claim.id)
        .set(&["status", "claimStatus"], ClaimStatus::Unclaimed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{at, server_json, standing_by};

    #[test]
    fn a_claim_takes_a_server_that_stands_by() {
        let server = standing_by("a").server.unwrap();
        let claim = made("match-1", "matchmaker", SignedDuration::from_secs(60), at(0));
        let mut json = server_json(&server);

        json_patch::patch(&mut json, &take(&server, &claim).into_json()).unwrap();

        assert_eq!(json["status"]["claimStatus"], "Claimed");
        assert_eq!(json["status"]["claim"]["expiresAt"], "2026-01-01T00:01:00.000000Z");
    }

    #[test]
    fn it_takes_nothing_that_has_changed_since() {
        let server = standing_by("a").server.unwrap();
        let claim = made("match-1", "matchmaker", SignedDuration::from_secs(60), at(0));
        for (path, value) in [
            ("/status/state", "Terminating"),
            ("/status/claimStatus", "Claimed"),
            ("/status/health", "Unhealthy"),
            ("/spec/shutdown", "WhenIdle"),
            ("/metadata/uid", "another"),
        ] {
            let mut json = server_json(&server);
            *json.pointer_mut(path).unwrap() = value.into();
            assert!(json_patch::patch(&mut json, &take(&server, &claim).into_json()).is_err(), "{path}");
        }
    }

    /// A write whose answer was lost is known by the claim that stands there.
    #[test]
    fn a_claim_is_read_back_as_it_was_written() {
        let now = at(0).checked_add(SignedDuration::from_nanos(123_456_789)).unwrap();
        let claim = made("match-1", "matchmaker", SignedDuration::from_secs(60), now);
        let back: Claim = serde_json::from_value(serde_json::to_value(&claim).unwrap()).unwrap();
        assert_eq!(back, claim);
    }

    #[test]
    fn words_out_of_bounds_are_named() {
        let groups = vec!["arena".to_owned()];
        assert_eq!(check("", &groups), Err(Malformed::Id { found: 0 }));
        assert_eq!(check(&"x".repeat(129), &groups), Err(Malformed::Id { found: 129 }));
        assert_eq!(check("m", &[]), Err(Malformed::Groups { found: 0 }));
        assert_eq!(check("m", &groups), Ok(()));
    }
}
