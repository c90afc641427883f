//! When claims are due, by group: a claim that finds nothing on offer looks for what it can free, and must not walk the
//! group for that.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::Key;
use crate::rules::lapse;
use crate::rules::observed::Server;

/// The servers on which a claim has a deadline, by their groups' names.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    by_group: HashMap<Key, BTreeSet<(Timestamp, Key)>>,
}

impl Deadlines {
    /// Takes up what the server `key` was and is.
    pub(super) fn put(&mut self, key: &Key, old: Option<&Server>, new: Option<&Server>) {
        let (before, after) = (due(key, old), due(key, new));
        if before == after {
            return;
        }
        if let Some((group, at)) = before
            && let Some(deadlines) = self.by_group.get_mut(&group)
        {
            deadlines.remove(&(at, key.clone()));
            if deadlines.is_empty() {
                self.by_group.remove(&group);
            }
        }
        if let Some((group, at)) = after {
            self.by_group.entry(group).or_default().insert((at, key.clone()));
        }
    }

    /// The servers of `group` on which a claim is due, what has been so for longest first.
    pub(super) fn due(&self, group: &Key, now: Timestamp) -> impl Iterator<Item = &Key> {
        let deadlines = self.by_group.get(group).into_iter().flatten();
        deadlines.take_while(move |(at, _)| *at <= now).map(|(_, key)| key)
    }
}

/// The group of a server, and when a claim on it is due.
fn due(key: &Key, server: Option<&Server>) -> Option<(Key, Timestamp)> {
    let server = server?;
    Some((Key::new(&key.namespace, &server.group), lapse::deadline(server)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{at, claimed, standing_by};

    #[test]
    fn what_is_due_comes_first_and_what_is_over_goes() {
        let group = Key::new("games", "arena");
        let mut deadlines = Deadlines::default();
        for (name, seconds) in [("late", 60), ("early", 30), ("later", 90)] {
            let server = claimed(name, "match-1", seconds).server.unwrap();
            deadlines.put(&Key::new("games", name), None, Some(&server));
        }
        let due = |deadlines: &Deadlines| -> Vec<String> {
            deadlines.due(&group, at(60)).map(|key| key.name.clone()).collect()
        };
        assert_eq!(due(&deadlines), ["early", "late"]);
        let was = claimed("early", "match-1", 30).server.unwrap();
        let free = standing_by("early").server.unwrap();
        deadlines.put(&Key::new("games", "early"), Some(&was), Some(&free));
        assert_eq!(due(&deadlines), ["late"]);
        for (name, seconds) in [("late", 60), ("later", 90)] {
            let server = claimed(name, "match-1", seconds).server.unwrap();
            deadlines.put(&Key::new("games", name), Some(&server), None);
        }
        assert!(deadlines.by_group.is_empty());
    }
}
