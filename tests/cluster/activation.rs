//! Rows F1 and F2: groups come up, say what stops them, and heal.

use gamekeeper::api::{GameServerGroupStatus, Phase, State, conditions};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::harness::{World, eventually, setting, silent_group, status};

fn reason(status: &GameServerGroupStatus, type_: &str) -> Option<String> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == type_)?;
    Some(condition.reason.clone())
}

fn message(status: &GameServerGroupStatus, type_: &str) -> String {
    let condition = status.conditions.iter().find(|condition| condition.type_ == type_);
    condition.map(|condition| condition.message.clone()).unwrap_or_default()
}

fn in_error(status: &GameServerGroupStatus, because: &str) -> bool {
    status.phase == Phase::Error && reason(status, conditions::READY).as_deref() == Some(because)
}

/// Row F1. Row F2. Row P1. Row P2. Row F11.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_group_goes_through_activating_to_active_with_its_servers() {
    let mut world = World::without_operator("activates").await;
    let group = world.silent_group("arena", 2).await;
    assert_eq!(group.status.unwrap().phase, Phase::New);

    world.start_operator().await;
    world.group_until("arena", "Activating", |status| status.phase == Phase::Activating).await;
    let running = world
        .servers_until("both servers are Initializing", |servers| {
            servers.len() == 2 && servers.iter().all(|server| status(server).state == State::Initializing)
        })
        .await;
    for server in &running {
        let status = status(server);
        assert!(status.address.is_some() && status.ports[0].port == 7777 && status.instance.is_some());
    }

    world.ready_servers("arena", 2).await;
    let active = world.group_until("arena", "Active", |status| status.phase == Phase::Active).await;
    assert_eq!(message(&active, conditions::READY), "2 servers are ready or in use, 2 wanted");
    world.event("arena", "Activating").await;
    world.event("arena", "Active").await;
    let pods = world.pods().await;
    for server in world.servers().await {
        let owner = &server.owner_references()[0];
        let pod = pods.iter().find(|pod| pod.name_any() == server.name_any()).unwrap();
        assert_eq!(Some(&owner.uid), pod.metadata.uid.as_ref());
    }
    world.end().await;
}

/// Row F1: an image that cannot be had.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_had_is_an_error_with_the_kubelets_words() {
    let world = World::new("image").await;
    world.silent_group("arena", 1).await;
    world.ready_servers("arena", 1).await;
    world
        .apply(
            &silent_group("broken", 1)
                .replace(&setting("GAMEKEEPER_TEST_SILENT_IMAGE"), "127.0.0.1:1/none:1"),
        )
        .await;

    let failed = world.group_until("broken", "Error", |status| in_error(status, "ImageUnavailable")).await;
    assert!(message(&failed, conditions::READY).contains("127.0.0.1:1/none"), "{failed:#?}");
    world.event("broken", "ImageUnavailable").await;

    // Mended, it heals at once: what never started does not wait for its launch timeout.
    world.apply(&silent_group("broken", 1)).await;
    world.ready_servers("broken", 1).await;
    world.group_until("broken", "Active", |status| status.phase == Phase::Active).await;
    world.end().await;
}

/// Row F1: no node takes the pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_no_node_takes_is_an_error_with_the_schedulers_words() {
    let world = World::new("unschedulable").await;
    let nowhere = silent_group("arena", 1).replace(
        "              containers:",
        "              nodeSelector: {moon: far-side}\n              containers:",
    );
    world.apply(&nowhere).await;

    let failed = world.group_until("arena", "Error", |status| in_error(status, "Unschedulable")).await;
    assert!(message(&failed, conditions::PROGRESSING).contains("nodes are available"), "{failed:#?}");

    world.apply(&silent_group("arena", 1)).await;
    world.patch_group("arena", json!({"spec": {"template": {"spec": {"nodeSelector": null}}}})).await;
    world.ready_servers("arena", 1).await;
    world.group_until("arena", "Active", |status| status.phase == Phase::Active).await;
    world.end().await;
}

/// Row F1: the namespace's policy forbids the pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_pod_is_an_error_with_the_api_servers_words() {
    let world = World::new("forbidden").await;
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(world.client.clone());
    let enforce =
        |level| Patch::Merge(json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}));
    namespaces.patch(&world.namespace, &PatchParams::default(), &enforce("restricted")).await.unwrap();
    world.silent_group("arena", 1).await;

    let failed = world.group_until("arena", "Error", |status| in_error(status, "Forbidden")).await;
    assert!(message(&failed, conditions::READY).contains("PodSecurity"), "{failed:#?}");

    namespaces.patch(&world.namespace, &PatchParams::default(), &enforce("privileged")).await.unwrap();
    world.ready_servers("arena", 1).await;
    world.group_until("arena", "Active", |status| status.phase == Phase::Active).await;
    world.end().await;
}

/// Row F1: a template that the API server rejects, found before a pod is wanted.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_template_is_an_error_before_any_pod_is_wanted() {
    let world = World::new("rejected").await;
    let rejected =
        silent_group("arena", 0).replace("terminationGracePeriodSeconds: 1", "dnsPolicy: Carrier-Pigeon");
    world.apply(&rejected).await;

    let failed = world
        .group_until("arena", "Error", |status| {
            status.phase == Phase::Error
                && reason(status, conditions::TEMPLATE_ACCEPTED).as_deref() == Some("TemplateRejected")
        })
        .await;
    assert!(message(&failed, conditions::TEMPLATE_ACCEPTED).contains("Carrier-Pigeon"), "{failed:#?}");
    world.event("arena", "TemplateRejected").await;

    world.silent_group("arena", 1).await;
    world.ready_servers("arena", 1).await;
    world.group_until("arena", "Active", |status| status.phase == Phase::Active).await;
    world.end().await;
}

/// Row F1. Case C14. Invariant I8: a quota below the group's size makes no storm, says so, and heals.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_below_the_groups_size_backs_off_and_heals() {
    let world = World::new("quota").await;
    let quotas: kube::Api<k8s_openapi::api::core::v1::ResourceQuota> =
        kube::Api::namespaced(world.client.clone(), &world.namespace);
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    eventually(
        "the quota counts",
        || async { quotas.get("few").await.unwrap() },
        |quota| quota.status.as_ref().is_some_and(|status| status.used.is_some()),
    )
    .await;
    world.silent_group("arena", 5).await;

    let failed = world.group_until("arena", "Error", |status| in_error(status, "QuotaExceeded")).await;
    assert!(message(&failed, conditions::READY).contains("exceeded quota: few"), "{failed:#?}");
    world.event("arena", "QuotaExceeded").await;
    let within = world.pod_uids().await;
    assert_eq!(within.len(), 2);

    // A dozen seconds later the same two pods are there, and few creations were tried.
    let before = world.audited("create", "pods").len();
    world.lease_renewed().await;
    assert_eq!(world.pod_uids().await, within);
    let tried = world.audited("create", "pods").len() - before;
    assert!(tried <= 5, "{tried} creations were tried");

    quotas.delete("few", &DeleteParams::default()).await.unwrap();
    world.ready_servers("arena", 5).await;
    let healed = world.group_until("arena", "Active", |status| status.phase == Phase::Active).await;
    assert_eq!(reason(&healed, conditions::PROGRESSING).as_deref(), Some("Complete"));
    assert!(within.is_subset(&world.pod_uids().await));
    world.end().await;
}

/// Row F1: a group of none in a namespace that refuses its pods heals as well.
/// Invariant I8: nothing spins meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_none_that_is_forbidden_heals() {
    let world = World::without_operator("forbidden-none").await;
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(world.client.clone());
    let enforce =
        |level| Patch::Merge(json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}));
    namespaces.patch(&world.namespace, &PatchParams::default(), &enforce("restricted")).await.unwrap();
    let mut world = world;
    world.start_operator().await;
    world.silent_group("arena", 0).await;
    world.group_until("arena", "Error", |status| status.phase == Phase::Error).await;
    let before = world.audited("create", "pods").len();
    world.lease_renewed().await;
    let tried = world.audited("create", "pods").len() - before;
    assert!((1..=6).contains(&tried), "{tried} trials in ten seconds");

    namespaces.patch(&world.namespace, &PatchParams::default(), &enforce("privileged")).await.unwrap();
    world.group_until("arena", "Active", |status| status.phase == Phase::Active).await;
    world.end().await;
}

/// Row F1: once Active, trouble is a condition.
#[tokio::test(flavor = "multi_thread")]
async fn trouble_after_active_is_a_condition_and_heals() {
    let world = World::new("degraded").await;
    world.silent_group("arena", 1).await;
    world.ready_servers("arena", 1).await;
    let quotas: kube::Api<k8s_openapi::api::core::v1::ResourceQuota> =
        kube::Api::namespaced(world.client.clone(), &world.namespace);
    let quota = json!({"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    eventually(
        "the quota counts",
        || async { quotas.get("one").await.unwrap() },
        |quota| quota.status.as_ref().is_some_and(|status| status.used.is_some()),
    )
    .await;
    world.scale("arena", 2).await;

    let troubled = world
        .group_until("arena", "QuotaExceeded", |status| {
            reason(status, conditions::PROGRESSING).as_deref() == Some("QuotaExceeded")
        })
        .await;
    assert_eq!(troubled.phase, Phase::Active);

    quotas.delete("one", &DeleteParams::default()).await.unwrap();
    world.ready_servers("arena", 2).await;
    world.event("arena", "Recovered").await;
    world.end().await;
}

/// Invariant I8: what the schema can refuse, it refuses, with words and the way out.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_refuses_a_bad_group_with_words() {
    let world = World::without_operator("refused").await;
    let good = silent_group("arena", 1);
    let pod = "              terminationGracePeriodSeconds: 1";
    let cases = [
        (good.replace(pod, "              restartPolicy: Always"), "restartPolicy is Never"),
        (
            good.replace(
                "          template:\n",
                "          template:\n            metadata: {labels: {gamekeeper.dev/slot: '1'}}\n",
            ),
            "labels that start with gamekeeper.dev/",
        ),
        (
            good.replace(
                "          template:\n",
                "          template:\n            metadata: {annotations: {gamekeeper.dev/attempt: '1'}}\n",
            ),
            "annotations that start with gamekeeper.dev/",
        ),
        (
            good.replace("{name: game, image", "{name: gamekeeper-agent, image"),
            "container name gamekeeper-agent",
        ),
        (good.replace("replicas: 1", "replicas: -1"), "greater than or equal to 0"),
        (
            good.replace("replicas: 1", "replicas: 1\n          minSize: 3\n          maxSize: 2"),
            "minSize is at most maxSize",
        ),
        (
            good.replace("replicas: 1", "agent: {protocol: IdTech3, port: query}"),
            "agent.port names one of spec.ports",
        ),
        (good.replace("replicas: 1", "surprise: 1"), "surprise"),
        (good.replace(pod, "              surprise: 1"), "surprise"),
        (good.replace("containerPort: 7777", "containerPort: 0"), "greater than or equal to 1"),
        (
            good.replace(
                "policy: PodIP}",
                "policy: PodIP}\n          - {name: other, containerPort: 1, policy: HostPort}",
            ),
            "all PodIP or none is",
        ),
        (good.replace("name: arena", "name: Arena"), "Arena"),
        (good.replace("name: arena", &format!("name: {}", "a".repeat(51))), "at most 50 characters"),
        (good.replace("name: arena", "name: a.b"), "DNS label"),
        (
            good.replace("replicas: 1", "balancingStrategy: SpotOnly"),
            "balancingStrategy needs instanceDefinitions",
        ),
        (good.replace("replicas: 1", "instanceDefinitions: [{instanceType: 'a/b'}]"), "instanceType"),
        (
            good.replace("replicas: 1", "instanceDefinitions: [{instanceType: a, weightedCapacity: 0}]"),
            "greater than or equal to 1",
        ),
        (
            good.replace("replicas: 1", "instanceDefinitions: [{instanceType: a}, {instanceType: a}]"),
            "duplicate entries",
        ),
    ];
    for (yaml, words) in cases {
        let refusal = world.try_apply(&yaml).await.expect_err(words).to_string();
        assert!(refusal.contains(words), "{refusal}\nlacks: {words}");
    }
    world.apply(&good).await;
}

/// The group that the README goes through line by line is one that the API server takes.
#[tokio::test(flavor = "multi_thread")]
async fn the_readmes_group_is_taken_as_it_stands() {
    let world = World::without_operator("readme").await;
    let readme = include_str!("../../README.md");
    let (_, chapter) = readme.split_once("## A group, line by line").unwrap();
    let (_, yaml) = chapter.split_once("```yaml\n").unwrap();
    world.apply(yaml.split_once("```").unwrap().0).await;
    world.delete_group("arena").await;
    world.end().await;
}

/// Invariant I8: what only our own rules can refuse is a condition.
#[tokio::test(flavor = "multi_thread")]
async fn a_variable_of_ours_in_a_template_is_named_in_a_condition() {
    let world = World::new("variable").await;
    let bad = silent_group("arena", 1)
        .replace("{name: game, image:", "{name: game, env: [{name: GAMEKEEPER_GROUP, value: x}], image:");
    world.apply(&bad).await;

    let failed = world.group_until("arena", "Error", |status| in_error(status, "TemplateRejected")).await;
    assert!(message(&failed, conditions::READY).contains("GAMEKEEPER_GROUP"), "{failed:#?}");
    assert!(world.pods().await.is_empty());
    world.end().await;
}

/// Invariant I8: a group that cannot be read, as its template says what no pod can, blinds the operator to no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_cannot_be_read_is_told_so_and_stops_no_other() {
    let mut world = World::new("unreadable").await;
    let probe = "livenessProbe: {httpGet: {port: 99999999999}}";
    let poison =
        silent_group("poison", 1).replace("{name: game, image", &format!("{{name: game, {probe}, image"));
    let manifest: serde_json::Value = serde_saphyr::from_str(&poison).unwrap();
    let groups: kube::Api<kube::api::DynamicObject> = kube::Api::namespaced_with(
        world.client.clone(),
        &world.namespace,
        &kube::api::ApiResource::erase::<gamekeeper::api::GameServerGroup>(&()),
    );
    groups.patch("poison", &PatchParams::apply("test"), &Patch::Apply(&manifest)).await.unwrap();
    world.event("poison", "Unreadable").await;

    // Also to an operator that lists all groups anew.
    world.kill_operators();
    world.start_operator().await;
    world.silent_group("arena", 1).await;
    let server = world
        .servers_until("a server runs", |servers| {
            servers.iter().any(|server| status(server).state == State::Initializing)
        })
        .await[0]
        .name_any();
    world.report(&server, State::StandingBy).await;
    let token = world.matchmaker_token().await;
    eventually("it is claimed", || world.claim(&token, "match-1", &["arena"]), |(code, _)| *code == 200)
        .await;
    groups.delete("poison", &DeleteParams::default()).await.unwrap();
    world.end().await;
}

/// Row K2: the games' account and its binding are made again when somebody takes them away.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_was_taken_away_is_made_again() {
    let world = World::new("account").await;
    world.silent_group("arena", 1).await;
    world.ready_servers("arena", 1).await;
    world.kubectl(&["delete", "serviceaccount,rolebinding", "gamekeeper-game"]).await;
    world.scale("arena", 2).await;

    world.ready_servers("arena", 2).await;
    world.kubectl(&["get", "serviceaccount,rolebinding", "gamekeeper-game"]).await;
    world.end().await;
}
