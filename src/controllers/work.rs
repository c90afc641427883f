//! A work queue: each key is worked on by one task at a time, at the earliest time that anybody asked for, and
//! again after a back-off when it fails.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{Either, pending};
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
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
    mut keys: mpsc::UnboundedReceiver<K>,
    pace: Pace,
    metrics: &Metrics,
    work: W,
) where
    K: Clone + Debug + Display + Eq + Hash,
    W: Fn(K) -> F,
    F: Future<Output = Result<Next, WriteError>>,
{
    let mut agenda = Agenda::<K>::default();
    let mut running = FuturesUnordered::new();
    let mut busy = HashSet::new();
    let mut failures: HashMap<K, u32> = HashMap::new();
    loop {
        while running.len() < pace.concurrency
            && let Some(key) = agenda.take_due(Instant::now(), &busy)
        {
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
        // Without room, what ends next makes some.
        let room = running.len() < pace.concurrency;
        let next = agenda.next(&busy).filter(|_| room);
        let due = next.map_or_else(|| Either::Left(pending()), |next| Either::Right(sleep_until(next)));
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
                    agenda.put(key, Instant::now() + wait);
                }
            }
            key = keys.recv() => {
                let Some(key) = key else { return };
                let now = Instant::now();
                agenda.put(key, now);
                while let Ok(key) = keys.try_recv() {
                    agenda.put(key, now);
                }
            }
            () = due => {}
        }
    }
}

/// When each key is due. What has been due for longest comes first: where there is more work than can be done at
/// once, all are late by the same and none for ever, which the scheduler of kube's runtime does not promise.
struct Agenda<K> {
    /// By when it is due, then by when that was asked for.
    by_time: BTreeMap<(Instant, u64), K>,
    times: HashMap<K, (Instant, u64)>,
    asked: u64,
}

impl<K> Default for Agenda<K> {
    fn default() -> Self {
        Self { by_time: BTreeMap::new(), times: HashMap::new(), asked: 0 }
    }
}

impl<K: Clone + Eq + Hash> Agenda<K> {
    /// Has `key` come up at this time, if it does not do so earlier.
    fn put(&mut self, key: K, at: Instant) {
        let time = (at, self.asked);
        match self.times.get(&key) {
            Some(there) if there.0 <= at => return,
            Some(there) => self.by_time.remove(there),
            None => None,
        };
        self.asked += 1;
        self.times.insert(key.clone(), time);
        self.by_time.insert(time, key);
    }

    /// Takes the first key that is due and not `busy`.
    fn take_due(&mut self, now: Instant, busy: &HashSet<K>) -> Option<K> {
        let time = self.next_free(busy).filter(|time| time.0 <= now)?;
        let key = self.by_time.remove(&time)?;
        self.times.remove(&key);
        Some(key)
    }

    /// When the next key is due that is not `busy`.
    fn next(&self, busy: &HashSet<K>) -> Option<Instant> {
        self.next_free(busy).map(|(at, _)| at)
    }

    fn next_free(&self, busy: &HashSet<K>) -> Option<(Instant, u64)> {
        self.by_time.iter().find(|(_, key)| !busy.contains(*key)).map(|(time, _)| *time)
    }
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
    async fn what_is_due_for_longest_comes_first_and_what_is_busy_waits() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        let second = Duration::from_secs(1);
        agenda.put("late", now + second);
        agenda.put("first", now);
        agenda.put("second", now);
        agenda.put("first", now + second);
        agenda.put("sooner", now + 3 * second);
        agenda.put("sooner", now + 2 * second);
        let nobody = HashSet::new();
        assert_eq!(agenda.next(&HashSet::from(["first", "second"])), Some(now + second));
        assert_eq!(agenda.take_due(now, &HashSet::from(["first"])), Some("second"));
        assert_eq!(agenda.take_due(now, &nobody), Some("first"));
        assert_eq!(agenda.take_due(now, &nobody), None);
        assert_eq!(agenda.take_due(now + 9 * second, &nobody), Some("late"));
        assert_eq!(agenda.take_due(now + 2 * second, &nobody), Some("sooner"));
        assert_eq!(agenda.next(&nobody), None);
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
