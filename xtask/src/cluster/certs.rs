//! The cluster's certificates: one authority, one certificate for each who speaks or answers.

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

use super::NODE_NAME;
use super::state::{Home, Kind, Plan};

/// Members of this group may do everything.
const ADMINISTRATORS: &str = "system:masters";

/// Who a certificate speaks for, and under which names and addresses it answers.
struct Identity {
    file: &'static str,
    user: String,
    group: Option<&'static str>,
    answers_as: Vec<String>,
}

/// Makes every key, certificate and kubeconfig of a cluster.
pub(crate) fn write(home: &Home, plan: &Plan) -> Result<()> {
    let authority = Authority::new()?;
    home.write("pki/ca.crt", authority.issuer.pem())?;
    for identity in identities(plan) {
        authority.issue(home, &identity)?;
    }
    for client in clients(plan.kind) {
        write_kubeconfig(home, plan, client)?;
    }
    std::fs::copy(home.path("kubeconfigs/admin"), home.kubeconfig())
        .context("cannot write the administrator's kubeconfig")?;
    let key = KeyPair::generate().context("cannot make the key of service accounts")?;
    home.write("pki/service-accounts.key", key.serialize_pem())?;
    home.write("pki/service-accounts.pub", key.public_key_pem())?;
    Ok(())
}

fn clients(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::WithNode => &["admin", "controller-manager", "scheduler", "kwok", "kubelet", "kube-proxy"],
        Kind::ControlPlane => &["admin", "controller-manager", "scheduler", "kwok"],
    }
}

fn identities(plan: &Plan) -> Vec<Identity> {
    let client =
        |file, user: &str, group| Identity { file, user: user.to_owned(), group, answers_as: Vec::new() };
    vec![
        Identity {
            answers_as: vec![
                "localhost".to_owned(),
                "kubernetes".to_owned(),
                "kubernetes.default".to_owned(),
                "kubernetes.default.svc".to_owned(),
                "kubernetes.default.svc.cluster.local".to_owned(),
                plan.api_server.ip().to_string(),
                plan.network.kubernetes_service().to_string(),
            ],
            ..client("apiserver", "kube-apiserver", None)
        },
        // etcd without certificates would let every user of the machine write what the cluster runs.
        Identity {
            answers_as: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            ..client("etcd", "etcd", None)
        },
        client("apiserver-to-kubelet", "kube-apiserver", Some(ADMINISTRATORS)),
        // The Node authorizer knows a kubelet by this user and group.
        Identity {
            answers_as: vec![NODE_NAME.to_owned(), plan.network.node().to_string()],
            ..client("kubelet", &format!("system:node:{NODE_NAME}"), Some("system:nodes"))
        },
        client("admin", "kubernetes-admin", Some(ADMINISTRATORS)),
        client("controller-manager", "system:kube-controller-manager", None),
        client("scheduler", "system:kube-scheduler", None),
        client("kube-proxy", "system:kube-proxy", None),
        client("kwok", "kwok", Some(ADMINISTRATORS)),
    ]
}

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "gamekeeper-embedded-cluster");
        let key = KeyPair::generate().context("cannot make the authority's key")?;
        let issuer =
            CertifiedIssuer::self_signed(params, key).context("cannot make the authority's certificate")?;
        Ok(Self { issuer })
    }

    fn issue(&self, home: &Home, identity: &Identity) -> Result<()> {
        let name = identity.file;
        let failed = || format!("cannot make the certificate of {name}");
        let mut params = CertificateParams::new(identity.answers_as.clone()).with_context(failed)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.distinguished_name.push(DnType::CommonName, identity.user.as_str());
        if let Some(group) = identity.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        let key = KeyPair::generate().with_context(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).with_context(failed)?;
        home.write(&format!("pki/{name}.crt"), certificate.pem())?;
        home.write(&format!("pki/{name}.key"), key.serialize_pem())?;
        Ok(())
    }
}

fn write_kubeconfig(home: &Home, plan: &Plan, client: &str) -> Result<()> {
    let name = format!("gamekeeper-{}", plan.id);
    home.write_json(
        &format!("kubeconfigs/{client}"),
        &json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {
                "server": format!("https://{}", plan.api_server),
                "certificate-authority": home.path("pki/ca.crt"),
            }}],
            "users": [{"name": client, "user": {
                "client-certificate": home.path(&format!("pki/{client}.crt")),
                "client-key": home.path(&format!("pki/{client}.key")),
            }}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": client}}],
            "current-context": name,
        }),
    )
    .map(drop)
}
