//! The control groups of the node's pods, apart from those of any other kubelet.
//!
//! A kubelet removes the pods' groups it does not know below its root, so each cluster has a root
//! of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::state::Plan;

const MOUNT: &str = "/sys/fs/cgroup";

/// The root of the cluster's groups, as the kubelet wants it.
pub(crate) fn root(plan: &Plan) -> String {
    format!("/gamekeeper-{}", plan.short)
}

/// Makes the root in every hierarchy of the machine.
pub(crate) fn create(plan: &Plan) -> Result<()> {
    if is_unified() {
        // A controller that is not there, or already passed on, is no reason to stop.
        for controller in ["cpu", "cpuset", "io", "memory", "pids", "hugetlb"] {
            let _ = fs::write(Path::new(MOUNT).join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }
    for root in roots(plan)? {
        fs::create_dir_all(&root).with_context(|| {
            format!(
                "cannot create the control group {}; the machine must let root write to {MOUNT}",
                root.display()
            )
        })?;
    }
    Ok(())
}

/// Removes the root and what is below it, waiting for processes that are just ending.
pub(crate) fn remove(plan: &Plan) -> Result<()> {
    let start = Instant::now();
    for root in roots(plan)? {
        while let Err(error) = remove_tree(&root) {
            if start.elapsed() > Duration::from_secs(10) {
                return Err(error).with_context(|| {
                    format!(
                        "cannot remove the control group {}; a process in it (see its \
                         cgroup.procs) does not end",
                        root.display()
                    )
                });
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn is_unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").is_file()
}

fn roots(plan: &Plan) -> Result<Vec<PathBuf>> {
    let name = root(plan);
    let name = name.trim_start_matches('/');
    if is_unified() {
        return Ok(vec![Path::new(MOUNT).join(name)]);
    }
    let listed =
        fs::read_dir(MOUNT).with_context(|| format!("cannot list {MOUNT}, where control groups belong"))?;
    let mut roots = Vec::new();
    for entry in listed {
        let entry = entry.with_context(|| format!("cannot list {MOUNT}"))?;
        // Combined controllers are one folder with links to it; the links are not counted twice.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            roots.push(entry.path().join(name));
        }
    }
    Ok(roots)
}

/// The files in a group vanish with it: only folders are removed, the deepest first.
fn remove_tree(folder: &Path) -> std::io::Result<()> {
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in listed {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
