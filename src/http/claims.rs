//! `POST /v1/namespaces/{namespace}/claims`.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::{info, warn};
use utoipa::ToSchema;

use super::Services;
use super::openapi::{OfClaim, schema};
use super::problem::Problem;
use crate::api::GameServerPort;
use crate::api::names::CLAIM_RESOURCE;
use crate::claims::{ClaimError, Request};
use crate::metrics::OfGroup;
use crate::rules::observed::Server;
use crate::view::Key;
use crate::write::{Denial, Verb, WriteError};

/// What a caller sends.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ClaimRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    /// The caller's id for the claim.
    #[schema(min_length = 1, max_length = 128, example = "match-7c1f")]
    id: String,
    /// The groups to take a server of, in order of preference.
    #[schema(min_items = 1, max_items = 16, example = json!(["arena-canary", "arena"]))]
    groups: Vec<String>,
}

/// What a caller gets.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Claim)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    id: String,
    namespace: String,
    group: String,
    server: String,
    /// Names of servers come back; this does not.
    uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[schema(schema_with = schema::<Vec<GameServerPort>>)]
    ports: Vec<GameServerPort>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    claimed_at: Option<MicroTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<MicroTime>,
}

/// Claim a server
///
/// Asked again with the same id while its server exists, the answer is the same server. The right: to create
/// gameserverclaims.gamekeeper.dev in the namespace.
#[utoipa::path(
    post,
    path = "/v1/namespaces/{namespace}/claims",
    params(("namespace" = String, Path, description = "the namespace of the groups")),
    request_body = Body,
    responses((status = 200, description = "the server is the caller's", body = Answer), OfClaim),
    security(("token" = []))
)]
pub(super) async fn create(
    State(services): State<Services>,
    namespace: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Json<Body>, JsonRejection>,
) -> Result<Json<Answer>, Problem> {
    let start = Instant::now();
    // Only of groups that are there, so that callers make no labels.
    let of_group = match (&namespace, &body) {
        (Ok(Path(namespace)), Ok(Json(body))) => {
            let keys = body.groups.iter().map(|group| Key::new(namespace, group));
            keys.into_iter().find(|key| services.view.group(key).is_some())
        }
        _ => None,
    };
    let mut of_group =
        of_group.map(|key| OfGroup { namespace: key.namespace, group: key.name }).unwrap_or_default();
    let answer = claimed(&services, namespace, &headers, body).await;
    let result = match &answer {
        Ok(Json(granted)) => {
            of_group = OfGroup { namespace: granted.namespace.clone(), group: granted.group.clone() };
            "claimed"
        }
        Err(problem) => problem.type_(),
    };
    services.metrics.claim(&of_group, result, start.elapsed());
    answer
}

async fn claimed(
    services: &Services,
    namespace: Result<Path<String>, PathRejection>,
    headers: &HeaderMap,
    body: Result<Json<Body>, JsonRejection>,
) -> Result<Json<Answer>, Problem> {
    let Path(namespace) = namespace.map_err(|rejection| {
        Problem::new(rejection.status().as_u16(), "malformed-request", rejection.body_text())
    })?;
    if !services.view.is_ready() {
        let detail = "this replica has not seen the whole cluster yet; ask again, or another replica";
        return Err(Problem::new(503, "starting", detail.into()).retry_after(1));
    }
    let token = bearer(headers).ok_or_else(|| {
        Problem::new(401, "unauthenticated", "send a Kubernetes token: Authorization: Bearer TOKEN".into())
    })?;
    let caller =
        services.reviewer.may(token, Verb::Create, CLAIM_RESOURCE, &namespace).await.map_err(denied)?;
    let Json(Body { id, groups }) = body.map_err(|rejection| {
        Problem::new(rejection.status().as_u16(), "malformed-request", rejection.body_text())
    })?;
    let request = Request { id, groups };
    let granted = services.claims.claim(&namespace, &request, &caller.user).await.map_err(refused)?;
    info!(%namespace, id = request.id, server = granted.name, user = caller.user, "claimed");
    Ok(Json(answer(namespace, request.id, granted)))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty()).then(|| token.trim())
}

fn answer(namespace: String, id: String, server: Server) -> Answer {
    let claim = server.claim;
    Answer {
        id,
        namespace,
        group: server.group,
        server: server.name,
        uid: server.uid,
        address: server.address,
        ports: server.ports,
        data: server.data,
        claimed_at: claim.as_ref().map(|claim| claim.claimed_at.clone()),
        expires_at: claim.map(|claim| claim.expires_at),
    }
}

fn denied(denial: Denial) -> Problem {
    let detail = denial.to_string();
    match denial {
        Denial::Unknown(_) => Problem::new(401, "unauthenticated", detail),
        Denial::Forbidden { .. } => Problem::new(403, "not-allowed", detail),
        Denial::Review(error) => unavailable(&error, &detail),
    }
}

fn refused(error: ClaimError) -> Problem {
    let detail = error.to_string();
    match error {
        ClaimError::Malformed(_) => Problem::new(400, "malformed-request", detail),
        ClaimError::NoSuchGroup { .. } => Problem::new(404, "no-such-group", detail),
        ClaimError::Deleting { .. } => Problem::new(409, "group-is-being-deleted", detail),
        ClaimError::OutOfCapacity { .. } => Problem::new(503, "out-of-capacity", detail).retry_after(1),
        ClaimError::Expired { .. } => Problem::new(410, "claim-expired", detail),
        ClaimError::Over { .. } => Problem::new(410, "game-over", detail),
        ClaimError::Slow => Problem::new(504, "too-slow", detail).retry_after(1),
        ClaimError::Write(error) => unavailable(&error, &detail),
    }
}

fn unavailable(error: &WriteError, detail: &str) -> Problem {
    let cause = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    warn!(category = error.category(), "{error}{cause}");
    Problem::new(502, "api-server-unavailable", format!("{detail}: {error}")).retry_after(1)
}
