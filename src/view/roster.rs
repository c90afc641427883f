//! Which pods and servers each group has, by name.

use std::collections::{BTreeSet, HashMap};

use super::Key;

/// The names of each group's pods and servers, by the group's namespace and UID.
#[derive(Debug, Default)]
pub(super) struct Roster {
    names: HashMap<(String, String), BTreeSet<Key>>,
}

impl Roster {
    /// The names in the group with this UID, in order.
    pub(super) fn of(&self, namespace: &str, group_uid: &str) -> impl Iterator<Item = &Key> {
        self.names.get(&(namespace.to_owned(), group_uid.to_owned())).into_iter().flatten()
    }

    pub(super) fn join(&mut self, key: &Key, group_uid: &str) {
        let group = (key.namespace.clone(), group_uid.to_owned());
        self.names.entry(group).or_default().insert(key.clone());
    }

    pub(super) fn leave(&mut self, key: &Key, group_uid: &str) {
        let group = (key.namespace.clone(), group_uid.to_owned());
        if let Some(names) = self.names.get_mut(&group) {
            names.remove(key);
            if names.is_empty() {
                self.names.remove(&group);
            }
        }
    }
}
