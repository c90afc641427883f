//! HTTP clients that know the claim API by its authority.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use gamekeeper::rules::certificate::AUTHORITY;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use super::wait::eventually;
use super::world::World;

/// The Secret that the chart makes.
pub(crate) const TLS_SECRET: &str = "gamekeeper-tls";

impl World {
    pub(crate) fn secret_api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// What a Secret holds under this key, once it does.
    pub(crate) async fn secret(&self, name: &str, key: &str) -> Vec<u8> {
        let look = || async { self.secret_api().get(name).await.unwrap().data?.remove(key) };
        eventually(&format!("the Secret {name} has {key}"), look, Option::is_some).await.unwrap().0
    }

    /// A client that trusts the operator's own authority, on connections of its own.
    pub(crate) async fn caller(&self) -> reqwest::Client {
        let authority = self.secret(TLS_SECRET, AUTHORITY).await;
        caller(&self.names(), &authority, None)
    }

    /// A client of a replica's HTTP API, in this namespace.
    pub(crate) async fn http(&self, replica: usize, token: &str) -> Http {
        let base = self.claims_url(replica).trim_end_matches("claims").to_owned();
        Http { client: self.callers().await.clone(), base, token: token.to_owned() }
    }

    /// Somebody who claims through a replica, whatever becomes of it.
    pub(crate) async fn matchmaker(&self, replica: usize, token: &str) -> Caller {
        Caller {
            client: self.callers().await.clone(),
            url: self.claims_url(replica),
            token: token.to_owned(),
        }
    }

    /// What callers know the claim API by.
    pub(crate) fn names(&self) -> Vec<String> {
        let service = format!("gamekeeper.{}", self.namespace);
        [
            "gamekeeper".to_owned(),
            service.clone(),
            format!("{service}.svc"),
            format!("{service}.svc.cluster.local"),
        ]
        .into()
    }
}

/// A client that trusts this authority, finds `names` on this machine, and may have a certificate with its key.
pub(crate) fn caller(names: &[String], authority: &[u8], identity: Option<(&str, &str)>) -> reqwest::Client {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority) {
        roots.add(certificate).unwrap();
    }
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let tls = match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(certificates(chain.as_bytes()), key).unwrap()
        }
    };
    // Of what the name resolves to, the port does not count.
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let builder = reqwest::Client::builder().tls_backend_preconfigured(tls).tls_info(true).no_proxy();
    names.iter().fold(builder, |builder, name| builder.resolve(name, here)).build().unwrap()
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).map(Result::unwrap).collect()
}

/// A client of the HTTP API.
pub(crate) struct Http {
    client: reqwest::Client,
    base: String,
    token: String,
}

impl Http {
    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.send(self.client.get(format!("{}{path}", self.base))).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (u16, Value) {
        self.send(self.client.delete(format!("{}{path}", self.base))).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(self.client.patch(format!("{}{path}", self.base)).json(&body)).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> (u16, Value) {
        let answer = request.bearer_auth(&self.token).send().await.unwrap();
        let code = answer.status().as_u16();
        let body = answer.bytes().await.unwrap();
        // There is none with a 204.
        let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        (code, body)
    }
}

/// Somebody who claims.
pub(crate) struct Caller {
    client: reqwest::Client,
    url: String,
    token: String,
}

impl Caller {
    /// Claims, in so many words.
    pub(crate) async fn ask(&self, body: Value) -> (u16, Value) {
        self.try_ask(body).await.unwrap()
    }

    /// Claims from a replica that may go before it has answered.
    pub(crate) async fn try_ask(&self, body: Value) -> reqwest::Result<(u16, Value)> {
        let request = self.client.post(&self.url).bearer_auth(&self.token).json(&body);
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    }
}
