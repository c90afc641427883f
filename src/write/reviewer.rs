//! The check of a caller's token: the API server is asked who it is and what it may do, and believed for a moment.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client};
use moka::Expiry;
use moka::future::Cache;
use sha2::{Digest, Sha256};

use super::{WriteError, post, within};
use crate::api::names::GROUP;

/// How long a yes of the API server is believed: a token or a right that is taken away ends by then.
const YES: Duration = Duration::from_secs(10);
/// How long a no is believed: a right that is given holds by then.
const NO: Duration = Duration::from_secs(1);
/// How many answers of a kind are remembered.
const ANSWERS: u64 = 4096;

/// What a caller wants to do.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Verb {
    /// Read one.
    Get,
    /// Read several.
    List,
    /// Make one.
    Create,
    /// Take one away.
    Delete,
    /// Change one.
    Patch,
}

impl fmt::Display for Verb {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Create => "create",
            Self::Delete => "delete",
            Self::Patch => "patch",
        })
    }
}

/// Who calls.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Caller {
    /// The Kubernetes user name.
    pub user: String,
    /// The name and the UID of the pod that its token is bound to, if it is to one.
    pub pod: Option<(String, String)>,
}

/// Why a caller is turned away.
#[derive(Debug, thiserror::Error)]
pub enum Denial {
    /// The token is nobody's.
    #[error("the token is not valid: {0}")]
    Unknown(String),
    /// The user may not do that there.
    #[error("{user} may not {verb} {resource}.{GROUP} in namespace {namespace}")]
    Forbidden {
        /// The user.
        user: String,
        /// The verb.
        verb: Verb,
        /// The resource, with its part if it is about one.
        resource: &'static str,
        /// The namespace.
        namespace: String,
    },
    /// The API server could not be asked.
    #[error("ask the API server who calls")]
    Review(#[from] Arc<WriteError>),
}

/// As the API server says of tokens that the kubelet gives to pods.
fn pod_of(who: &UserInfo) -> Option<(String, String)> {
    let extra =
        |name: &str| who.extra.as_ref()?.get(&format!("authentication.kubernetes.io/{name}"))?.first();
    Some((extra("pod-name")?.clone(), extra("pod-uid")?.clone()))
}

/// Asks the API server who a token is, and what it may do. What is asked at once is asked once; and answers are
/// believed for [`YES`] and [`NO`].
#[derive(Clone)]
pub struct Reviewer {
    client: Client,
    tokens: Cache<TokenHash, Known>,
    rights: Cache<Question, bool>,
}

/// Of a token; the token itself is not kept.
type TokenHash = [u8; 32];

/// Whose a token is, or why it is nobody's.
type Known = Result<Arc<UserInfo>, Arc<str>>;

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Question {
    token: TokenHash,
    verb: Verb,
    resource: &'static str,
    namespace: String,
}

impl Reviewer {
    /// A reviewer that has asked nothing yet.
    pub fn new(client: Client) -> Self {
        let tokens = Cache::builder().max_capacity(ANSWERS).expire_after(Believed).build();
        let rights = Cache::builder().max_capacity(ANSWERS).expire_after(Believed).build();
        Self { client, tokens, rights }
    }

    /// The caller behind `token`, who may do this to `resource`, such as `gameservers/status`, in `namespace`.
    pub async fn may(
        &self,
        token: &str,
        verb: Verb,
        resource: &'static str,
        namespace: &str,
    ) -> Result<Caller, Denial> {
        let hash: TokenHash = Sha256::digest(token).into();
        let who = self.tokens.try_get_with(hash, self.who(token)).await?;
        let who = who.map_err(|why| Denial::Unknown(why.to_string()))?;
        let question = Question { token: hash, verb, resource, namespace: namespace.to_owned() };
        let allowed = self.rights.try_get_with(question.clone(), self.allowed(&who, question)).await?;
        let user = who.username.clone().unwrap_or_default();
        if allowed {
            Ok(Caller { user, pod: pod_of(&who) })
        } else {
            Err(Denial::Forbidden { user, verb, resource, namespace: namespace.to_owned() })
        }
    }

    async fn who(&self, token: &str) -> Result<Known, WriteError> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = within(reviews.create(&post(), &review)).await?.status.unwrap_or_default();
        Ok(if status.authenticated == Some(true) {
            Ok(Arc::new(status.user.unwrap_or_default()))
        } else {
            Err(status.error.map_or_else(|| "the API server does not know it".into(), Arc::from))
        })
    }

    async fn allowed(&self, who: &UserInfo, question: Question) -> Result<bool, WriteError> {
        let (resource, part) = match question.resource.split_once('/') {
            Some((resource, part)) => (resource, Some(part.to_owned())),
            None => (question.resource, None),
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: who.username.clone(),
                uid: who.uid.clone(),
                groups: who.groups.clone(),
                extra: who.extra.clone(),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(question.verb.to_string()),
                    group: Some(GROUP.to_owned()),
                    resource: Some(resource.to_owned()),
                    subresource: part,
                    namespace: Some(question.namespace),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = within(reviews.create(&post(), &review)).await?.status;
        Ok(status.is_some_and(|status| status.allowed))
    }
}

/// For how long an answer is believed.
struct Believed;

fn believed(yes: bool) -> Duration {
    if yes { YES } else { NO }
}

impl Expiry<TokenHash, Known> for Believed {
    fn expire_after_create(&self, _: &TokenHash, known: &Known, _: Instant) -> Option<Duration> {
        Some(believed(known.is_ok()))
    }
}

impl Expiry<Question, bool> for Believed {
    fn expire_after_create(&self, _: &Question, allowed: &bool, _: Instant) -> Option<Duration> {
        Some(believed(*allowed))
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use http_body_util::BodyExt;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    /// An API server that knows one token, which may patch statuses alone; and what it was asked.
    fn reviewer() -> (Reviewer, Arc<Mutex<Vec<Value>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let asks = Arc::clone(&asked);
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let asked = Arc::clone(&asks);
            async move {
                let body = request.into_body().collect().await?.to_bytes();
                let mut review: Value = serde_json::from_slice(&body)?;
                // Others that ask the same come by before the answer.
                tokio::task::yield_now().await;
                review["status"] = if review["kind"] == "TokenReview" {
                    json!({"authenticated": review["spec"]["token"] == "good", "user": {"username": "mia"}})
                } else {
                    json!({"allowed": review["spec"]["resourceAttributes"]["subresource"] == "status"})
                };
                asked.lock().push(review.clone());
                Ok::<_, tower::BoxError>(hyper::Response::new(Body::from(review.to_string().into_bytes())))
            }
        });
        (Reviewer::new(Client::new(service, "default")), asked)
    }

    #[tokio::test]
    async fn what_is_asked_at_once_is_asked_once() {
        let (reviewer, asked) = reviewer();
        let ask = || reviewer.may("good", Verb::Patch, "gameservers/status", "games");
        for answer in join_all((0..3).map(|_| ask())).await {
            assert_eq!(answer.unwrap(), Caller { user: "mia".to_owned(), pod: None });
        }
        assert_eq!(asked.lock().len(), 2, "{asked:?}");
        let attributes = &asked.lock()[1]["spec"]["resourceAttributes"];
        assert_eq!(
            attributes,
            &json!({"group": "gamekeeper.dev", "resource": "gameservers", "subresource": "status",
                "verb": "patch", "namespace": "games"})
        );
    }

    #[tokio::test]
    async fn each_question_has_its_own_answer() {
        let (reviewer, asked) = reviewer();
        let ask = |token, verb, resource, namespace| reviewer.may(token, verb, resource, namespace);
        assert!(ask("good", Verb::Patch, "gameservers/status", "games").await.is_ok());
        for (verb, resource) in
            [(Verb::Get, "gameservers"), (Verb::List, "gameservers"), (Verb::Create, "gameserverclaims")]
        {
            let denial = ask("good", verb, resource, "games").await.unwrap_err().to_string();
            assert_eq!(denial, format!("mia may not {verb} {resource}.gamekeeper.dev in namespace games"));
        }
        assert!(ask("good", Verb::Patch, "gameservers/status", "other").await.is_ok());
        assert!(matches!(ask("bad", Verb::Get, "gameservers", "games").await, Err(Denial::Unknown(_))));
        let names = asked.lock().iter().filter(|review| review["kind"] == "TokenReview").count();
        assert_eq!((names, asked.lock().len()), (2, 7));
    }
}
