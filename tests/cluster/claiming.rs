//! Rows F12 to F15, invariants I1 and I2, case C12: claims.

use std::collections::BTreeSet;

use gamekeeper::api::{ClaimStatus, State};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{World, eventually, silent_group, status};

fn time(answer: &Value, field: &str) -> Timestamp {
    answer[field].as_str().unwrap().parse().unwrap()
}

/// Row F12: a claim reserves for 60 s and returns address, port and game data; no one else is offered it.
/// Row F13: Active in time, the timer is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_reserves_a_server_and_says_where_it_is() {
    let world = World::new("claim").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    world.try_patch_status(&server, json!({"data": "map=harbour"})).await.unwrap();
    let token = world.matchmaker_token().await;
    // The data reaches the operator's view by its watch.
    eventually(
        "the claim is answered with the data",
        || world.claim(&token, "match-1", &["arena"]),
        |(code, answer)| {
            assert_eq!(*code, 200, "{answer}");
            answer["data"] == "map=harbour"
        },
    )
    .await;

    let (_, answer) = world.claim(&token, "match-1", &["arena"]).await;
    let held = status(&world.server(&server).await.unwrap());
    assert_eq!(answer["server"], server.as_str());
    assert_eq!(answer["address"].as_str(), held.address.as_deref());
    assert_eq!(answer["ports"], json!([{"name": "game", "port": 7777, "protocol": "UDP"}]));
    assert_eq!(
        time(&answer, "expiresAt").duration_since(time(&answer, "claimedAt")),
        SignedDuration::from_secs(60)
    );
    assert_eq!(held.claim_status, ClaimStatus::Claimed);
    let by = format!("system:serviceaccount:{}:matchmaker", world.namespace);
    assert_eq!(held.claim.unwrap().by, by);

    let (code, problem) = world.claim(&token, "match-2", &["arena"]).await;
    assert_eq!((code, problem["title"].as_str()), (503, Some("out of capacity")), "{problem}");

    let uid = world.server(&server).await.unwrap().metadata.uid;
    assert_eq!(answer["uid"].as_str(), uid.as_deref());

    world.report(&server, State::Active).await;
    // A group that is not there, such as a canary, keeps nobody from the next.
    let (code, problem) = world.claim(&token, "match-3", &["canary", "arena"]).await;
    assert_eq!((code, problem["title"].as_str()), (503, Some("out of capacity")), "{problem}");
    let (code, again) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, again["server"].as_str()), (200, Some(server.as_str())));
    world.end().await;
}

/// Rows F12, F13 and F14. FleetIQ's example: six servers, four available, two utilized; one claimed and confirmed;
/// one claimed and lapsed.
#[tokio::test(flavor = "multi_thread")]
async fn six_servers_walk_through_fleetiqs_example() {
    let world = World::new("fleetiq").await;
    world
        .apply(
            &silent_group("arena", 6)
                .replace("replicas: 6", "replicas: 6\n          claim: {timeoutSeconds: 3}"),
        )
        .await;
    let servers = world.ready_servers("arena", 6).await;
    for utilized in &servers[..2] {
        world.report(&utilized.name_any(), State::Active).await;
    }
    let counts = |on_offer, claimed, active| {
        move |status: &gamekeeper::api::GameServerGroupStatus| {
            status.servers.is_some_and(|counts| {
                (counts.on_offer, counts.claimed, counts.active) == (on_offer, claimed, active)
            })
        }
    };
    world.group_until("arena", "four available, two utilized", counts(4, 0, 2)).await;
    let token = world.matchmaker_token().await;

    let (code, confirmed) = world.claim(&token, "confirmed", &["arena"]).await;
    assert_eq!(code, 200, "{confirmed}");
    let confirmed = confirmed["server"].as_str().unwrap().to_owned();
    world.report(&confirmed, State::Active).await;
    let (code, lapsed) = world.claim(&token, "lapsed", &["arena"]).await;
    assert_eq!(code, 200, "{lapsed}");
    let name = lapsed["server"].as_str().unwrap().to_owned();

    world
        .server_until(&name, "the claim lapses", |status| status.claim_status == ClaimStatus::Unclaimed)
        .await;
    assert!(Timestamp::now() >= time(&lapsed, "expiresAt"));
    world.event(&name, "ClaimLapsed").await;
    world.group_until("arena", "three available, three utilized", counts(3, 0, 3)).await;
    assert_eq!(status(&world.server(&confirmed).await.unwrap()).claim_status, ClaimStatus::Claimed);
    let (code, problem) = world.claim(&token, "lapsed", &["arena"]).await;
    assert_eq!((code, problem["title"].as_str()), (410, Some("claim expired")), "{problem}");

    // It is on offer again, to anyone.
    let mut names = BTreeSet::new();
    for number in 0..3 {
        let (code, answer) = world.claim(&token, &format!("next-{number}"), &["arena"]).await;
        assert_eq!(code, 200, "{answer}");
        names.insert(answer["server"].as_str().unwrap().to_owned());
    }
    assert!(names.contains(&name) && names.len() == 3);
    world.end().await;
}

/// Row F14: a replica that has nothing else to offer lapses what is due itself.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_leader_a_due_claim_is_freed_by_whoever_needs_a_server() {
    let mut world = World::new("leaderless").await;
    world
        .apply(
            &silent_group("arena", 1)
                .replace("replicas: 1", "replicas: 1\n          claim: {timeoutSeconds: 1}"),
        )
        .await;
    world.ready_servers("arena", 1).await;
    let token = world.matchmaker_token().await;
    world.kill_operators();
    // Somebody else holds the lease: this replica claims, and leads nothing.
    world.take_lease("somebody-else").await;
    world.start_replica("follower").await;

    let (code, first) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!(code, 200, "{first}");
    let (_, second) = eventually(
        "the next claim gets it",
        || world.claim(&token, "match-2", &["arena"]),
        |(code, _)| *code == 200,
    )
    .await;
    assert_eq!(first["server"], second["server"]);
    assert!(time(&second, "claimedAt") >= time(&first, "expiresAt"));
    world.kill_operators();
    world.give_back_lease().await;
    world.end().await;
}

/// Row F15: after its session a server leaves at once and is never used again: another pod, another UID.
/// Row P3: Active is never followed by StandingBy.
#[tokio::test(flavor = "multi_thread")]
async fn after_its_session_a_server_is_replaced_by_another_pod() {
    let world = World::new("session").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let pods = world.pod_uids().await;
    world.report(&server, State::Active).await;
    let back = world.try_patch_status(&server, json!({"state": "StandingBy"})).await.unwrap_err();
    assert!(back.to_string().contains("only goes forward"), "{back}");

    world.report(&server, State::Terminating).await;
    let token = world.matchmaker_token().await;
    world.server_gone(&server).await;
    let replacement = world.ready_servers("arena", 1).await[0].name_any();
    assert_ne!(replacement, server);
    assert!(world.pod_uids().await.is_disjoint(&pods));
    let (_, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!(answer["server"], replacement.as_str());
    world.event(&server, "Terminated").await;
    world.end().await;
}

/// Invariants I1 and I2: two replicas, many callers, each server once; an id asked for again and at once gets one.
#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_give_each_server_once() {
    let mut world = World::new("two-replicas").await;
    world.start_replica("operator-1").await;
    world.silent_group("arena", 12).await;
    world.ready_servers("arena", 12).await;
    let token = world.matchmaker_token().await;

    // Each of ten ids is asked for at both replicas at once.
    let asked = (0..20).map(|number| {
        let (world, token) = (&world, &token);
        async move {
            let id = format!("match-{}", number / 2);
            // A replica whose watch is a moment behind may find nothing at first.
            let ask = || world.claim_at(number % 2, token, &id, &["arena"]);
            let (_, answer) = eventually("the claim is answered", ask, |(code, _)| *code == 200).await;
            (id, answer["server"].as_str().unwrap().to_owned())
        }
    });
    let given: BTreeSet<(String, String)> = futures::future::join_all(asked).await.into_iter().collect();
    let servers: BTreeSet<&String> = given.iter().map(|(_, server)| server).collect();
    assert_eq!((given.len(), servers.len()), (10, 10), "{given:#?}");
    let held = world
        .servers_until("ten servers are held", |servers| {
            servers.iter().filter(|server| status(server).claim_status == ClaimStatus::Claimed).count() == 10
        })
        .await;
    for server in held.iter().filter(|server| status(server).claim_status == ClaimStatus::Claimed) {
        assert!(servers.contains(&server.name_any()));
    }
    world.end().await;
}

/// Case C12: a server whose pod is deleted with a long grace period leaves the pool at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_long_grace_period_is_not_claimed_while_it_ends() {
    let world = World::new("grace").await;
    let slow = silent_group("arena", 1)
        .replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 600")
        .replace("{name: game, image:", "{name: game, lifecycle: {preStop: {sleep: {seconds: 500}}}, image:");
    world.apply(&slow).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.matchmaker_token().await;
    world.pod_api().delete(&server, &DeleteParams::default()).await.unwrap();

    world.server_until(&server, "Terminating", |status| status.state == State::Terminating).await;
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!(code, 503, "{answer}");
    // The replacement does not wait for those 600 s.
    let replacement = world
        .servers_until("the replacement is Initializing", |servers| {
            servers.iter().any(|server| status(server).state == State::Initializing)
        })
        .await;
    let replacement =
        replacement.iter().find(|server| status(server).state == State::Initializing).unwrap().name_any();
    world.report(&replacement, State::StandingBy).await;
    world
        .group_until("arena", "it is on offer", |status| {
            status.servers.is_some_and(|counts| counts.on_offer == 1)
        })
        .await;
    let (code, answer) = world.claim(&token, "match-2", &["arena"]).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(replacement.as_str())), "{answer}");
    world.scale("arena", 0).await;
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    for pod in [&server, &replacement] {
        world.pod_api().delete(pod, &now).await.unwrap();
        world.server_gone(pod).await;
    }
    world.end().await;
}

/// Invariant I1: a GameServer that no pod of its group backs is never on offer, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_pod_is_never_offered() {
    let world = World::new("unbacked").await;
    world.silent_group("arena", 0).await;
    let forged = json!({
        "apiVersion": "gamekeeper.dev/v1alpha1", "kind": "GameServer",
        "metadata": {"name": "forged"}, "spec": {"group": "arena"},
    });
    world
        .server_api()
        .create(&PostParams::default(), &serde_json::from_value(forged).unwrap())
        .await
        .unwrap();
    world.try_patch_status("forged", json!({"state": "StandingBy", "address": "192.0.2.1"})).await.unwrap();
    world
        .group_until("arena", "the group is Active", |status| status.phase == gamekeeper::api::Phase::Active)
        .await;

    world.event("forged", "NoPod").await;
    let token = world.matchmaker_token().await;
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!(code, 503, "{answer}");
    world.end().await;
}

/// Row K2, of callers: a token is checked, and what it may do.
/// Invariant I8: bad requests get clear answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_be_is_answered_with_its_cause() {
    let world = World::new("answers").await;
    world.silent_group("arena", 0).await;
    world
        .group_until("arena", "the group is Active", |status| status.phase == gamekeeper::api::Phase::Active)
        .await;
    let token = world.matchmaker_token().await;
    let nobody = crate::harness::account(&world.client, &world.namespace, "nobody", json!([])).await;
    let url = world.claims_url(0);
    let client = world.callers().await;
    let post = |token: Option<&str>, body: &str| {
        let request = client.post(&url).header("content-type", "application/json").body(body.to_owned());
        let request = if let Some(token) = token { request.bearer_auth(token) } else { request };
        async move {
            let answer = request.send().await.unwrap();
            let problem = answer.headers()["content-type"] == "application/problem+json";
            assert!(problem, "{answer:?}");
            let code = answer.status().as_u16();
            (code, answer.json::<Value>().await.unwrap()["detail"].as_str().unwrap().to_owned())
        }
    };
    let good = r#"{"id": "m", "groups": ["arena"]}"#;
    let long = format!(r#"{{"id": "{}", "groups": ["arena"]}}"#, "x".repeat(129));
    let huge = format!(r#"{{"id": "{}", "groups": ["arena"]}}"#, "x".repeat(100_000));
    for (token, body, code, words) in [
        (None, good, 401, "Authorization: Bearer"),
        (Some("nonsense"), good, 401, "not valid"),
        (Some(nobody.as_str()), good, 403, "may not create gameserverclaims.gamekeeper.dev"),
        (Some(&token), "", 400, "EOF"),
        (Some(&token), "{}", 422, "missing field"),
        (Some(&token), r#"{"id": "m", "groups": ["arena"], "colour": "red"}"#, 422, "unknown field `colour`"),
        (Some(&token), r#"{"id": "", "groups": ["arena"]}"#, 400, "id has 0 characters"),
        (Some(&token), r#"{"id": "m", "groups": []}"#, 400, "groups has 0 names"),
        (Some(&token), &long, 400, "id has 129 characters"),
        (Some(&token), &huge, 413, "limit"),
        (Some(&token), r#"{"id": "m", "groups": ["nowhere"]}"#, 404, "no GameServerGroup nowhere"),
        (Some(&token), good, 503, "no server of arena is on offer"),
    ] {
        let (found, detail) = post(token, body).await;
        assert_eq!(found, code, "{detail}");
        assert!(detail.contains(words), "{detail}\nlacks: {words}");
    }
    world.end().await;
}
