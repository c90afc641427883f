//! `POST /v1/namespaces/{namespace}/claims`.

use std::collections::BTreeMap;

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::Services;
use super::problem::Problem;
use crate::api::{GameServerPort, InstanceStatus};
use crate::claims::ClaimError;
use crate::rules::claim::Request;
use crate::rules::observed::Server;
use crate::write::{Denial, WriteError};

/// What a caller sends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Body {
    /// The caller's id for the claim: a name as Kubernetes' objects have it.
    id: String,
    /// The groups to take a server of, in order of preference. May be left out where `server` is given.
    #[serde(default)]
    groups: Vec<String>,
    /// The one server to take.
    #[serde(default)]
    server: Option<String>,
    /// What the server must be like.
    #[serde(default)]
    selector: Selector,
    /// What its instance may be: Active, Draining, or either if left out.
    #[serde(default)]
    instance_status: Vec<InstanceStatus>,
    /// What the game is handed, up to 1,024 characters.
    #[serde(default)]
    data: Option<String>,
    /// How long to wait for a server if none is on offer, in seconds, up to an hour.
    #[serde(default)]
    wait_seconds: u32,
}

/// What a server must be like.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Selector {
    /// Labels that it must bear.
    match_labels: BTreeMap<String, String>,
}

impl From<Body> for Request {
    fn from(body: Body) -> Self {
        let Body { id, groups, server, selector, instance_status, data, wait_seconds: _ } = body;
        Self { id, groups, server, labels: selector.match_labels, instance_status, data }
    }
}

/// What a caller gets.
#[derive(Debug, Serialize)]
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
    ports: Vec<GameServerPort>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_at: Option<MicroTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<MicroTime>,
}

pub(super) async fn create(
    State(services): State<Services>,
    namespace: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Json<Body>, JsonRejection>,
) -> Result<Json<Answer>, Problem> {
    let Path(namespace) = namespace.map_err(|rejection| {
        Problem::new(rejection.status().as_u16(), "malformed-request", rejection.body_text())
    })?;
    if !services.view.is_ready() {
        let detail = "this replica has not seen the whole cluster yet; ask again, or another replica";
        return Err(Problem::new(503, "starting", detail.into()).retry_after(1));
    }
    let token = bearer(&headers).ok_or_else(|| {
        Problem::new(401, "unauthenticated", "send a Kubernetes token: Authorization: Bearer TOKEN".into())
    })?;
    let caller = services.reviewer.may_claim(token, &namespace).await.map_err(denied)?;
    let Json(body) = body.map_err(|rejection| {
        Problem::new(rejection.status().as_u16(), "malformed-request", rejection.body_text())
    })?;
    let wait = Duration::from_secs(body.wait_seconds.into());
    let request = Request::from(body);
    let id = request.id.clone();
    let granted = services.claims.claim(&namespace, request, &caller.user, wait).await.map_err(refused)?;
    info!(%namespace, id, server = granted.name, user = caller.user, "claimed");
    Ok(Json(answer(namespace, id, granted)))
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
        ClaimError::Malformed(_) | ClaimError::Wait => Problem::new(400, "malformed-request", detail),
        ClaimError::NoSuchGroup { .. } => Problem::new(404, "no-such-group", detail),
        ClaimError::NoSuchServer { .. } => Problem::new(404, "no-such-server", detail),
        ClaimError::NoSuchClaim { .. } => Problem::new(404, "no-such-claim", detail),
        ClaimError::Taken { .. } => Problem::new(409, "taken", detail),
        ClaimError::IdReused { .. } => Problem::new(409, "id-reused", detail),
        ClaimError::Playing { .. } => Problem::new(409, "game-is-on", detail),
        ClaimError::Deleting { .. } => Problem::new(409, "group-is-being-deleted", detail),
        ClaimError::OutOfCapacity { .. } => Problem::new(503, "out-of-capacity", detail).retry_after(1),
        ClaimError::Draining { .. } => Problem::new(503, "draining", detail).retry_after(1),
        ClaimError::Released { .. } => Problem::new(410, "claim-released", detail),
        ClaimError::Stopped | ClaimError::Abandoned => Problem::new(503, "stopping", detail).retry_after(1),
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
