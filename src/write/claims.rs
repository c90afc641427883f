//! Writes of `GameServerClaim`s.

use kube::Api;
use kube::api::{DeleteParams, Patch, Preconditions};
use serde_json::json;

use super::{WriteError, Writer, nulling, patch_params, post, to_json};
use crate::api::{GameServerClaim, GameServerClaimStatus};
use crate::rules::observed::Asked;
use crate::view::Key;

impl Writer {
    fn claims(&self, namespace: &str) -> Api<GameServerClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Makes `claim`.
    pub async fn create_claim(&self, namespace: &str, claim: &GameServerClaim) -> Result<(), WriteError> {
        let made = self.within(self.claims(namespace).create(&post(), claim)).await?;
        self.view.wrote_claim(&made);
        Ok(())
    }

    /// The UID of the claim of this name, if there is one; it goes into the view as well.
    pub async fn find_claim(&self, key: &Key) -> Result<Option<String>, WriteError> {
        let found = self.within(self.claims(&key.namespace).get_opt(&key.name)).await?;
        if let Some(claim) = &found {
            self.view.wrote_claim(claim);
        }
        Ok(found.and_then(|claim| claim.metadata.uid))
    }

    /// Writes a claim's status, if the claim is still as it was seen.
    pub async fn set_claim_status(
        &self,
        key: &Key,
        asked: &Asked,
        status: &GameServerClaimStatus,
    ) -> Result<(), WriteError> {
        let status = nulling(&to_json(&asked.status), to_json(status));
        let metadata = json!({"resourceVersion": asked.version.to_string(), "uid": asked.uid});
        let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
        let claims = self.claims(&key.namespace);
        let written = self.within(claims.patch_status(&key.name, &patch_params(), &patch)).await?;
        self.view.wrote_claim(&written);
        Ok(())
    }

    /// Deletes the claim of this name if it is the one with this UID.
    pub async fn delete_claim(&self, key: &Key, uid: &str) -> Result<(), WriteError> {
        self.delete_claim_if(key, Preconditions { uid: Some(uid.to_owned()), resource_version: None }).await
    }

    /// Deletes a claim if it is still as it was seen.
    pub async fn withdraw_claim(&self, key: &Key, asked: &Asked) -> Result<(), WriteError> {
        let resource_version = Some(asked.version.to_string());
        self.delete_claim_if(key, Preconditions { uid: Some(asked.uid.clone()), resource_version }).await
    }

    async fn delete_claim_if(&self, key: &Key, only: Preconditions) -> Result<(), WriteError> {
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        self.within(self.claims(&key.namespace).delete(&key.name, &params)).await.map(drop)
    }
}
