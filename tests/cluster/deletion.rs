//! Deletions of groups, servers and pods, by whomever and in whatever order.

use gamekeeper::api::{ClaimStatus, Phase, Shutdown, State};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PropagationPolicy};
use serde_json::json;

use crate::harness::{World, eventually, setting, silent_group, status};

/// Row F10, Safe: waits for Active and claimed servers, and says so. Invariant I3.
#[tokio::test(flavor = "multi_thread")]
async fn a_safe_deletion_waits_for_games() {
    let world = World::new("safe").await;
    world.silent_group("arena", 2).await;
    let servers = world.ready_servers("arena", 2).await;
    let (active, idle) = (servers[0].name_any(), servers[1].name_any());
    world.report(&active, State::Active).await;

    world.delete_group("arena").await;
    world.server_gone(&idle).await;
    let waiting =
        world.group_until("arena", "DeleteScheduled", |status| status.phase == Phase::DeleteScheduled).await;
    let deleting = waiting.conditions.iter().find(|condition| condition.type_ == "Deleting").unwrap();
    assert!(deleting.message.contains("waits for servers that are claimed or Active: 1"), "{deleting:?}");
    let token = world.matchmaker_token().await;
    let (code, problem) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!((code, problem["title"].as_str()), (409, Some("group is being deleted")), "{problem}");
    world.lease_renewed().await;
    assert_eq!(status(&world.server(&active).await.unwrap()).state, State::Active);

    world.report(&active, State::Terminating).await;
    world.no_groups().await;
    assert!(world.servers().await.is_empty() && world.pods().await.is_empty());
    world.end().await;
}

/// Row F10, Force: ends the games; also when it is asked for after a Safe deletion has begun to wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_deletion_does_not_wait() {
    let world = World::new("force").await;
    world.silent_group("arena", 2).await;
    let servers = world.ready_servers("arena", 2).await;
    world.report(&servers[0].name_any(), State::Active).await;
    world.delete_group("arena").await;
    world.group_until("arena", "DeleteScheduled", |status| status.phase == Phase::DeleteScheduled).await;

    world.patch_group("arena", json!({"spec": {"deletionPolicy": "Force"}})).await;
    world.no_groups().await;
    assert!(world.servers().await.is_empty() && world.pods().await.is_empty());
    world.end().await;
}

/// Row F10: a foreground deletion takes no pod past the policy: the pods have no owner reference to the group.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreground_deletion_waits_for_games_too() {
    let world = World::new("foreground").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    world.report(&server, State::Active).await;
    let foreground =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..DeleteParams::default() };
    world.group_api().delete("arena", &foreground).await.unwrap();

    world.group_until("arena", "DeleteScheduled", |status| status.phase == Phase::DeleteScheduled).await;
    world.lease_renewed().await;
    assert_eq!(status(&world.server(&server).await.unwrap()).state, State::Active);
    world.report(&server, State::Terminating).await;
    world.no_groups().await;
    world.end().await;
}

/// Row F10: `kubectl delete --cascade=orphan` waits for games like any other deletion: what is to go with a group has no
/// owner reference to it.
#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_deletion_waits_for_games_too() {
    let world = World::new("orphan").await;
    world.silent_group("arena", 2).await;
    let servers = world.ready_servers("arena", 2).await;
    let (active, idle) = (servers[0].name_any(), servers[1].name_any());
    world.report(&active, State::Active).await;
    let orphan =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    world.group_api().delete("arena", &orphan).await.unwrap();

    world.server_gone(&idle).await;
    world.group_until("arena", "DeleteScheduled", |status| status.phase == Phase::DeleteScheduled).await;
    assert_eq!(status(&world.server(&active).await.unwrap()).state, State::Active);
    world.report(&active, State::Terminating).await;
    world.no_groups().await;
    assert!(world.servers().await.is_empty() && world.pods().await.is_empty());
    world.end().await;
}

/// Row F10: a namespace that is deleted takes its pods, games and all; nothing of ours keeps it: not a group that is
/// ready, comes up, has no servers, waits for a game or leaves its servers behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_goes_with_all_that_is_in_it() {
    let mut keeper = World::new("keeper").await;
    let doomed = keeper.neighbour("doomed").await;
    doomed.silent_group("arena", 2).await;
    let servers = doomed.ready_servers("arena", 2).await;
    doomed.report(&servers[0].name_any(), State::Active).await;
    doomed.silent_group("waiting", 1).await;
    let waiting = doomed.ready_servers("waiting", 1).await;
    doomed.report(&waiting[0].name_any(), State::Active).await;
    doomed.delete_group("waiting").await;
    let retain = "replicas: 1\n          deletionPolicy: Retain";
    doomed.apply(&silent_group("retain", 1).replace("replicas: 1", retain)).await;
    doomed.ready_servers("retain", 1).await;
    doomed.silent_group("none", 0).await;
    doomed.silent_group("starting", 1).await;

    doomed.namespace_gone().await;
    keeper.end().await;
}

/// Row F10, Retain: all run on without a group, over a restart of the operator; a group applied again under that
/// name adopts them.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_group_retains_is_adopted_by_the_next_of_its_name() {
    let mut world = World::new("retain").await;
    let manifest =
        silent_group("arena", 3).replace("replicas: 3", "replicas: 3\n          deletionPolicy: Retain");
    world.apply(&manifest).await;
    let servers = world.ready_servers("arena", 3).await;
    let (active, ended) = (servers[0].name_any(), servers[1].name_any());
    world.report(&active, State::Active).await;
    let pods = world.pod_uids().await;
    world.delete_group("arena").await;
    world.no_groups().await;
    world.event("arena", "Deleted").await;
    world.kill_operators();
    world.start_operator().await;
    let token = world.matchmaker_token().await;
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!(code, 404, "{answer}");
    // What ends meanwhile goes, and is not replaced.
    world.report(&ended, State::Terminating).await;
    world.server_gone(&ended).await;
    world.lease_renewed().await;
    let left = world.pod_uids().await;
    assert!(left.len() == 2 && left.is_subset(&pods));

    world.apply(&manifest).await;
    let adopted = world
        .group_until("arena", "two are its own", |status| {
            status.servers.is_some_and(|counts| counts.active == 1 && counts.on_offer >= 1)
        })
        .await;
    assert_eq!(adopted.desired_replicas, Some(3));
    world.ready_servers("arena", 2).await;
    let now = world.pod_uids().await;
    assert!(now.len() == 3 && left.is_subset(&now));
    let (code, answer) = world.claim(&token, "match-2", &["arena"]).await;
    assert_eq!(code, 200, "{answer}");
    world.end().await;
}

/// Row F10: a deletion in the middle of an activation waits for its end, and says so; Force does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_while_activating_waits_and_says_so() {
    let world = World::new("activating").await;
    world.silent_group("arena", 1).await;
    world.silent_group("other", 1).await;
    for group in ["arena", "other"] {
        world.group_until(group, "Activating", |status| status.phase == Phase::Activating).await;
        world.delete_group(group).await;
    }
    let waiting = world
        .group_until("arena", "it waits", |status| {
            let says = |reason: &str| status.conditions.iter().any(|condition| condition.reason == reason);
            says("WaitingForActivation") && says("WaitingToBeDeleted")
        })
        .await;
    assert_eq!(waiting.phase, Phase::Activating);
    world.patch_group("other", json!({"spec": {"deletionPolicy": "Force"}})).await;
    eventually("the forced one is gone", || world.groups(), |groups| groups.len() == 1).await;

    // Once it is Active, the deletion goes on.
    let servers = world.servers_until("one server is left", |servers| servers.len() == 1).await;
    world.server_until(&servers[0].name_any(), "it runs", |status| status.state == State::Initializing).await;
    world.report(&servers[0].name_any(), State::StandingBy).await;
    world.no_groups().await;
    world.end().await;
}

/// Case C18: a group deleted and applied again at once comes up, and the old one's servers are not the new one's, nor do
/// the old pods' writes touch these.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_applied_again_at_once_comes_up_anew() {
    let world = World::new("again").await;
    world.silent_group("arena", 2).await;
    let before = world.ready_servers("arena", 2).await;
    let old_process = world.as_pod(&before[0].name_any(), "gamekeeper-game").await;
    let old = world.pod_uids().await;
    world.delete_group("arena").await;
    // As soon as the API server takes it: while the old one goes, an apply is an update of that.
    let again = || async { world.silent_group("arena", 2).await.metadata.deletion_timestamp.is_none() };
    eventually("the group is applied anew", again, |anew| *anew).await;

    let servers = world.ready_servers("arena", 2).await;
    assert!(world.pod_uids().await.is_disjoint(&old));
    // The API server takes a dead pod's token for some seconds.
    let active = Patch::Merge(json!({"status": {"state": State::Active}}));
    for server in servers {
        let late = old_process.patch_status(&server.name_any(), &PatchParams::default(), &active).await;
        let refusal = late.unwrap_err().to_string();
        assert!(refusal.contains("belongs to another pod") || refusal.contains("Unauthorized"), "{refusal}");
    }
    world.end().await;
}

/// Case C7: pods are deleted while the operator is down; afterwards all agree again.
/// Case C6: nothing stays behind a finalizer.
#[tokio::test(flavor = "multi_thread")]
async fn pods_deleted_while_the_operator_is_down_are_replaced_and_their_servers_go() {
    let mut world = World::new("down").await;
    world.silent_group("arena", 3).await;
    let servers = world.ready_servers("arena", 3).await;
    world.kill_operators();
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    for server in servers.iter().take(2) {
        world.pod_api().delete(&server.name_any(), &at_once).await.unwrap();
    }
    world
        .servers_until("the garbage collector has marked two", |servers| {
            servers.iter().filter(|server| server.metadata.deletion_timestamp.is_some()).count() == 2
        })
        .await;

    world.start_operator().await;
    // By their UIDs: where nothing is known of a predecessor any more, its name may come back.
    let gone: Vec<_> = servers.iter().take(2).map(ResourceExt::uid).collect();
    world
        .servers_until("both are gone", |servers| servers.iter().all(|server| !gone.contains(&server.uid())))
        .await;
    let now = world.ready_servers("arena", 3).await;
    assert!(now.iter().any(|server| server.name_any() == servers[2].name_any()));
    world.end().await;
}

/// Case C6: a pod that goes without a last word, while the operator watches.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_removed_by_force_leaves_nothing_behind() {
    let world = World::new("forced-pod").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    world.report(&server, State::Active).await;
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    world.pod_api().delete(&server, &at_once).await.unwrap();

    world.server_gone(&server).await;
    world.ready_servers("arena", 1).await;
    world.end().await;
}

/// A GameServer deleted by hand is marked, plays to its end, is replaced, and goes with its pod. Invariant I3.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_deleted_by_hand_plays_to_its_end() {
    let world = World::new("by-hand").await;
    world.silent_group("arena", 2).await;
    let servers = world.ready_servers("arena", 2).await;
    let (active, idle) = (servers[0].name_any(), servers[1].name_any());
    world.report(&active, State::Active).await;
    for name in [&active, &idle] {
        world.server_api().delete(name, &DeleteParams::default()).await.unwrap();
    }

    world.event(&active, "Marked").await;
    world.server_gone(&idle).await;
    let marked = world.server(&active).await.unwrap();
    assert_eq!((marked.spec.shutdown, status(&marked).state), (Shutdown::WhenIdle, State::Active));
    // Both have been replaced, the game as well.
    let replaced = world
        .servers_until("two replacements run", |servers| {
            servers.iter().filter(|server| status(server).state == State::Initializing).count() == 2
        })
        .await;
    assert_eq!(replaced.len(), 3);
    world.report(&active, State::Terminating).await;
    world.server_gone(&active).await;
    world.end().await;
}

/// Row P6: a stuck server is shut down by hand, whoever plays.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_shut_down_by_hand() {
    let world = World::new("shutdown").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    world.report(&server, State::Active).await;

    world.patch_server(&server, json!({"spec": {"shutdown": "Now"}})).await;
    world.server_gone(&server).await;
    world.event(&server, "Retired").await;
    world.ready_servers("arena", 1).await;
    world.end().await;
}

/// Row F10: the first thing that somebody does with a group whose servers keep failing.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_servers_keep_failing_can_be_deleted() {
    let world = World::new("failing").await;
    let command = "command: ['/bin/bash', '-c', 'exit 7']";
    let failing = silent_group("arena", 2)
        .replace(&setting("GAMEKEEPER_TEST_SILENT_IMAGE"), &setting("GAMEKEEPER_TEST_SHELL_IMAGE"))
        .replace("{name: game, image", &format!("{{name: game, {command}, image"));
    world.apply(&failing).await;
    world.event("arena", "KeepsFailing").await;
    world
        .servers_until("a failed server is kept", |servers| {
            servers.iter().any(|server| status(server).state == State::Terminated)
        })
        .await;

    world.delete_group("arena").await;
    world.no_groups().await;
    assert!(world.servers().await.is_empty() && world.pods().await.is_empty());
    world.end().await;
}

/// A mark by hand waits for the game, and can be taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_marked_server_ends_when_idle() {
    let world = World::new("marked").await;
    world
        .apply(
            &silent_group("arena", 1)
                .replace("replicas: 1", "replicas: 1\n          claim: {timeoutSeconds: 2}"),
        )
        .await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.matchmaker_token().await;
    let (code, answer) = world.claim(&token, "match-1", &["arena"]).await;
    assert_eq!(code, 200, "{answer}");
    // Taken back in time, it changes nothing.
    world.patch_server(&server, json!({"spec": {"shutdown": "WhenIdle"}})).await;
    world.patch_server(&server, json!({"spec": {"shutdown": "Never"}})).await;
    world
        .server_until(&server, "the claim lapses", |status| status.claim_status == ClaimStatus::Unclaimed)
        .await;
    let (code, answer) = eventually(
        "it is claimed again",
        || world.claim(&token, "match-2", &["arena"]),
        |(code, _)| *code == 200,
    )
    .await;
    assert_eq!((code, answer["server"].as_str()), (200, Some(server.as_str())));
    world.patch_server(&server, json!({"spec": {"shutdown": "WhenIdle"}})).await;

    // The claim protects it until it lapses.
    world.server_gone(&server).await;
    world.event(&server, "ClaimLapsed").await;
    world.event(&server, "Retired").await;
    world.end().await;
}

/// What ties a server and its pod to each other and to their group is put back, whoever took it; the game plays on.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_and_a_pod_that_lost_their_ties_get_them_back() {
    let world = World::new("ties").await;
    world.silent_group("arena", 1).await;
    let server = world.ready_servers("arena", 1).await[0].clone();
    let (name, pods) = (server.name_any(), world.pod_uids().await);
    world.report(&name, State::Active).await;
    let labels = server.metadata.labels.clone();
    let tied = |server: &Option<gamekeeper::api::GameServer>| {
        server
            .as_ref()
            .is_some_and(|server| server.owner_references().len() == 1 && server.metadata.labels == labels)
    };
    world.patch_server(&name, json!({"metadata": {"ownerReferences": null}})).await;
    eventually("its owner is back", || world.server(&name), tied).await;
    world.patch_server(&name, json!({"metadata": {"labels": null}})).await;
    eventually("its labels are back", || world.server(&name), tied).await;
    let bare = json!({"metadata": {"labels": null, "ownerReferences": null, "finalizers": null}});
    world.patch_server(&name, bare).await;
    let held = |server: &Option<gamekeeper::api::GameServer>| {
        tied(server) && server.as_ref().is_some_and(|server| server.finalizers().len() == 1)
    };
    eventually("all that ties it is back", || world.server(&name), held).await;

    let group_uid = "gamekeeper.dev/group-uid";
    let unlabel = Patch::Merge(json!({"metadata": {"labels": {group_uid: null}}}));
    world.pod_api().patch(&name, &PatchParams::default(), &unlabel).await.unwrap();
    eventually(
        "the pod's label is back",
        || async { world.pod_api().get(&name).await.unwrap().labels().contains_key(group_uid) },
        |labelled| *labelled,
    )
    .await;
    world
        .group_until("arena", "it is one Active server", |status| {
            status.replicas == Some(1) && status.servers.is_some_and(|counts| counts.active == 1)
        })
        .await;
    assert_eq!(status(&world.server(&name).await.unwrap()).state, State::Active);
    assert!(pods.is_subset(&world.pod_uids().await));
    world.end().await;
}

/// Invariant I7 and the collection of what a group left: somebody takes its finalizer away.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_group_without_its_finalizer_left_is_collected() {
    let world = World::new("orphans").await;
    world.silent_group("arena", 2).await;
    let servers = world.ready_servers("arena", 2).await;
    let active = servers[0].name_any();
    world.report(&active, State::Active).await;
    let mut world = world;
    world.kill_operators();
    world.patch_group("arena", json!({"metadata": {"finalizers": null}})).await;
    world.delete_group("arena").await;
    world.no_groups().await;

    world.start_operator().await;
    world.server_gone(&servers[1].name_any()).await;
    assert_eq!(status(&world.server(&active).await.unwrap()).state, State::Active);
    world.report(&active, State::Terminating).await;
    world.server_gone(&active).await;
    world.end().await;
}
