//! Claims that are objects.

use gamekeeper::api::{ClaimPhase, GameServerClaim};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::{World, eventually};

impl World {
    pub(crate) fn claim_api(&self) -> Api<GameServerClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn make_claim(&self, name: &str, spec: Value) {
        let claim = json!({"metadata": {"name": name}, "spec": spec});
        let claim = serde_json::from_value(claim).unwrap();
        self.claim_api().create(&PostParams::default(), &claim).await.unwrap();
    }

    pub(crate) async fn claim_until(&self, name: &str, phase: ClaimPhase) -> GameServerClaim {
        eventually(
            &format!("claim {name} is {phase:?}"),
            || async { self.claim_api().get(name).await.unwrap() },
            |claim| claim.status.as_ref().is_some_and(|status| status.phase == phase),
        )
        .await
    }
}
