//! The CPU time of processes on this machine: in pods, and of the embedded cluster.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// The name of the operator's program.
const PROGRAM: &str = "gamekeeper";

/// The CPU time that the operator has used so far in the pods of these UIDs; none where there are no pods to look at.
pub(super) fn seconds(pods: &[String]) -> Result<Option<f64>> {
    if pods.is_empty() {
        return Ok(None);
    }
    let mut ticks = 0;
    let mut found = 0;
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let process = entry.context("cannot list /proc")?.path();
        if let Some(used) = operator_ticks(&process, pods) {
            ticks += used;
            found += 1;
        }
    }
    ensure!(
        found == pods.len(),
        "{found} processes of the operator run here and {} were expected: a replica has ended or was started again; \
         see `kubectl -n gamekeeper-system get pods`",
        pods.len()
    );
    in_seconds(ticks).map(Some)
}

/// Linux counts in hundredths of a second on all of its architectures, whatever its own clock does (times(2)).
fn in_seconds(ticks: u64) -> Result<f64> {
    Ok(f64::from(u32::try_from(ticks).context("a process has run for years")?) / 100.0)
}

/// The processes that take part in a claim, by what they are to it.
pub(super) struct Processes {
    ids: Vec<(&'static str, u32)>,
}

/// The components of an embedded cluster that work for a claim, or because of one.
const COMPONENTS: [(&str, &str); 5] = [
    ("kube-apiserver", "kube-apiserver"),
    ("etcd", "etcd"),
    ("kube-controller-manager", "others"),
    ("kube-scheduler", "others"),
    ("kwok", "others"),
];

impl Processes {
    /// This process, the operator and the components of the cluster with this folder.
    pub(super) fn find(cluster: &Path, operator: u32) -> Result<Self> {
        let mut ids = vec![("client", std::process::id()), ("operator", operator)];
        for entry in fs::read_dir("/proc").context("cannot list /proc")? {
            let name = entry.context("cannot list /proc")?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            // It may have ended meanwhile.
            let Ok(command) = fs::read(format!("/proc/{id}/cmdline")) else { continue };
            let command = String::from_utf8_lossy(&command);
            if let Some(part) = part(&command, cluster) {
                ids.push((part, id));
            }
        }
        for (program, part) in COMPONENTS {
            ensure!(ids.iter().any(|(there, _)| *there == part), "no {program} of this cluster runs here");
        }
        Ok(Self { ids })
    }

    /// How many seconds each has used so far.
    pub(super) fn seconds(&self) -> Result<BTreeMap<&'static str, f64>> {
        let mut used = BTreeMap::new();
        for (part, id) in &self.ids {
            let path = format!("/proc/{id}/stat");
            let stat = fs::read_to_string(&path).with_context(|| format!("{part} has ended"))?;
            let ticks = times(&stat).with_context(|| format!("cannot read {path}"))?;
            *used.entry(*part).or_default() += in_seconds(ticks)?;
        }
        Ok(used)
    }
}

/// What a process is to a claim, by its command line.
fn part(command: &str, cluster: &Path) -> Option<&'static str> {
    let mut arguments = command.split('\0');
    let program = Path::new(arguments.next()?).file_name()?;
    let (_, part) = COMPONENTS.iter().find(|(name, _)| program == *name)?;
    arguments.any(|argument| argument.contains(&*cluster.to_string_lossy())).then_some(part)
}

/// None for every other process, and for one that has just ended.
fn operator_ticks(process: &Path, pods: &[String]) -> Option<u64> {
    let groups = fs::read_to_string(process.join("cgroup")).ok()?;
    // A driver of systemd's writes underscores.
    let is_ours = |uid: &String| groups.contains(uid) || groups.contains(&uid.replace('-', "_"));
    if !pods.iter().any(is_ours) {
        return None;
    }
    user_and_system(&fs::read_to_string(process.join("stat")).ok()?)
}

/// Fields 14 and 15 of proc(5)'s stat, for a process of the operator's name.
fn user_and_system(stat: &str) -> Option<u64> {
    // The name, in parentheses, may itself contain spaces and parentheses.
    let (head, _) = stat.rsplit_once(") ")?;
    head.ends_with(&format!("({PROGRAM}")).then(|| times(stat)).flatten()
}

/// The same of any process.
fn times(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_operator() {
        let stat = "7 (gamekeeper) S 1 7 7 0 -1 4194560 900 0 3 0 250 50 0 0 20 0 4 0 100 1 1";
        assert_eq!(user_and_system(stat), Some(300));
        assert_eq!(user_and_system(&stat.replace("gamekeeper", "pause")), None);
    }

    #[test]
    fn a_component_is_told_by_its_program_and_its_cluster() {
        let part = |command: &str| part(command, Path::new("/clusters/bench-1"));
        assert_eq!(part("/programs/etcd\0--data-dir\0/clusters/bench-1/etcd\0"), Some("etcd"));
        assert_eq!(part("/programs/etcd\0--data-dir\0/clusters/other/etcd\0"), None);
        assert_eq!(part("/bin/cat\0/clusters/bench-1/etcd\0"), None);
    }
}
