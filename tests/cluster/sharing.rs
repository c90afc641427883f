//! Row A11: claims place players on servers that have room, never above their capacity.

use std::collections::{BTreeMap, BTreeSet};

use gamekeeper::api::{ClaimStatus, State};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::harness::{World, eventually, silent_group, status};

/// A group whose servers have four seats each.
fn shared(servers: u32, timeout_seconds: u32) -> String {
    let sharing =
        format!("claim: {{timeoutSeconds: {timeout_seconds}, sharing: {{capacity: 4}}}}\n          ports:");
    silent_group("arena", servers).replace("ports:", &sharing)
}

/// Row A11: the fullest server with room is filled first, and none above its capacity, also from two replicas at once.
#[tokio::test(flavor = "multi_thread")]
async fn seats_are_given_up_to_the_capacity_and_never_above() {
    let mut world = World::new("seats").await;
    world.start_replica("operator-1").await;
    world.apply(&shared(3, 600)).await;
    world.ready_servers("arena", 3).await;
    let token = world.matchmaker_token().await;

    // One after another: the first server is filled, then the next.
    let mut given = Vec::new();
    for number in 0..5 {
        let (code, answer) = world.claim(&token, &format!("early-{number}"), &["arena"]).await;
        assert_eq!((code, answer["seats"].as_i64()), (200, Some(1)), "{answer}");
        given.push(answer["server"].as_str().unwrap().to_owned());
    }
    assert!(given[..4].iter().all(|server| *server == given[0]) && given[4] != given[0], "{given:?}");
    // The same id is the same seat.
    let (_, again) = world.claim(&token, "early-0", &["arena"]).await;
    assert_eq!(again["server"], given[0].as_str());

    let body = json!({"id": "crowd", "groups": ["arena"], "seats": 5, "waitSeconds": 60});
    let (code, problem) = world.ask(0, &token, body).await;
    assert_eq!((code, problem["title"].as_str()), (400, Some("malformed request")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("has 4 seats at most"), "{problem}");

    // Ten at once for the seven seats that are left.
    let asked = (0..10).map(|number| {
        let (world, token) = (&world, &token);
        async move {
            let id = format!("late-{number}");
            let (code, answer) = world.claim_at(number % 2, token, &id, &["arena"]).await;
            (code, answer)
        }
    });
    let answers = futures::future::join_all(asked).await;
    let seated = answers.iter().filter(|(code, _)| *code == 200).count();
    // Who lost every race on the way may have been told that there is none: there is, and asked again he has it.
    let mut left = 7 - seated;
    for number in 0.. {
        let (code, answer) = world.claim(&token, &format!("last-{number}"), &["arena"]).await;
        if code != 200 {
            break;
        }
        left = left.checked_sub(1).unwrap_or_else(|| panic!("above the capacity: {answer}"));
    }
    assert_eq!(left, 0);
    let mut seats = BTreeMap::new();
    for server in world.servers().await {
        let reservations = status(&server).reservations;
        let reserved = reservations.iter().filter_map(|claim| claim.seats).map(|seats| seats.left);
        seats.insert(server.name_any(), reserved.sum::<i32>());
    }
    assert!(seats.values().all(|seats| *seats == 4), "{seats:?}");
    let (code, problem) = world.ask(0, &token, json!({"id": "many", "groups": ["arena"], "seats": 2})).await;
    assert_eq!((code, problem["title"].as_str()), (503, Some("out of capacity")), "{problem}");
    world.end().await;
}

/// Row A11: who has come is counted once, as a player or as a seat; on a server that plays, others join.
#[tokio::test(flavor = "multi_thread")]
async fn players_who_come_take_the_oldest_seats() {
    let world = World::new("arrivals").await;
    world.apply(&shared(1, 600)).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.matchmaker_token().await;
    let ask =
        |id: &str, seats: i32| world.ask(0, &token, json!({"id": id, "groups": ["arena"], "seats": seats}));
    assert_eq!(ask("first", 2).await.0, 200);
    assert_eq!(ask("second", 1).await.0, 200);
    let players = |count: i32| json!({"state": "Active", "players": {"count": count, "capacity": 8}});
    world.try_patch_status(&server, players(2)).await.unwrap();
    world
        .server_until(&server, "the first seats are taken", |status| {
            let left = status.reservations.iter().filter_map(|claim| claim.seats).map(|seats| seats.left);
            left.eq([0, 1]) && status.seated == 2
        })
        .await;
    // Two play, one is to come: one seat is left, and a claim takes it though the game is on.
    assert_eq!(ask("too-many", 2).await.0, 503);
    let (code, answer) = ask("third", 1).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(server.as_str())), "{answer}");
    assert_eq!(ask("fourth", 1).await.0, 503);
    // One leaves: his seat is free, the reserved ones are not.
    world.try_patch_status(&server, players(1)).await.unwrap();
    eventually("a seat is free", || ask("fourth", 1), |(code, _)| *code == 200).await;
    assert_eq!(ask("fifth", 1).await.0, 503);
    let (code, again) = ask("first", 2).await;
    assert_eq!((code, again["server"].as_str()), (200, Some(server.as_str())), "{again}");
    world.end().await;
}

/// Rows A11 and F14: seats whose players do not come are free again; a server without any is idle.
#[tokio::test(flavor = "multi_thread")]
async fn seats_lapse_and_a_server_without_any_is_idle() {
    let world = World::new("seats-lapse").await;
    world.apply(&shared(1, 2)).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.matchmaker_token().await;
    let (code, answer) = world.ask(0, &token, json!({"id": "gone", "groups": ["arena"], "seats": 4})).await;
    assert_eq!(code, 200, "{answer}");
    let held = world
        .server_until(&server, "the claim lapses", |status| status.claim_status == ClaimStatus::Unclaimed);
    held.await;
    world.event(&server, "ClaimLapsed").await;
    let (code, problem) = world.ask(0, &token, json!({"id": "gone", "groups": ["arena"], "seats": 4})).await;
    assert_eq!((code, problem["title"].as_str()), (410, Some("claim expired")), "{problem}");
    world.scale("arena", 0).await;
    world.server_gone(&server).await;
    world.end().await;
}

/// Rows A2 and A3: state, players and sessions of all are listed, page by page, and set in one call.
#[tokio::test(flavor = "multi_thread")]
async fn a_matchmaker_lists_servers_and_sets_their_players() {
    let world = World::new("listing").await;
    world.silent_group("arena", 3).await;
    let servers = world.ready_servers("arena", 3).await;
    let names: BTreeSet<String> = servers.iter().map(ResourceExt::name_any).collect();
    let token = world.account_with(&["get", "list"], "gameservers", Some("gameservers/players")).await;
    let client = world.http(0, &token).await;

    let mut listed = BTreeSet::new();
    let mut path = "game-servers?group=arena&state=StandingBy&limit=2".to_owned();
    loop {
        let (code, page) = client.get(&path).await;
        assert_eq!(code, 200, "{page}");
        for server in page["items"].as_array().unwrap() {
            assert_eq!(server["state"], "StandingBy");
            assert!(listed.insert(server["name"].as_str().unwrap().to_owned()));
        }
        let Some(next) = page["continue"].as_str() else { break };
        path = format!("game-servers?group=arena&state=StandingBy&limit=2&continue={next}");
    }
    assert_eq!(listed, names);
    let (_, active) = client.get("game-servers?state=Active").await;
    assert_eq!(active["items"], json!([]));

    let mut reports: Vec<Value> = names
        .iter()
        .map(|name| json!({"name": name, "players": {"count": 5, "capacity": 12}, "sessions": 1}))
        .collect();
    reports.push(json!({"name": "nobody", "sessions": 1}));
    reports.push(json!({"name": names.first().unwrap(), "sessions": 9}));
    let (code, outcome) = client.patch("game-servers", json!({"servers": reports})).await;
    assert_eq!(code, 200, "{outcome}");
    let outcomes = outcome["servers"].as_array().unwrap();
    assert!(outcomes[..3].iter().all(|outcome| outcome["set"] == true), "{outcome}");
    assert!(outcomes[3]["detail"].as_str().unwrap().contains("no GameServer"), "{outcome}");
    assert!(outcomes[4]["detail"].as_str().unwrap().contains("more than once"), "{outcome}");
    for name in &names {
        let there = status(&world.server(name).await.unwrap());
        assert_eq!((there.players.unwrap().count, there.sessions), (5, Some(1)));
        assert_eq!(there.state, State::StandingBy);
    }
    let (code, problem) =
        client.patch("game-servers", json!({"servers": [{"name": "nobody", "sessions": -1}]})).await;
    assert_eq!((code, problem["title"].as_str()), (400, Some("malformed request")), "{problem}");
    let (code, shown) = client.get(&format!("game-servers/{}", names.first().unwrap())).await;
    assert_eq!((code, shown["players"]["count"].as_i64()), (200, Some(5)), "{shown}");
    let (code, problem) = client.get("game-servers?limit=0").await;
    assert_eq!(code, 400, "{problem}");
    let (code, problem) = client.get("claims").await;
    assert_eq!((code, problem["title"].as_str()), (403, Some("not allowed")), "{problem}");
    world.end().await;
}

/// Rows A2 and F16: a claim is read, listed and released by its holder; then its server is on offer again.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_read_listed_and_released() {
    let world = World::new("release").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.account_with(&["create", "get", "list", "delete"], "gameserverclaims", None).await;
    let client = world.http(0, &token).await;
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!(code, 200, "{answer}");
    let (_, read) = client.get("claims/match-1").await;
    assert_eq!(read, answer);
    let (_, listed) = client.get("claims").await;
    assert_eq!(listed["items"], json!([answer]));
    let (code, problem) = client.get("claims/match-2").await;
    assert_eq!((code, problem["title"].as_str()), (404, Some("no such claim")), "{problem}");

    let (code, released) = client.delete("claims/match-1").await;
    assert_eq!((code, released["server"].as_str()), (200, Some(server.as_str())), "{released}");
    let (_, listed) = client.get("claims").await;
    assert_eq!(listed["items"], json!([]));
    let (code, problem) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, problem["title"].as_str()), (410, Some("claim released")), "{problem}");
    let (code, answer) = world.claim(&token, "match-2", &["arena"]).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(server.as_str())), "{answer}");
    world.report(&server, State::Active).await;
    let (_, problem) =
        eventually("the game is on", || client.delete("claims/match-2"), |(code, _)| *code == 409).await;
    assert_eq!(problem["title"], "game is on");
    world.end().await;
}

/// Invariant I2: one id at two replicas at once has its seats once, also where both choose the same server.
#[tokio::test(flavor = "multi_thread")]
async fn one_id_at_two_replicas_has_its_seats_once() {
    let mut world = World::new("seats-once").await;
    world.start_replica("operator-1").await;
    world.silent_group("arena", 1).await;
    world.patch_group("arena", json!({"spec": {"claim": {"sharing": {"capacity": 60}}}})).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.all_rights_token().await;
    for round in 0..12 {
        let id = format!("match-{round}");
        let ask = |replica| {
            let (world, token, id) = (&world, &token, &id);
            let ask = move || world.claim_at(replica, token, id, &["arena"]);
            async move { eventually("the claim is answered", ask, |(code, _)| *code == 200).await.1 }
        };
        let (one, other) = tokio::join!(ask(0), ask(1));
        assert_eq!(one["claimedAt"], other["claimedAt"]);
        let there = status(&world.server(&server).await.unwrap());
        let of_id = there.reservations.iter().filter(|claim| claim.id == id).count();
        assert_eq!(of_id, 1, "{:#?}", there.reservations);
    }
    world.end().await;
}
