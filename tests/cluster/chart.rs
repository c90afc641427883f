//! Row K1: the chart, on the operator that Helm installed.

use gamekeeper::api::State;
use gamekeeper::rules::certificate::AUTHORITY;
use kube::ResourceExt;
use serde_json::Value;

use crate::harness::{TLS_SECRET, World, eventually, silent_group, status};

/// Row K1: `helm upgrade` with games running: their pods keep their UIDs, their claims hold, and the claim API its
/// authority.
/// Row A10.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_leaves_games_alone() {
    let world = World::installed("gamekeeper-upgrade").await;
    world.apply(&silent_group("arena", 3)).await;
    let servers = world.ready_servers("arena", 3).await;
    let active = servers[0].name_any();
    world.report(&active, State::Active).await;
    let pods = world.pod_uids().await;
    let operators = World::installed("gamekeeper-system").await;
    let authority = operators.secret(TLS_SECRET, AUTHORITY).await;

    world.helm_upgrade(&["--set", "podAnnotations.example\\.com/upgraded=yes"]).await;
    // The new operator is at work: it makes what is wanted, and lets alone what is there.
    world.scale("arena", 4).await;
    world.ready_servers("arena", 3).await;
    assert!(pods.is_subset(&world.pod_uids().await));
    assert_eq!(status(&world.server(&active).await.unwrap()).state, State::Active);
    // Callers know the operator as before.
    assert_eq!(operators.secret(TLS_SECRET, AUTHORITY).await, authority);

    world
        .kubectl(&[
            "patch",
            "gsg",
            "arena",
            "--type=merge",
            "--patch",
            r#"{"spec": {"deletionPolicy": "Force"}}"#,
        ])
        .await;
    world.kubectl(&["delete", "gsg", "arena"]).await;
    world.no_groups().await;
}

/// Row K1: with namespaces named, the operator's rights on pods, games and accounts end at these.
#[tokio::test(flavor = "multi_thread")]
async fn the_operators_rights_end_at_the_named_namespaces() {
    let world = World::installed("gamekeeper-upgrade").await;
    let account = "--as=system:serviceaccount:gamekeeper-system:gamekeeper";
    for (verb, resource) in [
        ("create", "pods"),
        ("delete", "pods"),
        ("patch", "gameservers.gamekeeper.dev"),
        ("create", "rolebindings.rbac.authorization.k8s.io"),
    ] {
        let may = |namespace: &'static str| {
            let world = &world;
            async move { world.can_i(&[verb, resource, account, "--namespace", namespace]).await }
        };
        assert!(may("gamekeeper-upgrade").await, "{verb} {resource}");
        assert!(!may("default").await, "{verb} {resource} in another namespace");
    }
    for (verb, resource) in
        [("get", "secrets"), ("update", "nodes"), ("delete", "gameservergroups.gamekeeper.dev")]
    {
        assert!(!world.can_i(&[verb, resource, account, "--all-namespaces"]).await, "{verb} {resource}");
    }
    for (secret, may) in [("secrets/gamekeeper-tls", true), ("secrets/other", false)] {
        let question = ["update", secret, account, "--namespace", "gamekeeper-system"];
        assert_eq!(world.can_i(&question).await, may, "update {secret}");
    }
}

/// Row K1: Kubernetes' own roles take ours in.
#[tokio::test(flavor = "multi_thread")]
async fn view_edit_and_admin_know_our_kinds() {
    let world = World::without_operator("roles").await;
    for (role, verb, resource, may) in [
        ("view", "get", "gameservers.gamekeeper.dev", true),
        ("view", "create", "gameservergroups.gamekeeper.dev", false),
        ("edit", "create", "gameservergroups.gamekeeper.dev", true),
        ("edit", "patch", "gameservergroups.gamekeeper.dev/scale", true),
        ("edit", "patch", "gameservers.gamekeeper.dev", true),
        ("edit", "patch", "gameservers.gamekeeper.dev/status", false),
        ("admin", "delete", "gameservergroups.gamekeeper.dev", true),
    ] {
        let user = format!("{role}-{}", world.namespace);
        let binding = ["create", "rolebinding", &user, "--clusterrole", role, "--user", &user];
        if !world.kubectl(&["get", "rolebinding", &user, "--ignore-not-found"]).await.contains(&user) {
            world.kubectl(&binding).await;
        }
        let (resource, part) =
            resource.split_once('/').map_or((resource, ""), |(resource, part)| (resource, part));
        let found =
            world.can_i(&[verb, resource, &format!("--subresource={part}"), &format!("--as={user}")]).await;
        assert_eq!(found, may, "{role}: {verb} {resource}/{part}");
    }
}

/// Row K1: `helm uninstall` with games running leaves them, and an operator installed again takes them up.
/// Row K4: what the README says to do when the operator has gone first.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the operator, its roles and its policies from all other tests: it runs after them"]
async fn an_uninstall_leaves_games_to_the_next_operator_or_to_the_readme() {
    let world = World::installed("gamekeeper-upgrade").await;
    world.apply(&silent_group("arena", 3)).await;
    let active = world.ready_servers("arena", 3).await[0].name_any();
    world.report(&active, State::Active).await;
    let pods = world.pod_uids().await;

    let values = world.helm_uninstall().await;
    let left = ["get", "clusterroles,validatingadmissionpolicies", "--output", "name"];
    assert!(!world.kubectl(&left).await.contains("gamekeeper"));
    let account = ["get", "serviceaccount,rolebinding", "gamekeeper-game", "--output", "name"];
    assert_eq!(world.kubectl(&account).await.lines().count(), 2);
    assert_eq!((world.pod_uids().await, world.servers().await.len()), (pods.clone(), 3));

    world.helm_install(&values).await;
    world.scale("arena", 4).await;
    world.ready_servers("arena", 3).await;
    assert!(pods.is_subset(&world.pod_uids().await));
    assert_eq!(status(&world.server(&active).await.unwrap()).state, State::Active);

    // Nobody is there to let it go.
    world.helm_uninstall().await;
    world.delete_group("arena").await;
    assert_eq!(world.groups().await.len(), 1);
    world.as_the_readme_says("kubectl get gsg,gs -A").await;
    world.no_groups().await;
    assert!(pods.is_subset(&world.pod_uids().await));
    world.kubectl(&["delete", "pods", "--selector", "gamekeeper.dev/group"]).await;
    world.servers_until("the garbage collector has taken the servers", Vec::is_empty).await;

    world.helm_install(&values).await;
    world.apply(&silent_group("arena", 1)).await;
    world.ready_servers("arena", 1).await;
    world.delete_group("arena").await;
    world.no_groups().await;
}

/// Row K4: the definitions may go before what they define, while the operator runs: that of groups first, then that of
/// the game servers which a group has left behind.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the definitions from all other tests: it runs after them"]
async fn the_definitions_may_be_deleted_first() {
    let world = World::installed("gamekeeper-upgrade").await;
    let retain = "replicas: 2\n          deletionPolicy: Retain";
    world.apply(&silent_group("arena", 2).replace("replicas: 2", retain)).await;
    let servers = world.ready_servers("arena", 2).await;
    definition_gone(&world, "gameservergroups.gamekeeper.dev").await;
    // The garbage collector takes it, past the policy that asks groups.
    let first = servers[0].name_any();
    world.kubectl(&["delete", "pod", &first]).await;
    world.server_gone(&first).await;
    definition_gone(&world, "gameservers.gamekeeper.dev").await;
    eventually("the pods are gone", || world.pods(), Vec::is_empty).await;

    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");
    world.kubectl(&["apply", "--server-side", "--field-manager=gamekeeper-install", "-f", crds]).await;
    let definitions = ["get", "--filename", crds, "--output", "json"];
    eventually("the definitions are served", || world.kubectl(&definitions), |all| established(all)).await;
    // It would find out by itself within some minutes.
    world.helm_upgrade(&["--set", "podAnnotations.example\\.com/definitions=again"]).await;
    world.apply(&silent_group("arena", 1)).await;
    world.ready_servers("arena", 1).await;
    world.delete_group("arena").await;
    world.no_groups().await;
}

/// Whether all definitions in this list are served.
fn established(list: &str) -> bool {
    let list: Value = serde_json::from_str(list).unwrap();
    let served = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
    list["items"].as_array().unwrap().iter().all(|definition| {
        definition["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(served))
    })
}

/// Deletes a definition with all that it defines.
async fn definition_gone(world: &World, name: &str) {
    world.kubectl(&["delete", "customresourcedefinition", name, "--wait=false"]).await;
    let left = ["get", "customresourcedefinition", name, "--ignore-not-found", "--output", "name"];
    eventually("the definition is gone", || world.kubectl(&left), String::is_empty).await;
}
