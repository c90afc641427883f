//! Who calls, and whether they may.

use axum::http::{HeaderMap, header};
use tracing::warn;

use super::Services;
use super::problem::Problem;
use crate::write::{Caller, Denial, Verb, WriteError};

/// Lets a caller in that may do this to that kind of resource in the namespace, once this replica knows the cluster.
pub(super) async fn admit(
    services: &Services,
    headers: &HeaderMap,
    (verb, resource): (Verb, &'static str),
    namespace: &str,
) -> Result<Caller, Problem> {
    if !services.view.is_ready() {
        let detail = "this replica has not seen the whole cluster yet; ask again, or another replica";
        return Err(Problem::new(503, "starting", detail.into()).retry_after(1));
    }
    let token = bearer(headers).ok_or_else(|| {
        Problem::new(401, "unauthenticated", "send a Kubernetes token: Authorization: Bearer TOKEN".into())
    })?;
    services.reviewer.may(token, verb, resource, namespace).await.map_err(denied)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty()).then(|| token.trim())
}

fn denied(denial: Denial) -> Problem {
    let detail = denial.to_string();
    match denial {
        Denial::Unknown(_) => Problem::new(401, "unauthenticated", detail),
        Denial::Forbidden { .. } => Problem::new(403, "not-allowed", detail),
        Denial::Review(error) => unavailable(&error, &detail),
    }
}

/// The API server could not be reached, or refuses.
pub(super) fn unavailable(error: &WriteError, detail: &str) -> Problem {
    warn!(category = error.category(), "{}", with_cause(error));
    // 401 is said of the operator's own token, as when its pod has been deleted: another replica's is good.
    if let WriteError::Refused { code, message } = error
        && *code != 401
    {
        return Problem::new(403, "refused", format!("{detail}: the API server refuses it: {message}"));
    }
    Problem::new(502, "api-server-unavailable", format!("{detail}: {error}")).retry_after(1)
}

/// An error with its cause.
pub(super) fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// What axum could not read.
pub(super) fn malformed(status: axum::http::StatusCode, words: String) -> Problem {
    Problem::new(status.as_u16(), "malformed-request", words)
}
