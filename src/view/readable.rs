//! Objects that may not be what their type says.
//!
//! A definition cannot refuse everything that a Rust type does (a port of 12 digits, a date in the year 9999), and a
//! list that holds one such object would not be read at all: any user could blind the operator. So each object is
//! read by itself, and of one that cannot be read only its metadata is known. Who manages which field is left out:
//! nobody here asks, and it takes more memory than all the rest of an object while a list of them is read.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object as a watch brings it.
#[derive(Clone, Debug)]
pub(super) struct Readable<K> {
    metadata: ObjectMeta,
    /// The object, or why it cannot be read.
    pub(super) object: Result<K, String>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Readable<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
            metadata.remove("managedFields");
        }
        let metadata = ObjectMeta::deserialize(value.get("metadata").unwrap_or(&Value::Null))
            .map_err(D::Error::custom)?;
        let object = serde_json::from_value(value).map_err(|error| error.to_string());
        Ok(Self { metadata, object })
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Readable<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::GameServerGroup;
    use serde_json::json;

    fn group(port: i64) -> Value {
        let probe = json!({"httpGet": {"port": port}});
        let containers = json!([{"name": "game", "livenessProbe": probe}]);
        json!({
            "apiVersion": "gamekeeper.dev/v1alpha1", "kind": "GameServerGroup",
            "metadata": {
                "name": "arena", "namespace": "games", "uid": "u", "resourceVersion": "7",
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {"template": {"spec": {"containers": containers}}},
        })
    }

    #[test]
    fn one_object_that_cannot_be_read_leaves_the_others_readable() {
        let list: Vec<Readable<GameServerGroup>> =
            serde_json::from_value(json!([group(80), group(99_999_999_999)])).unwrap();
        assert!(list[0].object.is_ok());
        assert!(list[1].object.as_ref().unwrap_err().contains("99999999999"));
        assert_eq!(list[1].meta().name.as_deref(), Some("arena"));
        assert!(list.iter().all(|group| group.meta().managed_fields.is_none()));
    }
}
