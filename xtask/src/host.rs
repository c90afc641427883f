//! What this machine offers for a node, and what has to be installed on it.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::command::tail;
use crate::workspace::Workspace;

/// What a real node and its images need, and Debian's package of each.
const NEEDED: [(&str, &str); 12] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("mmdebstrap", "mmdebstrap"),
    ("busybox", "busybox-static"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
];

/// Where distributions and upstream put the CNI plugins.
const CNI_FOLDERS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// Where programs are that a user's PATH may lack.
const SYSTEM_FOLDERS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Whether this process may make namespaces and networks.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The PATH for every program that is started here.
pub(crate) fn path() -> String {
    let mut path = env::var("PATH").unwrap_or_default();
    for folder in SYSTEM_FOLDERS {
        if !path.split(':').any(|known| known == folder) {
            path.push(':');
            path.push_str(folder);
        }
    }
    path
}

/// The folder that has the CNI plugins of the node.
pub(crate) fn cni_plugins() -> Result<PathBuf> {
    CNI_FOLDERS
        .iter()
        .map(Path::new)
        .find(|folder| ["ptp", "host-local", "portmap"].iter().all(|plugin| folder.join(plugin).is_file()))
        .map(Path::to_path_buf)
        .with_context(|| {
            format!("the CNI plugins ptp, host-local and portmap are in none of {CNI_FOLDERS:?}; install containernetworking-plugins")
        })
}

/// Installs what a node needs and the machine lacks, or says what is missing.
pub(crate) fn prepare_for_node(workspace: &Workspace) -> Result<()> {
    let missing = missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !has_apt() {
        bail!(
            "a node needs programs that this machine lacks; install what corresponds to Debian's \
             {list}, or run `cargo xtask cluster up --no-node` for a control plane with fake nodes"
        );
    }
    let folder = workspace.cache().join("logs");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let log = folder.join("apt-get.log");
    eprintln!("installing {list} (log: {})", log.display());
    let file = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    apt_get(&["update"], &file, &log)?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(missing);
    apt_get(&arguments, &file, &log)?;
    let still = missing_packages();
    if !still.is_empty() {
        bail!(
            "after installing {list}, programs of {} are still missing; see {}",
            still.join(" "),
            log.display()
        );
    }
    Ok(())
}

fn missing_packages() -> Vec<&'static str> {
    let path = path();
    let present = |program: &str| path.split(':').any(|folder| Path::new(folder).join(program).is_file());
    let mut missing: Vec<&str> =
        NEEDED.iter().filter(|(program, _)| !present(program)).map(|(_, package)| *package).collect();
    if cni_plugins().is_err() {
        missing.push("containernetworking-plugins");
    }
    missing.sort_unstable();
    missing.dedup();
    missing
}

fn has_apt() -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    is_root()
        && release.lines().any(|line| {
            (line.starts_with("ID=") || line.starts_with("ID_LIKE="))
                && (line.contains("debian") || line.contains("ubuntu"))
        })
}

fn apt_get(arguments: &[&str], output: &File, log: &Path) -> Result<()> {
    let share = || output.try_clone().context("cannot share the log of apt-get");
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(share()?)
        .stderr(share()?)
        .status()
        .context("cannot start apt-get")?;
    if !status.success() {
        bail!(
            "`apt-get {}` failed with {status}; its log is {}, and ends:\n{}",
            arguments.join(" "),
            log.display(),
            tail(log)
        );
    }
    Ok(())
}
