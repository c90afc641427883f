//! Tells the game of its server, on the pod's loopback: a long poll that a script can make with curl.

use std::net::Ipv4Addr;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use super::known::Known;

/// The longest wait that can be asked for, in seconds.
const LONGEST_WAIT: u64 = 300;

/// What the game asks for.
#[derive(Debug, Deserialize)]
struct Question {
    /// The version that it knows.
    after: Option<String>,
    /// How long to wait for another, in seconds.
    #[serde(default)]
    wait: u64,
}

/// Answers on this port, as long as it can listen there.
pub(super) async fn serve(port: u16, known: watch::Receiver<Option<Known>>) -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    axum::serve(listener, router(known)).await
}

fn router(known: watch::Receiver<Option<Known>>) -> Router {
    Router::new().route("/v1/game-server", get(game_server)).with_state(known)
}

/// What is known, once it is something else than at version `after`; 204 if that takes longer than `wait`.
async fn game_server(
    State(mut known): State<watch::Receiver<Option<Known>>>,
    Query(question): Query<Question>,
) -> Response {
    let is_news = |known: &Option<Known>| {
        known.as_ref().is_some_and(|known| known.is_news_after(question.after.as_deref()))
    };
    let wait = Duration::from_secs(question.wait.min(LONGEST_WAIT));
    let news = timeout(wait, known.wait_for(is_news)).await;
    // Its sender lives as long as the agent.
    match news.ok().and_then(Result::ok) {
        Some(known) => Json(known.clone()).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::known::Watched;
    use crate::api::GameServer;
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    fn server(version: &str, state: &str) -> GameServer {
        serde_json::from_value(json!({
            "apiVersion": "gamekeeper.dev/v1alpha1", "kind": "GameServer",
            "metadata": {"name": "arena-x", "resourceVersion": version},
            "spec": {"group": "arena"}, "status": {"state": state},
        }))
        .unwrap()
    }

    async fn ask(known: &Watched, query: &str) -> (u16, Value) {
        let request = Request::get(format!("/v1/game-server{query}")).body(Body::empty()).unwrap();
        let answer = router(known.subscribe()).oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test(start_paused = true)]
    async fn the_game_waits_for_what_it_does_not_know() {
        let known = Watched::default();
        assert_eq!(ask(&known, "").await.0, 204);
        known.take_up(&server("5", "Initializing"));
        let (status, told) = ask(&known, "?after=&wait=10").await;
        assert_eq!((status, &told["resourceVersion"]), (200, &json!("5")));
        assert_eq!(ask(&known, "?after=5&wait=10").await.0, 204);
        let change = async { known.take_up(&server("6", "StandingBy")) };
        let ((status, told), ()) = tokio::join!(ask(&known, "?after=5&wait=10"), change);
        assert_eq!((status, &told["state"]), (200, &json!("StandingBy")));
        assert_eq!(ask(&known, "?wait=soon").await.0, 400);
    }
}
