//! Row F20: a node that says that it goes.

use std::collections::BTreeSet;

use gamekeeper::api::{Claim, ClaimPhase, ClaimStatus, GameServer, GameServerStatus, InstanceStatus, State};
use kube::ResourceExt;
use serde_json::json;

use crate::harness::{World, eventually, silent_group, status};

const INTERRUPTED: &str = "aws-node-termination-handler/spot-itn";

fn is_on(server: &GameServer, node: &str) -> bool {
    status(server).instance.is_some_and(|instance| instance.node_name == node)
}

fn is_taken_along(server: &GameServer) -> bool {
    status(server).instance.is_some_and(|instance| instance.status == InstanceStatus::SpotTerminating)
}

/// Row F20, case C22, invariant I3: the game that is on hears of it and plays on, whatever is idle is replaced elsewhere, a
/// claim lapses at once and says why, and nobody is sent there.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_its_notice_takes_no_more_and_its_game_plays_on() {
    let world = World::new("notice").await;
    let spot = json!({
        "karpenter.sh/capacity-type": "spot", "node.kubernetes.io/instance-type": "c7g.large",
        "topology.kubernetes.io/zone": "zone-b",
    });
    let (stays, goes) = (world.fake_node("stays").await, world.labelled_node("goes", &spot).await);
    // No claim lapses for another reason meanwhile.
    let group = silent_group("arena", 8)
        .replace("replicas: 8", "replicas: 8\n          claim: {timeoutSeconds: 3600}");
    world.apply(&world.on_fake_nodes(&group)).await;
    let servers = world.ready_servers("arena", 8).await;
    let there: Vec<String> =
        servers.iter().filter(|server| is_on(server, &goes)).map(ResourceExt::name_any).collect();
    let [active, claimed, ..] = there.as_slice() else { panic!("two servers on {goes}: {there:?}") };
    let instance = status(&world.server(active).await.unwrap()).instance.unwrap();
    let capacity = json!({"instanceType": "c7g.large", "capacityType": "Spot", "zone": "zone-b"});
    assert_eq!(serde_json::to_value(&instance.capacity).unwrap(), capacity);
    let metrics = reqwest::get(world.plain_url(0, "/metrics")).await.unwrap().text().await.unwrap();
    for (capacity_type, count) in [("Spot", there.len()), ("unknown", 8 - there.len())] {
        let of_group = format!(r#"namespace="{}",group="arena""#, world.namespace);
        let line = format!(r#"gamekeeper_instances{{{of_group},capacity_type="{capacity_type}"}} {count}"#);
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    let seconds = || async {
        let text = reqwest::get(world.plain_url(0, "/metrics")).await.unwrap().text().await.unwrap();
        let start = format!(r#"gamekeeper_instance_seconds_total{{namespace="{}""#, world.namespace);
        text.lines().find(|line| line.starts_with(&start) && line.contains("Spot")).map(str::to_owned)
    };
    eventually("the bill is counted", seconds, Option::is_some).await;
    let uid = world.pod_api().get(active).await.unwrap().uid();
    world.report(active, State::Active).await;
    world.make_claim("match-1", json!({"groups": ["arena"], "server": claimed})).await;
    world.claim_until("match-1", ClaimPhase::Bound).await;

    world.taint(&goes, INTERRUPTED).await;
    let expired = world.claim_until("match-1", ClaimPhase::Expired).await.status.unwrap();
    let words = expired.message.unwrap();
    assert!(words.contains(INTERRUPTED) && words.contains("claim anew"), "{words}");
    let warning = world.event(active, "SpotTerminating").await;
    assert!(warning.message.unwrap().contains(INTERRUPTED));
    let last = world.server_until(active, "its game can read until when", |status| {
        status.instance.as_ref().is_some_and(|instance| instance.retire_at.is_some())
    });
    assert_eq!(status(&last.await).state, State::Active);

    let moved = |servers: &Vec<GameServer>| {
        let here = |server: &&GameServer| is_on(server, &stays) && status(server).state < State::Active;
        let left: Vec<String> =
            servers.iter().filter(|server| is_on(server, &goes)).map(ResourceExt::name_any).collect();
        servers.iter().filter(here).count() == 8 && left == [active.clone()]
    };
    eventually(
        "what was idle is replaced on the other node",
        || async {
            world.ready_servers("arena", 8).await;
            world.servers().await
        },
        moved,
    )
    .await;

    let token = world.matchmaker_token().await;
    for number in 0..8 {
        let (code, answer) = world.claim(&token, &format!("anew-{number}"), &["arena"]).await;
        assert_eq!(code, 200, "{answer}");
        let server = world.server(answer["server"].as_str().unwrap()).await.unwrap();
        assert!(is_on(&server, &stays), "{server:?}");
    }
    assert_eq!(world.pod_api().get(active).await.unwrap().uid(), uid);
    world.patch_server(active, json!({"spec": {"shutdown": "Now"}})).await;
    world.server_gone(active).await;
    world.end().await;
}

/// Row F20, where servers are shared: a game that goes on with its node takes nobody more.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_game_on_a_node_that_goes_has_no_seats() {
    let world = World::new("notice-shared").await;
    let node = world.fake_node("goes").await;
    let group = silent_group("arena", 1)
        .replace("replicas: 1", "replicas: 1\n          claim: {sharing: {capacity: 8}}");
    world.apply(&world.on_fake_nodes(&group)).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    world.report(&server, State::Active).await;
    let token = world.matchmaker_token().await;
    let (code, answer) = world.claim(&token, "party-1", &["arena"]).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(server.as_str())), "{answer}");

    world.taint(&node, INTERRUPTED).await;
    let gone = |status: &GameServerStatus| {
        let lapsed = |claim: &Claim| claim.seats.is_some_and(|seats| seats.lapsed);
        status.claim_status == ClaimStatus::Unclaimed && status.reservations.iter().any(lapsed)
    };
    world.server_until(&server, "the seats that nobody has come to are given up", gone).await;
    let (code, problem) = world.claim(&token, "party-2", &["arena"]).await;
    assert_eq!((code, problem["title"].as_str()), (503, Some("out of capacity")), "{problem}");
    let (code, problem) = world.claim(&token, "party-1", &["arena"]).await;
    assert_eq!((code, problem["title"].as_str()), (410, Some("claim expired")), "{problem}");
    assert_eq!(status(&world.server(&server).await.unwrap()).state, State::Active);
    world.end().await;
}

/// Case C21: a preempted node comes back under its name as another machine. What was there is not offered again, and nobody
/// hears of its address.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_on_a_node_that_starts_anew_is_offered_no_more() {
    let world = World::new("anew").await;
    let node = world.fake_node("spot").await;
    world.boot(&node, "first").await;
    world.group_on_fake_nodes("arena", 3).await;
    let servers = world.ready_servers("arena", 3).await;
    let old: BTreeSet<String> = servers.iter().map(ResourceExt::name_any).collect();
    let active = servers[0].name_any();
    world.report(&active, State::Active).await;

    world.boot(&node, "second").await;
    let replaced = world.ready_servers("arena", 3).await;
    let new: BTreeSet<String> = replaced.iter().map(ResourceExt::name_any).collect();
    assert!(new.is_disjoint(&old), "{new:?} {old:?}");
    let left = world.server(&active).await.unwrap();
    assert!(is_taken_along(&left), "{left:?}");
    assert!(!replaced.iter().any(is_taken_along));
    world.end().await;
}
