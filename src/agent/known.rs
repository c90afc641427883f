//! What is known of the pod's own `GameServer`, as the game is told it.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;
use tokio::sync::watch;
use tracing::info;

use crate::api::{Claim, ClaimStatus, GameServer, GameServerPort, Instance, InstanceStatus, State};

/// A game server, cut down to what matters to its game.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Known {
    /// The version of the resource that said so first.
    resource_version: String,
    #[serde(flatten)]
    told: Told,
    /// The newest version that was seen.
    #[serde(skip)]
    newest: u64,
}

/// What the game is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    name: String,
    state: State,
    /// The claim that holds it, if one does.
    claim: Option<ToldClaim>,
    /// The claims that hold seats on it, the oldest first.
    reservations: Vec<ToldClaim>,
    address: Option<String>,
    ports: Vec<GameServerPort>,
    instance: Option<ToldInstance>,
}

/// What becomes of the node that the game runs on.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ToldInstance {
    status: InstanceStatus,
    cause: Option<String>,
    /// When the node is gone, where that is known.
    retire_at: Option<Timestamp>,
}

impl From<Instance> for ToldInstance {
    fn from(instance: Instance) -> Self {
        let Instance { status, cause, retire_at, .. } = instance;
        Self { status, cause, retire_at: retire_at.map(|at| at.0) }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ToldClaim {
    id: String,
    data: Option<String>,
    expires_at: Timestamp,
    /// How many seats, where servers are shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    seats: Option<i32>,
}

impl From<Claim> for ToldClaim {
    fn from(claim: Claim) -> Self {
        let Claim { id, data, expires_at, seats, .. } = claim;
        Self { id, data, expires_at: expires_at.0, seats: seats.map(|seats| seats.reserved) }
    }
}

/// Whether the claim of seats stands: its players are awaited, or have come.
fn stands(claim: &Claim) -> bool {
    claim.released_at.is_none() && claim.seats.is_some_and(|seats| !seats.lapsed)
}

impl Known {
    fn of(server: &GameServer) -> Self {
        let status = server.status.clone().unwrap_or_default();
        let held = status.claim.filter(|_| status.claim_status == ClaimStatus::Claimed);
        let resource_version = server.resource_version().unwrap_or_default();
        Self {
            newest: resource_version.parse().unwrap_or_default(),
            resource_version,
            told: Told {
                name: server.name_any(),
                state: status.state,
                claim: held.map(ToldClaim::from),
                reservations: status.reservations.into_iter().filter(stands).map(ToldClaim::from).collect(),
                address: status.address,
                ports: status.ports,
                instance: status.instance.map(ToldInstance::from),
            },
        }
    }

    /// `status.state`.
    pub(super) fn state(&self) -> State {
        self.told.state
    }

    /// How long players may take to come, as the claim says.
    pub(super) fn time_to_come(&self, now: Timestamp) -> Duration {
        let left = self.told.claim.as_ref().map(|claim| claim.expires_at.duration_since(now));
        left.and_then(|left| left.try_into().ok()).unwrap_or_default()
    }

    /// Whether it says something else than the version that the game has heard.
    pub(super) fn is_news_after(&self, version: Option<&str>) -> bool {
        version != Some(&self.resource_version)
    }
}

/// What is known, as it changes.
#[derive(Debug, Default)]
pub(super) struct Watched(watch::Sender<Option<Known>>);

impl Watched {
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Known>> {
        self.0.subscribe()
    }

    /// Takes up the resource as a reading or a report's answer showed it: of two under way, the later one counts.
    pub(super) fn take_up(&self, server: &GameServer) {
        let seen = Known::of(server);
        self.0.send_if_modified(|known| match known {
            Some(known) if known.newest >= seen.newest => false,
            Some(known) if known.told == seen.told => {
                known.newest = seen.newest;
                false
            }
            Some(_) | None => {
                let before = known.take().and_then(|known| known.told.claim);
                log(before.as_ref(), seen.told.claim.as_ref());
                *known = Some(seen);
                true
            }
        });
    }
}

fn log(before: Option<&ToldClaim>, now: Option<&ToldClaim>) {
    let id = |claim: Option<&ToldClaim>| claim.map(|claim| claim.id.clone());
    match (id(before), id(now)) {
        (before, Some(claim)) if before.as_ref() != Some(&claim) => {
            info!(claim, "the game server is claimed");
        }
        (Some(claim), None) => info!(claim, "the game server is claimed no more"),
        (None | Some(_), None | Some(_)) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn server(version: u64, status: &Value) -> GameServer {
        serde_json::from_value(json!({
            "apiVersion": "gamekeeper.dev/v1alpha1", "kind": "GameServer",
            "metadata": {"name": "arena-x", "resourceVersion": version.to_string()},
            "spec": {"group": "arena"},
            "status": status,
        }))
        .unwrap()
    }

    fn claimed(id: &str) -> Value {
        json!({
            "state": "StandingBy", "claimStatus": "Claimed",
            "claim": {
                "id": id, "data": "map=harbour", "by": "matchmaker",
                "claimedAt": "2026-01-01T00:00:00.000000Z", "expiresAt": "2026-01-01T00:01:00.000000Z",
            },
            "address": "203.0.113.1", "ports": [{"name": "game", "port": 7777, "protocol": "UDP"}],
        })
    }

    #[test]
    fn the_game_is_told_of_the_claim_that_holds_it() {
        let known = Known::of(&server(7, &claimed("match-1")));
        let told = json!({
            "resourceVersion": "7", "name": "arena-x", "state": "StandingBy",
            "claim": {"id": "match-1", "data": "map=harbour", "expiresAt": "2026-01-01T00:01:00Z"},
            "reservations": [],
            "address": "203.0.113.1", "ports": [{"name": "game", "port": 7777, "protocol": "UDP"}],
            "instance": null,
        });
        assert_eq!(serde_json::to_value(&known).unwrap(), told);
        assert_eq!(known.time_to_come("2026-01-01T00:00:20Z".parse().unwrap()), Duration::from_secs(40));
        assert_eq!(known.time_to_come("2026-01-01T00:02:00Z".parse().unwrap()), Duration::ZERO);

        let mut lapsed = claimed("match-1");
        lapsed["claimStatus"] = json!("Unclaimed");
        assert_eq!(Known::of(&server(8, &lapsed)).told.claim, None);
    }

    /// Row F20.
    #[test]
    fn the_game_is_told_that_its_node_goes_and_how_long_it_has() {
        let instance = json!({
            "nodeName": "spot-1", "status": "SpotTerminating", "cause": "its spot node is interrupted",
            "retireAt": "2026-01-01T00:02:00.000000Z", "bootID": "boot-1",
        });
        let told = serde_json::to_value(Known::of(&server(7, &json!({"instance": instance})))).unwrap();
        let expected = json!({
            "status": "SpotTerminating", "cause": "its spot node is interrupted",
            "retireAt": "2026-01-01T00:02:00Z",
        });
        assert_eq!(told["instance"], expected);
    }

    /// Row A11.
    #[test]
    fn a_shared_game_is_told_whose_seats_are_reserved() {
        let claim = |id: &str, lapsed: bool| {
            json!({
                "id": id, "by": "matchmaker", "seats": {"reserved": 2, "left": 2, "lapsed": lapsed},
                "claimedAt": "2026-01-01T00:00:00.000000Z", "expiresAt": "2026-01-01T00:01:00.000000Z",
            })
        };
        let status = json!({
            "state": "Active", "claimStatus": "Claimed",
            "reservations": [claim("party-1", true), claim("party-2", false)],
        });
        let told = serde_json::to_value(Known::of(&server(7, &status))).unwrap();
        let awaited =
            json!([{"id": "party-2", "data": null, "expiresAt": "2026-01-01T00:01:00Z", "seats": 2}]);
        assert_eq!((&told["claim"], &told["reservations"]), (&Value::Null, &awaited));
    }

    #[test]
    fn only_what_is_newer_and_says_something_else_is_news() {
        let watched = Watched::default();
        let mut known = watched.subscribe();
        let mut news = |version, status: &Value| {
            watched.take_up(&server(version, status));
            let is_news = known.has_changed().unwrap();
            (is_news, known.borrow_and_update().as_ref().unwrap().resource_version.clone())
        };
        let free = json!({"state": "StandingBy"});
        assert_eq!(news(5, &free), (true, "5".to_owned()));
        // A count of players, which is the game's own.
        assert_eq!(news(9, &json!({"state": "StandingBy", "sessions": 1})), (false, "5".to_owned()));
        // A reading from before that.
        assert_eq!(news(8, &claimed("match-1")), (false, "5".to_owned()));
        assert_eq!(news(10, &claimed("match-2")), (true, "10".to_owned()));
    }
}
