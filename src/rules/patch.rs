//! Compare-and-swap patches on a game server: a JSON Patch whose tests the API server checks.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation};
use serde::Serialize;
use serde_json::Value;

use crate::api::{End, EndReason, State};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// The longest message of an end that the schema takes.
const MESSAGE_LIMIT: usize = 1024;

/// A conditional patch of a game server: `tests` that must hold, then `adds`.
///
/// A test that fails takes nothing: the API server answers 422 without causes and the caller looks again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerPatch {
    operations: Vec<PatchOperation>,
}

impl ServerPatch {
    /// A patch that only this very object takes, not another one of the same name.
    pub fn of(uid: &str) -> Self {
        Self::default().test(&["metadata", "uid"], uid)
    }

    /// What must still be true.
    #[must_use]
    pub fn test(mut self, path: &[&str], value: impl Serialize) -> Self {
        let value = to_value(value);
        self.operations.push(PatchOperation::Test(TestOperation {
            path: PointerBuf::from_tokens(path.iter().copied()),
            value,
        }));
        self
    }

    /// What it sets, whether it was there or not.
    #[must_use]
    pub fn set(mut self, path: &[&str], value: impl Serialize) -> Self {
        let value = to_value(value);
        self.operations.push(PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(path.iter().copied()),
            value,
        }));
        self
    }

    /// What it takes away, which is there.
    #[must_use]
    pub fn remove(mut self, path: &[&str]) -> Self {
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.operations.push(PatchOperation::Remove(RemoveOperation { path }));
        self
    }

    /// Sets a state that ends the server, and why.
    #[must_use]
    pub fn end(self, state: State, reason: EndReason, message: &str, time: Timestamp) -> Self {
        let message = message.chars().take(MESSAGE_LIMIT).collect();
        self.set(&["status", "state"], state)
            .set(&["status", "end"], End { reason, message, time: MicroTime(time) })
    }

    /// The patch as the API server takes it.
    pub fn into_json(self) -> Patch {
        Patch(self.operations)
    }
}

/// Our types are plain data with string keys, which always have a JSON form.
fn to_value(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}
