//! The OpenAPI document of the claim API: made from its handlers and their types, and served by it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::Value;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, HeaderBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, Ref,
    RefOr, ResponseBuilder, Schema, Type,
};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

use super::problem::{Document, KINDS, Kind};

/// The name of the callers' tokens in the document.
pub(super) const TOKEN: &str = "token";

/// What is said before the routes.
pub(super) fn head() -> OpenApi {
    let mut components = Components::new();
    let token = Http::builder().scheme(HttpAuthScheme::Bearer).description(Some(
        "A Kubernetes token, checked by the API server, of an account with the right that the operation names.",
    ));
    components.add_security_scheme(TOKEN, SecurityScheme::Http(token.build()));
    components.schemas.insert(Document::name().into_owned(), Document::schema());
    let info = InfoBuilder::new()
        .title("Gamekeeper")
        .description(Some("Claims of game servers."))
        .version(env!("CARGO_PKG_VERSION"));
    OpenApiBuilder::new().info(info).components(Some(components)).build()
}

/// The document itself
#[utoipa::path(
    get,
    path = "/v1/openapi.json",
    responses((status = 200, description = "this document", content_type = "application/json", body = Object), Anywhere)
)]
pub(super) async fn document() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
        let (_, document) = super::routes().split_for_parts();
        // Plain data with string keys always has a JSON form.
        serde_json::to_string(&document).unwrap_or_default()
    });
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// A type's schema as its definition in the cluster has it.
pub(super) fn schema<T: JsonSchema>() -> RefOr<Schema> {
    // Both are JSON Schema of the same draft.
    serde_json::from_value(described::<T>()).unwrap_or_else(|_| ObjectBuilder::new().into())
}

fn described<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let generator = settings.with_transform(RecursiveTransform(without_const)).into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// The document's types know no `const`; an `enum` of one says the same.
fn without_const(schema: &mut schemars::Schema) {
    if let Some(value) = schema.remove("const") {
        schema.insert("enum".to_owned(), Value::Array(vec![value]));
    }
}

/// The problems that any operation may answer with.
pub(super) struct Anywhere;

/// The problems of an operation that a caller needs a right for.
pub(super) struct OfCaller;

/// The problems of a claim.
pub(super) struct OfClaim;

/// The problems of a claim that is there.
pub(super) struct OfHeldClaim;

/// The problems of a server.
pub(super) struct OfServer;

type Responses = BTreeMap<String, RefOr<utoipa::openapi::Response>>;

/// Of any operation.
const ANYWHERE: [&str; 3] = ["malformed-request", "too-busy", "too-slow"];
/// Of an operation that a caller needs a right for.
const FOR_CALLERS: [&str; 5] =
    ["unauthenticated", "not-allowed", "starting", "refused", "api-server-unavailable"];
/// Of a claim, beside those.
const OF_CLAIM: [&str; 11] = [
    "no-such-group",
    "no-such-server",
    "group-is-being-deleted",
    "taken",
    "id-reused",
    "claim-expired",
    "claim-released",
    "game-over",
    "out-of-capacity",
    "draining",
    "stopping",
];
/// Of a claim that is there.
const OF_HELD_CLAIM: [&str; 5] =
    ["no-such-claim", "game-is-on", "claim-expired", "claim-released", "game-over"];
/// Of a server.
const OF_SERVER: [&str; 1] = ["no-such-server"];

impl IntoResponses for Anywhere {
    fn responses() -> Responses {
        problems(&[&ANYWHERE])
    }
}

impl IntoResponses for OfCaller {
    fn responses() -> Responses {
        problems(&[&ANYWHERE, &FOR_CALLERS])
    }
}

impl IntoResponses for OfHeldClaim {
    fn responses() -> Responses {
        problems(&[&ANYWHERE, &FOR_CALLERS, &OF_HELD_CLAIM])
    }
}

impl IntoResponses for OfServer {
    fn responses() -> Responses {
        problems(&[&ANYWHERE, &FOR_CALLERS, &OF_SERVER])
    }
}

impl IntoResponses for OfClaim {
    fn responses() -> Responses {
        problems(&[&ANYWHERE, &FOR_CALLERS, &OF_CLAIM])
    }
}

/// One response for each status of these kinds, which says what it may mean.
fn problems(names: &[&[&str]]) -> Responses {
    let is_named = |kind: &&Kind| names.iter().any(|names| names.contains(&kind.name));
    let mut meanings: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    let mut retried = BTreeSet::new();
    for kind in KINDS.iter().filter(is_named) {
        for status in kind.statuses {
            meanings.entry(*status).or_default().push(format!("`{}`: {}", kind.name, kind.meaning));
            if kind.is_worth_another_try {
                retried.insert(*status);
            }
        }
    }
    let response = |(status, meanings): (u16, Vec<String>)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let mut response = ResponseBuilder::new()
            .description(meanings.join("; "))
            .content("application/problem+json", content);
        if retried.contains(&status) {
            let seconds = ObjectBuilder::new().schema_type(Type::Integer);
            let description = Some("after how many seconds to ask again");
            response = response.header(
                "Retry-After",
                HeaderBuilder::new().schema(Some(seconds)).description(description).build(),
            );
        }
        (status.to_string(), response.build().into())
    };
    meanings.into_iter().map(response).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        let (_, document) = super::super::routes().split_for_parts();
        serde_json::to_value(document).unwrap()
    }

    /// Only what comes through `routes!` is described, so the claim API has no route that does not.
    #[test]
    fn each_route_of_the_claim_api_is_in_the_document() {
        let source = include_str!("mod.rs");
        let routes = source.split("fn router").nth(1).and_then(|rest| rest.split("fn plain_router").next());
        assert!(!routes.unwrap().contains(".route("));
        let document = document();
        let operations = document["paths"].as_object().unwrap().values();
        let described: usize = operations.map(|path| path.as_object().unwrap().len()).sum();
        let handlers =
            source.split("routes!(").skip(1).map(|rest| rest.split(')').next().unwrap().split(',').count());
        assert_eq!(described, handlers.sum::<usize>());
    }

    #[test]
    fn each_problem_is_in_the_document_and_comes_from_somewhere() {
        let sources = [
            include_str!("callers.rs"),
            include_str!("claims.rs"),
            include_str!("limits.rs"),
            include_str!("paging.rs"),
            include_str!("problem.rs"),
            include_str!("servers.rs"),
        ];
        let text = sources.map(|source| source.split_whitespace().collect::<String>()).concat();
        let document = document();
        let enumerated = &document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"];
        for kind in KINDS {
            assert!(text.contains(&format!("\"{}\",", kind.name)), "{} is nobody's", kind.name);
            assert!(enumerated.as_array().unwrap().contains(&json!(kind.uri())), "{}", kind.name);
        }
        for new in text.split("Problem::new(").skip(1) {
            let mut arguments = new.split(',');
            let (status, name) = (arguments.next().unwrap(), arguments.next().unwrap().trim_matches('"'));
            let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
                panic!("{name} is not listed")
            };
            let status = status.parse::<u16>().ok();
            assert!(status.is_none_or(|status| kind.statuses.contains(&status)), "{name} with {status:?}");
        }
    }

    /// Nothing of it is lost on the way: what the document's types do not know, they drop.
    #[test]
    fn a_type_of_the_cluster_is_described_as_it_is_there() {
        type Ports = Vec<crate::api::GameServerPort>;
        let mut there = described::<Ports>();
        there.as_object_mut().unwrap().remove("title");
        let mut here = serde_json::to_value(schema::<Ports>()).unwrap();
        here.as_object_mut().unwrap().remove("title");
        assert_eq!(here, there);
        assert_eq!(here["items"]["properties"]["port"]["maximum"], 65535);
    }
}
