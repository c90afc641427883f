//! Rows F3 to F9: capacity pools, and groups that are balanced over them.

use gamekeeper::api::{
    CapacityType, EndReason, EvidenceKind, GameServer, InstanceStatus, State, Viability, conditions,
};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::harness::market::{
    all_on, group_on, hold_for, made_for, market, node, numbers, on, pool_api, pool_until, servers_until,
};
use crate::harness::{eventually, status};

/// Rows F4 to F8 and K3, invariants I3 and I6: `FleetIQ`'s example. Three types with two instances each, four with a game; one
/// type turns, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_leaves_a_type_that_is_not_viable_and_comes_back() {
    let world = market("five-steps", &["a", "b", "c"]).await;
    let doomed = node(&world, "a", "spot", "2").await;
    world.cordon(&doomed, json!(true)).await;
    group_on(&world, &["a", "b", "c"], 6, "").await;
    let two_each = |servers: &[GameServer]| {
        numbers(servers)
            == [("a", 2), ("b", 2), ("c", 2)].map(|(type_, count)| (type_.to_owned(), count)).into()
            && servers.iter().all(|server| status(server).state >= State::StandingBy)
    };
    let servers = servers_until(&world, "two of each type", two_each).await;
    let (played, idle) = (on(&servers, "a")[0].name_any(), on(&servers, "a")[1].name_any());
    let last_elsewhere = on(&servers, "c")[1].name_any();
    for server in [on(&servers, "b"), vec![on(&servers, "a")[0], on(&servers, "c")[0]]].concat() {
        world.report(&server.name_any(), State::Active).await;
    }
    let before = made_for(&world, "a").await.len();

    // A node of the type goes on which none of ours is.
    world.taint(&doomed, "aws-node-termination-handler/spot-itn").await;
    let pool = pool_until(&world, "a", CapacityType::Spot, Viability::NotViable).await;
    let evidence = &pool.status.as_ref().unwrap().evidence;
    assert!(evidence[0].of.contains(&doomed) && evidence[0].message.contains("spot-itn"), "{evidence:?}");
    let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
    let about = ListParams::default().fields(&format!("regarding.name={}", pool.name_any()));
    let told = || async { events.list(&about).await.unwrap().items };
    eventually("its events say so", told, |events| {
        events.iter().any(|event| event.reason.as_deref() == Some("NotViable"))
    })
    .await;
    let token = world.matchmaker_token().await;
    world
        .server_until(&played, "what is on it drains, and says why", |status| {
            let instance = status.instance.as_ref().unwrap();
            let says = instance.cause.as_deref().is_some_and(|cause| cause.contains("is not viable"));
            instance.status == InstanceStatus::Draining && says
        })
        .await;
    world
        .server_until(&idle, "what is idle too", |status| {
            status.instance.as_ref().unwrap().status == InstanceStatus::Draining
        })
        .await;
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(last_elsewhere.as_str())), "{answer}");
    let moving = world.group_until("arena", "it says what moves", |status| {
        let out = status.pools.iter().filter(|pool| pool.verdict == Viability::NotViable);
        if out.map(|pool| pool.servers).collect::<Vec<_>>() != [2] {
            return false;
        }
        let condition = status.conditions.iter().find(|condition| condition.type_ == conditions::BALANCED);
        condition.is_some_and(|condition| condition.reason == "Moving" && condition.message.contains("2 on "))
    });
    moving.await;

    // The idle one goes, once what replaces it is ready; the one with a game stays.
    let replaced = |servers: &[GameServer]| {
        let left: Vec<String> = on(servers, "a").into_iter().map(ResourceExt::name_any).collect();
        left == [played.clone()] && numbers(servers).values().sum::<usize>() == 7
    };
    servers_until(&world, "the idle one is replaced, and the played one stays", replaced).await;
    let event = world.event(&idle, "Retired").await.message.unwrap();
    assert!(event.contains(&format!("{:?}", EndReason::Balanced)), "{event}");
    assert_eq!(made_for(&world, "a").await.len(), before - 1, "nothing was made there");
    world.report(&played, State::Terminating).await;
    let left =
        |servers: &[GameServer]| on(servers, "a").is_empty() && numbers(servers).values().sum::<usize>() == 6;
    servers_until(&world, "it is gone after its game", left).await;

    // It comes back, and the group drifts back, one by one.
    hold_for(&world, &pool, "Viable").await;
    servers_until(&world, "two of each type again", two_each).await;
    world
        .group_until("arena", "it says that it is balanced", |status| {
            let condition =
                status.conditions.iter().find(|condition| condition.type_ == conditions::BALANCED);
            condition.is_some_and(|condition| condition.status == "True")
        })
        .await;
    world.end().await;
}

/// Row F9: on-demand capacity is the way out of a spot market that holds nothing, and is left again. A pool that nobody
/// names any more is collected.
#[tokio::test(flavor = "multi_thread")]
async fn on_demand_capacity_is_the_way_out_and_back() {
    let world = market("way-out", &["a"]).await;
    group_on(&world, &["a"], 2, "").await;
    servers_until(&world, "both are on spot", all_on(2, CapacityType::Spot)).await;
    let pool = pool_until(&world, "a", CapacityType::Spot, Viability::Viable).await;
    hold_for(&world, &pool, "NotViable").await;
    pool_until(&world, "a", CapacityType::Spot, Viability::NotViable).await;
    servers_until(&world, "both are on demand", all_on(2, CapacityType::OnDemand)).await;
    hold_for(&world, &pool, "Auto").await;
    hold_for(&world, &pool, "Viable").await;
    servers_until(&world, "both are on spot again", all_on(2, CapacityType::Spot)).await;
    hold_for(&world, &pool, "Auto").await;

    world.delete_group_at_once("arena").await;
    let gone = || async { pool_api(&world).get_opt(&pool.name_any()).await.unwrap() };
    eventually("the pool is collected", gone, Option::is_none).await;
    world.end().await;
}

/// Rows F3 and F9: a group on spot capacity alone that has lost its servers waits, says so, and goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_on_spot_alone_waits_for_a_pool_that_is_viable() {
    let world = market("spot-only", &["a"]).await;
    group_on(&world, &["a"], 2, "\n          balancingStrategy: SpotOnly").await;
    let servers = servers_until(&world, "both are on spot", all_on(2, CapacityType::Spot)).await;
    let pool = pool_until(&world, "a", CapacityType::Spot, Viability::Viable).await;
    hold_for(&world, &pool, "NotViable").await;
    pool_until(&world, "a", CapacityType::Spot, Viability::NotViable).await;
    for server in &servers {
        world.patch_server(&server.name_any(), json!({"spec": {"shutdown": "Now"}})).await;
        world.server_gone(&server.name_any()).await;
    }
    world
        .group_until("arena", "it says what it waits for", |status| {
            let mut conditions = status.conditions.iter();
            conditions.any(|condition| condition.type_ == "Progressing" && condition.reason == "NoViablePool")
        })
        .await;
    assert!(made_for(&world, "a").await.is_empty());
    hold_for(&world, &pool, "Viable").await;
    servers_until(&world, "both are there again", all_on(2, CapacityType::Spot)).await;
    world.end().await;
}

/// Row F4: a launch that finds no node in time speaks against its pool, and the server comes up in another.
#[tokio::test(flavor = "multi_thread")]
async fn a_launch_that_does_not_come_turns_its_pool() {
    let world = market("undelivered", &["b"]).await;
    group_on(&world, &["none", "b"], 2, "\n          launchTimeoutSeconds: 3").await;
    servers_until(&world, "both are on what can be had", |servers| {
        all_on(2, CapacityType::Spot)(servers) && numbers(servers).get("b") == Some(&2)
    })
    .await;
    let pool = pool_until(&world, "none", CapacityType::Spot, Viability::NotViable).await;
    let evidence = &pool.status.unwrap().evidence;
    assert_eq!(evidence[0].kind, EvidenceKind::Undelivered);
    assert!(evidence[0].message.contains("nodes are available"), "{evidence:?}");
    world.end().await;
}

/// Rows F7 and F17: nothing moves while that is suspended; then a game without protection goes once its replacement is ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_game_without_protection_goes_once_moving_is_resumed() {
    let world = market("unprotected", &["a", "b"]).await;
    let more = "\n          gameServerProtectionPolicy: NoProtection\n          suspendedActions: [ReplaceInstanceTypes]";
    group_on(&world, &["a", "b"], 2, more).await;
    let servers = servers_until(&world, "both are on spot", all_on(2, CapacityType::Spot)).await;
    let played = on(&servers, "a")[0].name_any();
    world.report(&played, State::Active).await;
    let pool = pool_until(&world, "a", CapacityType::Spot, Viability::Viable).await;
    hold_for(&world, &pool, "NotViable").await;
    pool_until(&world, "a", CapacityType::Spot, Viability::NotViable).await;
    // New ones avoid the pool all the same; and the played one was not told to leave.
    world.scale("arena", 3).await;
    let grown = servers_until(&world, "a third is there", all_on(3, CapacityType::Spot)).await;
    assert_eq!((on(&grown, "a").len(), on(&grown, "b").len()), (1, 2));
    let instance = status(&world.server(&played).await.unwrap()).instance.unwrap();
    assert_eq!(instance.status, InstanceStatus::Active);

    world.patch_group("arena", json!({"spec": {"suspendedActions": []}})).await;
    servers_until(&world, "it has gone", |servers| {
        all_on(3, CapacityType::Spot)(servers) && on(servers, "a").is_empty()
    })
    .await;
    let event = world.event(&played, "Retired").await.message.unwrap();
    assert!(event.contains("Balanced"), "{event}");
    world.end().await;
}

/// A group may let node autoscalers end its idle servers: each claim costs one write to the pod, and so does one that lapses.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_kept_from_eviction_while_it_is_in_use() {
    let world = market("eviction", &["a"]).await;
    group_on(&world, &["a"], 1, "\n          eviction: WhenIdle").await;
    let servers = servers_until(&world, "it is ready", all_on(1, CapacityType::Spot)).await;
    let name = servers[0].name_any();
    let evictable = || async {
        let pod = world.pod_api().get(&name).await.unwrap();
        let says = |annotation: &str| pod.annotations().get(annotation).cloned();
        let safe = says("cluster-autoscaler.kubernetes.io/safe-to-evict");
        (safe, says("karpenter.sh/do-not-disrupt"))
    };
    let (idle, kept) = ((Some("true".to_owned()), None), (Some("false".to_owned()), Some("true".to_owned())));
    assert_eq!(evictable().await, idle);
    world.patch_group("arena", json!({"spec": {"claim": {"timeoutSeconds": 2}}})).await;
    world.make_claim("match-1", json!({"groups": ["arena"]})).await;
    eventually("it is kept", evictable, |now| *now == kept).await;
    eventually("its claim has lapsed", evictable, |now| *now == idle).await;
    world.report(&name, State::Active).await;
    eventually("it is kept again", evictable, |now| *now == kept).await;
    let ours = world.audited("patch", "pods");
    assert_eq!(ours.len(), 3, "{ours:?}");
    world.end().await;
}
