//! What the operator counts, as Prometheus reads it.

use gamekeeper::api::{GameServerGroupStatus, State};
use kube::ResourceExt;
use serde_json::json;

use crate::harness::{Fault, Proxy, When, World, eventually};

/// The value of the metric of this name and with these labels, 0 if it is not there.
async fn value(world: &World, name: &str, labels: &str) -> f64 {
    let text = reqwest::get(world.plain_url(0, "/metrics")).await.unwrap().text().await.unwrap();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}{{{labels}}} ")));
    line.map_or(0.0, |value| value.parse().unwrap())
}

async fn reaches(world: &World, name: &str, labels: &str, wanted: f64) {
    let what = format!("{name}{{{labels}}} is {wanted}");
    let there = |value: &f64| (*value - wanted).abs() < f64::EPSILON;
    eventually(&what, || value(world, name, labels), there).await;
}

/// Claims, lapses, servers by state and requests are told by group, and of groups that are not there nothing is.
#[tokio::test(flavor = "multi_thread")]
async fn claims_and_servers_are_counted() {
    let world = World::new("metrics").await;
    world.silent_group("arena", 3).await;
    let servers = world.ready_servers("arena", 3).await;
    world.patch_group("arena", json!({"spec": {"claim": {"timeoutSeconds": 1}}})).await;
    let token = world.matchmaker_token().await;
    let group = format!(r#"namespace="{}",group="arena""#, world.namespace);
    let servers_in = |state: &str| format!(r#"{group},state="{state}""#);
    reaches(&world, "gamekeeper_servers_on_offer", &group, 3.0).await;
    reaches(&world, "gamekeeper_servers", &servers_in("StandingBy"), 3.0).await;
    world.report(&servers[0].name_any(), State::Active).await;
    reaches(&world, "gamekeeper_servers", &servers_in("Active"), 1.0).await;

    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!(code, 200, "{answer}");
    assert_eq!(world.claim(&token, "match-2", &["nowhere"]).await.0, 404);
    reaches(&world, "gamekeeper_claims_total", &format!(r#"{group},result="claimed""#), 1.0).await;
    let nowhere = r#"namespace="",group="",result="no-such-group""#;
    reaches(&world, "gamekeeper_claims_total", nowhere, 1.0).await;
    reaches(&world, "gamekeeper_claim_duration_seconds_count", &group, 1.0).await;
    reaches(&world, "gamekeeper_http_requests_total", r#"code="404""#, 1.0).await;
    reaches(&world, "gamekeeper_claim_lapses_total", &group, 1.0).await;
    reaches(&world, "gamekeeper_servers_on_offer", &group, 2.0).await;
    world.end().await;
}

/// What goes wrong with writes is counted by its kind, and so are the reconciliations that fail by it.
#[tokio::test(flavor = "multi_thread")]
async fn failures_are_counted() {
    let mut world = World::without_operator("failures").await;
    let proxy = Proxy::start().await;
    world.go_through(&proxy);
    world.start_operator().await;
    proxy.fault_at(0, Fault::Answer(500, When::Before));
    world.silent_group("arena", 1).await;
    world.ready_servers("arena", 1).await;
    assert!(value(&world, "gamekeeper_write_errors_total", r#"category="busy""#).await >= 1.0);
    assert!(value(&world, "gamekeeper_reconcile_failures_total", r#"controller="group""#).await >= 1.0);
    let on_offer = |status: &GameServerGroupStatus| status.servers.is_some_and(|counts| counts.on_offer == 1);
    world.group_until("arena", "nothing is left to write", on_offer).await;
    // Its only server has changed since it was seen.
    proxy.fault_at(0, Fault::Answer(409, When::Before));
    let token = world.matchmaker_token().await;
    assert_eq!(world.claim(&token, "match-1", &["arena"]).await.0, 503);
    let group = format!(r#"namespace="{}",group="arena""#, world.namespace);
    reaches(&world, "gamekeeper_claim_conflicts_total", &group, 1.0).await;
    let leads =
        || async { reqwest::get(world.plain_url(0, "/metrics")).await.unwrap().text().await.unwrap() };
    eventually("it says that it leads", leads, |text| text.contains("\ngamekeeper_leader 1\n")).await;
    // Somebody else takes the lease.
    world.take_lease("somebody else").await;
    eventually("it says that it leads no more", leads, |text| text.contains("\ngamekeeper_leader 0\n")).await;
    world.give_back_lease().await;
    world.end().await;
}
