//! Row A9, `GameServerClaim`s: waiting for a server, first come, first served.

use gamekeeper::api::{ClaimPhase, ClaimStatus, GameServerClaim, State};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::harness::{World, account, eventually, silent_group, status};

impl World {
    async fn waiting(&self, group: &str, count: i32) {
        self.group_until(group, "so many claims wait", |status| status.waiting_claims == Some(count)).await;
    }
}

/// Row A9: from nothing, the first request makes a server, waits for it and gets it; then the group is as small again.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_none_wakes_for_who_waits() {
    let world = World::new("wake").await;
    world.silent_group("arena", 0).await;
    world
        .group_until("arena", "the group is Active", |status| status.phase == gamekeeper::api::Phase::Active)
        .await;
    let token = world.matchmaker_token().await;
    let waits = world.ask(0, &token, json!({"id": "match-1", "groups": ["arena"], "waitSeconds": 300}));
    let plays = async {
        world
            .servers_until("a server is made", |servers| {
                servers.iter().any(|server| status(server).state == State::Initializing)
            })
            .await;
        let server = world.servers().await[0].name_any();
        world.report(&server, State::StandingBy).await;
        server
    };
    let ((code, answer), server) = tokio::join!(waits, plays);
    assert_eq!((code, answer["server"].as_str()), (200, Some(server.as_str())), "{answer}");
    // What waited is served: the spec was left as written, and the server stays while it is claimed.
    world.group_until("arena", "none is wanted", |status| status.desired_replicas == Some(0)).await;
    assert_eq!(world.group_api().get("arena").await.unwrap().spec.replicas, 0);
    world.report(&server, State::Active).await;
    world.claim_until("match-1", ClaimPhase::Confirmed).await;
    world.report(&server, State::Terminating).await;
    world.server_gone(&server).await;
    world.servers_until("no other is made", Vec::is_empty).await;
    world.end().await;
}

/// First come, first served, over replicas, objects and the HTTP API; newcomers queue behind.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_longest_is_served_first_and_newcomers_queue_behind() {
    let mut world = World::new("queue").await;
    world.start_replica("operator-1").await;
    // Longer than the test: nothing is served because a claim lapses.
    let one = "replicas: 1\n          maxSize: 1\n          claim: {timeoutSeconds: 3600}";
    world.apply(&silent_group("arena", 1).replace("replicas: 1", one)).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let rules = json!([
        {"apiGroups": ["gamekeeper.dev"], "resources": ["gameserverclaims"], "verbs": ["create", "get"]},
    ]);
    let token = account(&world.client, &world.namespace, "lobby", rules).await;
    let (code, answer) = world.claim(&token, "playing", &["arena"]).await;
    assert_eq!(code, 200, "{answer}");
    world.report(&server, State::Active).await;

    world.make_claim("first", json!({"groups": ["arena"]})).await;
    world.waiting("arena", 1).await;
    let second = world.ask(1, &token, json!({"id": "second", "groups": ["arena"], "waitSeconds": 300}));
    let rest = async {
        world.waiting("arena", 2).await;
        let (code, answer) = world.http(0, &token).await.get("claims/second").await;
        assert_eq!((code, &answer["groups"]), (202, &json!(["arena"])), "{answer}");
        // The game ends, another server comes: the first in the queue gets it.
        world.report(&server, State::Terminating).await;
        world.server_gone(&server).await;
        world.next_server_stands_by().await;
        let bound = world.claim_until("first", ClaimPhase::Bound).await.status.unwrap();
        // It gives it back: the next in the queue has it.
        world.claim_api().delete("first", &DeleteParams::default()).await.unwrap();
        bound.server.unwrap()
    };
    // Who asks just then, at either replica, never is first.
    let newcomers = async {
        world.waiting("arena", 2).await;
        loop {
            for replica in 0..2 {
                let (code, answer) = world.claim_at(replica, &token, "newcomer", &["arena"]).await;
                assert_eq!(code, 503, "{answer}");
            }
        }
    };
    let ((code, answer), released) = tokio::select! {
        never = newcomers => never,
        answers = async { tokio::join!(second, rest) } => answers,
    };
    assert_eq!((code, answer["server"].as_str()), (200, Some(released.as_str())), "{answer}");
    world.claim_until("second", ClaimPhase::Bound).await;
    world.end().await;
}

/// A `GameServerClaim` goes its way: it says what it waits for, is bound, and ends as its server's claim does.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_object_is_bound_confirmed_expired_or_failed_and_goes_in_time() {
    let world = World::new("claim-object").await;
    let quick = silent_group("arena", 2)
        .replace("replicas: 2", "replicas: 2\n          maxSize: 2\n          claim: {timeoutSeconds: 2}");
    world.apply(&quick).await;
    world.ready_servers("arena", 2).await;

    world.make_claim("confirmed", json!({"groups": ["arena"], "data": "map=harbour"})).await;
    let bound = world.claim_until("confirmed", ClaimPhase::Bound).await.status.unwrap();
    let server = bound.server.clone().unwrap();
    let held = status(&world.server(&server).await.unwrap());
    assert_eq!(bound.address, held.address);
    assert_eq!(bound.ports, held.ports);
    let claim = held.claim.unwrap();
    assert_eq!((claim.id.as_str(), claim.data.as_deref()), ("confirmed", Some("map=harbour")));
    world.report(&server, State::Active).await;
    world.claim_until("confirmed", ClaimPhase::Confirmed).await;
    world.event("confirmed", "Confirmed").await;

    world.make_claim("expired", json!({"groups": ["arena"], "ttlSecondsAfterFinished": 1})).await;
    world.claim_until("expired", ClaimPhase::Bound).await;
    eventually(
        "it lapses, and goes after its time",
        || async { world.claim_api().get_opt("expired").await.unwrap() },
        Option::is_none,
    )
    .await;
    world.event("expired", "Expired").await;

    world.make_claim("failed", json!({"groups": ["nowhere"], "waitSeconds": 1})).await;
    let failed = world.claim_until("failed", ClaimPhase::Failed).await.status.unwrap();
    assert!(failed.message.unwrap().contains("nowhere"));
    assert!(failed.server.is_none());

    // What cannot be is refused, or fails with the cause.
    let changed = Patch::Merge(json!({"spec": {"data": "map=castle"}}));
    let refused = world.claim_api().patch("failed", &PatchParams::default(), &changed).await.unwrap_err();
    assert!(refused.to_string().contains("cannot be changed"), "{refused}");
    let moved = Patch::Merge(json!({"status": {"serverUid": "another"}}));
    let refused =
        world.claim_api().patch_status("confirmed", &PatchParams::default(), &moved).await.unwrap_err();
    assert!(refused.to_string().contains("to one server and to no other"), "{refused}");
    let empty =
        serde_json::from_value(json!({"metadata": {"name": "empty"}, "spec": {"groups": []}})).unwrap();
    let refused = world.claim_api().create(&PostParams::default(), &empty).await.unwrap_err();
    assert!(refused.to_string().contains("spec.groups"), "{refused}");
    world.end().await;
}

/// Whoever stops waiting takes no server: by its deadline, or by going away.
#[tokio::test(flavor = "multi_thread")]
async fn who_stops_waiting_takes_no_server() {
    let world = World::new("gone").await;
    world.apply(&silent_group("arena", 1).replace("replicas: 1", "replicas: 1\n          maxSize: 1")).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.matchmaker_token().await;
    world.claim(&token, "playing", &["arena"]).await;
    world.report(&server, State::Active).await;

    let (code, problem) =
        world.ask(0, &token, json!({"id": "patient", "groups": ["arena"], "waitSeconds": 1})).await;
    assert_eq!((code, problem["title"].as_str()), (503, Some("out of capacity")), "{problem}");
    {
        let gone = world.ask(0, &token, json!({"id": "gone", "groups": ["arena"], "waitSeconds": 300}));
        let seen = world.waiting("arena", 1);
        tokio::select! {
            answer = gone => panic!("{answer:?}"),
            () = seen => {}
        }
    }
    let claims = || async { world.claim_api().list(&ListParams::default()).await.unwrap().items };
    let waits = |claim: &GameServerClaim| claim.status.as_ref().unwrap().phase == ClaimPhase::Pending;
    eventually("nobody waits any more", claims, |claims| !claims.iter().any(waits)).await;
    world.report(&server, State::Terminating).await;
    let next = world.next_server_stands_by().await;
    let (_, answer) = eventually(
        "a newcomer gets it",
        || world.claim(&token, "newcomer", &["arena"]),
        |(code, _)| *code == 200,
    )
    .await;
    assert_eq!(answer["server"], next.as_str());
    world.end().await;
}

/// Who releases a claim that waits has it wait no more, and whoever waits by it hears so.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_released_while_it_waits_takes_no_server() {
    let world = World::new("withdrawn").await;
    world.silent_group("arena", 0).await;
    let token = world.account_with(&["create", "get", "delete"], "gameserverclaims", None).await;
    let wanted = json!({"id": "match-1", "groups": ["arena"], "waitSeconds": 300});
    let waits = world.ask(0, &token, wanted.clone());
    let released = async {
        world.waiting("arena", 1).await;
        world.http(0, &token).await.delete("claims/match-1").await
    };
    let ((code, heard), (released, answer)) = tokio::join!(waits, released);
    assert_eq!(released, 204, "{answer}");
    assert_eq!((code, heard["title"].as_str()), (410, Some("claim released")), "{heard}");
    world.patch_group("arena", json!({"spec": {"replicas": 1}})).await;
    world.ready_servers("arena", 1).await;
    // Nobody else would be first.
    let (code, answer) = world.claim(&token, "match-2", &["arena"]).await;
    assert_eq!(code, 200, "{answer}");
    for (code, answer) in
        [world.ask(0, &token, wanted).await, world.http(0, &token).await.get("claims/match-1").await]
    {
        assert_eq!((code, answer["title"].as_str()), (410, Some("claim released")), "{answer}");
    }
    world.end().await;
}

/// Invariant I2: a `GameServerClaim` remembers what has become of its id, also when its server is another's.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_remembered_by_its_object() {
    let world = World::new("remembered").await;
    world.silent_group("arena", 1).await;
    world.ready_servers("arena", 1).await;
    world.make_claim("match-1", json!({"groups": ["arena"]})).await;
    world.claim_until("match-1", ClaimPhase::Bound).await;
    let token = world.account_with(&["create", "get", "delete"], "gameserverclaims", None).await;
    let (code, answer) = world.http(0, &token).await.delete("claims/match-1").await;
    assert_eq!(code, 200, "{answer}");
    world.claim_until("match-1", ClaimPhase::Released).await;
    let (code, answer) = world.claim(&token, "match-2", &["arena"]).await;
    assert_eq!(code, 200, "{answer}");
    world.patch_group("arena", json!({"spec": {"replicas": 2}})).await;
    world.next_server_stands_by().await;
    for (code, answer) in [
        world.claim(&token, "match-1", &["arena"]).await,
        world.http(0, &token).await.get("claims/match-1").await,
        world.http(0, &token).await.delete("claims/match-1").await,
    ] {
        assert_eq!((code, answer["title"].as_str()), (410, Some("claim released")), "{answer}");
    }
    world.end().await;
}

/// A caller who waits by a claim that somebody has applied does not take it along.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_applied_outlives_its_callers() {
    let world = World::new("applied").await;
    world.silent_group("arena", 0).await;
    world.make_claim("match-1", json!({"groups": ["arena"], "waitSeconds": 3600})).await;
    world.waiting("arena", 1).await;
    let token = world.matchmaker_token().await;
    let wanted = json!({"id": "match-1", "groups": ["arena"], "waitSeconds": 1});
    let (code, answer) = world.ask(0, &token, wanted).await;
    assert_eq!((code, answer["title"].as_str()), (503, Some("out of capacity")), "{answer}");
    world.claim_until("match-1", ClaimPhase::Pending).await;
    // Served, it is theirs by either name.
    world.patch_group("arena", json!({"spec": {"replicas": 1}})).await;
    world.servers_until("a server is made", |servers| !servers.is_empty()).await;
    let server = world.next_server_stands_by().await;
    let bound = world.claim_until("match-1", ClaimPhase::Bound).await.status.unwrap();
    assert_eq!(bound.server.as_ref(), Some(&server));
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(server.as_str())), "{answer}");
    world.end().await;
}

/// Invariant I5: who waits is in no replica's memory. The leader killed, another replica serves who waits at once,
/// before there is a new leader.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_outlives_the_leader() {
    let mut world = World::new("leader-gone").await;
    world.start_replica("operator-1").await;
    world.apply(&silent_group("arena", 1).replace("replicas: 1", "replicas: 1\n          maxSize: 1")).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.matchmaker_token().await;
    let (_, answer) = world.claim(&token, "first", &["arena"]).await;
    assert_eq!(answer["server"], server.as_str());
    let caller = world.matchmaker(1, &token).await;
    let waits = caller.ask(json!({"id": "second", "groups": ["arena"], "waitSeconds": 300}));
    let released = async {
        world.waiting("arena", 1).await;
        world.kill_operator(0);
        world.take_lease("somebody-else").await;
        // As if it had lapsed.
        world.try_patch_status(&server, json!({"claimStatus": "Unclaimed"})).await.unwrap();
    };
    let ((code, answer), ()) = tokio::join!(waits, released);
    assert_eq!((code, answer["server"].as_str()), (200, Some(server.as_str())), "{answer}");
    assert_eq!(status(&world.server(&server).await.unwrap()).claim_status, ClaimStatus::Claimed);
    world.kill_operators();
    world.give_back_lease().await;
    world.end().await;
}

/// Row P3, invariant I5: the replica that took a server for a claim has ended before it made its game Active. The next
/// one that leads does.
#[tokio::test(flavor = "multi_thread")]
async fn the_game_of_a_claim_begins_though_its_replica_is_lost() {
    let mut world = World::new("begin").await;
    let unasked = "claim: {timeoutSeconds: 600, confirmation: Immediate}\n          ports:";
    world.apply(&silent_group("arena", 1).replace("ports:", unasked)).await;
    let server = world.ready_servers("arena", 1).await.remove(0);
    world.kill_operators();
    world.make_claim("match-1", json!({"groups": ["arena"]})).await;
    let object = world.claim_api().get("match-1").await.unwrap().uid();
    let now = jiff::Timestamp::now();
    let claim = json!({
        "id": "match-1", "by": "a replica", "object": object,
        "claimedAt": MicroTime(now), "expiresAt": MicroTime(now + jiff::SignedDuration::from_mins(10)),
    });
    let name = server.name_any();
    world.try_patch_status(&name, json!({"claimStatus": "Claimed", "claim": claim})).await.unwrap();
    let bound = json!({"status": {"phase": "Bound", "server": name, "serverUid": server.uid()}});
    world.claim_api().patch_status("match-1", &PatchParams::default(), &Patch::Merge(bound)).await.unwrap();

    world.start_operator().await;
    world.server_until(&name, "its game is on", |status| status.state == State::Active).await;
    world.claim_until("match-1", ClaimPhase::Confirmed).await;
    world.end().await;
}
