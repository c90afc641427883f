//! Invariant I2, after a kill: two servers bear one id, as a replica ended before it could give back the later one.

use gamekeeper::api::{ClaimStatus, State};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::harness::{World, eventually, status};

/// A replica's claim of `match-1`, made at this time by its clock.
fn claimed(at: Timestamp) -> Value {
    let claim = json!({
        "id": "match-1", "by": "a replica",
        "claimedAt": MicroTime(at),
        "expiresAt": MicroTime(at + SignedDuration::from_mins(10)),
    });
    json!({"claimStatus": "Claimed", "claim": claim})
}

fn after(seconds: i64) -> Timestamp {
    Timestamp::now() + SignedDuration::from_secs(seconds)
}

async fn two_servers(name: &str) -> (World, Vec<String>) {
    let world = World::new(name).await;
    world.silent_group("arena", 2).await;
    let names = world.ready_servers("arena", 2).await.iter().map(ResourceExt::name_any).collect();
    (world, names)
}

async fn held(world: &World) -> Vec<String> {
    let servers = world.servers().await.into_iter();
    let held = servers.filter(|server| status(server).claim.is_some());
    held.map(|server| server.name_any()).collect()
}

/// No capacity is hidden until the lapse: what is not its server is on offer again, though nobody asks for the id.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_kill_left_claimed_twice_is_given_back() {
    let (world, names) = two_servers("given-back").await;
    for name in &names {
        world.try_patch_status(name, claimed(Timestamp::now())).await.unwrap();
    }
    eventually("the later one is given back", || held(&world), |held| *held == names[..1]).await;
    world.event(&names[1], "GivenBack").await;
    let token = world.matchmaker_token().await;
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(names[0].as_str())), "{answer}");
    world.end().await;
}

/// Nobody is answered while two are held, where it can be told which was first.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_for_the_id_has_the_later_one_given_back() {
    let (world, names) = two_servers("asked-for").await;
    for name in &names {
        // The leader leaves them alone for longer than the test takes.
        world.try_patch_status(name, claimed(after(120))).await.unwrap();
    }
    let token = world.matchmaker_token().await;
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(names[0].as_str())), "{answer}");
    assert_eq!(held(&world).await, names[..1]);
    world.end().await;
}

/// Invariant I3: where the game is on, it stays, whoever was first.
#[tokio::test(flavor = "multi_thread")]
async fn a_game_that_is_on_is_not_given_back() {
    let world = World::new("rival-plays").await;
    world.silent_group("arena", 4).await;
    let servers = world.ready_servers("arena", 4).await;
    let names: Vec<String> = servers.iter().map(ResourceExt::name_any).collect();
    let (names, more) = names.split_at(2);
    for name in names {
        world.try_patch_status(name, claimed(after(2))).await.unwrap();
    }
    world.report(&names[1], State::Active).await;
    // One more id of which the later server is given back: by then the leader has been there.
    for name in more {
        let mut claim = claimed(after(2));
        claim["claim"]["id"] = json!("match-2");
        world.try_patch_status(name, claim).await.unwrap();
    }
    let left = [names, &more[..1]].concat();
    let sorted = || async {
        let mut held = held(&world).await;
        held.sort_by_key(|name| left.iter().position(|left| left == name));
        held
    };
    eventually("only the idle one is given back", sorted, |held| *held == left).await;
    world.end().await;
}

/// By the clocks of those who made them, the claims stand in another order than the API server took them in. A replica
/// that has started since does not know, and must not answer with the server that another replica did not answer with.
#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_tell_which_was_first_waits_for_one_who_can() {
    let (mut world, names) = two_servers("cannot-tell").await;
    world.try_patch_status(&names[0], claimed(after(6))).await.unwrap();
    world.try_patch_status(&names[1], claimed(after(5))).await.unwrap();
    world.start_replica("operator-1").await;
    assert_eq!(held(&world).await.len(), 2, "it has started before one was given back");
    let token = world.matchmaker_token().await;
    let ask = || world.claim_at(1, &token, "match-1", &["arena"]);
    let (_, answer) = eventually("it answers", ask, |(code, _)| *code == 200).await;
    assert_eq!(answer["server"].as_str(), Some(names[0].as_str()), "{answer}");
    assert_eq!(held(&world).await, names[..1]);
    world.end().await;
}

/// Nobody is left who could tell: the claims' own times count, for every replica, whatever has changed about their servers
/// since, and who releases the claim frees both.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_tell_is_one_server_and_released_as_one() {
    let (mut world, names) = two_servers("released-as-one").await;
    world.kill_operators();
    world.try_patch_status(&names[0], claimed(after(-30))).await.unwrap();
    world.try_patch_status(&names[1], claimed(after(-31))).await.unwrap();
    world.try_patch_status(&names[1], json!({"sessions": 0})).await.unwrap();
    world.start_operator().await;
    let token = world.account_with(&["create", "delete"], "gameserverclaims", None).await;
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(names[1].as_str())), "{answer}");
    assert_eq!(held(&world).await.len(), 2, "either may have been answered with");
    let (code, answer) = world.http(0, &token).await.delete("claims/match-1").await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(names[1].as_str())), "{answer}");
    let free =
        |servers: &Vec<_>| servers.iter().all(|server| status(server).claim_status == ClaimStatus::Unclaimed);
    world.servers_until("both are on offer", free).await;
    world.end().await;
}
