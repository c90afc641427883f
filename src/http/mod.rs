//! The HTTP API of each replica: claims, and the probes of Kubernetes.

mod claims;
mod problem;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::{get, post};

use crate::claims::Claims;
use crate::view::View;
use crate::write::Reviewer;

/// The largest body of a request, in bytes.
const BODY_LIMIT: usize = 64 * 1024;

/// What the handlers work with.
#[derive(Clone)]
pub struct Services {
    /// The claim service.
    pub claims: Claims,
    /// The check of callers.
    pub reviewer: Reviewer,
    /// The picture of the cluster, for readiness.
    pub view: View,
}

/// The routes.
pub fn router(services: Services) -> Router {
    Router::new()
        .route("/v1/namespaces/{namespace}/claims", post(claims::create))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(services)
}

/// A replica is ready when its picture of the cluster is whole: before that it would find no server.
async fn ready(State(services): State<Services>) -> (StatusCode, &'static str) {
    if services.view.is_ready() {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the first lists of the watches are not in yet")
    }
}
