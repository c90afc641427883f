//! The view without a server: what events in whatever order make of it.

use k8s_openapi::api::core::v1::Pod as KubePod;
use serde_json::json;

use super::*;
use crate::view::picture::Trace;

fn pod(version: u64) -> KubePod {
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "games", "name": "arena-a", "uid": "pod-a", "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"gamekeeper.dev/group": "arena", "gamekeeper.dev/group-uid": "g", "gamekeeper.dev/slot": "0"},
        },
        "spec": {"containers": [{"name": "game"}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "game", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}
        ]},
    }))
    .unwrap()
}

fn server(version: u64, claim: Option<&str>) -> GameServer {
    let claim_json = claim.map(|id| {
        json!({"id": id, "by": "m", "claimedAt": "2026-01-01T00:00:00Z", "expiresAt": "2026-01-01T00:01:00Z"})
    });
    serde_json::from_value(json!({
        "apiVersion": "gamekeeper.dev/v1alpha1", "kind": "GameServer",
        "metadata": {
            "namespace": "games", "name": "arena-a", "uid": "server-a", "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"gamekeeper.dev/group": "arena", "gamekeeper.dev/group-uid": "g"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "arena-a", "uid": "pod-a"}],
        },
        "spec": {"group": "arena"},
        "status": {
            "state": "StandingBy", "address": "203.0.113.1", "health": "Healthy",
            "claimStatus": if claim.is_some() { "Claimed" } else { "Unclaimed" }, "claim": claim_json,
        },
    }))
    .unwrap()
}

fn trace(uid: &str, version: u64) -> Trace {
    Trace { key: Key::new("games", "arena-a"), uid: uid.to_owned(), version }
}

fn view_with(pod_version: u64, server_version: u64, claim: Option<&str>) -> (View, Key) {
    let view = View::default();
    view.wrote_pod(&pod(pod_version));
    view.wrote_server(&server(server_version, claim));
    (view, Key::new("games", "arena"))
}

#[test]
fn a_ready_server_is_offered_once() {
    let (view, arena) = view_with(1, 2, None);
    let held = view.hold_one(&arena, 0);
    assert!(held.is_some());
    assert!(view.hold_one(&arena, 0).is_none());
    drop(held);
    assert!(view.hold_one(&arena, 0).is_some());
}

/// Case C2.
#[test]
fn an_old_event_does_not_offer_a_claimed_server_again() {
    let (view, arena) = view_with(1, 5, Some("match-1"));
    view.wrote_server(&server(4, None));
    assert!(view.hold_one(&arena, 0).is_none());
}

#[test]
fn a_server_whose_write_was_lost_waits_for_news() {
    let (view, arena) = view_with(1, 2, None);
    view.hold_one(&arena, 0).unwrap().lost();
    assert!(view.hold_one(&arena, 0).is_none());
    view.wrote_server(&server(3, None));
    assert!(view.hold_one(&arena, 0).is_some());
}

#[test]
fn a_server_without_its_pod_is_not_offered() {
    let (view, arena) = view_with(1, 2, None);
    view.picture.write().remove_pod(&trace("pod-a", 9));
    assert!(view.hold_one(&arena, 0).is_none());
    assert_eq!(view.members("games", "g").len(), 1);
}

#[test]
fn the_late_answer_to_a_write_does_not_bring_back_what_is_gone() {
    let (view, _) = view_with(1, 2, None);
    view.picture.write().remove_server(&trace("server-a", 9));
    view.wrote_server(&server(3, None));
    assert!(view.server(&Key::new("games", "arena-a")).is_none());
}

#[test]
fn another_pod_of_the_name_does_not_take_over_what_was_left_behind() {
    let (view, _) = view_with(1, 2, None);
    let mut new = pod(10);
    new.metadata.uid = Some("pod-b".to_owned());
    view.wrote_pod(&new);
    let member = view.member(&Key::new("games", "arena-a"));
    assert!(member.pod.is_none() && member.server.is_some());
    let members = view.members("games", "g");
    assert!(members[0].pod.is_some() && members[0].server.is_none());
}

#[test]
fn a_claim_is_found_by_its_id_until_the_next() {
    let (view, _) = view_with(1, 2, Some("match-1"));
    assert_eq!(view.claimed_with("games", "match-1").len(), 1);
    view.wrote_server(&server(3, Some("match-2")));
    assert!(view.claimed_with("games", "match-1").is_empty());
    assert_eq!(view.claimed_with("games", "match-2").len(), 1);
}

#[test]
fn listeners_hear_what_is_there_and_what_changes() {
    let (view, arena) = view_with(1, 2, None);
    let mut changes = view.subscribe();
    assert_eq!(changes.try_recv(), Ok(Changed::Member(Key::new("games", "arena-a"))));
    view.wrote_server(&server(3, None));
    assert_eq!(changes.try_recv(), Ok(Changed::Member(Key::new("games", "arena-a"))));
    assert_eq!(changes.try_recv(), Ok(Changed::Group(arena)));
}
