//! A process by its id and its start, so that a reused id is never mistaken for it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// A running or past process of this machine.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Process {
    pid: i32,
    /// Clock ticks between the machine's start and the process's, as in `/proc/PID/stat`.
    start_ticks: u64,
}

impl Process {
    /// This very process.
    pub(crate) fn current() -> Result<Self> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let start_ticks = start_ticks(pid).context("cannot read /proc/self/stat")?;
        Ok(Self { pid, start_ticks })
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Asks it to end, and ends it by force when it does not within `patience`.
    pub(crate) fn stop(&self, patience: Duration) -> Result<()> {
        self.signal(Signal::TERM)?;
        if self.gone_within(patience) {
            return Ok(());
        }
        self.signal(Signal::KILL)?;
        if self.gone_within(Duration::from_secs(5)) {
            return Ok(());
        }
        bail!("process {} does not end, not even by SIGKILL; see /proc/{}/stack", self.pid, self.pid);
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) else {
            return Ok(());
        };
        match kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error)
                .with_context(|| format!("cannot signal process {}; it belongs to another user", self.pid)),
        }
    }

    fn gone_within(&self, patience: Duration) -> bool {
        let start = Instant::now();
        while self.is_alive() {
            if start.elapsed() > patience {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// None for a process that is gone, or that only waits to be reaped.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may itself contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    // proc(5): state is field 3, starttime field 22.
    fields.nth(18)?.parse().ok()
}
