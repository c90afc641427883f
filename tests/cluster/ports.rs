//! Rows A1 and F12: ports and addresses, on the node and on one that has a hiccup.

use gamekeeper::api::{EndReason, State};
use gamekeeper::rules::names::pod_name;
use gamekeeper::rules::ports::{self, Held, Pool};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::harness::{World, eventually, setting, silent_group, status};

/// A port that somebody else's pod holds on every node: the pod is made again with another.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_port_is_taken_is_made_again_with_another() {
    let world = World::new("taken").await;
    let group = world.apply(&silent_group("arena", 0).replace(", policy: PodIP", "")).await;
    world.group_until("arena", "Active", |status| status.phase == gamekeeper::api::Phase::Active).await;
    let name = pod_name("arena", &group.uid().unwrap(), 0, "");
    // The number that the first pod will ask for, if no other test's pod holds it by then.
    let pool = Pool { range: 7000..=8000, nodes: 1 };
    let number = ports::pick(&group.spec.ports, &name, &pool, &Held::new()).unwrap()[0].1;
    let squatter = json!({
        "metadata": {"name": "squatter"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "squatter", "image": setting("GAMEKEEPER_TEST_SILENT_IMAGE"),
            "ports": [{"containerPort": 7777, "hostPort": number, "protocol": "UDP"}],
        }]},
    });
    world.pod_api().create(&PostParams::default(), &serde_json::from_value(squatter).unwrap()).await.unwrap();
    eventually(
        "the port is held",
        || async { world.pod_api().get("squatter").await.unwrap().spec.unwrap().node_name },
        Option::is_some,
    )
    .await;

    world.scale("arena", 1).await;
    let event = world.event(&name, "Retired").await;
    let message = event.message.unwrap();
    assert!(message.contains("PortTaken") && message.contains(&number.to_string()), "{message}");
    let ready = world.ready_servers("arena", 1).await;
    assert_ne!(status(&ready[0]).ports[0].port, number);
    world.pod_api().delete("squatter", &DeleteParams::default()).await.unwrap();
    world.end().await;
}

/// Policy Passthrough: the game listens on the host port that it is given, and the agent asks it there.
#[tokio::test(flavor = "multi_thread")]
async fn a_game_passed_through_listens_on_the_port_that_players_use() {
    let world = World::new("passthrough").await;
    let sample =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/samples/openarena.yaml"));
    let sample = sample
        .unwrap()
        .replace("replicas: 3", "replicas: 1")
        .replace("policy: HostPort", "policy: Passthrough")
        .replace("    containerPort: 27960\n", "")
        .replace("args: [", "args: [+set, net_port, $(GAMEKEEPER_PORT_GAME), ");
    world.apply(&sample).await;
    let ready = world
        .servers_until("it is on offer", |servers| {
            servers
                .iter()
                .any(|server| status(server).state == State::StandingBy && status(server).address.is_some())
        })
        .await;
    let here = status(&ready[0]);
    let pod = world.pod_api().get(&ready[0].name_any()).await.unwrap();
    let port = pod.spec.unwrap().containers[0].ports.clone().unwrap()[0].clone();
    assert_eq!((port.container_port, port.host_port), (here.ports[0].port, Some(here.ports[0].port)));

    let socket = tokio::net::UdpSocket::bind("0.0.0.0:0").await.unwrap();
    socket.connect(format!("{}:{}", here.address.unwrap(), here.ports[0].port)).await.unwrap();
    let answer = || async {
        socket.send(b"\xff\xff\xff\xffgetstatus\n").await.unwrap();
        let mut answer = [0; 4096];
        let wait = std::time::Duration::from_secs(1);
        tokio::time::timeout(wait, socket.recv(&mut answer)).await.is_ok_and(|length| length.is_ok())
    };
    eventually("it answers a player", answer, |answers| *answers).await;
    world.end().await;
}

/// Case C20: a node's addresses go blank; the address that a server has been given stays.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_outlives_a_nodes_hiccup() {
    let world = World::new("hiccup").await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "ExternalIP", "address": "203.0.113.7"}]);
    let node = json!({"metadata": {"name": world.namespace}, "spec": {"unschedulable": true}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let set = |addresses: serde_json::Value| {
        let (nodes, name) = (nodes.clone(), world.namespace.clone());
        async move {
            let patch = json!({"status": {"addresses": addresses}});
            nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
    };
    set(addresses).await;
    let on_it = format!("              nodeName: {}\n              containers:", world.namespace);
    let group =
        silent_group("arena", 1).replace(", policy: PodIP", "").replace("              containers:", &on_it);
    world.apply(&group).await;
    let server = world.servers_until("a server is there", |servers| servers.len() == 1).await[0].name_any();
    // No kubelet is on this node: the test speaks for it.
    let runs = json!({"status": {
        "phase": "Running", "podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
            "name": "game", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }],
    }});
    let pods: Api<Pod> = world.pod_api();
    pods.patch_status(&server, &PatchParams::default(), &Patch::Merge(runs)).await.unwrap();
    world
        .server_until(&server, "it has the external address", |status| {
            status.address.as_deref() == Some("203.0.113.7")
        })
        .await;

    set(json!([])).await;
    world.lease_renewed().await;
    let here = status(&world.server(&server).await.unwrap());
    assert_eq!((here.address.as_deref(), here.state), (Some("203.0.113.7"), State::Initializing));
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    world.scale("arena", 0).await;
    pods.delete(&server, &at_once).await.unwrap();
    world.server_gone(&server).await;
    nodes.delete(&world.namespace, &DeleteParams::default()).await.unwrap();
    world.end().await;
}

/// Case C9: a pod that fails on its node's side, without a deletion mark: Terminated and replaced, also when it was
/// Active.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_its_node_fails_is_terminated_and_replaced() {
    let world = World::new("node-side").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    world.report(&server, State::Active).await;
    let failed =
        json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}});
    world.pod_api().patch_status(&server, &PatchParams::default(), &Patch::Merge(failed)).await.unwrap();

    let event = world.event(&server, "Terminated").await;
    assert!(event.message.unwrap().contains("the node was low on memory"));
    world.server_gone(&server).await;
    let replaced = world.ready_servers("arena", 1).await;
    assert!(status(&replaced[0]).end.is_none_or(|end| end.reason != EndReason::PodFailed));
    world.end().await;
}
