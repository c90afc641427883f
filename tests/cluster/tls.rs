//! The claim API's certificate: the operator's own, renewed and healed; one that is given; and none.

use std::future::pending;

use gamekeeper::rules::certificate::{AUTHORITY, CALLERS, CERTIFICATE, Contents, KEY};
use gamekeeper::write::{Certificates, WriteError, begun, renewed};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams, PostParams};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::harness::{GIVEN_SECRET, TLS_SECRET, World, caller, eventually};

/// Asks a replica by this name for a path that is not there: whoever gets an answer has been believed.
async fn ask(client: &reqwest::Client, name: &str, port: u16) -> Result<reqwest::Response, reqwest::Error> {
    client.get(format!("https://{name}:{port}/")).send().await
}

/// The certificate that a replica shows to a new connection.
async fn shown(world: &World, replica: usize) -> Vec<u8> {
    let [port, _] = world.ports(replica);
    let answer = ask(&world.caller().await, "gamekeeper", port).await.unwrap();
    let info = answer.extensions().get::<reqwest::tls::TlsInfo>().unwrap();
    info.peer_certificate().unwrap().to_vec()
}

fn der(pem: &[u8]) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem).unwrap().to_vec()
}

async fn patch(world: &World, data: Value) {
    let patch = Patch::Merge(json!({"data": data}));
    world.secret_api().patch(TLS_SECRET, &PatchParams::default(), &patch).await.unwrap();
}

/// The operator makes a certificate for all names of its Service, once, and all replicas serve with it.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_certificate_that_the_first_has_made() {
    let mut world = World::without_operator("own-tls").await;
    world.with_arguments(&["--tls-extra-name", "games.example"]);
    world.start_operator().await;
    world.start_replica("operator-1").await;
    let authority = world.secret(TLS_SECRET, AUTHORITY).await;
    let mut names = world.names();
    names.push("games.example".to_owned());
    let client = caller(&names, &authority, None);
    for replica in [0, 1] {
        let [port, _] = world.ports(replica);
        for name in &names {
            assert_eq!(ask(&client, name, port).await.unwrap().status(), 404, "{name}");
        }
    }
    assert!(ask(&client, "127.0.0.1", world.ports(0)[0]).await.is_err());
    let made = world.audited("update", "secrets");
    let done = made.iter().filter(|write| write["responseStatus"]["code"] == 200).count();
    assert_eq!(done, 1, "{made:#?}");
    world.end().await;
}

/// Of two replicas that find the Secret empty at once, the second sees that it was not the first.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_one_writes_the_certificate() {
    let world = World::without_operator("first").await;
    let secret = Certificates::new(world.client.clone(), &world.namespace, TLS_SECRET.to_owned());
    let found = [secret.read().await.unwrap().unwrap(), secret.read().await.unwrap().unwrap()];
    let made = || begun(Contents::new(), &world.names(), Timestamp::now()).unwrap();
    let [first, second] = found;
    let kept = made();
    secret.replace(first, kept.clone()).await.unwrap();
    assert!(matches!(secret.replace(second, made()).await, Err(WriteError::Lost)));
    assert_eq!(secret.read().await.unwrap().unwrap().contents, kept);
    world.end().await;
}

/// A new certificate takes the place of the old one, by the same authority, and no call breaks meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_breaks_no_call() {
    let mut world = World::new("renewal").await;
    world.start_replica("operator-1").await;
    let authority = world.secret(TLS_SECRET, AUTHORITY).await;
    let before = der(&world.secret(TLS_SECRET, CERTIFICATE).await);
    // Clients that do not hear of it: one that keeps its connections, and one that makes a new one for each call.
    let keeping = caller(&world.names(), &authority, None);
    let calls = async {
        loop {
            for replica in [0, 1] {
                let [port, _] = world.ports(replica);
                let fresh = caller(&world.names(), &authority, None);
                for client in [&keeping, &fresh] {
                    assert_eq!(ask(client, "gamekeeper", port).await.unwrap().status(), 404);
                }
            }
        }
    };
    let renewal = async {
        patch(&world, json!({CERTIFICATE: null})).await;
        let after = der(&world.secret(TLS_SECRET, CERTIFICATE).await);
        for replica in [0, 1] {
            eventually("it is shown", || shown(&world, replica), |shown| *shown == after).await;
        }
        after
    };
    let after = tokio::select! {
        after = renewal => after,
        () = calls => pending().await,
    };
    assert_ne!(before, after);
    assert_eq!(world.secret(TLS_SECRET, AUTHORITY).await, authority);
    world.end().await;
}

/// A Secret that somebody has emptied holds again what it held: callers know that authority.
#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_secret_is_put_back() {
    let world = World::new("emptied").await;
    let authority = world.secret(TLS_SECRET, AUTHORITY).await;
    patch(&world, Value::Null).await;
    assert_eq!(world.secret(TLS_SECRET, AUTHORITY).await, authority);
    world.end().await;
}

/// With a certificate of one's own in a Secret, that one is shown, a change of it too, and the operator writes nothing
/// there; with authorities for callers in it, only who has a certificate of theirs gets in.
#[tokio::test(flavor = "multi_thread")]
async fn a_given_certificate_is_shown_and_callers_may_have_to_show_theirs() {
    let mut world = World::without_operator("given-tls").await;
    let names = world.names();
    let now = Timestamp::now();
    let mut ours = begun(Contents::new(), &names, now).unwrap();
    let callers = begun(Contents::new(), &["caller".to_owned()], now).unwrap();
    ours.insert(CALLERS.to_owned(), callers[AUTHORITY].clone());
    let data = |contents: &Contents| {
        let given = contents.iter().filter(|(key, _)| [CERTIFICATE, KEY, CALLERS].contains(&key.as_str()));
        let given = given.map(|(key, value)| (key.clone(), ByteString(value.clone())));
        json!({"metadata": {"name": GIVEN_SECRET}, "data": given.collect::<std::collections::BTreeMap<_, _>>()})
    };
    let secret = serde_json::from_value(data(&ours)).unwrap();
    world.secret_api().create(&PostParams::default(), &secret).await.unwrap();
    world.with_arguments(&["--tls", "given", "--tls-secret", GIVEN_SECRET]);
    world.start_operator().await;

    let [port, _] = world.ports(0);
    let identity = caller_identity(&callers);
    let known = caller(&names, &ours[AUTHORITY], Some((&identity.0, &identity.1)));
    assert_eq!(ask(&known, "gamekeeper", port).await.unwrap().status(), 404);
    let unknown = caller(&names, &ours[AUTHORITY], None);
    assert!(ask(&unknown, "gamekeeper", port).await.is_err());

    let next = renewed(ours.clone(), &names, now).unwrap();
    let change = Patch::Merge(data(&next));
    world.secret_api().patch(GIVEN_SECRET, &PatchParams::default(), &change).await.unwrap();
    let shown = || async {
        let fresh = caller(&names, &ours[AUTHORITY], Some((&identity.0, &identity.1)));
        let answer = ask(&fresh, "gamekeeper", port).await.unwrap();
        answer.extensions().get::<reqwest::tls::TlsInfo>().unwrap().peer_certificate().unwrap().to_vec()
    };
    eventually("the change is shown", shown, |shown| *shown == der(&next[CERTIFICATE])).await;
    assert!(world.audited("update", "secrets").is_empty());
    world.end().await;
}

/// A certificate for a client, by the authority of `contents`.
fn caller_identity(contents: &Contents) -> (String, String) {
    let authority = String::from_utf8(contents["ca.key"].clone()).unwrap();
    let mut authority_params = rcgen::CertificateParams::default();
    authority_params.distinguished_name.push(rcgen::DnType::CommonName, "gamekeeper authority");
    let issuer = rcgen::Issuer::new(authority_params, rcgen::KeyPair::from_pem(&authority).unwrap());
    let mut params = rcgen::CertificateParams::new(["caller".to_owned()]).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
}

/// With TLS off, the API speaks plain HTTP, and the operator needs no Secret.
#[tokio::test(flavor = "multi_thread")]
async fn without_tls_the_api_speaks_plain_http() {
    let mut world = World::without_operator("no-tls").await;
    world.with_arguments(&["--tls", "off", "--tls-secret", "none"]);
    world.start_operator().await;
    let [port, _] = world.ports(0);
    let answer = reqwest::get(format!("http://127.0.0.1:{port}/")).await.unwrap();
    assert_eq!(answer.status(), 404);
    world.end().await;
}

/// A connection on which no handshake happens is closed within seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_does_not_come_is_not_waited_for() {
    let world = World::new("handshake").await;
    let mut connection = TcpStream::connect(("127.0.0.1", world.ports(0)[0])).await.unwrap();
    let mut byte = [0];
    let end = tokio::time::timeout(std::time::Duration::from_secs(15), connection.read(&mut byte)).await;
    assert_eq!(end.expect("it is closed").unwrap(), 0);
    world.end().await;
}
