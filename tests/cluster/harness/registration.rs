//! What a test does in the place of a process in a pod: with that pod's token, or as one that registers itself.

use gamekeeper::api::GameServer;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::world::{World, silent_group};

/// The YAML of a group of silent servers that are to register themselves.
pub(crate) fn self_group(name: &str, replicas: u32) -> String {
    silent_group(name, replicas).replace("  ports:", "  registration: Self\n          ports:")
}

/// What the process in `pod` registers.
pub(crate) fn server_of(pod: &Pod, group: &str) -> Value {
    json!({
        "apiVersion": "gamekeeper.dev/v1alpha1", "kind": "GameServer",
        "metadata": {"name": pod.name_any(), "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()},
        ]},
        "spec": {"group": group},
    })
}

impl World {
    /// Game servers, by the token that the kubelet gives to this pod, which runs as this account.
    pub(crate) async fn as_pod(&self, pod: &str, account: &str) -> Api<GameServer> {
        let client = self.client_with(&self.pod_token(pod, account).await).await;
        Api::namespaced(client, &self.namespace)
    }

    /// The token that the kubelet gives to this pod, which runs as this account.
    pub(crate) async fn pod_token(&self, pod: &str, account: &str) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.to_owned()),
            uid: self.pod_api().get(pod).await.unwrap().uid(),
        };
        let request = TokenRequest {
            spec: Some(TokenRequestSpec { bound_object_ref: Some(bound), ..TokenRequestSpec::default() }),
            ..TokenRequest::default()
        };
        let token = accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap();
        token.status.unwrap().token.unwrap()
    }
}
