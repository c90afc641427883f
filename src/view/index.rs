//! The servers on offer, by group, so that a claim finds one without a look at the others.

use std::collections::{BTreeMap, BTreeSet};

use super::Key;
use crate::rules::names::spread;

/// The servers on offer: in each group in an order of their own, which claims enter at different places.
#[derive(Debug, Default)]
pub(super) struct Offers {
    free: BTreeMap<Key, BTreeSet<(u64, Key)>>,
    held: BTreeSet<Key>,
}

impl Offers {
    /// Says whether `server` is on offer in `group`. A held one stays out until its hold ends.
    pub(super) fn set(&mut self, group: &Key, server: &Key, on_offer: bool) {
        let entry = (spread(&server.name), server.clone());
        if on_offer && !self.held.contains(server) {
            self.free.entry(group.clone()).or_default().insert(entry);
        } else if let Some(servers) = self.free.get_mut(group) {
            servers.remove(&entry);
            if servers.is_empty() {
                self.free.remove(group);
            }
        }
    }

    /// Takes out the next server at or after `seed`, wrapping around.
    pub(super) fn hold(&mut self, group: &Key, seed: u64) -> Option<Key> {
        let servers = self.free.get(group)?;
        let start = (seed, Key::new("", ""));
        let (_, key) = servers.range(start..).next().or_else(|| servers.first())?;
        let key = key.clone();
        self.held.insert(key.clone());
        self.set(group, &key, false);
        Some(key)
    }

    /// How many are on offer, those apart that are held.
    pub(super) fn count(&self, group: &Key) -> usize {
        self.free.get(group).map_or(0, BTreeSet::len)
    }

    pub(super) fn release(&mut self, server: &Key) {
        self.held.remove(server);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(names: &[&str]) -> (Offers, Key) {
        let group = Key::new("games", "arena");
        let mut offers = Offers::default();
        for name in names {
            offers.set(&group, &Key::new("games", *name), true);
        }
        (offers, group)
    }

    #[test]
    fn each_server_is_held_once_from_any_start() {
        for seed in [0, u64::MAX / 2, u64::MAX] {
            let (mut offers, group) = offers(&["a", "b", "c"]);
            let mut seen = BTreeSet::new();
            while let Some(key) = offers.hold(&group, seed) {
                assert!(seen.insert(key));
            }
            assert_eq!(seen.len(), 3);
        }
    }

    #[test]
    fn a_held_server_stays_out_until_its_hold_ends() {
        let (mut offers, group) = offers(&["a"]);
        let key = offers.hold(&group, 0).unwrap();
        offers.set(&group, &key, true);
        assert_eq!(offers.hold(&group, 0), None);
        offers.release(&key);
        offers.set(&group, &key, true);
        assert_eq!(offers.hold(&group, 0), Some(key));
    }
}
