//! A second namespace beside that of an operator, and the end of it.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use tokio::sync::OnceCell;

use super::accounts::operators_binding;
use super::wait::eventually;
use super::world::{World, new_namespace};

impl World {
    /// Another namespace, which this world's operator, started anew, looks after as well. Its rights there are bound in the
    /// whole cluster, as the chart does by default: neither these nor its account go with that namespace.
    pub(crate) async fn neighbour(&mut self, name: &str) -> Self {
        let namespace = new_namespace(&self.client, name).await;
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        let binding = operators_binding(&namespace, "gamekeeper", &self.namespace);
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
        self.kill_operators();
        self.setup.neighbours.push(namespace.clone());
        self.start_operator().await;
        let setup = self.setup.clone();
        Self {
            namespace,
            client: self.client.clone(),
            setup,
            operators: Vec::new(),
            callers: OnceCell::new(),
        }
    }

    /// Deletes the namespace with all that is in it, and waits until it is gone.
    pub(crate) async fn namespace_gone(self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let params = DeleteParams::default();
        namespaces.delete(&self.namespace, &params).await.unwrap();
        // Its status says what it waits for.
        let look = || async { namespaces.get_opt(&self.namespace).await.unwrap() };
        eventually("the namespace is gone", look, Option::is_none).await;
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        bindings.delete(&self.namespace, &params).await.unwrap();
    }
}
