//! The only code that changes the cluster: conditional patches, creations under decided names, deletions with
//! preconditions, and events. Each write's answer goes into the view at once.

mod access;
mod certificates;
mod claims;
mod events;
mod poke;
mod pools;
mod reviewer;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, Client};
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::names::{GROUP_FINALIZER, OPERATOR, SERVER_FINALIZER};
use crate::api::{GameServer, GameServerGroup, GameServerGroupStatus};
use crate::metrics::Metrics;
use crate::rules;
use crate::rules::observed::{self, Server};
use crate::rules::patch::ServerPatch;
use crate::view::{Key, View};

pub use access::Access;
pub use certificates::{Certificates, Kept, MakeError, begun, renewed};
pub use events::{Events, Subject};
pub use reviewer::{Caller, Denial, Reviewer, Verb};

/// How long a single request may take before it counts as lost.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a write, or a read that a write depends on, did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// What it was conditional on does not hold any more: look again.
    #[error("it has changed in the meantime")]
    Lost,
    /// The object is not there.
    #[error("it is gone")]
    Gone,
    /// An object of that name is there already.
    #[error("an object of that name exists")]
    Exists,
    /// The API server is too busy, or lost track; the write may have happened.
    #[error("the API server is too busy ({code}): {message}")]
    Busy {
        /// The HTTP status code.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// The API server refuses it, and will again.
    #[error("refused with {code}: {message}")]
    Refused {
        /// The HTTP status code.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// The API server did not answer in time; the write may or may not have happened.
    #[error("no answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Silence,
    /// The request did not get through.
    #[error("reach the API server")]
    Unreachable(#[source] kube::Error),
}

impl From<kube::Error> for WriteError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from_status(&status),
            other => Self::Unreachable(other),
        }
    }
}

impl WriteError {
    fn from_status(status: &Status) -> Self {
        let causes = status.details.as_ref().is_some_and(|details| !details.causes.is_empty());
        match status.code {
            404 => Self::Gone,
            409 if status.reason == "AlreadyExists" => Self::Exists,
            409 => Self::Lost,
            // A failed `test`, or an absent path, answers 422 without causes; a schema, a CEL rule or a policy
            // answers 422 with causes: the first means look again, the second means stop.
            422 if !causes => Self::Lost,
            code @ (408 | 429 | 500..=599) => Self::Busy { code, message: status.message.clone() },
            code => Self::Refused { code, message: status.message.clone() },
        }
    }

    /// A word for metrics and logs.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Gone => "gone",
            Self::Exists => "exists",
            Self::Busy { .. } => "busy",
            Self::Refused { .. } => "refused",
            Self::Silence => "silence",
            Self::Unreachable(_) => "unreachable",
        }
    }
}

/// Writes for the operator.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    view: View,
    metrics: Metrics,
    poker: poke::Poker,
}

impl Writer {
    /// A writer whose answers go into `view`, and whose errors are counted.
    pub fn new(client: Client, view: View, metrics: Metrics) -> Self {
        Self { client, view, metrics, poker: poke::Poker::default() }
    }

    async fn within<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, WriteError> {
        within(request).await.inspect_err(|error| self.metrics.write_error(error.category()))
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn servers(&self, namespace: &str) -> Api<GameServer> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn groups(&self, namespace: &str) -> Api<GameServerGroup> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Makes `pod`.
    pub async fn create_pod(&self, namespace: &str, pod: &Pod) -> Result<(), WriteError> {
        let made = self.within(self.pods(namespace).create(&post(), pod)).await?;
        self.view.wrote_pod(&made);
        Ok(())
    }

    /// Asks the API server whether it would make `pod`, without making it.
    pub async fn try_pod(&self, namespace: &str, pod: &Pod) -> Result<(), WriteError> {
        let dry = PostParams { dry_run: true, ..post() };
        self.within(self.pods(namespace).create(&dry, pod)).await.map(drop)
    }

    /// Reads a pod, into the view as well.
    pub async fn find_pod(&self, key: &Key) -> Result<Option<Pod>, WriteError> {
        let found = self.within(self.pods(&key.namespace).get_opt(&key.name)).await?;
        if let Some(pod) = &found {
            self.view.wrote_pod(pod);
        }
        Ok(found)
    }

    /// Reads a group.
    pub async fn find_group(&self, key: &Key) -> Result<Option<GameServerGroup>, WriteError> {
        self.within(self.groups(&key.namespace).get_opt(&key.name)).await
    }

    /// Changes labels or annotations of a pod, if it is the one with the UID that `change` names.
    pub async fn relabel_pod(&self, key: &Key, change: Value) -> Result<(), WriteError> {
        let pods = self.pods(&key.namespace);
        let pod = self.within(pods.patch(&key.name, &patch_params(), &Patch::Merge(change))).await?;
        self.view.wrote_pod(&pod);
        Ok(())
    }

    /// Deletes the pod of this name if it is the one with this UID.
    pub async fn delete_pod(&self, key: &Key, uid: &str) -> Result<(), WriteError> {
        let only = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        let answer = self.within(self.pods(&key.namespace).delete(&key.name, &params)).await?;
        // While the pod takes its leave, the answer is the pod with its deletion mark.
        if let Some(pod) = answer.left() {
            self.view.wrote_pod(&pod);
        }
        Ok(())
    }

    /// Makes `server`.
    pub async fn create_server(&self, namespace: &str, server: &GameServer) -> Result<(), WriteError> {
        let made = self.within(self.servers(namespace).create(&post(), server)).await?;
        self.view.wrote_server(&made);
        Ok(())
    }

    /// Reads a server, into the view as well.
    pub async fn find_server(&self, key: &Key) -> Result<Option<Server>, WriteError> {
        let found = self.within(self.servers(&key.namespace).get_opt(&key.name)).await?;
        Ok(found.and_then(|server| self.view.read_server(&server)))
    }

    /// Changes the status of a server if what `patch` tests holds, and gives the server as it then is.
    pub async fn patch_status(&self, key: &Key, patch: ServerPatch) -> Result<Server, WriteError> {
        let patch = Patch::Json::<()>(patch.into_json());
        let servers = self.servers(&key.namespace);
        let server = self.within(servers.patch_status(&key.name, &patch_params(), &patch)).await?;
        self.view.wrote_server(&server).ok_or(WriteError::Gone)
    }

    /// Changes a server, but for its status, if what `patch` tests holds.
    pub async fn patch_spec(&self, key: &Key, patch: ServerPatch) -> Result<(), WriteError> {
        let patch = Patch::Json::<()>(patch.into_json());
        let server =
            self.within(self.servers(&key.namespace).patch(&key.name, &patch_params(), &patch)).await?;
        self.view.wrote_server(&server);
        Ok(())
    }

    /// Ties `server` to `pod`, if it is still that one.
    pub async fn tie_server(
        &self,
        key: &Key,
        server: &Server,
        pod: &observed::Pod,
    ) -> Result<(), WriteError> {
        let servers = self.servers(&key.namespace);
        let there = self.within(servers.get_metadata(&key.name)).await?.metadata;
        if there.uid.as_ref() != Some(&server.uid) {
            return Err(WriteError::Lost);
        }
        let patch = Patch::Merge(rules::pod::tied(&there, pod));
        let tied = self.within(servers.patch(&key.name, &patch_params(), &patch)).await?;
        self.view.wrote_server(&tied);
        Ok(())
    }

    /// Takes our finalizer off a server.
    pub async fn release_server(&self, key: &Key, server: &Server) -> Result<(), WriteError> {
        let Some(place) = server.finalizer_at else { return Ok(()) };
        let patch = without_finalizer(&server.uid, place, SERVER_FINALIZER)?;
        let released =
            self.within(self.servers(&key.namespace).patch(&key.name, &patch_params(), &patch)).await?;
        let metadata = &released.metadata;
        if metadata.deletion_timestamp.is_some() && metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
            // Nothing holds it any more: this was its end, and the answer is no newer version of it.
            self.view.server_gone(key, &server.uid);
        } else {
            self.view.wrote_server(&released);
        }
        Ok(())
    }

    /// Puts our finalizer on a group.
    pub async fn hold_group(&self, key: &Key, group: &GameServerGroup) -> Result<(), WriteError> {
        let mut finalizers = group.metadata.finalizers.clone().unwrap_or_default();
        finalizers.push(GROUP_FINALIZER.to_owned());
        let version = &group.metadata.resource_version;
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}}));
        let held = self.within(self.groups(&key.namespace).patch(&key.name, &patch_params(), &patch)).await?;
        self.view.wrote_group(&held);
        Ok(())
    }

    /// Takes our finalizer off a group.
    pub async fn release_group(&self, key: &Key, group: &GameServerGroup) -> Result<(), WriteError> {
        let mut finalizers = group.metadata.finalizers.iter().flatten();
        let Some(place) = finalizers.position(|finalizer| finalizer == GROUP_FINALIZER) else {
            return Ok(());
        };
        let uid = group.metadata.uid.clone().unwrap_or_default();
        let patch = without_finalizer(&uid, place, GROUP_FINALIZER)?;
        self.within(self.groups(&key.namespace).patch(&key.name, &patch_params(), &patch)).await.map(drop)
    }

    /// Writes a group's status, if the group is still as it was seen.
    pub async fn set_group_status(
        &self,
        key: &Key,
        group: &GameServerGroup,
        status: &GameServerGroupStatus,
    ) -> Result<(), WriteError> {
        let version = &group.metadata.resource_version;
        let before = to_json(&group.status.clone().unwrap_or_default());
        let status = nulling(&before, to_json(status));
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "status": status}));
        let groups = self.groups(&key.namespace);
        let written = self.within(groups.patch_status(&key.name, &patch_params(), &patch)).await?;
        self.view.wrote_group(&written);
        Ok(())
    }
}

/// `after`, with a null for each field of `before` that it lacks: a merge patch leaves out nothing by itself.
fn nulling(before: &Value, mut after: Value) -> Value {
    if let (Some(before), Some(after)) = (before.as_object(), after.as_object_mut()) {
        for field in before.keys().filter(|field| !after.contains_key(*field)).collect::<Vec<_>>() {
            after.insert(field.clone(), Value::Null);
        }
    }
    after
}

fn to_json(status: &impl Serialize) -> Value {
    // Plain data with string keys always has a JSON form.
    serde_json::to_value(status).unwrap_or(Value::Null)
}

fn without_finalizer(uid: &str, place: usize, finalizer: &str) -> Result<Patch<()>, WriteError> {
    let path = format!("/metadata/finalizers/{place}");
    let operations = json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": path, "value": finalizer},
        {"op": "remove", "path": path},
    ]);
    serde_json::from_value(operations)
        .map(Patch::Json)
        .map_err(|error| WriteError::Unreachable(kube::Error::SerdeError(error)))
}

fn post() -> PostParams {
    PostParams { field_manager: Some(OPERATOR.to_owned()), dry_run: false }
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(OPERATOR.to_owned()), ..PatchParams::default() }
}

async fn within<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, WriteError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(WriteError::from),
        Err(_) => Err(WriteError::Silence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, causes: usize) -> WriteError {
        let causes = vec![json!({"message": "words"}); causes];
        let status = json!({"code": code, "reason": "Invalid", "details": {"causes": causes}});
        WriteError::from_status(&serde_json::from_value(status).unwrap())
    }

    #[test]
    fn a_failed_test_means_look_again_and_a_denial_means_stop() {
        assert!(matches!(answer(422, 0), WriteError::Lost));
        assert!(matches!(answer(422, 1), WriteError::Refused { code: 422, .. }));
        assert!(matches!(answer(403, 0), WriteError::Refused { code: 403, .. }));
        assert!(matches!(answer(409, 0), WriteError::Lost));
        for code in [429, 500, 503, 504] {
            assert!(matches!(answer(code, 0), WriteError::Busy { .. }));
        }
    }

    #[test]
    fn a_field_that_went_is_nulled() {
        let merged = nulling(&json!({"a": 1, "b": 2}), json!({"a": 3}));
        assert_eq!(merged, json!({"a": 3, "b": null}));
    }
}
