//! Who may do what: the account of a game's pod, and the check of a caller's token.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{WriteError, post, within};
use crate::api::names::{CLAIM_RESOURCE, GAME_ACCOUNT, GROUP, OPERATOR};

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

/// Who calls.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Caller {
    /// The Kubernetes user name.
    pub user: String,
}

/// Why a caller is turned away.
#[derive(Debug, thiserror::Error)]
pub enum Denial {
    /// The token is nobody's.
    #[error("the token is not valid: {0}")]
    Unknown(String),
    /// The user may not claim there.
    #[error("{user} may not create {CLAIM_RESOURCE}.{GROUP} in namespace {namespace}")]
    Forbidden {
        /// The user.
        user: String,
        /// The namespace.
        namespace: String,
    },
    /// The API server could not be asked.
    #[error("ask the API server who calls")]
    Review(#[from] WriteError),
}

/// Asks the API server who a token is, and what it may do.
#[derive(Clone)]
pub struct Reviewer {
    client: Client,
}

impl Reviewer {
    /// A reviewer.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The caller behind `token`, who may claim in `namespace`.
    pub async fn may_claim(&self, token: &str, namespace: &str) -> Result<Caller, Denial> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = within(reviews.create(&post(), &review)).await?.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Err(Denial::Unknown(
                status.error.unwrap_or_else(|| "the API server does not know it".into()),
            ));
        }
        let who = status.user.unwrap_or_default();
        let user = who.username.unwrap_or_default();
        let question = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.clone()),
                uid: who.uid,
                groups: who.groups,
                extra: who.extra,
                resource_attributes: Some(ResourceAttributes {
                    verb: Some("create".to_owned()),
                    group: Some(GROUP.to_owned()),
                    resource: Some(CLAIM_RESOURCE.to_owned()),
                    namespace: Some(namespace.to_owned()),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let questions: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = within(questions.create(&post(), &question)).await?.status;
        if answer.is_some_and(|answer| answer.allowed) {
            return Ok(Caller { user });
        }
        Err(Denial::Forbidden { user, namespace: namespace.to_owned() })
    }
}
