//! How the operator listens: limits, and a stop that refuses nobody.

use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::harness::{Fault, Proxy, World, eventually};

/// Opens connections, and says nothing on them.
async fn half_open(port: u16, count: usize) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    for _ in 0..count {
        connections.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    connections
}

/// Connections that are opened and left alone, three times as many as may be open, keep neither claims nor probes
/// out.
#[tokio::test(flavor = "multi_thread")]
async fn half_open_connections_starve_nobody() {
    let mut world = World::without_operator("half-open").await;
    world.with_arguments(&["--max-connections", "100"]);
    world.start_operator().await;
    world.silent_group("arena", 1).await;
    world.ready_servers("arena", 1).await;
    let token = world.matchmaker_token().await;
    let [api, plain] = world.ports(0);
    let _open = (half_open(api, 300).await, half_open(plain, 300).await);

    let start = Instant::now();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(reqwest::get(world.plain_url(0, path)).await.unwrap().status(), 200);
    }
    eventually(
        "a server is claimed",
        || world.claim(&token, "match-1", &["arena"]),
        |(code, _)| *code == 200,
    )
    .await;
    // Well before any of them is closed for its silence.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    world.end().await;
}

/// Beyond the limit of requests under way, the answer is 429 at once, and says when to ask again.
#[tokio::test(flavor = "multi_thread")]
async fn one_claim_too_many_is_told_so_at_once() {
    let mut world = World::without_operator("too-busy").await;
    let proxy = Proxy::start().await;
    world.go_through(&proxy);
    world.with_arguments(&["--max-requests", "1"]);
    world.start_operator().await;
    world.silent_group("arena", 2).await;
    world.ready_servers("arena", 2).await;
    let token = world.matchmaker_token().await;

    proxy.fault_at(0, Fault::Delay(Duration::from_secs(2)));
    let (first, (code, problem)) = tokio::join!(world.claim(&token, "match-1", &["arena"]), async {
        eventually("the first claim is under way", || async { proxy.happened() }, |happened| *happened == 1)
            .await;
        world.claim(&token, "match-2", &["arena"]).await
    });
    assert_eq!((code, problem["title"].as_str()), (429, Some("too busy")), "{problem}");
    assert_eq!(first.0, 200, "{}", first.1);
    assert_eq!(world.claim(&token, "match-2", &["arena"]).await.0, 200);
    world.end().await;
}

/// A replica that is told to stop is not ready from then on, still takes claims until Kubernetes has passed that on,
/// and answers those under way before it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_refuses_no_claim() {
    let mut world = World::without_operator("stop").await;
    let proxy = Proxy::start().await;
    world.go_through(&proxy);
    world.start_operator().await;
    world.silent_group("arena", 2).await;
    world.ready_servers("arena", 2).await;
    let token = world.matchmaker_token().await;

    // So long that the operator is closing its doors when the claim ends.
    proxy.fault_at(0, Fault::Delay(Duration::from_secs(4)));
    let (first, second) = tokio::join!(world.claim(&token, "match-1", &["arena"]), async {
        eventually("the first claim is under way", || async { proxy.happened() }, |happened| *happened == 1)
            .await;
        world.terminate_operator(0);
        let ready = || async { reqwest::get(world.plain_url(0, "/readyz")).await.unwrap().status().as_u16() };
        eventually("it is not ready", ready, |code| *code == 503).await;
        world.claim(&token, "match-2", &["arena"]).await
    });
    assert_eq!(first.0, 200, "{}", first.1);
    assert_eq!(second.0, 200, "{}", second.1);
    assert!(world.operator_ended(0).await);
    world.kill_operators();
    world.end().await;
}
