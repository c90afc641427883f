//! Row F2 and invariants I3, I4: the number holds, and nothing is written at rest.

use gamekeeper::api::{GameServerGroupStatus, State, conditions};
use k8s_openapi::api::autoscaling::v1::Scale;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::harness::{World, silent_group, status};

fn bounds(status: &GameServerGroupStatus) -> String {
    let condition =
        status.conditions.iter().find(|condition| condition.type_ == conditions::REPLICAS_IN_BOUNDS);
    condition.map(|condition| condition.reason.clone()).unwrap_or_default()
}

/// Row F2: `kubectl scale`, through the scale subresource.
#[tokio::test(flavor = "multi_thread")]
async fn scale_out_and_in_hold_the_number() {
    let world = World::new("scale").await;
    world.silent_group("arena", 1).await;
    world.ready_servers("arena", 1).await;

    world.scale("arena", 4).await;
    world.ready_servers("arena", 4).await;
    let scale: Scale = world.group_api().get_scale("arena").await.unwrap();
    let status = scale.status.unwrap();
    assert_eq!(status.replicas, 4);
    assert!(status.selector.unwrap().starts_with("gamekeeper.dev/group-uid="));
    world.event("arena", "Scaled").await;

    world.scale("arena", 1).await;
    world.servers_until("one server is left", |servers| servers.len() == 1).await;
    world.group_until("arena", "one replica", |status| status.replicas == Some(1)).await;
    world.end().await;
}

/// Row F2: bounds overrule `replicas`, say so, and leave the spec as written.
#[tokio::test(flavor = "multi_thread")]
async fn min_and_max_size_overrule_replicas() {
    let world = World::new("bounds").await;
    world.apply(&silent_group("arena", 5).replace("replicas: 5", "replicas: 5\n          maxSize: 2")).await;
    world.ready_servers("arena", 2).await;
    let cut = world.group_until("arena", "AboveMaxSize", |status| bounds(status) == "AboveMaxSize").await;
    assert_eq!(cut.desired_replicas, Some(2));
    assert_eq!(world.group_api().get("arena").await.unwrap().spec.replicas, 5);

    world.patch_group("arena", json!({"spec": {"replicas": 0, "minSize": 1}})).await;
    world.group_until("arena", "BelowMinSize", |status| bounds(status) == "BelowMinSize").await;
    world.servers_until("one server is left", |servers| servers.len() == 1).await;

    world.patch_group("arena", json!({"spec": {"replicas": 1}})).await;
    world.group_until("arena", "WithinBounds", |status| bounds(status) == "WithinBounds").await;
    world.end().await;
}

/// Row F2: applying again a manifest that never named `replicas` changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn applying_a_manifest_without_replicas_again_keeps_the_number() {
    let world = World::new("reapply").await;
    let manifest = silent_group("arena", 0).replace("replicas: 0", "minSize: 0");
    world.apply(&manifest).await;
    world.scale("arena", 2).await;
    let before = world.ready_servers("arena", 2).await;

    world.apply(&manifest).await;
    assert_eq!(world.group_api().get("arena").await.unwrap().spec.replicas, 2);
    world.lease_renewed().await;
    let names = |servers: &[gamekeeper::api::GameServer]| {
        servers.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    };
    assert_eq!(names(&world.servers().await), names(&before));
    world.end().await;
}

/// Invariant I3. Row P3: scale-in ends no game and no claim, and goes on when these end.
#[tokio::test(flavor = "multi_thread")]
async fn scale_in_waits_for_games_and_claims() {
    let world = World::new("scale-in").await;
    world.silent_group("arena", 3).await;
    let servers = world.ready_servers("arena", 3).await;
    let token = world.matchmaker_token().await;
    let (code, claimed) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!(code, 200, "{claimed}");
    let claimed = claimed["server"].as_str().unwrap().to_owned();
    let active = servers.iter().map(ResourceExt::name_any).find(|name| *name != claimed).unwrap();
    world.report(&active, State::Active).await;

    world.scale("arena", 0).await;
    let left = world.servers_until("two servers are left", |servers| servers.len() == 2).await;
    let mut names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
    names.sort();
    let mut expected = vec![active.clone(), claimed.clone()];
    expected.sort();
    assert_eq!(names, expected);
    world.lease_renewed().await;
    assert_eq!(status(&world.server(&active).await.unwrap()).state, State::Active);

    world.report(&active, State::Terminating).await;
    world.report(&claimed, State::Active).await;
    world.report(&claimed, State::Terminating).await;
    world.servers_until("none is left", Vec::is_empty).await;
    world.end().await;
}

/// Case C19: the template and `replicas: 0` in one update.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_template_and_zero_replicas_in_one_update_end_at_zero() {
    let world = World::new("to-zero").await;
    world.silent_group("arena", 3).await;
    let servers = world.ready_servers("arena", 3).await;
    let active = servers[0].name_any();
    world.report(&active, State::Active).await;

    let update = json!({"spec": {"replicas": 0, "template": {"metadata": {"labels": {"version": "2"}}}}});
    world.patch_group("arena", update).await;
    world.servers_until("the game is left", |servers| servers.len() == 1).await;
    world.report(&active, State::Terminating).await;
    world.servers_until("none is left", Vec::is_empty).await;
    let end = world
        .group_until("arena", "nothing counts", |status| {
            status.replicas == Some(0) && status.servers.is_some_and(|counts| counts.ending == 0)
        })
        .await;
    let counts = end.servers.unwrap();
    let all = [counts.starting, counts.standing_by, counts.on_offer, counts.claimed, counts.active];
    assert_eq!(all, [0; 5]);
    world.end().await;
}

/// Invariant I4: at rest the operator writes nothing but its Lease.
#[tokio::test(flavor = "multi_thread")]
async fn at_rest_the_operator_writes_nothing_but_its_lease() {
    let world = World::new("rest").await;
    world.silent_group("arena", 3).await;
    let servers = world.ready_servers("arena", 3).await;
    world.report(&servers[0].name_any(), State::Active).await;
    world
        .group_until("arena", "one is Active", |status| {
            status.servers.is_some_and(|counts| counts.active == 1)
        })
        .await;
    world.lease_renewed().await;

    let before = world.audited_writes().len();
    world.lease_renewed().await;
    world.lease_renewed().await;
    let writes = world.audited_writes().split_off(before);
    assert!(!writes.is_empty(), "the lease was renewed, and the audit log shows nothing");
    for write in &writes {
        assert_eq!(write["objectRef"]["resource"], "leases", "{write}");
    }
    world.end().await;
}

/// Invariant I5: a restarted operator makes nothing anew.
/// Row A10: what it knew is in the cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_operator_comes_back_to_the_same_servers() {
    let mut world = World::new("restart").await;
    world.silent_group("arena", 3).await;
    let servers = world.ready_servers("arena", 3).await;
    let token = world.matchmaker_token().await;
    let (_, claim) = world.claim(&token, "match-1", &["arena"]).await;
    let pods = world.pod_uids().await;
    let unclaimed = servers.iter().map(ResourceExt::name_any).find(|name| claim["server"] != *name).unwrap();

    world.kill_operators();
    world.report(&unclaimed, State::Active).await;
    world.start_operator().await;

    let (code, again) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, &again["server"]), (200, &claim["server"]));
    world
        .group_until("arena", "one is Active", |status| {
            status.servers.is_some_and(|counts| counts.active == 1)
        })
        .await;
    assert_eq!(world.pod_uids().await, pods);
    world.end().await;
}

/// Invariant I5: two leaders at once make no pod too many.
/// Case C13, as far as two views that lag behind each other go.
#[tokio::test(flavor = "multi_thread")]
async fn two_confused_leaders_make_one_pod_each_slot() {
    let mut world = World::without_operator("two-leaders").await;
    world.start_leader("leader-a", "lease-a").await;
    world.start_leader("leader-b", "lease-b").await;
    world.silent_group("arena", 8).await;
    let servers = world.ready_servers("arena", 8).await;
    for server in servers.iter().take(4) {
        world.report(&server.name_any(), State::Active).await;
        world.report(&server.name_any(), State::Terminating).await;
    }
    world.ready_servers("arena", 8).await;
    // Eight at first, and four replacements: not one creation more got through.
    let created = world.audited("create", "pods").into_iter();
    let made = created.filter(|write| {
        write["responseStatus"]["code"] == 201 && !write["requestURI"].as_str().unwrap().contains("dryRun")
    });
    assert_eq!(made.count(), 12);
    let params = PatchParams::default();
    world.group_api().patch("arena", &params, &Patch::Merge(json!({"spec": {"replicas": 0}}))).await.unwrap();
    world.servers_until("none is left", Vec::is_empty).await;
    world.end().await;
}
