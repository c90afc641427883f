//! Who waits for a watch to bring what a write has done: each is woken once, by the event that it waits for.

use std::collections::{BTreeMap, HashMap};

use tokio::sync::oneshot;

use crate::rules::observed::Version;

/// How far the watch of game servers has come, by namespace: each may have its own watch.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    namespaces: HashMap<String, Echo>,
}

#[derive(Debug, Default)]
struct Echo {
    /// Everything up to this version has been delivered.
    newest: Version,
    waiting: BTreeMap<Version, Vec<oneshot::Sender<()>>>,
}

impl Echoes {
    /// Everything up to this version has been delivered in `namespace`.
    pub(super) fn delivered(&mut self, namespace: &str, version: Version) {
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.to_owned(), Echo::default());
        }
        let Some(echo) = self.namespaces.get_mut(namespace).filter(|echo| echo.newest < version) else {
            return;
        };
        echo.newest = version;
        while let Some(first) = echo.waiting.first_entry().filter(|first| *first.key() <= version) {
            for waiting in first.remove() {
                // Who waited may have gone.
                let _ = waiting.send(());
            }
        }
    }

    /// What ends once the watch of `namespace` has come to `version`; none if it has.
    pub(super) fn wait(&mut self, namespace: &str, version: Version) -> Option<oneshot::Receiver<()>> {
        let echo = self.namespaces.entry(namespace.to_owned()).or_default();
        if echo.newest >= version {
            return None;
        }
        let (heard, wait) = oneshot::channel();
        echo.waiting.entry(version).or_default().push(heard);
        Some(wait)
    }
}
