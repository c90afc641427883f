//! A claim over the HTTP API, as a matchmaker makes it: with a token that may do this and nothing else.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use gamekeeper::rules::certificate::AUTHORITY;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::access::Access;
use crate::command::output;
use crate::install::{NAMESPACE, RELEASE};
use crate::workspace::Workspace;

/// The account of the sample.
pub(crate) const ACCOUNT: &str = "matchmaker";
/// Where the chart's operator keeps its certificate.
const SECRET: &str = "gamekeeper-tls";
/// A name of the operator's Service that its certificate is for.
pub(crate) const HOST: &str = "gamekeeper.gamekeeper-system.svc";
const SAMPLE: &str = "deploy/samples/matchmaker.yaml";

/// How long the operator may take to see what the API server already shows.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes the account of the sample and returns a token of it.
pub(crate) async fn token(
    workspace: &Workspace,
    access: &Access,
    client: &Client,
    namespace: &str,
) -> Result<String> {
    let mut apply = access.kubectl();
    apply
        .args(["apply", "--server-side", "--namespace", namespace, "--filename"])
        .arg(workspace.root().join(SAMPLE));
    output(&mut apply).with_context(|| format!("cannot apply {SAMPLE}"))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(ACCOUNT, &PostParams::default(), &request)
        .await
        .with_context(|| format!("cannot get a token of {namespace}/{ACCOUNT}"))?;
    let token = answer.status.and_then(|status| status.token);
    token.context("the token request was answered without a token")
}

/// A way to the operator's service from this machine, open until it is dropped.
pub(crate) struct Forward {
    /// Dropped, it is ended.
    _kubectl: Child,
    /// Read on, or kubectl would stop at a full pipe.
    _lines: tokio::io::Lines<BufReader<ChildStdout>>,
    port: u16,
    http: reqwest::Client,
}

impl Forward {
    /// Opens it on a free port.
    pub(crate) async fn open(access: &Access, client: &Client) -> Result<Self> {
        let http = http_client(tls(client).await?)?;
        let service = format!("service/{RELEASE}");
        let mut command = Command::from(access.kubectl());
        command.args(["port-forward", "--namespace", NAMESPACE, &service, ":443"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut kubectl = command.spawn().context("cannot start kubectl port-forward")?;
        let stdout = kubectl.stdout.take().context("kubectl port-forward has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let first = timeout(PATIENCE, lines.next_line()).await;
        let Ok(Ok(Some(line))) = first else {
            // Its end, or ours, lets what it said be read.
            let _ = kubectl.start_kill();
            let said = kubectl.wait_with_output().await.map(|output| output.stderr).unwrap_or_default();
            bail!(
                "cannot reach {service} in {NAMESPACE} by kubectl port-forward: {}",
                String::from_utf8_lossy(&said).trim()
            );
        };
        let port =
            port(&line).with_context(|| format!("kubectl port-forward named no local port in {line:?}"))?;
        Ok(Self { _kubectl: kubectl, _lines: lines, port, http })
    }
}

/// TLS that trusts the operator's authority alone.
pub(crate) async fn tls(client: &Client) -> Result<ClientConfig> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let secret = secrets.get(SECRET).await.with_context(|| format!("cannot read the Secret {SECRET}"))?;
    let authority = secret.data.and_then(|mut data| data.remove(AUTHORITY));
    let authority = authority.with_context(|| format!("the Secret {SECRET} has no {AUTHORITY}"))?;
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(&authority.0).context("cannot read the authority")?;
    roots.add(certificate).context("cannot trust the authority")?;
    Ok(ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("cannot speak TLS")?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

fn http_client(tls: ClientConfig) -> Result<reqwest::Client> {
    reqwest::Client::builder()
        .no_proxy()
        .tls_backend_preconfigured(tls)
        .resolve(HOST, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .build()
        .context("cannot make an HTTP client")
}

/// From `Forwarding from 127.0.0.1:40123 -> 8443`.
fn port(line: &str) -> Option<u16> {
    line.strip_prefix("Forwarding from ")?.split(" -> ").next()?.rsplit(':').next()?.parse().ok()
}

/// What the claim API answers.
#[derive(Debug, Deserialize)]
pub(crate) struct Granted {
    /// The name of the server.
    pub(crate) server: String,
    address: String,
    ports: Vec<GrantedPort>,
}

#[derive(Debug, Deserialize)]
struct GrantedPort {
    port: u16,
}

impl Granted {
    /// Where its players connect to.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        let port = self.ports.first().context("the claimed server has no port")?.port;
        let address = self.address.parse().with_context(|| format!("{} is no address", self.address))?;
        Ok(SocketAddr::new(address, port))
    }
}

/// Claims a server of `group`, and returns the answer as it came and as it is read.
///
/// Refusals that pass by themselves are tried again for a while: a replica may not have seen the last server yet.
pub(crate) async fn claim(
    forward: &Forward,
    token: &str,
    namespace: &str,
    group: &str,
    id: &str,
) -> Result<(Value, Granted)> {
    let url = format!("https://{HOST}:{}/v1/namespaces/{namespace}/claims", forward.port);
    let start = Instant::now();
    loop {
        let body = json!({"id": id, "groups": [group]});
        let answer = forward.http.post(&url).bearer_auth(token).json(&body).send().await;
        let answer = answer.with_context(|| format!("the claim API does not answer at {url}"))?;
        let status = answer.status();
        let answer: Value = answer.json().await.context("the claim API answered something else than JSON")?;
        if status.is_success() {
            let granted =
                serde_json::from_value(answer.clone()).context("the claim's answer lacks a field")?;
            return Ok((answer, granted));
        }
        let passes = status.is_server_error() || status == reqwest::StatusCode::FORBIDDEN;
        if !passes || start.elapsed() > PATIENCE {
            bail!("the claim was refused with {status}: {answer}");
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Gives the server of claim `id` back.
pub(crate) async fn release(forward: &Forward, token: &str, namespace: &str, id: &str) -> Result<()> {
    let url = format!("https://{HOST}:{}/v1/namespaces/{namespace}/claims/{id}", forward.port);
    let answer = forward.http.delete(&url).bearer_auth(token).send().await;
    let answer = answer.with_context(|| format!("the claim API does not answer at {url}"))?;
    let status = answer.status();
    if !status.is_success() {
        bail!("the release was refused with {status}: {}", answer.text().await.unwrap_or_default());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_read_from_what_kubectl_says() {
        assert_eq!(port("Forwarding from 127.0.0.1:40123 -> 8443"), Some(40123));
        assert_eq!(port("Forwarding from [::1]:40123 -> 8443"), Some(40123));
        assert_eq!(port("Handling connection for 40123"), None);
    }
}
