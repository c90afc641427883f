//! Errors as RFC 9457 problem documents: a type to switch on, words to read.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::ObjectBuilder;
use utoipa::openapi::schema::Type;

/// What a problem's type means.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The statuses that come with it.
    pub(super) statuses: &'static [u16],
    /// Whether the answer may say when to ask again.
    pub(super) is_worth_another_try: bool,
    pub(super) meaning: &'static str,
}

const fn kind(name: &'static str, statuses: &'static [u16], meaning: &'static str) -> Kind {
    Kind { name, statuses, is_worth_another_try: false, meaning }
}

const fn passing(name: &'static str, statuses: &'static [u16], meaning: &'static str) -> Kind {
    Kind { name, statuses, is_worth_another_try: true, meaning }
}

/// All types of problems.
pub(super) const KINDS: [Kind; 23] = [
    kind("malformed-request", &[400, 408, 413, 415, 422], "the request cannot be read, or is out of bounds"),
    kind("unauthenticated", &[401], "there is no token, or it is nobody's"),
    kind("not-allowed", &[403], "the token's account has no right to this"),
    kind(
        "refused",
        &[403],
        "a quota or a policy of the cluster forbids what the operator would write for it",
    ),
    kind("no-such-path", &[404], "there is nothing at this path"),
    kind("no-such-group", &[404], "none of the groups is there"),
    kind("no-such-server", &[404], "there is no server of this name that fits"),
    kind("no-such-claim", &[404], "there is no claim of this id"),
    kind("method-not-allowed", &[405], "the path is asked with another method"),
    kind("group-is-being-deleted", &[409], "each of the groups is being deleted"),
    kind("taken", &[409], "the server cannot be claimed now"),
    kind("id-reused", &[409], "the id is that of a claim for something else"),
    kind("game-is-on", &[409], "a game that is Active is not taken from its claim"),
    kind("claim-released", &[410], "the claim of this id has been given back"),
    kind("claim-expired", &[410], "the claim of this id has lapsed"),
    kind("game-over", &[410], "the game of this claim is over"),
    passing("too-busy", &[429], "this replica works on as many requests as it may"),
    passing("api-server-unavailable", &[502], "the API server cannot be reached"),
    passing("out-of-capacity", &[503], "no server is on offer"),
    passing("draining", &[503], "what is on offer is on instances that drain, which the claim refuses"),
    passing("stopping", &[503], "this replica stops; another goes on"),
    passing("starting", &[503], "this replica has not seen the whole cluster yet"),
    passing("too-slow", &[504], "there was no answer in time"),
];

impl Kind {
    /// The type as answers have it.
    pub(super) fn uri(&self) -> String {
        uri(self.name)
    }
}

fn uri(name: &str) -> String {
    format!("https://gamekeeper.dev/problems/{name}")
}

/// An error, as RFC 9457 has it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct Document {
    /// What happened, to switch on.
    #[serde(rename = "type")]
    #[schema(schema_with = uris)]
    type_: String,
    /// The type in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What happened this time, to read.
    detail: String,
}

fn uris() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(KINDS.iter().map(Kind::uri)))
}

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

    /// Its type.
    pub(super) fn type_(&self) -> &'static str {
        self.type_
    }

    /// Says when it may be worth another try.
    pub(super) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = Document {
            type_: uri(self.type_),
            title: self.type_.replace('-', " "),
            status: self.status.as_u16(),
            detail: self.detail,
        };
        let mut response = (self.status, Json(document)).into_response();
        let json = HeaderValue::from_static("application/problem+json");
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
    Problem::new(404, "no-such-path", "what there is stands in /v1/openapi.json".into())
}

pub(super) async fn method_not_allowed() -> Problem {
    Problem::new(405, "method-not-allowed", "how this path is asked stands in /v1/openapi.json".into())
}
