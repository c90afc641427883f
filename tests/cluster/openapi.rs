//! The claim API as it describes itself.

use reqwest::Method;
use serde_json::Value;

use crate::harness::World;

/// The document is served to whoever asks, and what it does not describe is answered with a problem as it says.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_describes_itself_and_its_problems() {
    let world = World::new("openapi").await;
    let client = world.callers().await;
    let claims = world.claims_url(0);
    let root = claims.split("/v1/").next().unwrap();
    let answer = client.get(format!("{root}/v1/openapi.json")).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/json");
    let document: Value = answer.json().await.unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{document}");
    let responses = &document["paths"]["/v1/namespaces/{namespace}/claims"]["post"]["responses"];
    for code in [
        "200", "400", "401", "403", "404", "408", "409", "410", "413", "415", "422", "429", "502", "503",
        "504",
    ] {
        assert!(responses[code].is_object(), "{code}: {responses:#}");
    }
    let types =
        document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"].as_array().unwrap();

    let token = world.matchmaker_token().await;
    for (method, url, code) in [
        (Method::GET, format!("{root}/v2"), 404),
        (Method::DELETE, claims.clone(), 405),
        (Method::POST, format!("{root}/v1/openapi.json"), 405),
        // Without a content type.
        (Method::POST, claims.clone(), 415),
    ] {
        let what = format!("{method} {url}");
        let answer = client.request(method, url).bearer_auth(&token).body("{}").send().await.unwrap();
        assert_eq!(answer.status(), code, "{what}");
        assert_eq!(answer.headers()["content-type"], "application/problem+json", "{what}");
        let problem: Value = answer.json().await.unwrap();
        assert_eq!(problem["status"], code);
        assert!(types.contains(&problem["type"]), "{problem}");
    }
    world.end().await;
}
