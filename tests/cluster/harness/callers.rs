//! HTTP clients that know the claim API by its authority.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use gamekeeper::rules::certificate::AUTHORITY;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

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
