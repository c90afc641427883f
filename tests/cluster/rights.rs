//! Row K2: what a pod's token may write. Row K4: plain manifests.

use gamekeeper::api::GameServer;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{World, account, silent_group, status};

async fn patch_status(servers: &Api<GameServer>, name: &str, status: Value) -> Result<GameServer, String> {
    let patch = Patch::Merge(json!({"status": status}));
    servers.patch_status(name, &PatchParams::default(), &patch).await.map_err(|error| error.to_string())
}

/// A silent group whose pods run as this account.
fn group_as(account: &str, name: &str, replicas: u32) -> String {
    let (containers, account) =
        ("              containers:", format!("              serviceAccountName: {account}"));
    silent_group(name, replicas).replace(containers, &format!("{account}\n{containers}"))
}

async fn running_servers(world: &World, count: usize) -> Vec<GameServer> {
    let run = |servers: &Vec<GameServer>| {
        servers.len() == count && servers.iter().all(|server| status(server).address.is_some())
    };
    world.servers_until("all run", run).await
}

/// Row K2: its own fields of its own server, and each refusal says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_writes_its_own_fields_of_its_own_server_and_nothing_else() {
    let world = World::new("rights").await;
    world.silent_group("arena", 2).await;
    let servers = running_servers(&world, 2).await;
    let (own, other) = (servers[0].name_any(), servers[1].name_any());
    let pod = world.as_pod(&own, "gamekeeper-game").await;

    let all = json!({"state": "StandingBy", "health": "Healthy", "data": "map=harbour", "players": {"count": 0, "capacity": 8}});
    patch_status(&pod, &own, all).await.unwrap();

    let claim = json!({"id": "x", "by": "me", "claimedAt": "2026-01-01T00:00:00Z", "expiresAt": "2026-01-01T00:00:00Z"});
    let end = json!({"reason": "SessionEnded", "message": "", "time": "2026-01-01T00:00:00Z"});
    let own_fields = "may only change state, players, sessions, data and health";
    for (name, change, words) in [
        (&other, json!({"state": "Active"}), "belongs to another pod"),
        (&own, json!({"claimStatus": "Claimed", "claim": claim}), own_fields),
        (&own, json!({"claim": claim}), own_fields),
        (&own, json!({"instance": {"nodeName": "moon"}}), own_fields),
        (&own, json!({"instance": null}), own_fields),
        (&own, json!({"address": "192.0.2.1"}), own_fields),
        (&own, json!({"address": null}), own_fields),
        (&own, json!({"ports": []}), own_fields),
        (&own, json!({"end": end}), own_fields),
        (&own, json!({"state": "Terminated"}), "StandingBy, Active and Terminating, not Terminated"),
        (&own, json!({"state": "Initializing"}), "only goes forward"),
        (&own, json!({"state": null}), "Required value"),
        (&own, json!({"health": null}), "Required value"),
        (&own, json!({"data": "x".repeat(1025)}), "may not be more than 1024"),
    ] {
        let refusal = patch_status(&pod, name, change.clone()).await.expect_err(&change.to_string());
        assert!(refusal.contains(words), "{change}: {refusal}\nlacks: {words}");
    }
    let spec = Patch::Merge(json!({"spec": {"shutdown": "Now"}}));
    assert!(pod.patch(&own, &PatchParams::default(), &spec).await.is_err());
    let refusal = pod.delete(&own, &DeleteParams::default()).await.unwrap_err().to_string();
    assert!(refusal.contains("only with registration Self"), "{refusal}");
    let after = status(&world.server(&own).await.unwrap());
    assert!(after.claim.is_none() && after.end.is_none() && after.address.is_some());
    world.end().await;
}

/// Row K2. The status starts as it must, and whoever writes it cannot take away what the rules rest on.
#[tokio::test(flavor = "multi_thread")]
async fn a_servers_state_cannot_be_reset_by_anybody() {
    let world = World::new("reset").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].clone();
    let name = server.name_any();
    world.report(&name, gamekeeper::api::State::Active).await;
    let servers = world.server_api();
    let params = PatchParams::default();
    for change in [
        json!({"status": null}),
        json!({"status": {"state": null}}),
        json!({"status": {"state": "StandingBy"}}),
    ] {
        let outcome = servers.patch_status(&name, &params, &Patch::Merge(&change)).await;
        assert!(outcome.is_err(), "{change}");
    }
    let mut emptied = servers.get(&name).await.unwrap();
    emptied.status = None;
    assert!(servers.replace_status(&name, &PostParams::default(), &emptied).await.is_err());
    let end = status(&world.server(&name).await.unwrap());
    assert_eq!(end.state, gamekeeper::api::State::Active);
    let moved = Patch::Merge(json!({"spec": {"group": "other"}}));
    let refusal = servers.patch(&name, &params, &moved).await.unwrap_err().to_string();
    assert!(refusal.contains("stays in its group"), "{refusal}");
    world.end().await;
}

/// Row K2: the games' account writes nothing without a pod: not by a token of its own, and not by impersonation.
#[tokio::test(flavor = "multi_thread")]
async fn the_games_account_writes_nothing_without_a_pod() {
    let world = World::new("unbound").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let accounts: Api<ServiceAccount> = Api::namespaced(world.client.clone(), &world.namespace);
    let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
    let token =
        accounts.create_token_request("gamekeeper-game", &PostParams::default(), &request).await.unwrap();
    let client = world.client_with(&token.status.unwrap().token.unwrap()).await;

    let unbound = Api::namespaced(client, &world.namespace);
    let refusal = patch_status(&unbound, &server, json!({"state": "Active"})).await.unwrap_err();
    assert!(refusal.contains("only with a token that is bound to a pod"), "{refusal}");
    world.end().await;
}

/// Row K2: the claim API is no way round the policy: through it a pod that runs a game reports nothing, of itself neither,
/// whatever its account may do.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_runs_a_game_reports_nothing_over_the_claim_api() {
    let world = World::new("no-way-round").await;
    let every =
        json!([{"apiGroups": ["gamekeeper.dev"], "resources": ["gameservers/players"], "verbs": ["*"]}]);
    account(&world.client, &world.namespace, "mighty", every).await;
    world.silent_group("arena", 1).await;
    world.apply(&group_as("mighty", "strong", 1)).await;
    let weak = world.ready_servers("arena", 1).await[0].name_any();
    let strong = world.ready_servers("strong", 1).await[0].name_any();
    for (own, other, account, words) in [
        (&weak, &strong, "gamekeeper-game", "may not patch gameservers/players"),
        (&strong, &weak, "mighty", "runs a game"),
        (&strong, &strong, "mighty", "runs a game"),
    ] {
        let token = world.pod_token(own, account).await;
        let report = json!({"servers": [{"name": other, "sessions": 0}]});
        let (code, problem) = world.http(0, &token).await.patch("game-servers", report).await;
        assert_eq!((code, problem["title"].as_str()), (403, Some("not allowed")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
        assert_eq!(status(&world.server(other).await.unwrap()).sessions, None);
    }
    world.end().await;
}

/// Row K2: a template's own account, with all rights on game servers, does not escape the policy.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_with_every_right_is_still_held_to_its_own_server() {
    let world = World::new("own-account").await;
    let every = json!([{"apiGroups": ["gamekeeper.dev"], "resources": ["gameservers", "gameservers/status"], "verbs": ["*"]}]);
    account(&world.client, &world.namespace, "mighty", every).await;
    world.apply(&group_as("mighty", "arena", 2)).await;
    let servers = running_servers(&world, 2).await;
    let (own, other) = (servers[0].name_any(), servers[1].name_any());
    let pod = world.as_pod(&own, "mighty").await;

    patch_status(&pod, &own, json!({"state": "StandingBy"})).await.unwrap();
    let refusal = patch_status(&pod, &other, json!({"state": "StandingBy"})).await.unwrap_err();
    assert!(refusal.contains("belongs to another pod"), "{refusal}");
    // Of two policies that refuse, either may be the one that is heard.
    let refused = |error: kube::Error, words: &str| {
        let error = error.to_string();
        assert!(error.contains(words) || error.contains("only with registration Self"), "{error}");
    };
    let spec = Patch::Merge(json!({"spec": {"shutdown": "Now"}}));
    let refusal = pod.patch(&own, &PatchParams::default(), &spec).await.unwrap_err();
    refused(refusal, "may only patch the status of its own GameServer");
    let refusal = pod.delete(&other, &DeleteParams::default()).await.unwrap_err();
    refused(refusal, "may only delete its own GameServer");
    let forged = GameServer::new("forged", serde_json::from_value(json!({"group": "arena"})).unwrap());
    let refusal = pod.create(&PostParams::default(), &forged).await.unwrap_err();
    refused(refusal, "of its own name, not forged");
    world.end().await;
}

/// Row K2: a dead predecessor's token, as long as the API server still takes it, moves nobody else's server; and the
/// policy goes by the pod's UID: the same name is not enough.
#[tokio::test(flavor = "multi_thread")]
async fn a_predecessors_token_writes_nothing() {
    let mut world = World::new("dead-token").await;
    world.silent_group("arena", 1).await;
    let old = world.ready_servers("arena", 1).await[0].name_any();
    let predecessor = world.as_pod(&old, "gamekeeper-game").await;
    patch_status(&predecessor, &old, json!({"data": "mine"})).await.unwrap();

    // A server of that name which a later pod of that name owns.
    let owner = json!([{
        "apiVersion": "v1", "kind": "Pod", "name": old, "uid": "00000000-0000-4000-8000-000000000000",
    }]);
    world.kill_operators();
    world.patch_server(&old, json!({"metadata": {"ownerReferences": owner}})).await;
    let refusal = patch_status(&predecessor, &old, json!({"state": "Active"})).await.unwrap_err();
    assert!(refusal.contains("belongs to another pod"), "{refusal}");

    world.start_operator().await;
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    world.pod_api().delete(&old, &at_once).await.unwrap();
    world.server_gone(&old).await;
    let new = world.ready_servers("arena", 1).await[0].name_any();
    let refusal = patch_status(&predecessor, &new, json!({"state": "Active"})).await.unwrap_err();
    // By now the API server may have noticed that the pod is gone.
    assert!(refusal.contains("belongs to another pod") || refusal.contains("Unauthorized"), "{refusal}");
    world.end().await;
}

/// Row K4: plain `kubectl apply` of every sample works, and so does deleting them in any order, with the operator
/// that Helm installed.
#[tokio::test(flavor = "multi_thread")]
async fn the_samples_work_as_they_are_with_the_installed_operator() {
    let world = World::installed("gamekeeper-e2e").await;
    let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/samples");
    world.kubectl(&["apply", "-f", samples]).await;
    for (group, count) in [("openarena", 3), ("shell", 2), ("registration", 1)] {
        world
            .group_until(group, "its servers are on offer", |status| {
                status.servers.is_some_and(|counts| counts.on_offer == count)
            })
            .await;
    }
    let table = world.kubectl(&["get", "gameservergroups,gameservers"]).await;
    assert!(table.contains("StandingBy") && table.contains("AllReady"), "{table}");
    world.kubectl(&["scale", "gsg/openarena", "--replicas", "1"]).await;
    world.servers_until("four servers are left", |servers| servers.len() == 4).await;
    // The other way round than they were made; then what is gone is deleted once more.
    world.kubectl(&["delete", "--wait=false", "-f", &format!("{samples}/shell.yaml")]).await;
    world.kubectl(&["delete", "--ignore-not-found", "-f", samples]).await;
    world.no_groups().await;
    assert!(world.servers().await.is_empty() && world.pods().await.is_empty());
}

/// Row K4: the sample for a cloud's spot capacity is one that the API server takes.
#[tokio::test(flavor = "multi_thread")]
async fn the_sample_for_spot_capacity_is_taken() {
    let world = World::without_operator("sample").await;
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/samples/spot/group.yaml");
    let taken = world.kubectl(&["apply", "--dry-run=server", "-o", "json", "-f", sample]).await;
    let group: Value = serde_json::from_str(&taken).unwrap();
    assert_eq!(group["spec"]["instanceDefinitions"].as_array().unwrap().len(), 6);
    world.end().await;
}
