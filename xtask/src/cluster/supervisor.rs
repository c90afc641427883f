//! The process that a cluster hangs on: it starts the components, and they end with it.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{WaitOptions, getpid, set_child_subreaper};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::component::{Component, Place};
use super::kubectl::api_is_ready;
use super::namespaces::{self, Namespaces};
use super::process::Process;
use super::state::{Failure, Home, Kind, Plan};
use super::{cgroups, control_plane, fake_nodes, node, pause_image};
use crate::host;

/// How long a component may take until the next can be started.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs a planned cluster until it is told to end, or a component fails.
pub(crate) fn run(dir: PathBuf) -> Result<()> {
    let home = Home::new(dir);
    let plan = home.plan().with_context(|| {
        format!("{} has no plan of a cluster; start one with `cargo xtask cluster up`", home.dir().display())
    })?;
    // Away from the terminal, whose end would end the cluster. It fails only where it is not needed.
    let _ = rustix::process::setsid();
    // Orphans of the node come here, where their end can be waited for.
    set_child_subreaper(Some(getpid())).context("cannot become the parent of orphans")?;
    home.save_supervisor(&Process::current()?)?;
    // One thread: a component ends with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the supervisor's runtime")?;
    let mut supervisor = Supervisor { home, plan, running: Vec::new() };
    let ending = runtime.block_on(supervisor.until_told());
    supervisor.end_all();
    let cleaned = clean_up(&supervisor.plan);
    if let Err(failure) = ending {
        supervisor.home.save_failure(&failure)?;
        cleaned?;
        bail!("{}", failure.cause);
    }
    cleaned
}

/// Removes what the processes of a cluster leave behind in the kernel.
pub(crate) fn clean_up(plan: &Plan) -> Result<()> {
    match plan.kind {
        Kind::WithNode => {
            namespaces::disconnect(plan);
            cgroups::remove(plan)
        }
        Kind::ControlPlane => Ok(()),
    }
}

struct Supervisor {
    home: Home,
    plan: Plan,
    running: Vec<Running>,
}

struct Running {
    name: &'static str,
    child: Child,
}

impl Supervisor {
    async fn until_told(&mut self) -> Result<(), Failure> {
        let mut told = signal(SignalKind::terminate()).map_err(|error| Failure {
            cause: format!("cannot listen to SIGTERM: {error}"),
            log: self.home.log("supervisor"),
        })?;
        tokio::select! {
            _ = told.recv() => Ok(()),
            failure = self.until_failure() => Err(failure),
        }
    }

    async fn until_failure(&mut self) -> Failure {
        if let Err(failure) = self.start_all().await {
            return failure;
        }
        loop {
            if let Some(failure) = self.exited() {
                return failure;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn start_all(&mut self) -> Result<(), Failure> {
        let namespaces = match self.plan.kind {
            Kind::WithNode => Some(self.make_namespaces().await?),
            Kind::ControlPlane => None,
        };
        let (home, plan) = (self.home.clone(), self.plan.clone());
        self.start(Ok(control_plane::etcd(&home, &plan)), None)?;
        self.start(control_plane::api_server(&home, &plan), None)?;
        if namespaces.is_some() {
            self.start(node::containerd(&home, &plan), namespaces)?;
        }
        self.wait("kube-apiserver", || api_is_ready(&home, &plan)).await?;
        self.start(Ok(control_plane::controller_manager(&home, &plan)), None)?;
        self.start(control_plane::scheduler(&home, &plan), None)?;
        if let Some(inside) = namespaces {
            let pause = pause_image::write(&home, &plan).map_err(|error| self.failed(&error))?;
            self.wait("containerd", || inside.import_image(&pause).is_ok()).await?;
            self.start(node::kubelet(&home, &plan), namespaces)?;
            self.start(node::kube_proxy(&home, &plan), namespaces)?;
        }
        self.start(Ok(fake_nodes::kwok(&home, &plan)), None)
    }

    async fn make_namespaces(&mut self) -> Result<Namespaces, Failure> {
        cgroups::create(&self.plan).map_err(|error| self.failed(&error))?;
        self.start(Ok(namespaces::component(&self.plan)), None)?;
        let Some(maker) = self.running.last().map(|running| running.child.id()) else {
            return Err(self.failed(&anyhow::anyhow!("the node's first process is not there")));
        };
        let namespaces = Namespaces::of(maker);
        self.wait("node", || namespaces.are_ready()).await?;
        namespaces
            .connect(&self.plan)
            .and_then(|()| namespaces.mount(&self.home))
            .and_then(|()| self.home.save_node_maker(maker))
            .map_err(|error| self.failed(&error))?;
        Ok(namespaces)
    }

    fn start(&mut self, component: Result<Component>, namespaces: Option<Namespaces>) -> Result<(), Failure> {
        let started = component.and_then(|component| self.spawn(&component, namespaces));
        self.running.push(started.map_err(|error| self.failed(&error))?);
        Ok(())
    }

    fn spawn(&self, component: &Component, namespaces: Option<Namespaces>) -> Result<Running> {
        let name = component.name;
        let log = self.home.log(name);
        let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("cannot share {}", log.display()))?;
        // Ends with this process, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        match (component.place, namespaces) {
            (Place::Host, _) => {}
            (Place::Node, Some(namespaces)) => {
                command.arg("nsenter").args(namespaces.arguments());
            }
            (Place::Node, None) => bail!("{name} needs a node, and this cluster has none"),
        }
        let child = command
            .arg(&component.program)
            .args(&component.arguments)
            .env("PATH", host::path())
            .env("NO_PROXY", "*")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {name} through setpriv (of util-linux)"))?;
        Ok(Running { name, child })
    }

    /// Waits until a component does its part.
    async fn wait(&mut self, name: &str, done: impl Fn() -> bool) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            if let Some(failure) = self.exited() {
                return Err(failure);
            }
            if done() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(Failure {
                    cause: format!("{name} is not ready after {} s", PATIENCE.as_secs()),
                    log: self.home.log(name),
                });
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn exited(&mut self) -> Option<Failure> {
        self.running.iter_mut().find_map(|running| {
            let how = match running.child.try_wait() {
                Ok(None) => return None,
                Ok(Some(status)) => status.to_string(),
                Err(error) => error.to_string(),
            };
            Some(Failure {
                cause: format!("{} has ended: {how}", running.name),
                log: self.home.log(running.name),
            })
        })
    }

    fn failed(&self, error: &anyhow::Error) -> Failure {
        Failure { cause: format!("{error:#}"), log: self.home.log("supervisor") }
    }

    /// By force, as what they hold is thrown away; the node first, which came first.
    fn end_all(&mut self) {
        for running in &mut self.running {
            // It may have ended by itself, which is as good.
            let _ = running.child.kill();
        }
        // Until there is no child left: the node's first process comes last, and takes the
        // namespaces with it.
        while rustix::process::wait(WaitOptions::empty()).is_ok() {}
    }
}
