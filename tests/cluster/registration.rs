//! Row F11, registration Self: a process makes and deletes its own GameServer with its pod's token, and only that.

use gamekeeper::api::{EndReason, GameServer, GameServerGroupStatus, State};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{World, account, eventually, self_group, server_of, setting, status};

/// The games' account.
const GAMES: &str = "gamekeeper-game";

/// Applies a group of silent servers that are to register themselves, and waits until its pods run.
async fn running(world: &World, name: &str, replicas: u32) -> Vec<Pod> {
    world.apply(&self_group(name, replicas)).await;
    running_pods(world, usize::try_from(replicas).unwrap()).await
}

async fn running_pods(world: &World, count: usize) -> Vec<Pod> {
    let run = |pods: &Vec<Pod>| {
        let running = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
        };
        pods.iter().filter(running).count() == count && pods.len() == count
    };
    eventually("the pods run", || world.pods(), run).await
}

/// `server` with another value at `place`.
fn with(mut server: Value, place: &str, value: Value) -> Value {
    let (parent, field) = place.rsplit_once('/').unwrap();
    server.pointer_mut(parent).unwrap()[field] = value;
    server
}

async fn register(servers: &Api<GameServer>, server: Value) -> Result<GameServer, String> {
    let server: GameServer = serde_json::from_value(server).unwrap();
    servers.create(&PostParams::default(), &server).await.map_err(|error| error.to_string())
}

async fn deregister(servers: &Api<GameServer>, name: &str) -> Result<(), String> {
    servers.delete(name, &DeleteParams::default()).await.map(drop).map_err(|error| error.to_string())
}

async fn report(servers: &Api<GameServer>, name: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    servers.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Registers the process of `pod`, and reports it ready.
async fn ready(world: &World, pod: &Pod, group: &str) -> Api<GameServer> {
    let process = world.as_pod(&pod.name_any(), GAMES).await;
    register(&process, server_of(pod, group)).await.unwrap();
    report(&process, &pod.name_any(), json!({"state": "StandingBy"})).await;
    process
}

async fn on_offer(world: &World, group: &str, count: i32) {
    let all = |status: &gamekeeper::api::GameServerGroupStatus| {
        status.servers.is_some_and(|counts| counts.on_offer == count)
    };
    world.group_until(group, "they are on offer", all).await;
}

/// Row F11: a real process, with nothing but curl. Row F15: what deregisters is never used again.
#[tokio::test(flavor = "multi_thread")]
async fn a_game_registers_and_deregisters_itself_with_curl() {
    let world = World::new("self-curl").await;
    let sample =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/samples/registration.yaml"))
            .unwrap();
    world.apply(&sample.replace("replicas: 1", "replicas: 2")).await;
    on_offer(&world, "registration", 2).await;
    let (servers, pods) = (world.servers().await, world.pod_uids().await);
    assert!(servers.iter().all(|server| {
        server
            .metadata
            .managed_fields
            .iter()
            .flatten()
            .any(|entry| entry.manager.as_deref().is_some_and(|manager| manager.starts_with("curl")))
    }));
    let (played, left) = (servers[0].name_any(), servers[1].name_any());

    world.exec(&played, "game", &["touch", "/tmp/play"]).await;
    world
        .server_until(&played, "Active, with a session", |status| {
            status.state == State::Active && status.sessions == Some(1)
        })
        .await;
    for name in [&played, &left] {
        world.exec(name, "game", &["touch", "/tmp/over"]).await;
        world.server_gone(name).await;
    }
    on_offer(&world, "registration", 2).await;
    assert!(pods.is_disjoint(&world.pod_uids().await));
    world.end().await;
}

/// Row F11, row K2: only itself, and each refusal says why. Invariant I7: no owner in another namespace.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_registers_itself_and_nothing_else() {
    let world = World::new("self-only").await;
    let pods = running(&world, "arena", 2).await;
    world.apply(&self_group("other", 0)).await;
    let (own, other) = (server_of(&pods[0], "arena"), server_of(&pods[1], "arena"));
    let process = world.as_pod(&pods[0].name_any(), GAMES).await;
    let (name, uid) = (other["metadata"]["name"].clone(), pods[1].uid());
    let owner = "/metadata/ownerReferences/0";
    let two = json!([own.pointer(owner), other.pointer(owner)]);
    let not_its_to_set = "these are not for pod";
    for (server, words) in [
        (other.clone(), "of its own name, not"),
        (with(own.clone(), "/metadata/name", name), "of its own name, not"),
        (with(own.clone(), "/metadata/name", json!("forged")), "of its own name, not forged"),
        (with(own.clone(), &format!("{owner}/uid"), json!(uid)), "has one owner, that pod"),
        (with(own.clone(), &format!("{owner}/kind"), json!("Node")), "has one owner, that pod"),
        (with(own.clone(), "/metadata/ownerReferences", json!([])), "has one owner, that pod"),
        (with(own.clone(), "/metadata/ownerReferences", two), "has one owner, that pod"),
        (with(own.clone(), "/spec/group", json!("other")), "only register in the group that it belongs to"),
        (with(own.clone(), "/spec/group", json!("are")), "only register in the group that it belongs to"),
        (with(own.clone(), "/spec/shutdown", json!("Now")), not_its_to_set),
        (with(own.clone(), "/metadata/finalizers", json!(["example.com/x"])), not_its_to_set),
        (with(own.clone(), "/metadata/labels", json!({"gamekeeper.dev/group-uid": "x"})), not_its_to_set),
        (with(own.clone(), "/metadata/annotations", json!({"gamekeeper.dev/attempt": "0"})), not_its_to_set),
    ] {
        let refusal = register(&process, server.clone()).await.expect_err(&server.to_string());
        assert!(refusal.contains(words), "{server}: {refusal}\nlacks: {words}");
    }
    // A status is not taken with it: it starts as any other.
    let own =
        with(own, "/status", json!({"state": "Active", "claimStatus": "Unclaimed", "health": "Healthy"}));
    let own = with(own, "/metadata/labels", json!({"example.com/build": "7"}));
    let made = register(&process, own).await.unwrap();
    assert_eq!((status(&made).state, made.labels()["example.com/build"].as_str()), (State::Creating, "7"));

    // And it deletes no other's.
    let second = ready(&world, &pods[1], "arena").await;
    let refusal = deregister(&process, &pods[1].name_any()).await.unwrap_err();
    assert!(refusal.contains("may only delete its own GameServer"), "{refusal}");
    on_offer(&world, "arena", 1).await;
    drop(second);
    world.end().await;
}

/// Invariant I7: a process with every right in another namespace makes no GameServer there that its pod would own.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_registers_in_its_own_namespace_only() {
    let (home, away) = (World::new("self-home").await, World::new("self-away").await);
    let every = json!([{"apiGroups": ["gamekeeper.dev"], "resources": ["gameservers"], "verbs": ["*"]}]);
    account(&home.client, &home.namespace, "mighty", every.clone()).await;
    account(&away.client, &away.namespace, "mighty", every).await;
    let subject = format!("{}:mighty", home.namespace);
    away.kubectl(&["create", "rolebinding", "guest", "--role", "mighty", "--serviceaccount", &subject]).await;
    away.apply(&self_group("arena", 0)).await;
    let group = self_group("arena", 1).replace(
        "              containers:",
        "              serviceAccountName: mighty\n              containers:",
    );
    home.apply(&group).await;
    let pod = running_pods(&home, 1).await.remove(0);
    let process = home.as_pod(&pod.name_any(), "mighty").await;
    let abroad: Api<GameServer> = Api::namespaced(process.into_client(), &away.namespace);

    let refusal = register(&abroad, server_of(&pod, "arena")).await.unwrap_err();
    assert!(refusal.contains("in its own namespace"), "{refusal}");
    home.end().await;
    away.end().await;
}

/// Row F11: the policy tells the two kinds of groups apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_an_automatic_group_neither_registers_nor_deregisters() {
    let world = World::new("self-automatic").await;
    world.apply(&self_group("other", 0)).await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let pod = world.pod_api().get(&server).await.unwrap();
    let process = world.as_pod(&server, GAMES).await;

    let words = "only with registration Self does a game create and delete its own";
    let refusal = register(&process, server_of(&pod, "arena")).await.unwrap_err();
    assert!(refusal.contains(words), "{refusal}");
    let refusal = deregister(&process, &server).await.unwrap_err();
    assert!(refusal.contains(words), "{refusal}");
    let with_agent = self_group("both", 0).replace(
        "  registration: Self",
        "  registration: Self\n          agent: {protocol: IdTech3, port: game}",
    );
    let refusal = world.try_apply(&with_agent).await.unwrap_err().to_string();
    assert!(refusal.contains("leave out agent"), "{refusal}");
    world.end().await;
}

/// Rows F11 and F15: what deregisters leaves the pool at once and is replaced; but a game is not ended by it
/// (invariant I3).
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_deregisters_is_retired_and_replaced() {
    let world = World::new("self-leaves").await;
    let pod = running(&world, "arena", 1).await.remove(0);
    let process = ready(&world, &pod, "arena").await;
    on_offer(&world, "arena", 1).await;
    deregister(&process, &pod.name_any()).await.unwrap();
    world.server_gone(&pod.name_any()).await;

    let next = running_pods(&world, 1).await.remove(0);
    assert_ne!((pod.name_any(), pod.uid()), (next.name_any(), next.uid()));
    let process = ready(&world, &next, "arena").await;
    on_offer(&world, "arena", 1).await;
    let name = next.name_any();
    report(&process, &name, json!({"state": "Active"})).await;
    let refusal = deregister(&process, &name).await.unwrap_err();
    assert!(refusal.contains("is Active: report Terminating before it is deleted"), "{refusal}");
    report(&process, &name, json!({"state": "Terminating"})).await;
    // Its pod may be on its way already.
    let _ = deregister(&process, &name).await;
    world.server_gone(&name).await;
    running_pods(&world, 1).await;
    world.end().await;
}

/// Row K2: a dead pod's token, as long as the API server still takes it, registers nobody in another's place; and what it
/// registers in its own is never on offer, and collected.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_pods_token_registers_nobody() {
    let world = World::new("self-dead").await;
    let pods = running(&world, "arena", 2).await;
    let (dead, other) = (&pods[0], &pods[1]);
    let process = world.as_pod(&dead.name_any(), GAMES).await;
    // The API server remembers for some seconds whose it is.
    assert!(process.get_opt(&dead.name_any()).await.unwrap().is_none());
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    world.pod_api().delete(&dead.name_any(), &at_once).await.unwrap();

    let dead_uid = dead.uid().unwrap();
    let owned_by_the_dead = with(
        server_of(other, "arena"),
        "/metadata/ownerReferences",
        server_of(dead, "arena")["metadata"]["ownerReferences"].clone(),
    );
    for (server, words) in [
        (server_of(other, "arena"), "of its own name, not"),
        (owned_by_the_dead, "of its own name, not"),
        (
            with(server_of(dead, "arena"), "/metadata/ownerReferences/0/uid", json!(other.uid())),
            "has one owner",
        ),
    ] {
        let refusal = register(&process, server.clone()).await.expect_err(&server.to_string());
        assert!(refusal.contains(words) || refusal.contains("Unauthorized"), "{refusal}");
    }
    let token = world.matchmaker_token().await;
    if register(&process, server_of(dead, "arena")).await.is_ok() {
        let ready = Patch::Merge(json!({"status": {"state": "StandingBy"}}));
        // It may be gone by now, and its token with it.
        let _ = process.patch_status(&dead.name_any(), &PatchParams::default(), &ready).await;
        let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
        assert_eq!(code, 503, "{answer}");
        world
            .servers_until("it is collected", |servers| {
                let owners = |server: &GameServer| server.owner_references().to_vec();
                !servers.iter().flat_map(owners).any(|owner| owner.uid == dead_uid)
            })
            .await;
    }
    ready(&world, other, "arena").await;
    on_offer(&world, "arena", 1).await;
    world.end().await;
}

/// Row F11: a process that never registers is replaced after the launch timeout, more and more slowly; so is one that
/// ends before it has (row P5).
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_never_registers_is_replaced() {
    let world = World::new("self-never").await;
    let quick = "registration: Self\n          launchTimeoutSeconds: 2";
    world.apply(&self_group("mute", 1).replace("registration: Self", quick)).await;
    let crash = "command: ['/bin/bash', '-c', 'exit 7']";
    let crashing = self_group("crash", 1)
        .replace(&setting("GAMEKEEPER_TEST_SILENT_IMAGE"), &setting("GAMEKEEPER_TEST_SHELL_IMAGE"))
        .replace("{name: game, image", &format!("{{name: game, {crash}, image"));
    world.apply(&crashing).await;

    for (group, reason, words) in [
        ("mute", EndReason::LaunchTimeout, "it was not StandingBy 2 s after it was made"),
        ("crash", EndReason::Crashed, "exited with code 7"),
    ] {
        let ended = |server: &GameServer| {
            server.spec.group == group && status(server).end.is_some_and(|end| end.reason == reason)
        };
        world.servers_until("one has ended", |servers| servers.iter().any(&ended)).await;
        let event = world.event(group, "KeepsFailing").await;
        assert!(event.message.as_ref().is_some_and(|message| message.contains(words)), "{event:?}");
    }
    world.end().await;
}

/// Rows F2 and F10: what has not registered itself goes with the number that it was made for, and with its group.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_not_registered_goes_with_scale_in_and_deletion() {
    let world = World::new("self-fewer").await;
    let pods = running(&world, "arena", 3).await;
    let registered = &pods[0];
    ready(&world, registered, "arena").await;
    on_offer(&world, "arena", 1).await;
    world.scale("arena", 1).await;
    let left = running_pods(&world, 1).await;
    assert_eq!(left[0].uid(), registered.uid());

    world.scale("arena", 2).await;
    running_pods(&world, 2).await;
    world.delete_group("arena").await;
    world.no_groups().await;
    assert!(world.servers().await.is_empty() && world.pods().await.is_empty());
    world.end().await;
}

/// Invariant I8: a quota that leaves no room for the servers of what is to go makes no storm, and what is to go goes once
/// there is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_on_game_servers_makes_no_storm() {
    let world = World::new("self-quota").await;
    running(&world, "arena", 2).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client.clone(), &world.namespace);
    let hard = json!({"count/gameservers.gamekeeper.dev": "0"});
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": hard}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    eventually(
        "the quota counts",
        || async { quotas.get("none").await.unwrap() },
        |quota| quota.status.as_ref().is_some_and(|status| status.used.is_some()),
    )
    .await;
    world.scale("arena", 0).await;
    let refused = |status: &GameServerGroupStatus| format!("{status:?}").contains("exceeded quota: none");
    world.group_until("arena", "its status says why", refused).await;
    let before = world.audited("create", "gameservers").len();
    world.lease_renewed().await;
    let tried = world.audited("create", "gameservers").len() - before;
    assert!(tried <= 16, "{tried} creations were tried");
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    running_pods(&world, 0).await;
    world.end().await;
}

/// Invariant I5: what registered, went on and left while the operator was down is taken up by the next.
#[tokio::test(flavor = "multi_thread")]
async fn what_registers_while_the_operator_is_down_is_taken_up() {
    let mut world = World::new("self-down").await;
    let pods = running(&world, "arena", 2).await;
    world.kill_operators();
    let first = ready(&world, &pods[0], "arena").await;
    ready(&world, &pods[1], "arena").await;
    // Nothing holds it yet: its end would not be seen.
    let refusal = deregister(&first, &pods[0].name_any()).await.unwrap_err();
    assert!(refusal.contains("has not been taken up by the operator yet"), "{refusal}");
    world.start_operator().await;
    on_offer(&world, "arena", 2).await;
    assert_eq!(world.pods().await.len(), 2);

    world.kill_operators();
    deregister(&first, &pods[0].name_any()).await.unwrap();
    world.start_operator().await;
    world.server_gone(&pods[0].name_any()).await;
    let uids = |pods: &[Pod]| pods.iter().filter_map(ResourceExt::uid).collect::<Vec<_>>();
    let now = running_pods(&world, 2).await;
    assert!(uids(&now).contains(&pods[1].uid().unwrap()) && !uids(&now).contains(&pods[0].uid().unwrap()));
    on_offer(&world, "arena", 1).await;
    world.end().await;
}
