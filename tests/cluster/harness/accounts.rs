//! Service accounts with their rights, the operator's among them.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::callers::TLS_SECRET;
use super::wait::eventually;
use super::world::GIVEN_SECRET;

/// Where the events of what has no namespace are.
pub(super) const NODE_EVENTS: &str = "default";

/// A binding of a role to the operator whose account is in `namespace`.
pub(super) fn operators_binding(name: &str, role: &str, namespace: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}],
    })
}

/// An account with the rights that the chart gives the operator.
pub(super) async fn operator_account(client: &Client, namespace: &str) -> String {
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    // As the chart binds them where namespaces are named.
    let binding = |name: &str, role: &str| operators_binding(name, role, namespace);
    let cluster = serde_json::from_value(binding(namespace, "gamekeeper-cluster")).unwrap();
    bindings.create(&PostParams::default(), &cluster).await.unwrap();
    let of_namespace: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let inside = serde_json::from_value(binding("gamekeeper", "gamekeeper")).unwrap();
    of_namespace.create(&PostParams::default(), &inside).await.unwrap();
    let of_nodes: Api<RoleBinding> = Api::namespaced(client.clone(), NODE_EVENTS);
    let events = serde_json::from_value(binding(namespace, "gamekeeper-node-events")).unwrap();
    of_nodes.create(&PostParams::default(), &events).await.unwrap();
    // As the chart makes it: empty.
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = serde_json::from_value(json!({"metadata": {"name": TLS_SECRET}})).unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let own = json!([
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [TLS_SECRET], "verbs": ["get", "update"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [GIVEN_SECRET], "verbs": ["get"]},
    ]);
    account(client, namespace, "operator", own).await
}

/// Asks whether a user may do the first thing that a rule lets it do.
fn review_of(user: &str, namespace: &str, rule: &Value) -> SubjectAccessReview {
    let (resource, subresource) = match rule["resources"][0].as_str().unwrap().split_once('/') {
        Some((resource, subresource)) => (resource, subresource),
        None => (rule["resources"][0].as_str().unwrap(), ""),
    };
    let attributes = json!({
        "namespace": namespace, "group": rule["apiGroups"][0], "resource": resource, "subresource": subresource,
        "verb": rule["verbs"][0], "name": rule["resourceNames"][0],
    });
    let review = json!({"metadata": {}, "spec": {"user": user, "resourceAttributes": attributes}});
    serde_json::from_value(review).unwrap()
}

/// A service account with these rights in the namespace, and a token of it.
pub(crate) async fn account(client: &Client, namespace: &str, name: &str, rules: Value) -> String {
    let params = PostParams::default();
    let metadata = json!({"name": name});
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let account = serde_json::from_value(json!({"metadata": metadata})).unwrap();
    accounts.create(&params, &account).await.unwrap();
    let of_role: Api<Role> = Api::namespaced(client.clone(), namespace);
    let role = serde_json::from_value(json!({"metadata": metadata, "rules": rules})).unwrap();
    of_role.create(&params, &role).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let binding = json!({
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    });
    bindings.create(&params, &serde_json::from_value(binding).unwrap()).await.unwrap();
    // The API server learns of its own rights by a watch.
    if let Some(rule) = rules.get(0) {
        let user = format!("system:serviceaccount:{namespace}:{name}");
        let review = review_of(&user, namespace, rule);
        let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
        let may = || async {
            reviews.create(&params, &review).await.unwrap().status.is_some_and(|status| status.allowed)
        };
        eventually("the account has its rights", may, |may| *may).await;
    }
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    accounts.create_token_request(name, &params, &request).await.unwrap().status.unwrap().token.unwrap()
}
