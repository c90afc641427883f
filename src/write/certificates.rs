//! The claim API's certificate: made here, and kept in one Secret that all replicas share.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::OffsetDateTime;

use super::{WriteError, post, within};
use crate::api::names::OPERATOR;
use crate::rules::certificate::{AUTHORITY, AUTHORITY_KEY, CERTIFICATE, Contents, KEY, LIFETIME};

/// How long an authority is good for: for as long as anybody keeps it.
const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_hours(30 * 365 * 24);
/// How long before it was made a certificate is good already, for callers whose clocks are late.
const BEFORE: SignedDuration = SignedDuration::from_hours(1);

/// One Secret of the operator's namespace.
#[derive(Clone)]
pub struct Certificates {
    secrets: Api<Secret>,
    name: String,
}

/// The Secret as it was read.
#[derive(Clone, Debug)]
pub struct Kept {
    secret: Secret,
    /// What it holds.
    pub contents: Contents,
}

impl Certificates {
    /// The Secret of this name.
    pub fn new(client: Client, namespace: &str, name: String) -> Self {
        Self { secrets: Api::namespaced(client, namespace), name }
    }

    /// Reads it, if it is there.
    pub async fn read(&self) -> Result<Option<Kept>, WriteError> {
        let found = within(self.secrets.get_opt(&self.name)).await?;
        Ok(found.map(|secret| {
            let data = secret.data.iter().flatten();
            let contents = data.map(|(key, value)| (key.clone(), value.0.clone())).collect();
            Kept { secret, contents }
        }))
    }

    /// Replaces what it holds, if it is still as it was read: of several replicas, the first makes the certificate.
    pub async fn replace(&self, kept: Kept, contents: Contents) -> Result<(), WriteError> {
        let mut secret = kept.secret;
        secret.data = Some(contents.into_iter().map(|(key, value)| (key, ByteString(value))).collect());
        within(self.secrets.replace(&self.name, &post(), &secret)).await.map(drop)
    }
}

/// Why no certificate was made.
#[derive(Debug, thiserror::Error)]
#[error("make a certificate")]
pub struct MakeError(#[from] rcgen::Error);

/// `contents` with a new certificate for `names`, by the authority that they have.
pub fn renewed(mut contents: Contents, names: &[String], now: Timestamp) -> Result<Contents, MakeError> {
    let authority = contents.get(AUTHORITY_KEY).map(|key| String::from_utf8_lossy(key)).unwrap_or_default();
    let issuer = Issuer::new(authority_params(now), KeyPair::from_pem(&authority)?);
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, OPERATOR);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = span(now, LIFETIME);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    contents.insert(CERTIFICATE.to_owned(), certificate.pem().into_bytes());
    contents.insert(KEY.to_owned(), key.serialize_pem().into_bytes());
    Ok(contents)
}

/// `contents` with a new authority, and a certificate for `names` by it.
pub fn begun(mut contents: Contents, names: &[String], now: Timestamp) -> Result<Contents, MakeError> {
    let key = KeyPair::generate()?;
    let certificate = authority_params(now).self_signed(&key)?;
    contents.insert(AUTHORITY.to_owned(), certificate.pem().into_bytes());
    contents.insert(AUTHORITY_KEY.to_owned(), key.serialize_pem().into_bytes());
    renewed(contents, names, now)
}

fn authority_params(now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "gamekeeper authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = span(now, AUTHORITY_LIFETIME);
    params
}

fn span(now: Timestamp, lifetime: SignedDuration) -> (OffsetDateTime, OffsetDateTime) {
    let at = |time: Result<Timestamp, jiff::Error>| {
        let second = time.unwrap_or(now).as_second();
        OffsetDateTime::from_unix_timestamp(second).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    (at(now.checked_sub(BEFORE)), at(now.checked_add(lifetime)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::rules::certificate::{CALLERS, Plan, plan, server, will_do};
    use rustls::crypto::{CryptoProvider, ring};

    fn crypto() -> Arc<CryptoProvider> {
        Arc::new(ring::default_provider())
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + day * 86_400).unwrap()
    }

    fn without(contents: &Contents, keys: &[&str]) -> Contents {
        let mut contents = contents.clone();
        contents.retain(|key, _| !keys.contains(&key.as_str()));
        contents
    }

    #[test]
    fn a_certificate_is_renewed_in_its_last_month_and_its_authority_stays() {
        let names = names(&["gamekeeper.games.svc", "10.0.0.7"]);
        let plan = |contents: &Contents, day| plan(contents, None, &names, at(day), &crypto());
        assert_eq!(plan(&Contents::new(), 0), Plan::Begin);
        let first = begun(Contents::new(), &names, at(0)).unwrap();
        assert_eq!(plan(&first, 0), Plan::Keep);
        assert_eq!(plan(&first, 59), Plan::Keep);
        assert_eq!(plan(&first, 61), Plan::Renew);
        let second = renewed(first.clone(), &names, at(61)).unwrap();
        assert_eq!(plan(&second, 61), Plan::Keep);
        assert_eq!(second[AUTHORITY], first[AUTHORITY]);
        assert_ne!(second[CERTIFICATE], first[CERTIFICATE]);
        // The first is good for callers still, so a replica that serves it yet harms nobody.
        assert!(server(&first, &crypto()).is_ok());
    }

    #[test]
    fn a_certificate_for_other_names_is_renewed() {
        let first = begun(Contents::new(), &names(&["a.example"]), at(0)).unwrap();
        assert_eq!(plan(&first, None, &names(&["a.example", "b.example"]), at(0), &crypto()), Plan::Renew);
    }

    #[test]
    fn what_was_emptied_is_put_back_and_what_lost_its_authority_begins_anew() {
        let names = names(&["a.example"]);
        let mut held = begun(Contents::new(), &names, at(0)).unwrap();
        held.insert(CALLERS.to_owned(), held[AUTHORITY].clone());
        assert!(will_do(&held, &names, at(0), &crypto()));
        let plan = |there: &Contents| plan(there, Some(&held), &names, at(0), &crypto());
        assert_eq!(plan(&Contents::new()), Plan::PutBack);
        assert_eq!(plan(&without(&held, &[AUTHORITY_KEY])), Plan::Begin);
        assert_eq!(plan(&without(&held, &[CERTIFICATE])), Plan::Renew);
        // A key that is not the certificate's.
        let mut mixed = held.clone();
        mixed.insert(KEY.to_owned(), held[AUTHORITY_KEY].clone());
        assert_eq!(plan(&mixed), Plan::Renew);
        assert!(server(&mixed, &crypto()).is_err());
    }

    #[test]
    fn callers_authorities_that_cannot_be_read_let_nobody_in_without_a_certificate() {
        let mut held = begun(Contents::new(), &names(&["a.example"]), at(0)).unwrap();
        held.insert(CALLERS.to_owned(), b"nonsense".to_vec());
        assert!(server(&held, &crypto()).is_err());
    }
}
