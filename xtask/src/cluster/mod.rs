//! The embedded cluster: a real Kubernetes for development, made of programs built here.
//!
//! [`Cluster::up`] plans a cluster and starts its supervisor, a process of its own that runs every
//! component and takes all of them along when it ends. What a cluster keeps is in one folder of
//! the cache; [`Cluster::down`] leaves nothing of it.

mod certs;
mod cgroups;
pub(crate) mod cli;
mod component;
mod control_plane;
mod fake_nodes;
mod kubectl;
mod namespaces;
mod network;
mod node;
mod pause_image;
mod process;
mod ready;
mod state;
mod supervisor;

use std::env;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

pub(crate) use cli::DEFAULT_NAME;
pub(crate) use control_plane::OPERATOR;
pub(crate) use fake_nodes::FakeNodes;
use namespaces::Namespaces;
use network::Network;
pub(crate) use pause_image::NAME as PAUSE_IMAGE;
pub(crate) use state::Kind;
use state::{Home, Plan};

use crate::host;
use crate::image::Built;
use crate::programs::{Programs, lock};
use crate::workspace::Workspace;

/// The name of the one node that runs containers.
pub(crate) const NODE_NAME: &str = "node-a";

/// The folder, in the cluster's, that has a file with the id of every image that was imported.
const IMPORTED: &str = "imported-images";

/// A cluster that runs.
#[derive(Debug)]
pub(crate) struct Cluster {
    home: Home,
    plan: Plan,
}

impl Cluster {
    /// Waits until nobody else has the checkout's cluster of this name to himself, and has it so until the file that is
    /// returned is dropped.
    pub(crate) fn reserve(workspace: &Workspace, name: &str) -> Result<File> {
        let site = Site::of(workspace, name)?;
        let path = site.clusters.join(format!("{}.reserved", site.id));
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        if file.try_lock().is_err() {
            eprintln!("another run uses the cluster `{name}` of this checkout; waiting until it has ended");
            file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(file)
    }

    /// Starts the checkout's cluster of this name, or finds that it runs; returns once it can be used.
    pub(crate) fn up(workspace: &Workspace, name: &str, kind: Kind) -> Result<Self> {
        let site = Site::of(workspace, name)?;
        if kind == Kind::WithNode {
            namespaces::check_visible(workspace.cache())?;
            host::prepare_for_node(workspace)?;
        }
        let programs = Programs::ensure(workspace)?;
        let _lock = site.lock()?;
        let plan = match site.running() {
            Some(plan) => plan,
            None => site.start(kind, programs)?,
        };
        ready::wait(&site.home, &plan)?;
        Ok(Self { home: site.home, plan })
    }

    /// The checkout's cluster of this name, if it runs.
    pub(crate) fn find(workspace: &Workspace, name: &str) -> Result<Option<Self>> {
        let site = Site::of(workspace, name)?;
        Ok(site.running().map(|plan| Self { home: site.home, plan }))
    }

    /// Ends the checkout's cluster of this name and removes everything of it, whether it runs or
    /// was killed.
    pub(crate) fn down(workspace: &Workspace, name: &str) -> Result<()> {
        let site = Site::of(workspace, name)?;
        let _lock = site.lock()?;
        site.clear()
    }

    /// Creates the fake nodes that are not there yet, and waits until all are Ready.
    pub(crate) fn ensure_fake_nodes(&self, nodes: &FakeNodes) -> Result<()> {
        nodes.ensure(&self.home, &self.plan)?;
        ready::wait_for_fake_nodes(&self.home, &self.plan, nodes)
    }

    /// Puts an image into the node unless it is there already.
    pub(crate) fn ensure_image(&self, image: &Built) -> Result<()> {
        let record = format!("{IMPORTED}/{}", image.name.replace(['/', ':'], "-"));
        if fs::read_to_string(self.home.path(&record)).is_ok_and(|id| id == image.id) {
            return Ok(());
        }
        self.import(&image.archive)?;
        self.home.write(&record, &image.id).map(drop)
    }

    /// Puts a docker archive into the node, where pods find it under its tags.
    pub(crate) fn import_image(&self, archive: &Path) -> Result<()> {
        // It may be another image under a name that was imported before.
        let records = self.home.path(IMPORTED);
        match fs::remove_dir_all(&records) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", records.display()))
            }
            Ok(()) | Err(_) => self.import(archive),
        }
    }

    fn import(&self, archive: &Path) -> Result<()> {
        if self.plan.kind == Kind::ControlPlane {
            bail!("this cluster has no node to put {} into; start one as root", archive.display());
        }
        self.home
            .node_maker()
            .map(Namespaces::of)
            .context("the node is not there yet; wait for `cargo xtask cluster up`")?
            .import_image(archive)
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.home.kubeconfig()
    }

    /// Every write the API server answered and every request of the installed operator, one JSON object a line.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.home.audit_log()
    }

    /// The cluster's folder: its logs are in `logs`, and it goes with the cluster.
    pub(crate) fn dir(&self) -> &Path {
        self.home.dir()
    }

    /// The address at which host ports and node ports answer, if there is a node.
    pub(crate) fn node_address(&self) -> Option<Ipv4Addr> {
        (self.plan.kind == Kind::WithNode).then(|| self.plan.network.node())
    }

    /// All of its addresses as ranges, separated by commas: what no proxy may be asked for.
    pub(crate) fn addresses(&self) -> String {
        match self.plan.kind {
            Kind::WithNode => self.plan.network.whole(),
            Kind::ControlPlane => "127.0.0.1".to_owned(),
        }
    }

    /// The programs that go with it, such as kubectl and helm.
    pub(crate) fn programs(&self) -> &Programs {
        &self.plan.programs
    }
}

/// Where a cluster of one checkout and one name belongs, whether there is one or not.
struct Site {
    id: String,
    short: String,
    clusters: PathBuf,
    home: Home,
}

impl Site {
    fn of(workspace: &Workspace, name: &str) -> Result<Self> {
        let fits = !name.is_empty()
            && name.len() <= 32
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if !fits {
            bail!("`{name}` cannot name a cluster: use up to 32 of a-z, 0-9 and -");
        }
        let short = workspace.short_hash(name);
        let id = format!("{name}-{short}");
        let clusters = workspace.cache().join("clusters");
        fs::create_dir_all(&clusters).with_context(|| format!("cannot create {}", clusters.display()))?;
        Ok(Self { home: Home::new(clusters.join(&id)), id, short, clusters })
    }

    /// Keeps other commands from starting or ending the same cluster.
    fn lock(&self) -> Result<File> {
        lock(&self.clusters.join(format!("{}.lock", self.id)))
    }

    fn running(&self) -> Option<Plan> {
        self.home.supervisor().and_then(|_| self.home.plan())
    }

    fn clear(&self) -> Result<()> {
        if let Some(supervisor) = self.home.supervisor() {
            supervisor.stop(Duration::from_secs(20))?;
        }
        if let Some(plan) = self.home.plan() {
            supervisor::clean_up(&plan)?;
        }
        self.home.remove()
    }

    fn start(&self, kind: Kind, programs: Programs) -> Result<Plan> {
        if let Some(failure) = self.home.failure() {
            eprintln!("the cluster before this one ended: {}", failure.cause);
        }
        self.clear()?;
        let plan = self.plan(kind, programs)?;
        certs::write(&self.home, &plan)?;
        let log = self.home.log("supervisor");
        let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let errors = output.try_clone().context("cannot share the supervisor's log")?;
        Command::new(&plan.xtask)
            .args(["cluster", "supervise", "--dir"])
            .arg(self.home.dir())
            .current_dir(self.home.dir())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .context("cannot start the cluster's supervisor")?;
        Ok(plan)
    }

    /// Decides addresses and ports, one cluster at a time, so that no two take the same.
    fn plan(&self, kind: Kind, programs: Programs) -> Result<Plan> {
        let _lock = lock(&self.clusters.join("plan.lock"))?;
        let network = match kind {
            Kind::WithNode => Network::free(&self.taken()?)?,
            Kind::ControlPlane => Network::unused(),
        };
        let [etcd_clients, etcd_peers, api_server] = free_ports()?;
        let plan = Plan {
            id: self.id.clone(),
            short: self.short.clone(),
            kind,
            network,
            api_server: match kind {
                Kind::WithNode => SocketAddrV4::new(network.host(), 6443),
                Kind::ControlPlane => api_server,
            },
            etcd: [etcd_clients, etcd_peers],
            programs,
            xtask: env::current_exe().context("cannot tell where this program is")?,
        };
        self.home.create()?;
        self.home.save_plan(&plan)?;
        Ok(plan)
    }

    fn taken(&self) -> Result<Vec<Network>> {
        let failed = || format!("cannot list {}", self.clusters.display());
        let mut taken = Vec::new();
        for entry in fs::read_dir(&self.clusters).with_context(failed)? {
            let other = Home::new(entry.with_context(failed)?.path());
            let plan = other.plan().filter(|plan| plan.kind == Kind::WithNode);
            taken.extend(plan.map(|plan| plan.network));
        }
        Ok(taken)
    }
}

/// Three ports of the loopback that nobody listens on.
fn free_ports() -> Result<[SocketAddrV4; 3]> {
    let listen =
        || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port on 127.0.0.1");
    let address = |listener: &TcpListener| -> Result<SocketAddrV4> {
        let port = listener.local_addr().context("cannot tell a free port")?.port();
        Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
    };
    // All three are held until all are known, or they could be the same.
    let held = (listen()?, listen()?, listen()?);
    Ok([address(&held.0)?, address(&held.1)?, address(&held.2)?])
}
