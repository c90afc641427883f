//! Players who come all the time: claims at a steady rate.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::bench::matchmaker::{Line, Matchmaker};

/// How many claims may be under way at once.
const LINES: usize = 16;

/// A claim that was asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) id: String,
    /// When the request was sent.
    pub(super) sent: Timestamp,
    /// The server's UID, or why there is none.
    pub(super) answer: Result<String, String>,
}

/// Claims that go on until they are stopped.
pub(super) struct Players {
    stop: oneshot::Sender<()>,
    claims: JoinHandle<Result<Vec<Asked>>>,
}

impl Players {
    /// So many claims a second.
    pub(super) async fn come(matchmaker: &Matchmaker, name: &'static str, each_second: f64) -> Result<Self> {
        let lines = lines(matchmaker).await?;
        let (stop, stopped) = oneshot::channel();
        let claims = tokio::spawn(claim_on(lines, name, Duration::from_secs_f64(1.0 / each_second), stopped));
        Ok(Self { stop, claims })
    }

    /// Stops them, and gives what they came to.
    pub(super) async fn stop(self) -> Result<Vec<Asked>> {
        // It has ended by itself if nobody listens, and says why.
        let _ = self.stop.send(());
        self.claims.await.context("the claims have broken off")?
    }
}

/// So many claims as fast as they are answered.
pub(super) async fn at_once(matchmaker: &Matchmaker, name: &str, count: usize) -> Result<Vec<Asked>> {
    let each = (0..).zip(lines(matchmaker).await?).map(async |(first, mut line): (usize, Line)| {
        let mut asked = Vec::new();
        for number in (first..count).step_by(LINES) {
            asked.push(ask(&mut line, format!("{name}-first-{number}")).await?);
        }
        anyhow::Ok(asked)
    });
    Ok(try_join_all(each).await?.into_iter().flatten().collect())
}

async fn lines(matchmaker: &Matchmaker) -> Result<Vec<Line>> {
    let mut lines = matchmaker.connect_all(LINES).await?;
    try_join_all(lines.iter_mut().map(Line::warm)).await?;
    Ok(lines)
}

async fn ask(line: &mut Line, id: String) -> Result<Asked> {
    let sent = Timestamp::now();
    let answer = line.claim(&id).await?.map(|granted| granted.uid);
    Ok(Asked { id, sent, answer })
}

async fn claim_on(
    lines: Vec<Line>,
    name: &'static str,
    pause: Duration,
    mut stopped: oneshot::Receiver<()>,
) -> Result<Vec<Asked>> {
    let (idle, mut free) = mpsc::unbounded_channel();
    for line in lines {
        idle.send(line).context("nobody takes the matchmakers")?;
    }
    let mut running = JoinSet::new();
    let begun = Instant::now();
    for number in 0u32.. {
        tokio::select! {
            () = sleep_until(begun + pause * number) => {}
            _ = &mut stopped => break,
        }
        let mut line = free.recv().await.context("no matchmaker is left")?;
        let idle = idle.clone();
        running.spawn(async move {
            let asked = ask(&mut line, format!("{name}-{number}")).await?;
            // Taken up as long as there are claims to make.
            let _ = idle.send(line);
            anyhow::Ok(asked)
        });
    }
    running.join_all().await.into_iter().collect()
}
