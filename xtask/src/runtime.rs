//! Runs what waits for a cluster, so that an interrupt ends it in good order: what it holds is dropped, and the
//! programs that it started end with that.

use anyhow::{Context as _, Result, bail};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Runs `work` to its end, or until this program is told to stop.
pub(crate) fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = Runtime::new().context("cannot start a runtime")?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
        tokio::select! {
            done = work => done,
            _ = interrupt.recv() => bail!("interrupted"),
            _ = terminate.recv() => bail!("told to stop"),
        }
    })
}
