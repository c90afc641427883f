//! Waits for a condition, looking again and again, and says what was missing if it does not come.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::{Instant, interval};

/// How long a condition may take on a busy machine. Nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(90);

/// Looks until `good` holds of what `look` finds, and returns that.
pub(crate) async fn eventually<T, F>(what: &str, look: impl Fn() -> F, good: impl Fn(&T) -> bool) -> T
where
    T: Debug,
    F: Future<Output = T>,
{
    let start = Instant::now();
    let mut ticks = interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        let found = look().await;
        if good(&found) {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for: {what}\nlast seen: {found:#?}");
    }
}
