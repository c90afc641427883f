//! What happened to capacity that no object tells of for long: nodes and `NodeClaim`s that have gone, and what events say.

use std::collections::{HashMap, VecDeque};

use crate::api::Evidence;
use crate::rules::notice::Notice;
use crate::rules::pool::Pool;

/// How much of each is kept, the latest: pools keep less.
const KEPT: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Tidings {
    happened: VecDeque<(Pool, Evidence)>,
    /// By node: the UID that an event names, and what it says.
    notices: HashMap<String, (String, Notice)>,
    /// What failed of `NodeClaim`s, by their names. The word of it may come before the claim.
    failed: VecDeque<(String, Evidence)>,
    /// Which pools `NodeClaim`s are for.
    claims: HashMap<String, Pool>,
    /// Those of them that have gone, which the word of their failure may come after.
    gone: VecDeque<String>,
}

impl Tidings {
    pub(super) fn happened(&mut self, happened: (Pool, Evidence)) {
        keep(&mut self.happened, happened);
    }

    /// The node of this name had its notice; the UID is empty, or the name again, where its event does not know it.
    pub(super) fn noticed(&mut self, node: &str, uid: &str, notice: Notice) {
        self.notices.insert(node.to_owned(), (uid.to_owned(), notice));
    }

    pub(super) fn notice(&self, node: &str, uid: &str) -> Option<Notice> {
        let (of, notice) = self.notices.get(node)?;
        (of == uid || of.is_empty() || of == node).then(|| notice.clone())
    }

    pub(super) fn forget_notice(&mut self, node: &str) {
        self.notices.remove(node);
    }

    pub(super) fn failed(&mut self, claim: &str, evidence: Evidence) {
        keep(&mut self.failed, (claim.to_owned(), evidence));
    }

    pub(super) fn claimed(&mut self, claim: &str, pool: Pool) {
        self.claims.insert(claim.to_owned(), pool);
    }

    pub(super) fn claim_gone(&mut self, claim: &str) {
        if let Some(forgotten) = keep(&mut self.gone, claim.to_owned()) {
            self.claims.remove(&forgotten);
        }
    }

    pub(super) fn known_claims(&self) -> impl Iterator<Item = &String> {
        self.claims.keys().filter(|claim| !self.gone.contains(claim))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (Pool, Evidence)> + '_ {
        let of_claim = |(claim, evidence): &(String, Evidence)| {
            Some((self.claims.get(claim)?.clone(), evidence.clone()))
        };
        self.happened.iter().cloned().chain(self.failed.iter().filter_map(of_claim))
    }
}

/// Keeps one more, and gives the oldest if that is one too many.
fn keep<T>(kept: &mut VecDeque<T>, one: T) -> Option<T> {
    kept.push_back(one);
    if kept.len() > KEPT { kept.pop_front() } else { None }
}
