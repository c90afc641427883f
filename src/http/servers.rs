//! Game servers: listed and read (row A2), and their players and sessions set (row A3).

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Services;
use super::callers::{admit, malformed, with_cause};
use super::numbers::{whole, whole_or_none};
use super::openapi::{OfCaller, OfServer, schema};
use super::paging::{self, Page};
use super::problem::Problem;
use crate::api::{
    Capacity, ClaimStatus, GameServerPort, Health, InstanceStatus, Players, State as GameState,
};
use crate::rules::observed::Server;
use crate::rules::report::Report;
use crate::view::{Key, View};
use crate::write::Verb;

/// The resource on which rights are asked.
const SERVERS: &str = "gameservers";
/// And its part that holds players.
const PLAYERS: &str = "gameservers/players";
/// The longest name, in characters.
const NAME_LIMIT: usize = 253;
/// The most players or sessions.
const NUMBER_LIMIT: i32 = 100_000;
/// How many servers a call may set.
const REPORTS_LIMIT: usize = 500;

/// A game server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = GameServer)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    namespace: String,
    name: String,
    /// Names come back; this does not.
    uid: String,
    group: String,
    #[schema(schema_with = schema::<GameState>)]
    state: GameState,
    #[schema(schema_with = schema::<ClaimStatus>)]
    claim_status: ClaimStatus,
    /// The id of the claim that holds it, or of the last one that did.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<String>,
    #[schema(schema_with = schema::<Health>)]
    health: Health,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schema::<Players>)]
    players: Option<Players>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schema::<InstanceStatus>)]
    instance_status: Option<InstanceStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schema::<Capacity>)]
    capacity: Option<Capacity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[schema(schema_with = schema::<Vec<GameServerPort>>)]
    ports: Vec<GameServerPort>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
}

/// One page of game servers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct GameServerList {
    items: Vec<Shown>,
    /// What to ask on with; left out when this is the last page.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Which game servers to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
    /// Only those of this group.
    group: Option<String>,
    /// Only those in this state.
    #[param(schema_with = schema::<GameState>)]
    state: Option<GameState>,
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 500)]
    limit: Option<u16>,
    /// Where the last page ended.
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// What is to be set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Reports {
    /// The servers; of one that is named twice the first numbers count.
    #[schema(min_items = 1, max_items = 500)]
    servers: Vec<ServerReport>,
}

/// What is to be set of one server: absolute numbers; what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ServerReport {
    /// Its name.
    #[schema(min_length = 1, max_length = 253)]
    name: String,
    #[serde(default)]
    players: Option<PlayerCounts>,
    #[serde(default, deserialize_with = "whole_or_none")]
    #[schema(minimum = 0, maximum = 100_000)]
    sessions: Option<i32>,
}

/// Players of a server.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PlayerCounts {
    /// How many play now.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 100_000)]
    count: i32,
    /// How many can.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 100_000)]
    capacity: i32,
}

/// What came of it, in the order of the request.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Outcomes {
    servers: Vec<Outcome>,
}

/// What came of one server's numbers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Outcome {
    name: String,
    /// Whether they are set.
    set: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// Set players and sessions
///
/// Of many servers at once, in absolute numbers, for groups whose games do not report them. The right: to patch
/// gameservers.gamekeeper.dev/players in the namespace, which games do not have.
#[utoipa::path(
    patch,
    path = "/v1/namespaces/{namespace}/game-servers",
    params(("namespace" = String, Path, description = "the namespace")),
    request_body = Reports,
    responses((status = 200, description = "what came of each", body = Outcomes), OfCaller),
    security(("token" = []))
)]
pub(super) async fn report(
    State(services): State<Services>,
    namespace: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Json<Reports>, JsonRejection>,
) -> Result<Json<Outcomes>, Problem> {
    let Path(namespace) = namespace.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    let caller = admit(&services, &headers, (Verb::Patch, PLAYERS), &namespace).await?;
    if let Some(pod) = caller.pod.filter(|(name, uid)| is_instance(&services.view, &namespace, name, uid)) {
        let detail =
            format!("pod {} runs a game: it may only patch its own GameServer, at the API server", pod.0);
        return Err(Problem::new(403, "not-allowed", detail));
    }
    let Json(Reports { servers }) = body.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    if !(1..=REPORTS_LIMIT).contains(&servers.len()) {
        let detail = format!("servers has {} items; it needs 1 to {REPORTS_LIMIT}", servers.len());
        return Err(Problem::new(400, "malformed-request", detail));
    }
    if let Some(fault) = servers.iter().find_map(fault) {
        return Err(Problem::new(400, "malformed-request", fault));
    }
    let reports = servers.into_iter().map(|server| {
        let ServerReport { name, players, sessions } = server;
        let players = players.map(|PlayerCounts { count, capacity }| Players { count, capacity });
        Report { name, players, sessions }
    });
    let outcomes = services.claims.report(&namespace, reports.collect()).await;
    let servers = outcomes.into_iter().map(|(name, outcome)| match outcome {
        Ok(()) => Outcome { name, set: true, detail: None },
        Err(error) => Outcome { name, set: false, detail: Some(with_cause(&error)) },
    });
    Ok(Json(Outcomes { servers: servers.collect() }))
}

/// Whether this is one of our instances: what games may say of others than themselves is nothing, through this door too.
fn is_instance(view: &View, namespace: &str, pod: &str, uid: &str) -> bool {
    view.member(&Key::new(namespace, pod)).pod.is_some_and(|pod| pod.uid == uid)
}

/// What is out of bounds in a server's numbers.
fn fault(report: &ServerReport) -> Option<String> {
    let ServerReport { name, players, sessions } = report;
    let length = name.chars().count();
    if !(1..=NAME_LIMIT).contains(&length) {
        return Some(format!("a name has {length} characters; it needs 1 to {NAME_LIMIT}"));
    }
    let players = players.iter().flat_map(|players| [players.count, players.capacity]);
    let wrong = players.chain(*sessions).find(|number| !(0..=NUMBER_LIMIT).contains(number));
    wrong.map(|number| format!("of {name}: {number} is not between 0 and {NUMBER_LIMIT}"))
}

/// List game servers
///
/// In the order of their names. The right: to list gameservers.gamekeeper.dev in the namespace.
#[utoipa::path(
    get,
    path = "/v1/namespaces/{namespace}/game-servers",
    params(("namespace" = String, Path, description = "the namespace"), Listing),
    responses((status = 200, description = "a page of them", body = GameServerList), OfCaller),
    security(("token" = []))
)]
pub(super) async fn list(
    State(services): State<Services>,
    namespace: Result<Path<String>, PathRejection>,
    query: Result<Query<Listing>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<GameServerList>, Problem> {
    let Path(namespace) = namespace.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    admit(&services, &headers, (Verb::List, SERVERS), &namespace).await?;
    let Query(listing) = query.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    let limit = paging::limit(listing.limit)?;
    let wanted = |server: &Server| {
        listing.group.as_ref().is_none_or(|group| *group == server.group)
            && listing.state.is_none_or(|state| state == server.state)
    };
    let found = services.view.servers_after(&namespace, listing.next.as_deref(), limit + 1, wanted);
    let Page { items, next } = paging::page(found, limit);
    let items = items.into_iter().map(|server| shown(&namespace, server)).collect();
    Ok(Json(GameServerList { items, next }))
}

/// Read a game server
///
/// The right: to get gameservers.gamekeeper.dev in the namespace.
#[utoipa::path(
    get,
    path = "/v1/namespaces/{namespace}/game-servers/{name}",
    params(("namespace" = String, Path, description = "the namespace"), ("name" = String, Path, description = "its name")),
    responses((status = 200, description = "the server", body = Shown), OfServer),
    security(("token" = []))
)]
pub(super) async fn get(
    State(services): State<Services>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> Result<Json<Shown>, Problem> {
    let Path((namespace, name)) = path.map_err(|wrong| malformed(wrong.status(), wrong.body_text()))?;
    admit(&services, &headers, (Verb::Get, SERVERS), &namespace).await?;
    let server = services.view.server(&Key::new(&namespace, &name));
    let none = || {
        let detail = format!("there is no GameServer {name} in namespace {namespace}");
        Problem::new(404, "no-such-server", detail)
    };
    server.map(|server| Json(shown(&namespace, server))).ok_or_else(none)
}

fn shown(namespace: &str, server: Server) -> Shown {
    Shown {
        namespace: namespace.to_owned(),
        group: server.group,
        name: server.name,
        uid: server.uid,
        state: server.state,
        claim_status: server.claim_status,
        claim: server.claim.map(|claim| claim.id),
        health: server.health,
        players: server.players,
        sessions: server.sessions,
        node: server.instance.as_ref().map(|instance| instance.node_name.clone()),
        instance_status: server.instance.as_ref().map(|instance| instance.status),
        capacity: server.instance.map(|instance| instance.capacity),
        address: server.address,
        ports: server.ports,
        data: server.data,
    }
}
