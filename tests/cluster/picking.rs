//! Row F16, rows P3 and F5 as far as claims go: which server a claim takes, and what it hands over.

use std::collections::BTreeSet;

use gamekeeper::api::{ClaimStatus, InstanceStatus, State};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::harness::{World, eventually, silent_group, status};

/// Row F16: claim by name, by labels; game data goes with the claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_names_its_server_or_what_it_is_like_and_hands_data_over() {
    let world = World::new("pick").await;
    let labelled = silent_group("arena", 3)
        .replace("template:\n", "template:\n            metadata: {labels: {mode: duel}}\n");
    world.apply(&labelled).await;
    let servers = world.ready_servers("arena", 3).await;
    let [one, two, three] = [0, 1, 2].map(|index| servers[index].name_any());
    // The template's labels are the server's as well; others are added by hand.
    assert_eq!(servers[0].labels()["mode"], "duel");
    world.patch_server(&two, json!({"metadata": {"labels": {"map": "harbour"}}})).await;
    let token = world.matchmaker_token().await;
    let ask = |id: &str, more: Value| {
        let mut body = json!({"id": id});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.ask(0, &token, body)
    };

    let by_label = json!({"groups": ["arena"], "selector": {"matchLabels": {"mode": "duel", "map": "harbour"}}, "data": "seed=7"});
    let (_, answer) = eventually(
        "the labels have reached the operator",
        || ask("by-label", by_label.clone()),
        |(code, _)| *code == 200,
    )
    .await;
    assert_eq!(answer["server"], two.as_str());
    let claim = status(&world.server(&two).await.unwrap()).claim.unwrap();
    assert_eq!(claim.data.as_deref(), Some("seed=7"));
    let (code, problem) = ask("by-label-2", by_label).await;
    assert_eq!((code, problem["title"].as_str()), (503, Some("out of capacity")), "{problem}");

    let (code, answer) = ask("by-name", json!({"groups": ["arena"], "server": three})).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(three.as_str())), "{answer}");
    let (code, problem) = ask("by-name-2", json!({"groups": ["arena"], "server": three})).await;
    assert_eq!((code, problem["title"].as_str()), (409, Some("taken")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("it is claimed"), "{problem}");
    let (code, problem) = ask("by-name-3", json!({"groups": ["arena"], "server": "nobody"})).await;
    assert_eq!((code, problem["title"].as_str()), (404, Some("no such server")), "{problem}");

    // The same id is the same request, or an error that says so.
    let (code, problem) = ask("by-name", json!({"groups": ["arena"], "server": one})).await;
    assert_eq!((code, problem["title"].as_str()), (409, Some("id reused")), "{problem}");
    let (code, answer) = ask("by-name", json!({"groups": ["arena"], "server": three})).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(three.as_str())), "{answer}");
    world.end().await;
}

/// Row F16, rows F5 and F16: claims prefer instances that stay; those that drain are the last resort, and may be refused.
#[tokio::test(flavor = "multi_thread")]
async fn servers_on_a_cordoned_node_are_claimed_last() {
    let world = World::new("cordon").await;
    let (stays, leaves) = (world.fake_node("stays").await, world.fake_node("leaves").await);
    world.group_on_fake_nodes("arena", 8).await;
    let servers = world.ready_servers("arena", 8).await;
    let on = |node: &str| -> BTreeSet<String> {
        let there = servers.iter().filter(|server| status(server).instance.unwrap().node_name == node);
        there.map(ResourceExt::name_any).collect()
    };
    let (staying, leaving) = (on(&stays), on(&leaves));
    assert!(!staying.is_empty() && !leaving.is_empty(), "{staying:?} {leaving:?}");
    world.cordon(&leaves, json!(true)).await;
    world
        .servers_until("all there drain", |servers| {
            let there = servers.iter().filter(|server| leaving.contains(&server.name_any()));
            there.clone().count() == leaving.len()
                && there
                    .into_iter()
                    .all(|server| status(server).instance.unwrap().status == InstanceStatus::Draining)
        })
        .await;
    world.event(leaving.first().unwrap(), "Draining").await;

    let token = world.matchmaker_token().await;
    let ask = |id: String, only: Value| {
        world.ask(0, &token, json!({"id": id, "groups": ["arena"], "instanceStatus": only}))
    };
    let mut first = BTreeSet::new();
    for number in 0..staying.len() {
        let (code, answer) = ask(format!("match-{number}"), json!([])).await;
        assert_eq!(code, 200, "{answer}");
        first.insert(answer["server"].as_str().unwrap().to_owned());
    }
    assert_eq!(first, staying);
    let (code, problem) = ask("picky".into(), json!(["Active"])).await;
    assert_eq!((code, problem["title"].as_str()), (503, Some("draining")), "{problem}");
    let (code, last) = ask("last".into(), json!([])).await;
    assert_eq!(code, 200, "{last}");
    assert!(leaving.contains(last["server"].as_str().unwrap()));

    // Uncordoned, they are as good as others.
    world.cordon(&leaves, Value::Null).await;
    eventually(
        "one of them is claimed as Active",
        || ask("picky".into(), json!(["Active"])),
        |(code, _)| *code == 200,
    )
    .await;
    world.end().await;
}

/// Row P3: with `confirmation: Immediate` the claim makes the game Active, so its timer is gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_immediate_claim_is_active_at_once() {
    let world = World::new("immediate").await;
    let immediate = "claim: {confirmation: Immediate, timeoutSeconds: 1}\n          ports:";
    world.apply(&silent_group("arena", 1).replace("ports:", immediate)).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.matchmaker_token().await;

    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(server.as_str())), "{answer}");
    let held = status(&world.server(&server).await.unwrap());
    assert_eq!((held.state, held.claim_status), (State::Active, ClaimStatus::Claimed));
    let (code, again) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, &again["server"]), (200, &answer["server"]));
    // A deadline that comes and goes: the group's next look is after it.
    let expires = held.claim.unwrap().expires_at.0;
    eventually("the deadline is over", || async { jiff::Timestamp::now() > expires }, |over| *over).await;
    world.patch_group("arena", json!({"spec": {"replicas": 2}})).await;
    world.group_until("arena", "the group looked again", |status| status.replicas == Some(2)).await;
    assert_eq!(status(&world.server(&server).await.unwrap()).claim_status, ClaimStatus::Claimed);
    world.end().await;
}

/// Claims prefer the newest revision, so that a rollout's new servers are played on first.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_revision_is_claimed_first() {
    let world = World::new("newest").await;
    world.silent_group("arena", 2).await;
    let old: BTreeSet<String> =
        world.ready_servers("arena", 2).await.iter().map(ResourceExt::name_any).collect();
    let newer = silent_group("arena", 4)
        .replace("template:\n", "template:\n            metadata: {labels: {build: two}}\n");
    world.apply(&newer).await;
    world.ready_servers("arena", 4).await;
    let token = world.matchmaker_token().await;
    for number in 0..4 {
        let (code, answer) = world.claim(&token, &format!("match-{number}"), &["arena"]).await;
        assert_eq!(code, 200, "{answer}");
        assert_eq!(old.contains(answer["server"].as_str().unwrap()), number >= 2, "{number}: {answer}");
    }
    world.end().await;
}

/// With `strategy: Packed` the node with the most games is filled first; with `Spread` the one with the fewest.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_says_which_node_is_filled_first() {
    let world = World::new("packed").await;
    for node in ["a", "b", "c"] {
        world.fake_node(node).await;
    }
    let token = world.matchmaker_token().await;
    for (strategy, nodes) in [("Packed", 1), ("Spread", 3)] {
        let name = strategy.to_lowercase();
        world.group_on_fake_nodes(&name, 12).await;
        world.patch_group(&name, json!({"spec": {"claim": {"strategy": strategy}}})).await;
        let servers = world.ready_servers(&name, 12).await;
        let mut used = BTreeSet::new();
        for number in 0..3 {
            let (code, answer) = world.claim(&token, &format!("{name}-{number}"), &[&name]).await;
            assert_eq!(code, 200, "{answer}");
            let server = servers.iter().find(|server| answer["server"] == server.name_any().as_str());
            used.insert(status(server.unwrap()).instance.unwrap().node_name);
        }
        let there: BTreeSet<String> =
            servers.iter().map(|server| status(server).instance.unwrap().node_name).collect();
        assert_eq!(used.len(), nodes.min(there.len()), "{strategy}: {used:?} of {there:?}");
        world.delete_group_at_once(&name).await;
    }
    world.end().await;
}
