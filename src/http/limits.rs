//! What a request may cost: its body, its time, and how many of them run at once.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use clap::Args;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::problem::Problem;
use crate::claims::LONGEST_WAIT;
use crate::metrics::Metrics;

/// The largest body of a request, in bytes.
pub(super) const BODY_LIMIT: usize = 64 * 1024;
/// How long a request's body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request may take from the end of its body to its answer, whatever it asks for: longer than any answer
/// has a reason to take.
const REQUEST_TIMEOUT: Duration = LONGEST_WAIT.saturating_add(Duration::from_secs(30));

/// How much the claim API takes on.
#[derive(Args, Clone, Copy, Debug)]
pub struct Limits {
    /// How many requests of the claim API are worked on at once; one more is answered with 429 at once.
    #[arg(long, env = "GAMEKEEPER_MAX_REQUESTS", default_value_t = 1024)]
    pub max_requests: usize,
    /// How many connections to the claim API are open at once; for one more, one that has no request is closed.
    #[arg(long, env = "GAMEKEEPER_MAX_CONNECTIONS", default_value_t = 2048)]
    pub max_connections: usize,
}

/// Lets requests in as far as the limits allow.
#[derive(Clone)]
pub(super) struct Gate {
    places: Arc<Semaphore>,
    metrics: Metrics,
    stop: CancellationToken,
}

impl Gate {
    /// A gate for `max_requests` at once, until `stop`.
    pub(super) fn new(max_requests: usize, metrics: Metrics, stop: CancellationToken) -> Self {
        let places = Arc::new(Semaphore::new(max_requests.min(Semaphore::MAX_PERMITS)));
        Self { places, metrics, stop }
    }
}

/// Holds a request to the limits.
pub(super) async fn hold(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let mut answer = within(&gate, request, next).await.unwrap_or_else(IntoResponse::into_response);
    gate.metrics.request(answer.status().as_u16());
    if gate.stop.is_cancelled() {
        // The caller's next request goes to a replica that stays.
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

async fn within(gate: &Gate, request: Request, next: Next) -> Result<Response, Problem> {
    // Before the body is read, which is the caller's time; taken only after it, so that slow callers hold no place.
    if gate.places.available_permits() == 0 {
        return Err(too_busy());
    }
    let (parts, body) = request.into_parts();
    let body = match timeout(BODY_TIMEOUT, Limited::new(body, BODY_LIMIT).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(error)) => {
            return Err(Problem::new(400, "malformed-request", format!("read the body: {error}")));
        }
        Err(_) => return Err(too_slow_a_body()),
    };
    let _place = gate.places.try_acquire().map_err(|_| too_busy())?;
    let answer = next.run(Request::from_parts(parts, Body::from(body)));
    timeout(REQUEST_TIMEOUT, answer).await.map_err(|_| too_slow())
}

fn too_busy() -> Problem {
    let detail = "this replica works on as many requests as it may; ask again, or another replica";
    Problem::new(429, "too-busy", detail.into()).retry_after(1)
}

fn too_large() -> Problem {
    Problem::new(413, "malformed-request", format!("the body is over the limit of {BODY_LIMIT} bytes"))
}

fn too_slow_a_body() -> Problem {
    let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
    Problem::new(408, "malformed-request", detail)
}

fn too_slow() -> Problem {
    let detail = format!("no answer within {} s; ask again", REQUEST_TIMEOUT.as_secs());
    Problem::new(504, "too-slow", detail).retry_after(1)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::post;
    use futures::{FutureExt, stream};
    use serde_json::Value;
    use tokio::sync::watch;
    use tower::ServiceExt;

    use super::*;

    /// A handler that answers once the sender says so.
    fn router(max_requests: usize, stop: &CancellationToken) -> (Router, watch::Sender<bool>) {
        let (open, opened) = watch::channel(false);
        let answer = move || {
            let mut opened = opened.clone();
            async move {
                opened.wait_for(|open| *open).await.unwrap();
                "done"
            }
        };
        let gate = Gate::new(max_requests, Metrics::default(), stop.clone());
        (Router::new().route("/", post(answer)).layer(from_fn_with_state(gate, hold)), open)
    }

    async fn ask(router: &Router, body: Body) -> (u16, Value, Option<HeaderValue>) {
        let response = router.clone().oneshot(Request::post("/").body(body).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let retry = response.headers().get(header::RETRY_AFTER).cloned();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default(), retry)
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_too_many_is_turned_away_at_once_and_the_next_after_it_is_not() {
        let (router, open) = router(1, &CancellationToken::new());
        let mut first = Box::pin(ask(&router, Body::empty()));
        assert!(first.as_mut().now_or_never().is_none());
        let (status, problem, retry) = ask(&router, Body::empty()).now_or_never().unwrap();
        assert_eq!((status, problem["title"].as_str()), (429, Some("too busy")));
        assert_eq!(retry, Some(HeaderValue::from_static("1")));
        open.send(true).unwrap();
        assert_eq!(first.await.0, 200);
        assert_eq!(ask(&router, Body::empty()).await.0, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_holds_no_place_and_ends_by_itself() {
        let (router, open) = router(1, &CancellationToken::new());
        open.send(true).unwrap();
        let never = || Body::from_stream(stream::pending::<Result<Vec<u8>, std::io::Error>>());
        let mut slow = Box::pin(ask(&router, never()));
        assert!(slow.as_mut().now_or_never().is_none());
        assert_eq!(ask(&router, Body::empty()).await.0, 200);
        assert_eq!(slow.await.0, 408);
    }

    #[tokio::test(start_paused = true)]
    async fn body_and_time_have_limits() {
        let (router, _open) = router(1, &CancellationToken::new());
        assert_eq!(ask(&router, Body::from(vec![b'x'; BODY_LIMIT + 1])).await.0, 413);
        let (status, problem, _) = ask(&router, Body::empty()).await;
        assert_eq!((status, problem["title"].as_str()), (504, Some("too slow")));
    }

    #[tokio::test(start_paused = true)]
    async fn while_it_stops_each_answer_ends_its_connection() {
        let stop = CancellationToken::new();
        let (router, open) = router(1, &stop);
        open.send(true).unwrap();
        stop.cancel();
        let response = router.oneshot(Request::post("/").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.headers()[header::CONNECTION], "close");
    }
}
