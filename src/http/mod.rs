//! The HTTP API of each replica: claims on one address; the probes of Kubernetes and the metrics on another, plain one.

mod callers;
mod claims;
mod connections;
mod limits;
mod listener;
mod metrics;
mod numbers;
mod openapi;
mod paging;
mod problem;
mod servers;
mod tls;

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::claims::Claims;
use crate::metrics::Metrics;
use crate::view::View;
use crate::write::Reviewer;
use connections::Connections;
use limits::Gate;
use listener::Door;
use metrics::Servers;
use tls::Served;

pub use limits::Limits;
pub use tls::{Tls, TlsMode};

/// How many connections to the plain address are open at once; for one more, one that has no request is closed.
const PLAIN_CONNECTIONS: usize = 64;
/// How long a replica that is told to stop takes new requests still: by then Kubernetes has told all nodes that it
/// is not ready.
const LEAVE: Duration = Duration::from_secs(3);
/// How long requests under way may then take to end.
const LAST_REQUESTS: Duration = Duration::from_secs(15);

/// What the handlers work with.
#[derive(Clone)]
pub struct Services {
    /// The claim service.
    pub claims: Claims,
    /// The check of callers.
    pub reviewer: Reviewer,
    /// The picture of the cluster: what is read and listed, and whether there is one yet.
    pub view: View,
    /// What is counted.
    pub metrics: Metrics,
}

/// The addresses that are listened on.
#[derive(Debug)]
pub struct Listeners {
    /// Of the claim API.
    pub api: TcpListener,
    /// Of the probes and the metrics.
    pub plain: TcpListener,
}

/// Serves until `stop`, the claim API with `tls` if there is any. Then it is not ready at once, takes requests for as long as
/// some may still come, and ends when those under way have.
pub async fn serve(
    listeners: Listeners,
    services: Services,
    tls: Option<Tls>,
    limits: Limits,
    stop: CancellationToken,
) {
    services.metrics.collect(Servers(services.view.clone()));
    let served = tls.as_ref().map(Tls::served);
    let readiness = Readiness { view: services.view.clone(), served: served.clone(), stop: stop.clone() };
    let plain = Door {
        listener: listeners.plain,
        router: plain_router(readiness, services.metrics.clone()),
        tls: None,
        connections: Connections::new(PLAIN_CONNECTIONS),
    };
    let gate = Gate::new(limits.max_requests, services.metrics.clone(), stop.clone());
    let api = Door {
        listener: listeners.api,
        router: router(services, gate),
        tls: served,
        connections: Connections::new(limits.max_connections),
    };
    let close = CancellationToken::new();
    let api = api.serve(close.clone());
    let stopped = async {
        stop.cancelled().await;
        sleep(LEAVE).await;
        close.cancel();
        sleep(LAST_REQUESTS).await;
    };
    let keep = async {
        match tls {
            Some(tls) => tls.keep().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = keep => {}
        () = api => {}
        () = plain.serve(CancellationToken::new()) => {}
        () = stopped => warn!("requests under way are cut: they do not end"),
    }
}

/// The operations of the claim API, each with its description.
fn routes() -> OpenApiRouter<Services> {
    OpenApiRouter::with_openapi(openapi::head())
        .routes(routes!(claims::create, claims::list))
        .routes(routes!(claims::get, claims::release))
        .routes(routes!(servers::list, servers::report))
        .routes(routes!(servers::get))
        .routes(routes!(openapi::document))
}

/// The claim API.
fn router(services: Services, gate: Gate) -> Router {
    let (routes, _) = routes().split_for_parts();
    routes
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(from_fn_with_state(gate, limits::hold))
        .with_state(services)
}

/// The routes of the plain address.
fn plain_router(readiness: Readiness, counted: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .with_state(readiness)
        .merge(Router::new().route("/metrics", get(metrics::serve)).with_state(counted))
}

/// What readiness hangs on.
#[derive(Clone)]
struct Readiness {
    view: View,
    served: Option<Served>,
    stop: CancellationToken,
}

/// A replica is ready when its picture of the cluster is whole, before which it would find no server, and when it has
/// a certificate, before which nobody would believe it. And it is not from the moment on that it is told to stop.
async fn ready(State(readiness): State<Readiness>) -> (StatusCode, &'static str) {
    if readiness.stop.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "told to stop")
    } else if !readiness.view.is_ready() {
        (StatusCode::SERVICE_UNAVAILABLE, "the first lists of the watches are not in yet")
    } else if readiness.served.is_some_and(|served| served.now().is_none()) {
        (StatusCode::SERVICE_UNAVAILABLE, "there is no certificate to serve with yet")
    } else {
        (StatusCode::OK, "ok")
    }
}
