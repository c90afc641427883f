//! Writes of `CapacityPool`s.

use kube::Api;
use kube::api::{DeleteParams, Patch, Preconditions};
use serde_json::json;

use super::{WriteError, Writer, nulling, patch_params, post, to_json};
use crate::api::{CapacityPool, CapacityPoolStatus};
use crate::rules::observed::SeenPool;

impl Writer {
    fn pools(&self) -> Api<CapacityPool> {
        Api::all(self.client.clone())
    }

    /// Makes `pool`.
    pub async fn create_pool(&self, pool: &CapacityPool) -> Result<(), WriteError> {
        let made = self.within(self.pools().create(&post(), pool)).await?;
        self.view.wrote_pool(&made);
        Ok(())
    }

    /// Writes a pool's status, if the pool is still as it was seen.
    pub async fn set_pool_status(
        &self,
        pool: &SeenPool,
        status: &CapacityPoolStatus,
    ) -> Result<(), WriteError> {
        let status = nulling(&to_json(&pool.status), to_json(status));
        let metadata = json!({"resourceVersion": pool.version.to_string(), "uid": pool.uid});
        let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
        let written = self.within(self.pools().patch_status(&pool.name, &patch_params(), &patch)).await?;
        self.view.wrote_pool(&written);
        Ok(())
    }

    /// Deletes a pool if it is still as it was seen.
    pub async fn delete_pool(&self, pool: &SeenPool) -> Result<(), WriteError> {
        let resource_version = Some(pool.version.to_string());
        let preconditions = Preconditions { uid: Some(pool.uid.clone()), resource_version };
        let only = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.within(self.pools().delete(&pool.name, &only)).await.map(drop)
    }
}
