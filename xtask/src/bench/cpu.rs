//! The CPU time of processes in pods that run on this machine.

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
    // Linux counts in hundredths of a second on all of its architectures, whatever its own clock does (times(2)).
    let seconds = f64::from(u32::try_from(ticks).context("the operator has run for years")?) / 100.0;
    Ok(Some(seconds))
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
    let (head, fields) = stat.rsplit_once(") ")?;
    if !head.ends_with(&format!("({PROGRAM}")) {
        return None;
    }
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
}
