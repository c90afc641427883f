//! The operator as a process of this machine, beside the API server: built as it is shipped, with the account, the
//! rights and the settings that the chart gives it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::time::sleep;

use crate::cluster::Cluster;
use crate::command::tail;
use crate::install::{NAMESPACE, RELEASE};

/// What it says on its way to its first claim.
const LEVEL: &str = "info,kube_lease_manager=warn,kube_runtime=warn";
/// How long it may take until it is ready.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long its token holds: longer than any bench.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// What an operator is started with.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    program: PathBuf,
    kubeconfig: PathBuf,
    agent_image: String,
    log: PathBuf,
}

/// A running operator. It is killed when dropped.
#[derive(Debug)]
pub(super) struct Operator {
    process: Child,
    /// Where its claim API listens.
    pub(super) address: SocketAddr,
    probes: SocketAddr,
    log: PathBuf,
    /// When it was started.
    pub(super) begun: Instant,
}

impl Setup {
    /// For the operator whose chart is installed, without replicas, in this cluster.
    pub(super) async fn new(
        client: &Client,
        cluster: &Cluster,
        program: PathBuf,
        agent_image: &str,
    ) -> Result<Self> {
        let mut kubeconfig =
            Kubeconfig::read_from(cluster.kubeconfig()).context("cannot read the kubeconfig")?;
        let token = token(client).await?;
        for user in &mut kubeconfig.auth_infos {
            user.auth_info = Some(AuthInfo { token: Some(token.clone().into()), ..AuthInfo::default() });
        }
        let path = cluster.dir().join("operator.kubeconfig");
        let text = serde_json::to_string(&kubeconfig).context("cannot write the operator's kubeconfig")?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            program,
            kubeconfig: path,
            agent_image: agent_image.to_owned(),
            log: cluster.dir().join("logs/operator.log"),
        })
    }

    /// A client like the operator's own: its account, its library, its settings.
    pub(super) async fn client(&self) -> Result<Client> {
        let kubeconfig =
            Kubeconfig::read_from(&self.kubeconfig).context("cannot read the operator's kubeconfig")?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        config.proxy_url = None;
        Client::try_from(config).context("cannot make a client for the cluster")
    }

    /// Starts it.
    pub(super) fn start(&self) -> Result<Operator> {
        let (address, probes) = (free_address()?, free_address()?);
        let open = || File::options().create(true).append(true).open(&self.log);
        let log = open().with_context(|| format!("cannot open {}", self.log.display()))?;
        let begun = Instant::now();
        let process = Command::new(&self.program)
            .arg("operator")
            .args(["--replica", "bench", "--lease-namespace", NAMESPACE, "--agent-image", &self.agent_image])
            .args(["--listen", &address.to_string(), "--listen-plain", &probes.to_string()])
            .args(["--log-format", "json"])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("RUST_LOG", LEVEL)
            // No proxy knows the way to a cluster on this machine.
            .env("NO_PROXY", "*")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        Ok(Operator { process, address, probes, log: self.log.clone(), begun })
    }
}

impl Operator {
    /// Waits until its picture of the cluster is whole and it has a certificate.
    pub(super) async fn ready(&mut self) -> Result<()> {
        let url = format!("http://{}/readyz", self.probes);
        let http = reqwest::Client::builder().no_proxy().build().context("cannot make an HTTP client")?;
        loop {
            if http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            self.goes_on()?;
            ensure!(
                self.begun.elapsed() < PATIENCE,
                "the operator is not ready after {} s:\n{}",
                PATIENCE.as_secs(),
                tail(&self.log)
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// How much memory it has at the moment, and how much it had at most, in MB.
    pub(super) fn memory(&self) -> Result<Memory> {
        let path = format!("/proc/{}/status", self.id());
        let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let field = |name| kibibytes(&status, name).with_context(|| format!("{path} has no {name}"));
        Ok(Memory { resident_mb: field("VmRSS:")?, peak_mb: field("VmHWM:")? })
    }

    /// Kills it as a crash would.
    pub(super) fn end(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn goes_on(&mut self) -> Result<()> {
        match self.process.try_wait().context("cannot look after the operator")? {
            None => Ok(()),
            Some(status) => bail!("the operator has ended with {status}:\n{}", tail(&self.log)),
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.end();
    }
}

/// The resident set of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// At the moment.
    pub(super) resident_mb: f64,
    /// At most so far.
    pub(super) peak_mb: f64,
}

/// A line of proc(5)'s status that counts KiB, in MB.
fn kibibytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u32 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(f64::from(kibibytes) * 1024.0 / 1e6)
}

/// A token of the account that the chart gives the operator.
async fn token(client: &Client) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let answer = accounts.create_token_request(RELEASE, &PostParams::default(), &request).await;
    let status = answer.context("cannot get a token of the operator's account")?.status;
    status.and_then(|status| status.token).context("the token request was answered without a token")
}

/// A port of the loopback that nobody listens on.
fn free_address() -> Result<SocketAddr> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port on 127.0.0.1")?;
    listener.local_addr().context("cannot tell a free port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_megabytes() {
        let status = "Name:\tgamekeeper\nVmHWM:\t  250000 kB\nVmRSS:\t  125000 kB\n";
        assert_eq!(kibibytes(status, "VmRSS:"), Some(128.0));
        assert_eq!(kibibytes(status, "VmSwap:"), None);
    }
}
