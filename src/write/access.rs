//! The account of a game's pod.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{WriteError, post, within};
use crate::api::names::{GAME_ACCOUNT, OPERATOR};

/// How long what was found or made is believed to be there still.
const BELIEVED: Duration = Duration::from_secs(30);

/// Gives each namespace that has a group the account that its games' pods run as (row K2).
pub struct Access {
    client: Client,
    given: Mutex<BTreeMap<String, Instant>>,
}

impl Access {
    /// None given yet.
    pub fn new(client: Client) -> Self {
        Self { client, given: Mutex::default() }
    }

    /// Makes the account and its binding in `namespace` where they are missing.
    pub async fn give(&self, namespace: &str) -> Result<(), WriteError> {
        if self.given.lock().get(namespace).is_some_and(|then| then.elapsed() < BELIEVED) {
            return Ok(());
        }
        let metadata = || ObjectMeta {
            name: Some(GAME_ACCOUNT.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some([("app.kubernetes.io/managed-by".to_owned(), OPERATOR.to_owned())].into()),
            ..ObjectMeta::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        if within(accounts.get_opt(GAME_ACCOUNT)).await?.is_none() {
            let account = ServiceAccount { metadata: metadata(), ..ServiceAccount::default() };
            or_exists(within(accounts.create(&post(), &account)).await)?;
        }
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), namespace);
        if within(bindings.get_opt(GAME_ACCOUNT)).await?.is_none() {
            let binding = RoleBinding {
                metadata: metadata(),
                role_ref: RoleRef {
                    api_group: Some("rbac.authorization.k8s.io".to_owned()),
                    kind: "ClusterRole".to_owned(),
                    name: GAME_ACCOUNT.to_owned(),
                },
                subjects: Some(vec![Subject {
                    kind: "ServiceAccount".to_owned(),
                    name: GAME_ACCOUNT.to_owned(),
                    namespace: Some(namespace.to_owned()),
                    api_group: None,
                }]),
            };
            or_exists(within(bindings.create(&post(), &binding)).await)?;
        }
        self.given.lock().insert(namespace.to_owned(), Instant::now());
        Ok(())
    }

    /// Looks again at the next call: somebody may have taken the account away.
    pub fn doubt(&self, namespace: &str) {
        self.given.lock().remove(namespace);
    }
}

/// Two replicas may make it at once.
fn or_exists<T>(answer: Result<T, WriteError>) -> Result<(), WriteError> {
    match answer {
        Ok(_) | Err(WriteError::Exists) => Ok(()),
        Err(error) => Err(error),
    }
}
