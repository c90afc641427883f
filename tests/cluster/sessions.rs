//! Rows A3 and A4: players and sessions, as a matchmaker sets them and as a mark waits for them.

use gamekeeper::api::{EndReason, GameServer, State};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::harness::{World, account, status};

/// Row A3, by status patch: a matchmaker sets the players and sessions of several servers, absolute: what it says twice
/// is so once.
#[tokio::test(flavor = "multi_thread")]
async fn a_matchmaker_sets_the_players_and_sessions_of_several_servers() {
    let world = World::new("counts").await;
    world.silent_group("arena", 3).await;
    let servers = world.ready_servers("arena", 3).await;
    let rules = json!([{
        "apiGroups": ["gamekeeper.dev"], "resources": ["gameservers/status"], "verbs": ["get", "patch"],
    }]);
    let token = account(&world.client, &world.namespace, "lobby", rules).await;
    let lobby: Api<GameServer> = Api::namespaced(world.client_with(&token).await, &world.namespace);
    let set = async |name: &str, players: usize, sessions: i32| {
        let counts = json!({"players": {"count": players, "capacity": 8}, "sessions": sessions});
        let patch = Patch::Merge(json!({"status": counts}));
        lobby.patch_status(name, &PatchParams::default(), &patch).await
    };

    for _ in 0..2 {
        for (players, server) in servers.iter().enumerate() {
            set(&server.name_any(), players, 1).await.unwrap();
        }
    }
    for (players, server) in servers.iter().enumerate() {
        let now = status(&world.server(&server.name_any()).await.unwrap());
        let counted = now.players.map(|players| (usize::try_from(players.count).unwrap(), players.capacity));
        assert_eq!((counted, now.sessions, now.state), (Some((players, 8)), Some(1), State::StandingBy));
    }
    let refusal = set(&servers[0].name_any(), 0, -1).await.unwrap_err().to_string();
    assert!(refusal.contains("status.sessions"), "{refusal}");
    let table = world.kubectl(&["get", "gameservers", "--output", "wide"]).await;
    assert!(table.contains("PLAYERS") && table.contains("SESSIONS"), "{table}");
    // They change nothing else: all are on offer still.
    world.ready_servers("arena", 3).await;
    world.end().await;
}

/// Row A4: a marked server goes when its last session ends, and is replaced; one that is not marked stays, and so does
/// one that plays (invariant I3).
#[tokio::test(flavor = "multi_thread")]
async fn a_marked_server_goes_with_its_last_session() {
    let world = World::new("last-session").await;
    world.silent_group("arena", 2).await;
    let servers = world.ready_servers("arena", 2).await;
    let (marked, other) = (servers[0].name_any(), servers[1].name_any());
    let set = |name: String, sessions: i32| {
        let world = &world;
        async move {
            world.try_patch_status(&name, json!({"state": "Active", "sessions": sessions})).await.unwrap();
        }
    };
    set(marked.clone(), 2).await;
    set(other.clone(), 0).await;
    world.patch_server(&marked, json!({"spec": {"shutdown": "WhenIdle"}})).await;
    // One more is made in its place.
    let both = |pods: &Vec<Pod>| pods.len() == 3;
    crate::harness::eventually("it is replaced", || world.pods(), both).await;
    set(marked.clone(), 1).await;
    world.lease_renewed().await;
    for name in [&marked, &other] {
        assert_eq!(status(&world.server(name).await.unwrap()).state, State::Active);
    }

    set(marked.clone(), 0).await;
    let event = world.event(&marked, "Retired").await;
    let words = event.message.unwrap();
    assert!(words.contains("its last session had ended"), "{words}");
    world.server_gone(&marked).await;
    assert_eq!(status(&world.server(&other).await.unwrap()).state, State::Active);
    assert!(words.contains(&format!("{:?}", EndReason::Marked)));
    world.end().await;
}
