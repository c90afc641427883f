//! What is known to have gone.

use std::collections::HashSet;

use super::source::Source;

/// The UIDs of what has gone. None of them ever returns, but the answer to a write may come late.
#[derive(Debug, Default)]
pub(super) struct Gone {
    lately: HashSet<String>,
    before: HashSet<String>,
}

impl Gone {
    /// How many are remembered at least: more than there are writes in flight.
    const LIMIT: usize = 8192;

    pub(super) fn note(&mut self, uid: &str) {
        if self.lately.len() >= Self::LIMIT {
            self.before = std::mem::take(&mut self.lately);
        }
        self.lately.insert(uid.to_owned());
    }

    /// Whether this comes too late. A watch is believed: it says what is.
    pub(super) fn refuses(&self, source: Source, uid: Option<&str>) -> bool {
        match source {
            Source::Watch | Source::List => false,
            Source::Write | Source::Read => {
                uid.is_some_and(|uid| self.lately.contains(uid) || self.before.contains(uid))
            }
        }
    }
}
