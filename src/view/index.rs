//! The servers on offer, by group, so that a claim finds one without a look at the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;

use super::Key;
use super::picture::Picture;
use crate::rules::names::spread;
use crate::rules::observed::Server;

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

    pub(super) fn release(&mut self, server: &Key) {
        self.held.remove(server);
    }
}

/// A server that is out of the offer while one claim tries to take it: no longer than its write is in flight.
pub struct Held {
    key: Key,
    server: Server,
    picture: Arc<RwLock<Picture>>,
}

impl Held {
    pub(super) fn new(key: Key, server: Server, picture: Arc<RwLock<Picture>>) -> Self {
        Self { key, server, picture }
    }

    /// Its key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The server as it was when it was taken out.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Keeps it out of the offer until it has changed: its write was lost, so what was seen of it is old.
    pub fn lost(self) {
        self.picture.write().distrust(&self.key, self.server.version);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.picture.write().release(&self.key);
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
