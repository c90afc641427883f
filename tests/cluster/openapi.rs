//! The claim API as it describes itself.

use std::path::PathBuf;

use gamekeeper::rules::certificate::AUTHORITY;
use kube::ResourceExt;
use reqwest::Method;
use serde_json::Value;

use crate::harness::{TLS_SECRET, World, setting};

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

/// A fuzzer that drives the API by its document finds no answer that is not in it, and no error of the server but the
/// one that says that there is no server left.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_is_as_it_describes_itself() {
    let mut world = World::without_operator("fuzz").await;
    world.with_arguments(&["--tls-extra-name", "127.0.0.1"]);
    world.start_operator().await;
    world.silent_group("arena", 3).await;
    world.ready_servers("arena", 3).await;
    let token = world.all_rights_token().await;
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz").join(&world.namespace);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("ca.crt"), world.secret(TLS_SECRET, AUTHORITY).await).unwrap();
    let (namespace, server) = (&world.namespace, world.servers().await[0].name_any());
    let config = format!(
        r#"
        tls-verify = "ca.crt"
        warnings.fail-on = ["missing_auth", "missing_test_data"]
        [headers]
        Authorization = "Bearer {token}"
        [parameters]
        namespace = "{namespace}"
        id = "match-7c1f"
        name = "{server}"
        [generation]
        max-examples = 60
        deterministic = true
        database = "none"
        [phases.stateful]
        enabled = false
        [checks]
        positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 410, 429, "5xx"]
        not_a_server_error.expected-statuses = ["2xx", "4xx", 503]
        "#
    );
    std::fs::write(folder.join("schemathesis.toml"), config).unwrap();
    let [port, _] = world.ports(0);
    let output = tokio::process::Command::new(setting("GAMEKEEPER_TEST_SCHEMATHESIS"))
        .args(["run", &format!("https://127.0.0.1:{port}/v1/openapi.json"), "--no-color"])
        .current_dir(&folder)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    std::fs::write(folder.join("output"), said.as_bytes()).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    world.end().await;
}
