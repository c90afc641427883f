//! The claim API's certificate: whether the one that is there will do, as a caller would judge it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

/// The certificate's key in a Secret, as Kubernetes' own TLS Secrets have it.
pub const CERTIFICATE: &str = "tls.crt";
/// The key of the certificate's key in a Secret.
pub const KEY: &str = "tls.key";
/// The key in a Secret of the authority's certificate, by which callers know the operator.
pub const AUTHORITY: &str = "ca.crt";
/// The key in a Secret of the authority's key.
pub const AUTHORITY_KEY: &str = "ca.key";
/// The key in a Secret of the authorities that callers' own certificates must come from.
pub const CALLERS: &str = "client-ca.crt";

/// How long a certificate is good for.
pub const LIFETIME: SignedDuration = SignedDuration::from_hours(90 * 24);
/// How long before its end it is renewed.
const RENEWED_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// What a Secret holds, by key.
pub type Contents = BTreeMap<String, Vec<u8>>;

/// What is to be done about the operator's own certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Plan {
    /// Nothing.
    Keep,
    /// Put back what was there: somebody has emptied the Secret, and callers know that authority.
    PutBack,
    /// Make a certificate, by the authority that is there.
    Renew,
    /// Make an authority and a certificate.
    Begin,
}

/// What is to be done where the Secret has `there`, and had `before` when it was read last.
pub fn plan(
    there: &Contents,
    before: Option<&Contents>,
    names: &[String],
    now: Timestamp,
    crypto: &Arc<CryptoProvider>,
) -> Plan {
    let empty = |contents: &Contents| {
        [CERTIFICATE, KEY, AUTHORITY, AUTHORITY_KEY].iter().all(|key| !contents.contains_key(*key))
    };
    let has_authority = [AUTHORITY, AUTHORITY_KEY].iter().all(|key| there.contains_key(*key));
    if empty(there) && before.is_some_and(|before| will_do(before, names, now, crypto)) {
        Plan::PutBack
    } else if !has_authority {
        Plan::Begin
    } else if will_do(there, names, now, crypto) {
        Plan::Keep
    } else {
        Plan::Renew
    }
}

/// Whether callers take the certificate for each of `names`, now and until it would be renewed.
pub fn will_do(contents: &Contents, names: &[String], now: Timestamp, crypto: &Arc<CryptoProvider>) -> bool {
    let Ok(certified) = certified(contents, crypto) else { return false };
    let Ok(roots) = roots(contents, AUTHORITY) else { return false };
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(crypto)).build();
    let (Ok(verifier), Some((leaf, rest))) = (verifier, certified.cert.split_first()) else { return false };
    let good_for = |name: &String| {
        let Ok(name) = ServerName::try_from(name.as_str()) else { return false };
        let at = |time: Timestamp| {
            let seconds = u64::try_from(time.as_second()).unwrap_or_default();
            let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            verifier.verify_server_cert(leaf, rest, &name, &[], time).is_ok()
        };
        at(now) && at(now.saturating_add(RENEWED_BEFORE).unwrap_or(Timestamp::MAX))
    };
    names.iter().all(good_for)
}

/// Why a Secret's contents cannot be served with.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// A key is missing or holds something else.
    #[error("{0} holds no PEM of what it is for")]
    Pem(&'static str),
    /// The certificate and its key, or the callers' authorities, do not do.
    #[error("{CERTIFICATE}, {KEY} and {CALLERS} do not make a server: {0}")]
    Tls(String),
}

impl From<rustls::Error> for Unusable {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error.to_string())
    }
}

/// How to serve with what a Secret holds: with client certificates asked for where it says whose.
pub fn server(contents: &Contents, crypto: &Arc<CryptoProvider>) -> Result<ServerConfig, Unusable> {
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(crypto)).with_safe_default_protocol_versions()?;
    let builder = if contents.contains_key(CALLERS) {
        let roots = Arc::new(roots(contents, CALLERS)?);
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(crypto)).build();
        builder.with_client_cert_verifier(verifier.map_err(|error| Unusable::Tls(error.to_string()))?)
    } else {
        builder.with_no_client_auth()
    };
    let (chain, key) = pair(contents)?;
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn certified(contents: &Contents, crypto: &CryptoProvider) -> Result<CertifiedKey, Unusable> {
    let (chain, key) = pair(contents)?;
    Ok(CertifiedKey::from_der(chain, key, crypto)?)
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn pair(contents: &Contents) -> Result<Pair, Unusable> {
    let key = PrivateKeyDer::from_pem_slice(pem(contents, KEY)).map_err(|_| Unusable::Pem(KEY))?;
    Ok((certificates(contents, CERTIFICATE)?, key))
}

fn roots(contents: &Contents, key: &'static str) -> Result<RootCertStore, Unusable> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(contents, key)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

fn certificates(contents: &Contents, key: &'static str) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem(contents, key)).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or(Unusable::Pem(key))
}

fn pem<'a>(contents: &'a Contents, key: &str) -> &'a [u8] {
    contents.get(key).map(Vec::as_slice).unwrap_or_default()
}
