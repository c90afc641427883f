//! Errors as RFC 9457 problem documents: a type to switch on, words to read.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// An error answer.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    type_: &'static str,
    detail: String,
    retry_after_seconds: Option<u32>,
}

impl Problem {
    /// A problem of this HTTP status and type.
    pub(super) fn new(status: u16, type_: &'static str, detail: String) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, type_, detail, retry_after_seconds: None }
    }

    /// Says when it may be worth another try.
    pub(super) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": format!("https://gamekeeper.dev/problems/{}", self.type_),
            "title": self.type_.replace('-', " "),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let json = HeaderValue::from_static("application/problem+json");
        let mut response = (self.status, body.to_string()).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

pub(super) async fn not_found() -> Problem {
    Problem::new(404, "no-such-path", "the API is POST /v1/namespaces/{namespace}/claims".into())
}

pub(super) async fn method_not_allowed() -> Problem {
    Problem::new(405, "method-not-allowed", "claims are made with POST".into())
}
