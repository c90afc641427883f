//! Claims: made, read, listed and released.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::info;
use utoipa::openapi::schema::{Array, ArrayBuilder, ObjectBuilder, Type};
use utoipa::{IntoParams, ToSchema};

use super::Services;
use super::callers::{admit, malformed, unavailable};
use super::numbers::whole;
use super::openapi::{OfCaller, OfClaim, OfHeldClaim, schema};
use super::paging::{self, Page};
use super::problem::Problem;
use crate::api::names::CLAIM_RESOURCE;
use crate::api::{ClaimPhase, ClaimableStatus, GameServerPort};
use crate::claims::{ClaimError, Granted, LONGEST_WAIT};
use crate::metrics::OfGroup;
use crate::rules::observed::{Asked, Fate, Server};
use crate::rules::request::Request;
use crate::view::Key;
use crate::write::Verb;

/// What a caller sends.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ClaimRequest)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Body {
    /// The caller's id for the claim: a name as Kubernetes' objects have it.
    #[schema(
        min_length = 1,
        max_length = 128,
        example = "match-7c1f",
        pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
    )]
    id: String,
    /// The groups to take a server of, in order of preference.
    #[schema(schema_with = groups)]
    groups: Vec<String>,
    /// The one server to take, of these groups.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 253)]
    server: Option<String>,
    /// What the server must be like.
    #[serde(default)]
    selector: Selector,
    /// What its instance may be; anything if left out.
    #[serde(default)]
    #[schema(schema_with = statuses)]
    instance_status: Vec<ClaimableStatus>,
    /// What the game is handed.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 1024)]
    data: Option<String>,
    /// How many seats, where the group shares its servers.
    #[serde(default = "one", deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 200, default = 1)]
    seats: i32,
    /// How long to wait for a server if none is on offer, in seconds.
    #[serde(default, deserialize_with = "whole")]
    #[schema(maximum = 600)]
    wait_seconds: u32,
}

fn groups() -> Array {
    let name =
        ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(63)).build();
    let groups = ArrayBuilder::new().items(name).min_items(Some(1)).max_items(Some(16));
    groups.examples([serde_json::json!(["arena-canary", "arena"])]).build()
}

/// At most one of each.
fn statuses() -> Array {
    ArrayBuilder::new().items(schema::<ClaimableStatus>()).max_items(Some(2)).build()
}

fn one() -> i32 {
    1
}

/// What a server must be like.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Selector {
    /// Labels that it must bear.
    match_labels: BTreeMap<String, String>,
}

impl From<Body> for Request {
    fn from(body: Body) -> Self {
        let Body { id, groups, server, selector, instance_status, data, seats, wait_seconds: _ } = body;
        Self { id, groups, server, labels: selector.match_labels, instance_status, data, seats }
    }
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
    /// What the game has to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// How many seats on the server, if it is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    seats: Option<i32>,
    #[schema(value_type = String, format = DateTime)]
    claimed_at: MicroTime,
    /// When the game must be Active, or the claim lapses.
    #[schema(value_type = String, format = DateTime)]
    expires_at: MicroTime,
}

/// A claim that waits for a server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WaitingClaim)]
#[serde(rename_all = "camelCase")]
struct Waiting {
    id: String,
    namespace: String,
    /// The groups that it wants a server of.
    groups: Vec<String>,
    /// Since when it waits: the first is served first.
    #[schema(value_type = String, format = DateTime)]
    requested_at: MicroTime,
    /// How long it waits.
    #[schema(value_type = String, format = DateTime)]
    waits_until: MicroTime,
}

/// One page of claims.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimList {
    items: Vec<Answer>,
    /// What to ask on with; left out when this is the last page.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Which claims to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
    /// Only those on servers of this group.
    group: Option<String>,
    /// How many servers at most, each with all of its claims.
    #[param(minimum = 1, maximum = 1000, default = 500)]
    limit: Option<u16>,
    /// Where the last page ended.
    #[serde(rename = "continue")]
    next: Option<String>,
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
    let Path(namespace) = namespace.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    let caller = admit(services, headers, (Verb::Create, CLAIM_RESOURCE), &namespace).await?;
    let Json(body) = body.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    let wait = Duration::from_secs(body.wait_seconds.into());
    if wait > LONGEST_WAIT {
        let detail = format!("waitSeconds is at most {}", LONGEST_WAIT.as_secs());
        return Err(Problem::new(400, "malformed-request", detail));
    }
    let request = Request::from(body);
    let id = request.id.clone();
    let granted = services.claims.claim(&namespace, request, &caller.user, wait).await.map_err(refused)?;
    info!(%namespace, id, server = granted.server.name, user = caller.user, "claimed");
    Ok(Json(answer(&namespace, granted)))
}

/// Read a claim
///
/// The right: to get gameserverclaims.gamekeeper.dev in the namespace.
#[utoipa::path(
    get,
    path = "/v1/namespaces/{namespace}/claims/{id}",
    params(("namespace" = String, Path, description = "the namespace"), ("id" = String, Path, description = "the claim's id")),
    responses(
        (status = 200, description = "its server", body = Answer),
        (status = 202, description = "it waits for a server", body = Waiting),
        OfHeldClaim
    ),
    security(("token" = []))
)]
pub(super) async fn get(
    State(services): State<Services>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Path((namespace, id)) = path.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    admit(&services, &headers, (Verb::Get, CLAIM_RESOURCE), &namespace).await?;
    match services.claims.find(&namespace, &id).await {
        Ok(held) => Ok(Json(answer(&namespace, held)).into_response()),
        Err(error @ ClaimError::NoSuchClaim { .. }) => {
            let asked = services.view.asked(&Key::new(&namespace, &id));
            let waiting = asked.filter(|asked| asked.status.phase == ClaimPhase::Pending);
            let waiting = waiting.ok_or_else(|| refused(error))?;
            Ok((StatusCode::ACCEPTED, Json(Waiting::of(&namespace, &waiting))).into_response())
        }
        Err(error) => Err(refused(error)),
    }
}

impl Waiting {
    fn of(namespace: &str, asked: &Asked) -> Self {
        Self {
            id: asked.id().to_owned(),
            namespace: namespace.to_owned(),
            groups: asked.request.groups.clone(),
            requested_at: MicroTime(asked.requested_at),
            waits_until: MicroTime(asked.deadline()),
        }
    }
}

/// Release a claim
///
/// Its server is on offer again. A game that is Active is not ended. The right: to delete
/// gameserverclaims.gamekeeper.dev in the namespace.
#[utoipa::path(
    delete,
    path = "/v1/namespaces/{namespace}/claims/{id}",
    params(("namespace" = String, Path, description = "the namespace"), ("id" = String, Path, description = "the claim's id")),
    responses(
        (status = 200, description = "what it held", body = Answer),
        (status = 204, description = "it waited for a server, and waits no more"),
        OfHeldClaim
    ),
    security(("token" = []))
)]
pub(super) async fn release(
    State(services): State<Services>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Path((namespace, id)) = path.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    let caller = admit(&services, &headers, (Verb::Delete, CLAIM_RESOURCE), &namespace).await?;
    let released = services.claims.release(&namespace, &id).await.map_err(refused)?;
    info!(%namespace, id, user = caller.user, "released");
    let nothing = || StatusCode::NO_CONTENT.into_response();
    Ok(released.map_or_else(nothing, |granted| Json(answer(&namespace, granted)).into_response()))
}

/// List claims that hold a server
///
/// In the order of their servers' names. The right: to list gameserverclaims.gamekeeper.dev in the namespace.
#[utoipa::path(
    get,
    path = "/v1/namespaces/{namespace}/claims",
    params(("namespace" = String, Path, description = "the namespace"), Listing),
    responses((status = 200, description = "a page of them", body = ClaimList), OfCaller),
    security(("token" = []))
)]
pub(super) async fn list(
    State(services): State<Services>,
    namespace: Result<Path<String>, PathRejection>,
    query: Result<Query<Listing>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<ClaimList>, Problem> {
    let Path(namespace) = namespace.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    admit(&services, &headers, (Verb::List, CLAIM_RESOURCE), &namespace).await?;
    let Query(listing) = query.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    let limit = paging::limit(listing.limit)?;
    let wanted = |server: &Server| {
        held(server).next().is_some() && listing.group.as_ref().is_none_or(|group| *group == server.group)
    };
    let found = services.view.servers_after(&namespace, listing.next.as_deref(), limit + 1, wanted);
    let Page { items, next } = paging::page(found, limit);
    let claims = |server: &Server| {
        let granted = held(server).map(|claim| Granted { server: server.clone(), claim: claim.clone() });
        granted.collect::<Vec<_>>()
    };
    let items = items.iter().flat_map(claims).map(|granted| answer(&namespace, granted)).collect();
    Ok(Json(ClaimList { items, next }))
}

/// The claims that hold `server`, or seats on it.
fn held(server: &Server) -> impl Iterator<Item = &crate::api::Claim> {
    let holds = |claim: &&crate::api::Claim| matches!(server.fate(claim), Fate::Held | Fate::Confirmed);
    server.claims().filter(holds).filter(|_| !server.is_ending())
}

fn answer(namespace: &str, granted: Granted) -> Answer {
    let Granted { server, claim } = granted;
    Answer {
        id: claim.id,
        namespace: namespace.to_owned(),
        group: server.group,
        server: server.name,
        uid: server.uid,
        address: server.address,
        ports: server.ports,
        data: server.data,
        seats: claim.seats.map(|seats| seats.reserved),
        claimed_at: claim.claimed_at,
        expires_at: claim.expires_at,
    }
}

fn refused(error: ClaimError) -> Problem {
    let detail = error.to_string();
    match error {
        ClaimError::Malformed(_) | ClaimError::TooManySeats { .. } => {
            Problem::new(400, "malformed-request", detail)
        }
        ClaimError::NoSuchGroup { .. } => Problem::new(404, "no-such-group", detail),
        ClaimError::NoSuchServer { .. } => Problem::new(404, "no-such-server", detail),
        ClaimError::NoSuchClaim { .. } => Problem::new(404, "no-such-claim", detail),
        ClaimError::Taken { .. } => Problem::new(409, "taken", detail),
        ClaimError::IdReused { .. } => Problem::new(409, "id-reused", detail),
        ClaimError::Playing { .. } => Problem::new(409, "game-is-on", detail),
        ClaimError::Deleting { .. } => Problem::new(409, "group-is-being-deleted", detail),
        ClaimError::Expired { .. } => Problem::new(410, "claim-expired", detail),
        ClaimError::Released { .. } => Problem::new(410, "claim-released", detail),
        ClaimError::Over { .. } => Problem::new(410, "game-over", detail),
        ClaimError::Crowded => Problem::new(429, "too-busy", detail).retry_after(1),
        ClaimError::OutOfCapacity { .. } => Problem::new(503, "out-of-capacity", detail).retry_after(1),
        ClaimError::Draining { .. } => Problem::new(503, "draining", detail).retry_after(1),
        ClaimError::Stopped | ClaimError::Abandoned => Problem::new(503, "stopping", detail).retry_after(1),
        ClaimError::Slow => Problem::new(504, "too-slow", detail).retry_after(1),
        ClaimError::Write(error) => unavailable(&error, &detail),
    }
}
