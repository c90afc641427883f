//! Row K2, of callers: what the API server says of them is believed for a moment, and no longer.

use futures::future::join_all;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::harness::{World, account, eventually};

/// Many claims by one caller at once are one question to the API server, not one each.
#[tokio::test(flavor = "multi_thread")]
async fn a_callers_claims_are_reviewed_together() {
    let world = World::new("reviews").await;
    world.silent_group("arena", 0).await;
    let token = world.matchmaker_token().await;
    eventually(
        "the caller is let in",
        || world.claim(&token, "match-0", &["arena"]),
        |(code, _)| *code == 503,
    )
    .await;
    let asked = || ["tokenreviews", "subjectaccessreviews"].map(|kind| world.audited("create", kind).len());
    let before = asked();
    let claims = (0..100).map(|number| {
        let (world, token) = (&world, &token);
        async move { world.claim(token, &format!("match-{number}"), &["arena"]).await.0 }
    });
    assert_eq!(join_all(claims).await, vec![503; 100]);
    // Two more each at most: answers may have grown old meanwhile.
    let after = asked();
    assert!(after[0] <= before[0] + 2 && after[1] <= before[1] + 2, "{before:?} {after:?}");
    world.end().await;
}

/// A right that is given counts within seconds, and so does one that is taken away.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_given_or_taken_away_counts_soon() {
    let world = World::new("rights").await;
    world.silent_group("arena", 0).await;
    let token = account(&world.client, &world.namespace, "late", json!([])).await;
    let claim = || async { world.claim(&token, "match-1", &["arena"]).await.0 };
    eventually("the caller is known, and may not", claim, |code| *code == 403).await;

    let bindings: Api<RoleBinding> = Api::namespaced(world.client.clone(), &world.namespace);
    world.matchmaker_token().await;
    let binding = serde_json::from_value(json!({
        "metadata": {"name": "late-matchmaker"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "matchmaker"},
        "subjects": [{"kind": "ServiceAccount", "name": "late", "namespace": world.namespace}],
    }));
    bindings.create(&PostParams::default(), &binding.unwrap()).await.unwrap();
    eventually("the caller may", claim, |code| *code == 503).await;

    bindings.delete("late-matchmaker", &DeleteParams::default()).await.unwrap();
    let since = tokio::time::Instant::now();
    eventually("the caller may not any more", claim, |code| *code == 403).await;
    assert!(since.elapsed().as_secs() < 30, "{:?}", since.elapsed());
    world.end().await;
}
