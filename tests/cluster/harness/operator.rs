//! An operator as a process of its own, which a test can kill.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal};

/// How many of its last lines show why a start does not come to its end.
const TAIL: usize = 12;

/// What an operator is started with.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) namespace: String,
    /// Namespaces that it looks after as well.
    pub(super) neighbours: Vec<String>,
    pub(super) kubeconfig: PathBuf,
    pub(super) agent_image: String,
    pub(super) logs: PathBuf,
    /// Further arguments.
    pub(super) arguments: Vec<String>,
}

/// A running operator. Killed when dropped.
#[derive(Debug)]
pub(super) struct Operator {
    process: Mutex<Child>,
    log: PathBuf,
    /// How long the log was when this one started: one of the same name may have written before.
    log_start: usize,
    /// Where it listens, once it is ready.
    pub(super) ports: Ports,
}

/// On 127.0.0.1.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ports {
    /// Of the claim API.
    pub(super) api: u16,
    /// Of the probes.
    pub(super) plain: u16,
}

impl Operator {
    /// Starts the replica of this name, which takes part in the election by this lease.
    pub(super) fn start(setup: &Setup, replica: &str, lease: &str) -> Self {
        fs::create_dir_all(&setup.logs).unwrap();
        let log = setup.logs.join(format!("{}-{replica}.log", setup.namespace));
        let mut written = File::options().create(true).append(true).open(&log).unwrap();
        let log_start = written.seek(SeekFrom::End(0)).unwrap().try_into().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_gamekeeper"))
            .arg("operator")
            .args(["--namespace", &setup.namespace, "--lease-namespace", &setup.namespace])
            .args(["--replica", replica, "--lease", lease, "--agent-image", &setup.agent_image])
            .args(setup.neighbours.iter().flat_map(|name| ["--namespace", name.as_str()]))
            .args(["--listen", "127.0.0.1:0", "--listen-plain", "127.0.0.1:0"])
            .args(&setup.arguments)
            .env("KUBECONFIG", &setup.kubeconfig)
            .env("RUST_LOG", "gamekeeper=debug,info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(written)
            .spawn()
            .unwrap();
        Self { process: Mutex::new(process), log, log_start, ports: Ports::default() }
    }

    /// Where it listens if it is ready, or the last that it said, latest first.
    pub(super) async fn ready(&self) -> Result<Ports, Vec<String>> {
        let log = fs::read(&self.log).unwrap();
        let log = String::from_utf8_lossy(&log[self.log_start..]);
        let ports = log.lines().find_map(|line| {
            let (_, said) = line.split_once("the operator listens ")?;
            Some(Ports { api: port_of(said, "address=")?, plain: port_of(said, "plain_address=")? })
        });
        if let Some(ports) = ports
            && let Ok(answer) = reqwest::get(format!("http://127.0.0.1:{}/readyz", ports.plain)).await
            && answer.status().is_success()
        {
            return Ok(ports);
        }
        Err(log.lines().rev().take(TAIL).map(str::to_owned).collect())
    }

    /// Kills it as a crash would: nothing is finished, nothing is given back.
    pub(super) fn kill(self) {
        drop(self);
    }

    /// Asks it to stop, as the kubelet does.
    pub(super) fn terminate(&self) {
        let process = Pid::from_child(&self.process.lock().unwrap());
        rustix::process::kill_process(process, Signal::TERM).unwrap();
    }

    /// How it has ended, if it has.
    pub(super) fn ended(&self) -> Option<ExitStatus> {
        self.process.lock().unwrap().try_wait().unwrap()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // A test that fails while it looks at the process must not leave it.
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// The port of the address that a log's line gives under this key.
fn port_of(said: &str, key: &str) -> Option<u16> {
    let address = said.split(' ').find_map(|field| field.strip_prefix(key))?;
    address.parse::<SocketAddr>().ok().map(|address| address.port())
}
