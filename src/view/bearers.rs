//! Which servers bear the claims of each id.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::Key;
use crate::rules::observed::{Server, Version};
use crate::rules::rivals::Order;

/// By namespace and id.
#[derive(Debug, Default)]
pub(super) struct Bearers {
    by_claim: HashMap<(String, String), BTreeSet<Bearer>>,
}

/// A server that bears a claim.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Bearer {
    /// The version at which its claim was first seen.
    seen: Version,
    key: Key,
    /// Whether its claim was made at that very version. A list, a read and the answer to a write show an object some time
    /// after; the watch shows each version.
    exact: bool,
    /// When its claim was made, by the clock of whoever made it.
    claimed_at: Timestamp,
}

impl Bearers {
    /// The servers that bear a claim of this id, in the order in which their claims were made. Where versions do not
    /// tell that, as after a restart, the claims' own times do, the same for every replica.
    pub(super) fn of(&self, namespace: &str, id: &str) -> impl Iterator<Item = &Key> {
        let bearers = self.by_claim.get(&(namespace.to_owned(), id.to_owned()));
        let mut bearers: Vec<&Bearer> = bearers.into_iter().flatten().collect();
        if order(bearers.iter().copied()) == Order::Unknown {
            bearers.sort_by_key(|bearer| bearer.claimed_at);
        }
        bearers.into_iter().map(|bearer| &bearer.key)
    }

    /// Whether that is the order in which the API server took them.
    pub(super) fn order(&self, namespace: &str, id: &str) -> Order {
        let bearers = self.by_claim.get(&(namespace.to_owned(), id.to_owned()));
        order(bearers.into_iter().flatten())
    }

    /// Those of them whose claims may have been made earlier than they were seen.
    pub(super) fn undated(&self, namespace: &str, id: &str) -> impl Iterator<Item = &Key> {
        let bearers = self.by_claim.get(&(namespace.to_owned(), id.to_owned()));
        bearers.into_iter().flatten().filter(|bearer| !bearer.exact).map(|bearer| &bearer.key)
    }

    /// Takes up what the server `key` was and is, and whether what it is now was made so at its very version.
    pub(super) fn put(&mut self, key: &Key, old: Option<&Server>, new: Option<&Server>, exact: bool) {
        let (before, after) = (made(old), made(new));
        for (id, _) in before.difference(&after) {
            let claim = (key.namespace.clone(), (*id).to_owned());
            if let Some(bearers) = self.by_claim.get_mut(&claim) {
                bearers.retain(|bearer| bearer.key != *key);
                if bearers.is_empty() {
                    self.by_claim.remove(&claim);
                }
            }
        }
        let Some(seen) = new.map(|server| server.version) else { return };
        for (id, claimed_at) in after.difference(&before).copied() {
            let bearers = self.by_claim.entry((key.namespace.clone(), id.to_owned())).or_default();
            bearers.insert(Bearer { seen, key: key.clone(), exact, claimed_at });
        }
    }

    /// The watch brings a version of the server `key` that is not newer than what was seen of it already: the first with a
    /// claim is the one at which that was made.
    pub(super) fn date(&mut self, key: &Key, server: &Server) {
        for claim in server.claims() {
            let bearers = self.by_claim.get_mut(&(key.namespace.clone(), claim.id.clone()));
            let Some(bearers) = bearers else { continue };
            let (seen, claimed_at) = (server.version, claim.claimed_at.0);
            let undated = |bearer: &&Bearer| {
                bearer.key == *key && !bearer.exact && bearer.claimed_at == claimed_at && seen <= bearer.seen
            };
            if let Some(undated) = bearers.iter().find(undated).cloned() {
                bearers.remove(&undated);
                bearers.insert(Bearer { seen, exact: true, ..undated });
            }
        }
    }
}

/// The ids of the claims that a server bears, and when each was made.
fn made(server: Option<&Server>) -> BTreeSet<(&str, Timestamp)> {
    let claims = server.into_iter().flat_map(Server::claims);
    claims.map(|claim| (claim.id.as_str(), claim.claimed_at.0)).collect()
}

/// A claim that was made before the first version of all is the first of all; of two of which that is known, either may
/// have been.
fn order<'a>(mut bearers: impl Iterator<Item = &'a Bearer>) -> Order {
    bearers.next();
    if bearers.all(|later| later.exact) { Order::Known } else { Order::Unknown }
}

/// The ids of the claims that a server bears.
pub(super) fn ids(server: &Server) -> impl Iterator<Item = &str> {
    server.claims().map(|claim| claim.id.as_str())
}
