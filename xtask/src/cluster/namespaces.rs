//! The node's namespaces: its own network, processes and mounts on this machine.
//!
//! Everything the node does to firewall rules, mounts and processes lives in them and ends with
//! their first process; the machine's own rules and settings stay as they are.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::WaitOptions;
use tokio::signal::unix::{SignalKind, signal};

use super::component::{Component, Place};
use super::state::{Home, Plan};
use crate::command::output;
use crate::host;

/// Folders of the machine that programs of a node write into without asking, and what the node
/// has in their place.
const OWN_FOLDERS: [(&str, Own); 3] =
    [("/run", Own::Memory), ("/var/lib", Own::Folder("node/lib")), ("/var/log", Own::Folder("node/log"))];

enum Own {
    Memory,
    Folder(&'static str),
}

/// Settings of the whole machine that a kubelet insists on, and would change.
const KUBELET_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The command of this program that [`first_process`] is.
const FIRST_PROCESS: &str = "node-init";

/// The program that makes the namespaces and becomes, through [`first_process`], their process 1.
pub(crate) fn component(plan: &Plan) -> Component {
    let mut component = Component::new("node", "unshare".into(), Place::Host);
    let options = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];
    component.arguments = options.map(Into::into).to_vec();
    component.arguments.push(plan.xtask.clone().into());
    component.arguments.extend(["cluster", FIRST_PROCESS].map(Into::into));
    component
}

/// Process 1 of the node: reaps the orphans of containers, and ends only by force.
pub(crate) fn first_process() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime of the node's first process")?;
    runtime.block_on(async {
        let mut children = signal(SignalKind::child()).context("cannot listen to SIGCHLD")?;
        loop {
            while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
            children.recv().await;
        }
    })
}

/// The namespaces of a running node, by the process that made them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Namespaces {
    maker: u32,
}

impl Namespaces {
    /// The namespaces that process `maker` makes, or has made.
    pub(crate) fn of(maker: u32) -> Self {
        Self { maker }
    }

    /// Whether they are there, with a /proc of their own.
    pub(crate) fn are_ready(self) -> bool {
        output(self.command("cat").arg("/proc/1/cmdline")).is_ok_and(|line| line.contains(FIRST_PROCESS))
    }

    /// A program to be run in them.
    pub(crate) fn command(self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(self.arguments()).arg(program).env("PATH", host::path());
        command
    }

    /// The arguments of `nsenter` before a program that is to be run in them.
    pub(crate) fn arguments(self) -> [String; 5] {
        let maker = self.maker;
        [
            format!("--target={maker}"),
            "--net".to_owned(),
            "--mount".to_owned(),
            // The maker itself stays in the machine's; only its child is process 1 of the new one.
            format!("--pid=/proc/{maker}/ns/pid_for_children"),
            "--".to_owned(),
        ]
    }

    /// Links the node with the host, and gives both their addresses and routes.
    pub(crate) fn connect(self, plan: &Plan) -> Result<()> {
        let network = plan.network;
        let link = link_name(plan);
        let maker = self.maker.to_string();
        let [host, node] = [network.host(), network.node()].map(|address| address.to_string());
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &maker])?;
        ip(&["address", "add", &format!("{host}/30"), "dev", &link])?;
        ip(&["link", "set", &link, "up"])?;
        ip(&["route", "add", &network.whole(), "via", &node, "dev", &link])?;

        let inside = |arguments: &[&str]| output(self.command("ip").args(arguments)).map(drop);
        inside(&["link", "set", "lo", "up"])?;
        inside(&["address", "add", &format!("{node}/30"), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        inside(&["route", "add", "default", "via", &host])?;
        // Services are rewritten on the way out, which needs a route that is not a dead end.
        inside(&["route", "add", &network.services(), "dev", "eth0"])?;
        // Addresses that nobody has, of fake pods above all, answer at once instead of travelling on.
        inside(&["route", "add", "unreachable", &network.whole()])?;
        output(self.command("sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])).map(drop)
    }

    /// Gives the node its own folders where its programs would write into the machine's.
    pub(crate) fn mount(self, home: &Home) -> Result<()> {
        let mount = |arguments: &[&str]| output(self.command("mount").args(arguments)).map(drop);
        // Volumes are mounted where containers see them; nothing gets out of the namespace.
        mount(&["--make-rshared", "/"])?;
        for (folder, own) in OWN_FOLDERS {
            match own {
                Own::Memory => mount(&["-t", "tmpfs", "-o", "mode=755", "tmpfs", folder])?,
                Own::Folder(name) => {
                    let source = home.path(name);
                    fs::create_dir_all(&source)
                        .with_context(|| format!("cannot create {}", source.display()))?;
                    mount(&["--bind", &source.to_string_lossy(), folder])?;
                }
            }
        }
        for (setting, value) in KUBELET_SETTINGS {
            // The kubelet reads what it expects, and leaves the machine's setting alone.
            let shown = home.write(&format!("node/settings/{setting}"), format!("{value}\n"))?;
            let setting = format!("/proc/sys/{setting}");
            mount(&["--bind", &shown.to_string_lossy(), &setting])?;
        }
        Ok(())
    }

    /// Puts a docker archive into the node's containerd.
    pub(crate) fn import_image(self, archive: &Path) -> Result<()> {
        let file =
            File::open(archive).with_context(|| format!("cannot open the image {}", archive.display()))?;
        // Through standard input, as the node may not see the folder that the archive is in.
        output(
            self.command("ctr")
                .args(["--address", super::node::CONTAINERD])
                .args(["--namespace", "k8s.io", "images", "import", "-"])
                .stdin(file),
        )
        .with_context(|| format!("cannot import {} into the node", archive.display()))
        .map(drop)
    }
}

/// Refuses a cache that the node could not see.
pub(crate) fn check_visible(cache: &Path) -> Result<()> {
    let hidden: Vec<PathBuf> = OWN_FOLDERS
        .iter()
        .map(|(folder, _)| PathBuf::from(folder))
        .filter(|folder| cache.starts_with(folder))
        .collect();
    if let Some(folder) = hidden.first() {
        bail!(
            "the node has a {} of its own and would not see the cache {}; \
             set GAMEKEEPER_CACHE to a folder elsewhere",
            folder.display(),
            cache.display()
        );
    }
    Ok(())
}

/// Removes the host's end of the link, which otherwise goes a moment after the namespaces.
pub(crate) fn disconnect(plan: &Plan) {
    let link = link_name(plan);
    for _ in 0..50 {
        if !Path::new("/sys/class/net").join(&link).exists() {
            return;
        }
        // It may vanish by itself in between.
        let _ = ip(&["link", "delete", &link]);
        thread::sleep(Duration::from_millis(20));
    }
}

/// At most 15 characters.
fn link_name(plan: &Plan) -> String {
    format!("gk-{}", plan.short)
}

fn ip(arguments: &[&str]) -> Result<()> {
    output(Command::new("ip").args(arguments).env("PATH", host::path())).map(drop)
}
