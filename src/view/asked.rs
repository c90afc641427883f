//! The `GameServerClaim`s that are known, and which of them are pending.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::Key;
use crate::api::ClaimPhase;
use crate::rules::observed::Asked;

/// The claims that are objects.
#[derive(Debug, Default)]
pub(super) struct AskedFor {
    all: BTreeMap<Key, Arc<Asked>>,
    /// The pending ones of each namespace, by when they were asked for, then by name.
    pending: BTreeMap<String, BTreeSet<(Timestamp, String)>>,
}

impl AskedFor {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Asked>> {
        self.all.get(key).cloned()
    }

    /// Takes up a claim, and gives what was known of it.
    pub(super) fn put(&mut self, key: &Key, asked: Asked) -> Option<Arc<Asked>> {
        let old = self.remove(key);
        if asked.status.phase == ClaimPhase::Pending {
            let pending = self.pending.entry(key.namespace.clone()).or_default();
            pending.insert((asked.requested_at, key.name.clone()));
        }
        self.all.insert(key.clone(), Arc::new(asked));
        old
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<Asked>> {
        let old = self.all.remove(key)?;
        if let Some(pending) = self.pending.get_mut(&key.namespace) {
            pending.remove(&(old.requested_at, key.name.clone()));
            if pending.is_empty() {
                self.pending.remove(&key.namespace);
            }
        }
        Some(old)
    }

    /// The pending ones of `namespace`, the first first.
    pub(super) fn pending(&self, namespace: &str) -> impl Iterator<Item = &Arc<Asked>> {
        let names = self.pending.get(namespace).into_iter().flatten();
        names.filter_map(move |(_, name)| self.all.get(&Key::new(namespace, name)))
    }

    pub(super) fn namespaces_pending(&self) -> Vec<String> {
        self.pending.keys().cloned().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Arc<Asked>)> {
        self.all.iter()
    }
}
