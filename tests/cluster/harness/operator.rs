//! An operator as a process of its own, which a test can kill.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;

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
    process: Child,
    /// Of the claim API.
    pub(super) port: u16,
    /// Of the probes.
    pub(super) plain_port: u16,
}

impl Operator {
    /// Starts the replica of this name, which takes part in the election by this lease.
    pub(super) fn start(setup: &Setup, replica: &str, lease: &str) -> Self {
        let (port, plain_port) = (free_port(), free_port());
        let log = log_file(&setup.logs, &setup.namespace, replica);
        let process = Command::new(env!("CARGO_BIN_EXE_gamekeeper"))
            .arg("operator")
            .args(["--namespace", &setup.namespace, "--lease-namespace", &setup.namespace])
            .args(["--replica", replica, "--lease", lease, "--agent-image", &setup.agent_image])
            .args(setup.neighbours.iter().flat_map(|name| ["--namespace", name.as_str()]))
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--listen-plain", &format!("127.0.0.1:{plain_port}")])
            .args(&setup.arguments)
            .env("KUBECONFIG", &setup.kubeconfig)
            .env("RUST_LOG", "gamekeeper=debug,info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { process, port, plain_port }
    }

    /// Kills it as a crash would: nothing is finished, nothing is given back.
    pub(super) fn kill(mut self) {
        self.end();
    }

    /// Asks it to stop, as the kubelet does.
    pub(super) fn terminate(&self) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), Signal::TERM).unwrap();
    }

    /// How it has ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.end();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn log_file(folder: &Path, namespace: &str, replica: &str) -> File {
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join(format!("{namespace}-{replica}.log"));
    File::options().create(true).append(true).open(path).unwrap()
}
