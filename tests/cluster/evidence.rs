//! Rows F3, F4 and F8: what speaks against capacity pools, from wherever it is told, and how they come back.

use std::collections::BTreeMap;

use gamekeeper::api::{CapacityType, EvidenceKind, GameServer, InstanceStatus, State, Viability};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::harness::market::{
    advise, all_on, group_on, made_for, market, market_with, node, numbers, on, pool_until, servers_until,
    type_in,
};
use crate::harness::{World, eventually, status};

/// Has an event told of an object, as its controller would.
async fn tell(world: &World, object: Value, reason: &str, message: &str) {
    let namespace = object["namespace"].as_str().unwrap_or("default").to_owned();
    let name = format!("{}.{}", object["name"].as_str().unwrap(), reason.to_lowercase());
    let event = json!({
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": object, "reason": reason, "message": message, "type": "Warning",
        "source": {"component": "test"}, "lastTimestamp": Timestamp::now().strftime("%FT%TZ").to_string(),
    });
    let events: Api<Event> = Api::namespaced(world.client.clone(), &namespace);
    events.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await.unwrap();
}

fn node_api(world: &World) -> Api<Node> {
    Api::all(world.client.clone())
}

/// Rows F4 and F20: Karpenter says by an event alone that a node is interrupted.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_a_node_is_its_notice() {
    let world = market("node-event", &["a", "b"]).await;
    group_on(&world, &["a", "b"], 4, "").await;
    let servers = servers_until(&world, "all are ready", all_on(4, CapacityType::Spot)).await;
    let there = on(&servers, "a")[0].name_any();
    let doomed = status(on(&servers, "a")[0]).instance.unwrap().node_name;
    world.report(&there, State::Active).await;

    let uid = node_api(&world).get(&doomed).await.unwrap().uid().unwrap();
    let about = |uid: &str| json!({"kind": "Node", "name": doomed, "uid": uid, "apiVersion": "v1"});
    // Of a machine that had this name before.
    tell(&world, about("another"), "InstanceTerminating", "gone").await;
    tell(&world, about(&uid), "SpotInterrupted", "Spot interruption warning was triggered").await;
    let told = world
        .server_until(&there, "its game is told, with its deadline", |status| {
            status
                .instance
                .as_ref()
                .is_some_and(|instance| instance.status == InstanceStatus::SpotTerminating)
        })
        .await;
    let instance = status(&told).instance.unwrap();
    assert!(instance.retire_at.is_some() && instance.cause.unwrap().contains("SpotInterrupted"));
    let pool = pool_until(&world, "a", CapacityType::Spot, Viability::NotViable).await;
    let evidence = &pool.status.unwrap().evidence[0];
    assert_eq!(evidence.kind, EvidenceKind::Interrupted);
    assert!(evidence.of.contains(&doomed), "{evidence:?}");
    world.end().await;
}

/// Row F4, case C8: a node that vanishes with what ran there speaks against its pool; one that ran nothing of ours does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_vanishes_speaks_against_its_pool() {
    let world = market("vanished", &["a", "b"]).await;
    group_on(&world, &["a", "b"], 2, "").await;
    servers_until(&world, "both are ready", all_on(2, CapacityType::Spot)).await;
    for (type_, capacity_type) in [("b", "on-demand"), ("a", "spot")] {
        let name = format!("{}-{type_}-{capacity_type}-1", world.namespace);
        node_api(&world).delete(&name, &DeleteParams::default()).await.unwrap();
    }
    let pool = pool_until(&world, "a", CapacityType::Spot, Viability::NotViable).await;
    assert_eq!(pool.status.unwrap().evidence[0].kind, EvidenceKind::Lost);
    pool_until(&world, "b", CapacityType::OnDemand, Viability::Viable).await;
    let moved = |servers: &[GameServer]| {
        all_on(2, CapacityType::Spot)(servers) && numbers(servers).get("b") == Some(&2)
    };
    servers_until(&world, "what was lost is replaced elsewhere", moved).await;
    world.end().await;
}

/// Row F4: the cluster autoscaler's word comes long before the launch timeout.
#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaler_that_cannot_deliver_speaks_against_the_pool() {
    let world = market("backoff", &["b"]).await;
    group_on(&world, &["none", "b"], 2, "").await;
    let look = || async { made_for(&world, "none").await };
    let pods = eventually("a pod is made for it", look, |pods| !pods.is_empty()).await;
    let about = json!({
        "kind": "Pod", "namespace": world.namespace, "name": pods[0].name_any(), "uid": pods[0].uid().unwrap(),
    });
    let message = "pod didn't trigger scale-up: 1 in backoff after failed scale-up";
    tell(&world, about, "NotTriggerScaleUp", message).await;
    let pool = pool_until(&world, "none", CapacityType::Spot, Viability::NotViable).await;
    assert!(pool.status.unwrap().evidence[0].message.contains("in backoff"));
    servers_until(&world, "both are on what can be had", |servers| {
        all_on(2, CapacityType::Spot)(servers) && numbers(servers).get("b") == Some(&2)
    })
    .await;
    world.end().await;
}

/// Karpenter's definition, as far as the operator reads it.
async fn define_node_claims(world: &World) {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodeclaims.karpenter.sh"},
        "spec": {
            "group": "karpenter.sh", "scope": "Cluster",
            "names": {"kind": "NodeClaim", "plural": "nodeclaims", "singular": "nodeclaim"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let apply = PatchParams::apply("test").force();
    definitions.patch("nodeclaims.karpenter.sh", &apply, &Patch::Apply(definition)).await.unwrap();
    let claims = node_claims(world);
    let listed = || async { claims.list(&ListParams::default()).await.is_ok() };
    eventually("node claims are served", listed, |served| *served).await;
}

fn node_claims(world: &World) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"));
    Api::all_with(world.client.clone(), &kind)
}

/// Row F4: Karpenter says so of a `NodeClaim`, which it deletes at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_claim_without_capacity_speaks_against_its_pool() {
    let mut world = World::without_operator("claims").await;
    define_node_claims(&world).await;
    market_with(&mut world, &["b"], &[]).await;
    group_on(&world, &["none", "b"], 2, "").await;
    pool_until(&world, "none", CapacityType::Spot, Viability::Viable).await;
    let name = format!("{}-x7k2p", world.namespace);
    let one_of = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name},
        "spec": {"requirements": [
            one_of("node.kubernetes.io/instance-type", &type_in(&world, "none")),
            one_of("karpenter.sh/capacity-type", "spot"),
            one_of("topology.kubernetes.io/zone", "zone-1"),
        ]},
    });
    let claims = node_claims(&world);
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let about = json!({"kind": "NodeClaim", "name": name, "apiVersion": "karpenter.sh/v1"});
    tell(&world, about, "InsufficientCapacityError", "all requested instance types were unavailable").await;
    claims.delete(&name, &DeleteParams::default()).await.unwrap();
    let pool = pool_until(&world, "none", CapacityType::Spot, Viability::NotViable).await;
    let evidence = &pool.status.unwrap().evidence[0];
    assert_eq!(evidence.of, format!("node claim {name}"));
    world.end().await;
}

/// Row F4: a pool that comes back gets one server of a group, and the rest once that is ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_comes_back_is_probed() {
    let mut world = World::without_operator("probe").await;
    let impatient = ["--evidence-half-life", "2s", "--not-viable-least", "1s", "--pools-period", "1s"];
    market_with(&mut world, &["a", "b"], &impatient).await;
    let doomed = node(&world, "a", "spot", "2").await;
    world.cordon(&doomed, json!(true)).await;
    group_on(&world, &["a", "b"], 2, "").await;
    servers_until(&world, "one on each", all_on(2, CapacityType::Spot)).await;
    world.taint(&doomed, "aws-node-termination-handler/spot-itn").await;
    pool_until(&world, "a", CapacityType::Spot, Viability::NotViable).await;
    pool_until(&world, "a", CapacityType::Spot, Viability::Probing).await;
    // Nobody reports what comes up there as ready: it is one, however many are wanted.
    world.scale("arena", 8).await;
    let look = || async { (made_for(&world, "a").await.len(), made_for(&world, "b").await.len()) };
    let (there, _) = eventually("the rest goes elsewhere", look, |(_, elsewhere)| *elsewhere >= 6).await;
    assert!(there <= 2, "{there}: the one from before, and the probe");
    pool_until(&world, "a", CapacityType::Spot, Viability::Probing).await;
    servers_until(&world, "four on each", |servers| {
        let four = [("a", 4), ("b", 4)].map(|(type_, count)| (type_.to_owned(), count));
        all_on(8, CapacityType::Spot)(servers) && numbers(servers) == BTreeMap::from(four)
    })
    .await;
    pool_until(&world, "a", CapacityType::Spot, Viability::Viable).await;
    world.end().await;
}

/// Row F8: what a tool of the user's says of pools, by their `spec.advice`.
#[tokio::test(flavor = "multi_thread")]
async fn advice_says_which_pools_are_cheap_and_which_will_not_deliver() {
    let world = market("advice", &["a", "b", "c"]).await;
    group_on(&world, &["a", "b", "c"], 0, "\n          cheapestPools: 1").await;
    let mut pools = Vec::new();
    for (type_, price) in [("a", "0.31"), ("b", "0.29"), ("c", "0.30")] {
        let pool = pool_until(&world, type_, CapacityType::Spot, Viability::Viable).await;
        advise(&world, &pool, json!({"pricePerHour": price})).await.unwrap();
        pools.push(pool);
    }
    let refused = advise(&world, &pools[0], json!({"pricePerHour": "cheap"})).await.unwrap_err().to_string();
    assert!(refused.contains("spec.advice.pricePerHour"), "{refused}");
    world.scale("arena", 3).await;
    let three_on = |type_: &'static str| {
        move |servers: &[GameServer]| {
            all_on(3, CapacityType::Spot)(servers) && numbers(servers).get(type_) == Some(&3)
        }
    };
    servers_until(&world, "all are on the cheapest", three_on("b")).await;
    advise(&world, &pools[1], json!({"placementScore": 1})).await.unwrap();
    let pool = pool_until(&world, "b", CapacityType::Spot, Viability::NotViable).await;
    let words = pool.status.unwrap().message.unwrap();
    assert!(words.contains("spec.advice 0.90"), "{words}");
    servers_until(&world, "all are on the next", three_on("c")).await;
    world.end().await;
}
