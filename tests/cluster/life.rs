//! Rows P1 to P5, A1, cases C9 and C10: real processes on the node.

use gamekeeper::api::{EndReason, Phase, State, conditions};
use kube::ResourceExt;
use serde_json::json;

use crate::harness::{World, eventually, setting, silent_group, status};

/// A group whose game is this shell script.
fn scripted(name: &str, replicas: u32, script: &str) -> String {
    let image = setting("GAMEKEEPER_TEST_SHELL_IMAGE");
    let silent = setting("GAMEKEEPER_TEST_SILENT_IMAGE");
    let command = json!(["/bin/bash", "-c", script]).to_string();
    silent_group(name, replicas)
        .replace(&format!("image: '{silent}'"), &format!("image: '{image}', command: {command}"))
}

/// Row P5: a crash is replaced at once; when it loops, more and more slowly, and a condition says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_backs_off_with_a_condition() {
    let world = World::new("crash").await;
    world.apply(&scripted("arena", 1, "exit 7")).await;

    let looping = world
        .group_until("arena", "KeepsFailing", |status| {
            status.conditions.iter().any(|condition| {
                condition.type_ == conditions::PROGRESSING && condition.reason == "KeepsFailing"
            })
        })
        .await;
    let condition =
        looping.conditions.iter().find(|condition| condition.type_ == conditions::PROGRESSING).unwrap();
    assert!(condition.message.contains("exited with code 7"), "{condition:?}");
    assert_eq!(looping.phase, Phase::Error);
    world.event("arena", "KeepsFailing").await;
    // The failed pod is there until its place is filled again, for whoever wants to read its log.
    let failed = world
        .servers_until("a Terminated server is kept", |servers| {
            servers.iter().any(|server| status(server).state == State::Terminated)
        })
        .await;
    let end = failed.iter().find_map(|server| status(server).end).unwrap();
    assert_eq!(end.reason, EndReason::Crashed);

    // Few pods in the time of three lease renewals: 0, 0, 5, 10 and 20 s apart.
    for _ in 0..3 {
        world.lease_renewed().await;
    }
    let made = world.audited("create", "pods").len();
    assert!(made <= 8, "{made} pods were made");

    world.silent_group("arena", 1).await;
    world
        .patch_group(
            "arena",
            json!({"spec": {"template": {"spec": {"containers": [
                {"name": "game", "image": setting("GAMEKEEPER_TEST_SILENT_IMAGE")}
            ]}}}}),
        )
        .await;
    world.ready_servers("arena", 1).await;
    world.group_until("arena", "Active", |status| status.phase == Phase::Active).await;
    world.end().await;
}

/// Row P5: a container that cannot be started is a failure like any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_be_started_backs_off_too() {
    let world = World::new("start-error").await;
    let silent = setting("GAMEKEEPER_TEST_SILENT_IMAGE");
    let mistyped = silent_group("arena", 1)
        .replace(&format!("image: '{silent}'"), &format!("image: '{silent}', command: [/no/such]"));
    world.apply(&mistyped).await;

    let failing = world
        .group_until("arena", "KeepsFailing", |status| {
            status.conditions.iter().any(|condition| condition.reason == "KeepsFailing")
        })
        .await;
    let ready = failing.conditions.iter().find(|condition| condition.type_ == conditions::READY).unwrap();
    assert!(ready.message.contains("/no/such"), "{ready:?}");
    let before = world.audited("create", "pods").len();
    world.lease_renewed().await;
    let made = world.audited("create", "pods").len() - before;
    assert!(made <= 3, "{made} pods were made in ten seconds");
    world.end().await;
}

/// Case C10: the game exits 0 while another container of the pod runs on.
/// Row P4: Terminated is seen before the server goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_game_that_exits_is_terminated_whatever_else_runs() {
    let world = World::new("exit").await;
    let silent = setting("GAMEKEEPER_TEST_SILENT_IMAGE");
    let script = "trap 'exit 0' TERM; until [ -e /tmp/over ]; do sleep 0.1; done; exit 0";
    let two = scripted("arena", 1, script).replace(
        "              containers:",
        &format!("              containers:\n              - {{name: first, image: '{silent}'}}"),
    );
    // The game is the first container: put it there.
    let game_line = two.lines().find(|line| line.contains("name: game, image")).unwrap().to_owned();
    let two = two
        .replace(&format!("{game_line}\n"), "")
        .replace("              - {name: first", &format!("{game_line}\n              - {{name: first"));
    world.apply(&two).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    world.report(&server, State::Active).await;
    world.exec(&server, "game", &["touch", "/tmp/over"]).await;

    world.event(&server, "Terminated").await;
    world.server_gone(&server).await;
    let replacement = world.servers_until("the replacement runs", |servers| servers.len() == 1).await;
    assert_ne!(replacement[0].name_any(), server);
    world.end().await;
}

/// A server that does not get ready in time is replaced (`launchTimeoutSeconds`).
#[tokio::test(flavor = "multi_thread")]
async fn a_launch_that_takes_too_long_is_replaced_more_and_more_slowly() {
    let world = World::new("launch").await;
    world
        .apply(
            &silent_group("arena", 1)
                .replace("replicas: 1", "replicas: 1\n          launchTimeoutSeconds: 3"),
        )
        .await;
    let first = world.servers_until("a server is there", |servers| servers.len() == 1).await[0].name_any();

    let event = world.event(&first, "Retired").await;
    assert!(event.message.unwrap().contains("launchTimeoutSeconds"));
    // Again and again, it is replaced more and more slowly, and the group says why.
    let failing = world
        .group_until("arena", "KeepsFailing", |status| {
            status.conditions.iter().any(|condition| condition.reason == "KeepsFailing")
        })
        .await;
    let ready = failing.conditions.iter().find(|condition| condition.type_ == conditions::READY).unwrap();
    assert!(ready.message.contains("launchTimeoutSeconds"), "{ready:?}");
    world.server_gone(&first).await;
    world.end().await;
}

/// Row K2. Row P2. Row P3: the sample that reports with nothing but curl, through a whole session.
/// Row K4: the sample works as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_game_without_an_agent_reports_itself_with_curl() {
    let world = World::new("shell").await;
    let sample =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/samples/shell.yaml")).unwrap();
    world.apply(&sample.replace("replicas: 2", "replicas: 1")).await;
    let ready = world
        .servers_until("it stands by", |servers| {
            servers
                .iter()
                .any(|server| status(server).state == State::StandingBy && status(server).address.is_some())
        })
        .await;
    let server = ready[0].name_any();
    assert_eq!(status(&ready[0]).data.as_deref(), Some("map=harbour"));
    let token = world.matchmaker_token().await;
    let (code, answer) =
        eventually("it is claimed", || world.claim(&token, "match-1", &["shell"]), |(code, _)| *code == 200)
            .await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(server.as_str())));

    world.exec(&server, "game", &["touch", "/tmp/play"]).await;
    world
        .server_until(&server, "Active", |status| {
            status.state == State::Active && status.players.is_some_and(|players| players.count == 1)
        })
        .await;
    world.exec(&server, "game", &["touch", "/tmp/over"]).await;
    world.server_gone(&server).await;
    world.event(&server, "Terminated").await;
    world.end().await;
}

/// Row A1: a client outside the cluster connects to the node's address. Rows P1, P2 and P3 with a game that knows
/// nothing of Kubernetes: the agent reports it.
#[tokio::test(flavor = "multi_thread")]
async fn openarena_is_reported_by_the_agent_and_reached_from_outside() {
    let world = World::new("openarena").await;
    let sample =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/samples/openarena.yaml"))
            .unwrap();
    let sample = sample
        .replace("replicas: 3", "replicas: 1")
        .replace("emptySeconds: 30", "emptySeconds: 2")
        .replace("args: [+set, sv", "args: [+set, rconPassword, secret, +set, sv");
    world.apply(&sample).await;
    let ready = world
        .servers_until("it is on offer", |servers| {
            servers
                .iter()
                .any(|server| status(server).state == State::StandingBy && status(server).address.is_some())
        })
        .await;
    let server = ready[0].name_any();
    let here = status(&ready[0]);
    assert_eq!(here.address, Some(setting("GAMEKEEPER_TEST_NODE_ADDRESS")));
    assert_eq!(here.players.map(|players| players.capacity), Some(12));
    let address = format!("{}:{}", here.address.unwrap(), here.ports[0].port);

    let socket = tokio::net::UdpSocket::bind("0.0.0.0:0").await.unwrap();
    socket.connect(&address).await.unwrap();
    let say = |words: &str| [b"\xff\xff\xff\xff".as_slice(), words.as_bytes(), b"\n"].concat();
    socket.send(&say("rcon secret addbot sarge 1")).await.unwrap();
    world
        .server_until(&server, "Active, with a player", |status| {
            status.state == State::Active && status.players.is_some_and(|players| players.count == 1)
        })
        .await;
    socket.send(&say("rcon secret kick allbots")).await.unwrap();
    world.server_gone(&server).await;
    world.event(&server, "Terminated").await;
    world.end().await;
}

/// Rows A7 and A8: a named group of a given size, from one manifest, each with an address of its own.
#[tokio::test(flavor = "multi_thread")]
async fn many_servers_on_one_node_have_ports_of_their_own() {
    let world = World::new("ports").await;
    world.apply(&silent_group("arena", 20).replace(", policy: PodIP", "")).await;
    let servers = world.ready_servers("arena", 20).await;
    let ports: std::collections::BTreeSet<i32> =
        servers.iter().map(|server| status(server).ports[0].port).collect();
    assert_eq!(ports.len(), 20);
    assert!(
        servers.iter().all(|server| status(server).address == Some(setting("GAMEKEEPER_TEST_NODE_ADDRESS")))
    );
    world.end().await;
}
