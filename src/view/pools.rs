//! The capacity pools as they are seen.

use std::collections::BTreeMap;

use crate::rules::observed::SeenPool;
use crate::rules::pool::{Fitness, Pool};

/// By what they speak of.
#[derive(Debug, Default)]
pub(super) struct Pools(BTreeMap<Pool, SeenPool>);

impl Pools {
    pub(super) fn all(&self) -> impl Iterator<Item = &SeenPool> {
        self.0.values()
    }

    /// What a pool is worth. One of which nothing is known is viable.
    pub(super) fn fitness(&self, pool: &Pool) -> Fitness {
        self.0.get(pool).map(SeenPool::fitness).unwrap_or_default()
    }

    /// Whether something speaks against a pool: if it is interrupted again, idle servers there are the better ones to lose.
    pub(super) fn is_suspect(&self, pool: &Pool) -> bool {
        self.0.get(pool).is_some_and(|seen| !seen.status.evidence.is_empty())
    }

    /// Takes up a newer picture of a pool, and says whether it is another for groups and claims.
    pub(super) fn put(&mut self, seen: SeenPool) -> bool {
        let old = self.0.get(&seen.pool);
        if old.is_some_and(|old| old.uid == seen.uid && old.version >= seen.version) {
            return false;
        }
        let pool = seen.pool.clone();
        let look = |pools: &Self| (pools.fitness(&pool).verdict, pools.is_suspect(&pool));
        let before = look(self);
        self.0.insert(pool.clone(), seen);
        before != look(self)
    }

    /// Takes up that the one of this name and UID has gone, and gives what it spoke of.
    pub(super) fn remove(&mut self, name: &str, uid: &str) -> Option<Pool> {
        let gone = self.0.values().find(|seen| seen.name == name && seen.uid == uid)?.pool.clone();
        self.0.remove(&gone);
        Some(gone)
    }
}
