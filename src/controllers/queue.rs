//! A work queue: each key is worked on by one task at a time, at the earliest time that anybody asked for, and
//! again after a back-off when it fails.

use std::collections::{HashMap, HashSet};
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, FuturesUnordered};
use kube::runtime::scheduler::{ScheduleRequest, scheduler};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::metrics::Metrics;
use crate::write::WriteError;

/// What comes after a piece of work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Next {
    /// Nothing until something changes.
    Rest,
    /// Again after this time, if nothing changes before.
    After(Duration),
}

/// At once, after a look at what has changed.
pub(super) const AGAIN: Next = Next::After(Duration::ZERO);

/// The wait after the first failure; it doubles from there.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How a queue works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How many keys are worked on at once.
    pub(super) concurrency: usize,
    /// How long a key rests after each piece of work, so that a burst of changes is taken up together.
    pub(super) rest: Duration,
}

/// Works on each key that arrives, at this pace, until `keys` ends.
pub(super) async fn run<K, W, F>(
    what: &'static str,
    keys: mpsc::UnboundedReceiver<K>,
    pace: Pace,
    metrics: &Metrics,
    work: W,
) where
    K: Clone + Debug + Display + Eq + Hash + Unpin,
    W: Fn(K) -> F,
    F: Future<Output = Result<Next, WriteError>>,
{
    let (again, later) = mpsc::unbounded_channel();
    let now = from(keys).map(|message| ScheduleRequest { message, run_at: Instant::now() });
    let mut scheduled = pin!(scheduler(stream::select(now, from(later))));
    let mut running = FuturesUnordered::new();
    let mut busy = HashSet::new();
    let mut failures: HashMap<K, u32> = HashMap::new();
    loop {
        let room = running.len() < pace.concurrency;
        let free = |key: &K| room && !busy.contains(key);
        tokio::select! {
            Some((key, outcome)) = running.next() => {
                let key: K = key;
                busy.remove(&key);
                let wait = match outcome {
                    Ok(next) => {
                        failures.remove(&key);
                        match next {
                            Next::Rest => None,
                            Next::After(wait) => Some(wait),
                        }
                    }
                    Err(error) => {
                        let count = failures.entry(key.clone()).or_default();
                        *count = count.saturating_add(1);
                        report(what, &key, *count, &error);
                        metrics.reconcile_failure(what);
                        Some(backoff(*count, &key))
                    }
                };
                if let Some(wait) = wait {
                    // The receiver is polled by this very loop.
                    let _ = again.send(ScheduleRequest { message: key, run_at: Instant::now() + wait });
                }
            }
            next = async { scheduled.as_mut().hold_unless(free).next().await } => {
                let Some(key) = next else { return };
                busy.insert(key.clone());
                let task = work(key.clone());
                running.push(async move {
                    let outcome = task.await;
                    if !pace.rest.is_zero() {
                        sleep(pace.rest).await;
                    }
                    (key, outcome)
                });
            }
        }
    }
}

fn from<T>(receiver: mpsc::UnboundedReceiver<T>) -> impl stream::Stream<Item = T> {
    stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|item| (item, receiver)) })
}

fn report(what: &str, key: &impl Display, count: u32, error: &WriteError) {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    // One lost race is everyday; what goes on failing is not.
    if count < 3 {
        debug!(what, %key, %error, source, "reconcile again");
    } else {
        warn!(what, %key, %error, source, failures = count, "reconcile fails; it is tried again");
    }
}

/// 50 ms, 100 ms … up to 30 s, each drawn between half of it and the whole, so that keys do not march in step.
fn backoff(failures: u32, key: &impl Display) -> Duration {
    let whole = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_WAIT);
    let draw = crate::rules::names::spread(&format!("{key}/{failures}")) % 1000;
    whole / 2 + whole.mul_f64(f64::from(u32::try_from(draw).unwrap_or(0)) / 2000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const PACE: Pace = Pace { concurrency: 8, rest: Duration::ZERO };

    #[test]
    fn waits_grow_to_their_limit() {
        assert!(backoff(1, &"a") <= FIRST_WAIT);
        assert!(backoff(4, &"a") > backoff(1, &"a"));
        assert!(backoff(u32::MAX, &"a") <= LONGEST_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_worked_on_by_one_task_at_a_time() {
        let (metrics, (sender, receiver)) = (Metrics::default(), mpsc::unbounded_channel());
        let (inside, runs) = (AtomicU32::new(0), AtomicU32::new(0));
        let work = |_: String| async {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            tokio::time::sleep(Duration::from_millis(10)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(Next::Rest)
        };
        let feed = async {
            for _ in 0..3 {
                sender.send("a".to_owned()).unwrap();
                tokio::time::sleep(Duration::from_millis(4)).await;
            }
            while runs.load(Ordering::SeqCst) < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = run("test", receiver, PACE, &metrics, work) => {}
            () = feed => {}
        }
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_again() {
        let (metrics, (sender, receiver)) = (Metrics::default(), mpsc::unbounded_channel());
        let tries = AtomicU32::new(0);
        let work = |_: String| async {
            match tries.fetch_add(1, Ordering::SeqCst) {
                0 | 1 => Err(WriteError::Lost),
                _ => Ok(Next::Rest),
            }
        };
        sender.send("a".to_owned()).unwrap();
        let enough = async {
            while tries.load(Ordering::SeqCst) < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = run("test", receiver, PACE, &metrics, work) => {}
            () = enough => {}
        }
    }
}
