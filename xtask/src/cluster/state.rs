//! What a cluster keeps on disk: one folder, and what is decided when it starts.

use std::fs;
use std::io;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::network::Network;
use super::process::Process;
use crate::programs::Programs;

/// Whether a cluster runs containers of its own.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Kind {
    /// A control plane and a node that runs containers; needs root.
    WithNode,
    /// A control plane whose only nodes are fake.
    ControlPlane,
}

/// What is decided when a cluster starts, and holds until it ends.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Plan {
    /// The cluster's name and a hash of its checkout.
    pub(crate) id: String,
    /// The hash alone, for names that must be short.
    pub(crate) short: String,
    /// With or without a node.
    pub(crate) kind: Kind,
    /// The cluster's addresses.
    pub(crate) network: Network,
    /// Where the API server listens.
    pub(crate) api_server: SocketAddrV4,
    /// Where etcd listens, for clients and for other members.
    pub(crate) etcd: [SocketAddrV4; 2],
    /// The programs the cluster is made of.
    pub(crate) programs: Programs,
    /// This program, as it was when the cluster started.
    pub(crate) xtask: PathBuf,
}

/// Why a supervisor gave up.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Failure {
    /// What failed, and how.
    pub(crate) cause: String,
    /// The log to look into.
    pub(crate) log: PathBuf,
}

/// The folder of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    dir: PathBuf,
}

impl Home {
    /// The layout below `dir`, which need not exist.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The folder itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// Every write the API server answered, one JSON object a line.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// The log of one component.
    pub(crate) fn log(&self, component: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{component}.log"))
    }

    /// A file or folder with a fixed name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates the folder and those in it.
    pub(crate) fn create(&self) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        for folder in ["logs", "pki", "kubeconfigs", "etcd", "node"] {
            let path = self.dir.join(folder);
            fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        // The keys in it make anyone who reads them the cluster's administrator.
        fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o700))
            .with_context(|| format!("cannot protect {}", self.dir.display()))
    }

    /// Removes the folder, if it is there, waiting for processes that are just ending.
    pub(crate) fn remove(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            match fs::remove_dir_all(&self.dir) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if start.elapsed() > Duration::from_secs(5) => {
                    return Err(error).with_context(|| format!("cannot remove {}", self.dir.display()));
                }
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Writes a file and the folders above it.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Writes a configuration file; JSON is YAML too.
    pub(crate) fn write_json(&self, name: &str, content: &impl Serialize) -> Result<PathBuf> {
        let text =
            serde_json::to_string_pretty(content).with_context(|| format!("cannot write {name} as JSON"))?;
        self.write(name, text)
    }

    /// The plan of the cluster, if it ever started.
    pub(crate) fn plan(&self) -> Option<Plan> {
        self.read_json(PLAN)
    }

    /// Remembers the plan.
    pub(crate) fn save_plan(&self, plan: &Plan) -> Result<()> {
        self.write_json(PLAN, plan).map(drop)
    }

    /// The supervisor, if it still runs.
    pub(crate) fn supervisor(&self) -> Option<Process> {
        self.read_json::<Process>(SUPERVISOR).filter(Process::is_alive)
    }

    /// Remembers the supervisor.
    pub(crate) fn save_supervisor(&self, process: &Process) -> Result<()> {
        self.write_json(SUPERVISOR, process).map(drop)
    }

    /// The process that made the node's namespaces, once they can be used.
    pub(crate) fn node_maker(&self) -> Option<u32> {
        self.read_json(NODE_MAKER)
    }

    /// Remembers the process that made the node's namespaces.
    pub(crate) fn save_node_maker(&self, pid: u32) -> Result<()> {
        self.write_json(NODE_MAKER, &pid).map(drop)
    }

    /// Why the last supervisor gave up, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.read_json("failure.json")
    }

    /// Remembers why the supervisor gives up.
    pub(crate) fn save_failure(&self, failure: &Failure) -> Result<()> {
        self.write_json("failure.json", failure).map(drop)
    }

    fn read_json<T: for<'a> Deserialize<'a>>(&self, name: &str) -> Option<T> {
        let text = fs::read(self.dir.join(name)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

const PLAN: &str = "cluster.json";
const NODE_MAKER: &str = "node.json";
const SUPERVISOR: &str = "supervisor.json";
