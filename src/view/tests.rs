//! The view without a server: what events in whatever order make of it.

use k8s_openapi::api::core::v1::Pod as KubePod;
use serde_json::json;

use super::*;
use crate::view::feed::Intake;
use crate::view::readable::Readable;
use kube::runtime::watcher::Event;

fn pod(version: u64) -> KubePod {
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "games", "name": "arena-a", "uid": "pod-a", "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"gamekeeper.dev/group": "arena", "gamekeeper.dev/group-uid": "g", "gamekeeper.dev/slot": "0"},
        },
        "spec": {"containers": [{"name": "game"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [
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

fn readable(server: GameServer) -> Readable<GameServer> {
    serde_json::from_value(serde_json::to_value(server).unwrap()).unwrap()
}

fn trace(uid: &str) -> Trace {
    Trace { key: Key::new("games", "arena-a"), uid: uid.to_owned() }
}

fn view_with(pod_version: u64, server_version: u64, claim: Option<&str>) -> (View, Key) {
    let view = View::of_replica("replica");
    view.wrote_pod(&pod(pod_version));
    view.wrote_server(&server(server_version, claim));
    (view, Key::new("games", "arena"))
}

#[test]
fn a_ready_server_is_offered_once() {
    let (view, arena) = view_with(1, 2, None);
    let held = view.hold_one(&arena, |_| true);
    assert!(held.is_some());
    assert!(view.hold_one(&arena, |_| true).is_none());
    drop(held);
    assert!(view.hold_one(&arena, |_| true).is_some());
}

/// Row F20: its own status says so a write later, and a claim may come before.
#[test]
fn a_server_is_withheld_from_the_moment_at_which_its_node_is_seen_to_go() {
    let (view, arena) = view_with(1, 2, None);
    let mut placed = server(3, None);
    let instance = json!({"status": "Active", "nodeName": "n1"});
    placed.status.as_mut().unwrap().instance = serde_json::from_value(instance).unwrap();
    view.wrote_server(&placed);
    let mut on_it = pod(4);
    on_it.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
    view.wrote_pod(&on_it);
    let node = |taints: serde_json::Value| {
        serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": {"taints": taints}})).unwrap()
    };
    view.picture.write().put_node(&node(json!([])));
    assert!(view.hold_one(&arena, |_| true).is_some());

    let sign = json!([{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]);
    view.picture.write().put_node(&node(sign));
    assert!(view.hold_one(&arena, |_| true).is_none());
    assert_eq!(view.withheld(&Key::new("games", "arena-a")), Some(Withheld::NodeEnding));
    // A cordon ends nothing.
    let cordoned = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
    view.picture.write().put_node(&node(cordoned));
    assert!(view.hold_one(&arena, |_| true).is_some());
}

/// Case C2.
#[test]
fn an_old_event_does_not_offer_a_claimed_server_again() {
    let (view, arena) = view_with(1, 5, Some("match-1"));
    view.wrote_server(&server(4, None));
    assert!(view.hold_one(&arena, |_| true).is_none());
}

#[test]
fn a_server_whose_write_was_lost_waits_for_news() {
    let (view, arena) = view_with(1, 2, None);
    view.hold_one(&arena, |_| true).unwrap().lost();
    assert!(view.hold_one(&arena, |_| true).is_none());
    view.wrote_server(&server(3, None));
    assert!(view.hold_one(&arena, |_| true).is_some());
}

#[test]
fn a_server_without_its_pod_is_not_offered() {
    let (view, arena) = view_with(1, 2, None);
    view.picture.write().remove_pod(&trace("pod-a"));
    assert!(view.hold_one(&arena, |_| true).is_none());
    assert_eq!(view.members("games", "g").len(), 1);
}

#[test]
fn the_late_answer_to_a_write_does_not_bring_back_what_is_gone() {
    let (view, _) = view_with(1, 2, None);
    view.picture.write().remove_server(&trace("server-a"));
    view.wrote_server(&server(3, None));
    assert!(view.server(&Key::new("games", "arena-a")).is_none());
}

/// The answer to the write that ends an object bears the version that it had before.
#[test]
fn a_server_that_our_own_write_ended_is_forgotten_at_once() {
    let (view, arena) = view_with(1, 2, None);
    let key = Key::new("games", "arena-a");
    view.server_gone(&key, "another");
    assert!(view.server(&key).is_some());
    view.server_gone(&key, "server-a");
    view.wrote_server(&server(3, None));
    assert!(view.server(&key).is_none() && view.hold_one(&arena, |_| true).is_none());
}

/// Row F11: its process has made it, and it bears nothing of ours yet.
#[test]
fn a_server_that_its_process_has_registered_is_its_pods_and_not_on_offer_before_it_is_tied() {
    let (view, arena) = (View::of_replica("replica"), Key::new("games", "arena"));
    view.wrote_pod(&pod(1));
    let mut registered = server(2, None);
    registered.metadata.labels = None;
    view.wrote_server(&registered);
    let members = view.members("games", "g");
    assert!(members.len() == 1 && members[0].pod.is_some() && members[0].server.is_some());
    assert!(view.hold_one(&arena, |_| true).is_none());
    view.wrote_server(&server(3, None));
    assert_eq!(view.members("games", "g").len(), 1);
    assert!(view.hold_one(&arena, |_| true).is_some());
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
    assert_eq!(changes.try_recv(), Ok(Changed::Pools));
    view.wrote_server(&server(3, None));
    assert_eq!(changes.try_recv(), Ok(Changed::Member(Key::new("games", "arena-a"))));
    assert_eq!(changes.try_recv(), Ok(Changed::Group(arena)));
}

#[test]
fn a_newer_picture_is_not_distrusted_for_a_write_that_rested_on_an_older_one() {
    let (view, arena) = view_with(1, 2, None);
    let held = view.hold_one(&arena, |_| true).unwrap();
    view.wrote_server(&server(3, None));
    held.lost();
    assert!(view.hold_one(&arena, |_| true).is_some());
}

#[test]
fn a_list_taken_anew_shows_what_has_gone_also_of_what_no_watch_brought() {
    let (view, _) = view_with(1, 2, None);
    let mut servers = Intake::<GameServer>::new(view.clone(), None);
    servers.take_up(Event::Init);
    // Made while the list is under way: not on it, and there all the same.
    let mut fresh = server(9, None);
    (fresh.metadata.name, fresh.metadata.uid) = (Some("arena-b".into()), Some("server-b".into()));
    view.wrote_server(&fresh);
    servers.take_up(Event::InitDone);
    assert!(view.server(&Key::new("games", "arena-a")).is_none());
    assert!(view.server(&Key::new("games", "arena-b")).is_some());
}

/// A list comes in the order of names, not of versions.
#[tokio::test]
async fn a_list_is_no_echo_before_it_is_whole() {
    use futures::FutureExt;
    let (view, _) = view_with(1, 2, None);
    let mut servers = Intake::<GameServer>::new(view.clone(), None);
    servers.take_up(Event::Init);
    servers.take_up(Event::InitApply(readable(server(7, None))));
    assert!(view.echoed("games", 5).now_or_never().is_none());
    servers.take_up(Event::InitDone);
    assert!(view.echoed("games", 5).now_or_never().is_some());
    servers.take_up(Event::Apply(readable(server(8, None))));
    assert!(view.echoed("games", 8).now_or_never().is_some());
}

#[test]
fn a_watch_is_believed_over_what_was_thought_gone() {
    let (view, _) = view_with(1, 2, None);
    view.picture.write().remove_server(&trace("server-a"));
    let mut servers = Intake::<GameServer>::new(view.clone(), None);
    servers.take_up(Event::Apply(readable(server(3, None))));
    assert!(view.server(&Key::new("games", "arena-a")).is_some());
}

#[test]
fn members_hear_that_their_group_is_being_deleted() {
    let (view, _) = view_with(1, 2, None);
    let mut group = crate::rules::fixtures::group();
    (group.metadata.uid, group.metadata.resource_version) = (Some("g".into()), Some("5".into()));
    view.wrote_group(&group);
    let mut changes = view.subscribe();
    while changes.try_recv().is_ok() {}
    group.metadata.resource_version = Some("6".into());
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
    group.metadata.deletion_timestamp = Some(now);
    view.wrote_group(&group);
    let heard: Vec<Changed> = std::iter::from_fn(|| changes.try_recv().ok()).collect();
    assert!(heard.contains(&Changed::Member(Key::new("games", "arena-a"))));
}

/// Invariant I2: two servers bear one id, and a list shows one of them as it is some time after its claim.
#[test]
fn what_a_list_shows_may_have_been_claimed_earlier_than_it_was_seen() {
    let other = |version, claim| {
        let mut other = server(version, claim);
        (other.metadata.name, other.metadata.uid) = (Some("arena-b".to_owned()), Some("server-b".to_owned()));
        readable(other)
    };
    let disputed = |event: fn(Readable<GameServer>) -> Event<Readable<GameServer>>| {
        let (view, _) = view_with(1, 5, Some("match-1"));
        let mut intake = Intake::new(view.clone(), None);
        intake.take_up(event(other(9, Some("match-1"))));
        view.is_disputed("games", "match-1", "server-a")
    };
    assert!(disputed(Event::InitApply));
    assert!(!disputed(Event::Apply));
}

/// After a restart, versions tell when servers changed last, and not whose claim was made first.
#[test]
fn what_lists_show_is_in_the_order_of_the_claims_own_times() {
    let view = View::of_replica("replica");
    let mut intake = Intake::new(view.clone(), None);
    for (name, version, second) in [("late", 3, 2), ("early", 7, 1)] {
        let mut server = server(version, Some("match-1"));
        (server.metadata.name, server.metadata.uid) = (Some(name.to_owned()), Some(name.to_owned()));
        let claim = server.status.as_mut().and_then(|status| status.claim.as_mut()).unwrap();
        claim.claimed_at.0 = format!("2026-01-01T00:00:0{second}Z").parse().unwrap();
        intake.take_up(Event::InitApply(readable(server)));
    }
    let names: Vec<String> =
        view.claimed_with("games", "match-1").into_iter().map(|server| server.name).collect();
    assert_eq!(names, ["early", "late"]);
}

/// Invariant I2: the answer to a write of ours may show a claim some time after it was made, and before the watch does.
#[test]
fn a_claim_is_dated_by_the_watch() {
    let (view, _) = view_with(1, 5, None);
    let mut intake = Intake::new(view.clone(), None);
    view.wrote_server(&server(11, Some("match-1")));
    let mut other = server(10, Some("match-1"));
    (other.metadata.name, other.metadata.uid) = (Some("arena-b".to_owned()), Some("server-b".to_owned()));
    intake.take_up(Event::Apply(readable(other)));
    assert!(view.is_disputed("games", "match-1", "server-b"));
    for version in [9, 11] {
        intake.take_up(Event::Apply(readable(server(version, Some("match-1")))));
    }
    let names = |servers: Vec<Server>| servers.into_iter().map(|server| server.name).collect::<Vec<_>>();
    assert_eq!(names(view.claimed_with("games", "match-1")), ["arena-a", "arena-b"]);
    assert!(!view.is_disputed("games", "match-1", "server-b"));
}

/// A claim that is an object has the server that it was bound to, whatever else bears its id.
#[test]
fn the_server_that_an_object_is_bound_to_is_the_first() {
    let view = View::of_replica("replica");
    let mut intake = Intake::new(view.clone(), None);
    for (name, version) in [("first", 3), ("bound", 7)] {
        let mut server = server(version, Some("match-1"));
        (server.metadata.name, server.metadata.uid) = (Some(name.to_owned()), Some(name.to_owned()));
        intake.take_up(Event::Apply(readable(server)));
    }
    let first = || view.claimed_with("games", "match-1")[0].name.clone();
    assert_eq!(first(), "first");
    let object = json!({
        "apiVersion": "gamekeeper.dev/v1alpha1", "kind": "GameServerClaim",
        "metadata": {
            "namespace": "games", "name": "match-1", "uid": "claim", "resourceVersion": "9",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"groups": ["arena"]},
        "status": {"phase": "Bound", "server": "bound", "serverUid": "bound"},
    });
    view.wrote_claim(&serde_json::from_value(object).unwrap());
    assert_eq!(first(), "bound");
    let Rivals::Later(later) = view.rivals("games", "match-1") else { panic!("its order is known") };
    assert_eq!(later.len(), 1);
    assert_eq!(later[0].name, "first");
}

/// What speaks against a pool that is viable again makes its servers the last of those that stay: an idle one is the better one
/// to lose.
#[test]
fn a_server_on_a_suspect_pool_is_taken_after_others() {
    let view = View::of_replica("replica");
    for (name, type_, version) in [("arena-a", "a", 1), ("arena-b", "b", 3)] {
        let named = |mut object: serde_json::Value| {
            object["metadata"]["name"] = json!(name);
            object["metadata"]["uid"] = json!(format!("{}-{name}", object["kind"]));
            object
        };
        let mut on_pool = named(serde_json::to_value(pod(version)).unwrap());
        on_pool["metadata"]["annotations"] =
            json!({"gamekeeper.dev/capacity-pool": format!("{type_}/spot/")});
        let on_pool: KubePod = serde_json::from_value(on_pool).unwrap();
        let mut placed = named(serde_json::to_value(server(version + 1, None)).unwrap());
        placed["metadata"]["ownerReferences"][0]["uid"] = json!(on_pool.metadata.uid);
        view.wrote_pod(&on_pool);
        view.wrote_server(&serde_json::from_value(placed).unwrap());
    }
    let arena = Key::new("games", "arena");
    let first = || view.hold_one(&arena, |_| true).map(|held| held.server().name.clone());
    let pool = |type_: &str, version: u64, evidence: serde_json::Value| {
        let pool = json!({
            "apiVersion": "gamekeeper.dev/v1alpha1", "kind": "CapacityPool",
            "metadata": {"name": type_, "uid": type_, "resourceVersion": version.to_string()},
            "spec": {"instanceType": type_, "capacityType": "Spot"},
            "status": {"verdict": "Viable", "since": "2026-01-01T00:00:00.000000Z", "evidence": evidence},
        });
        view.wrote_pool(&serde_json::from_value(pool).unwrap());
    };
    let interrupted =
        json!([{"kind": "Interrupted", "of": "n", "message": "", "at": "2026-01-01T00:00:00.000000Z"}]);
    for (suspect, other) in [("a", "arena-b"), ("b", "arena-a")] {
        pool(suspect, 10, interrupted.clone());
        assert_eq!(first().as_deref(), Some(other));
        pool(suspect, 11, json!([]));
    }
}
