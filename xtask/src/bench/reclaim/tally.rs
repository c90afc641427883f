//! What the servers, the notices and the claims come to, in the order in which the cluster took them.

use std::collections::{BTreeMap, BTreeSet};

use gamekeeper::api::State;
use jiff::Timestamp;

use super::loss::Notice;
use super::players::Asked;
use super::sight::{Picture, Seen, Sight};

/// What a run came to.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The UIDs of the servers on each pool when it got its first notice.
    pub(super) lost: BTreeSet<String>,
    /// The claims that landed on a node that had its notice.
    pub(super) landings: Vec<Landing>,
    /// When all servers were ready again, after the last notice.
    pub(super) ready_again: Option<Timestamp>,
    /// The fewest that were ready from the first notice on.
    pub(super) least_ready: usize,
    /// The fewest that were on offer where no notice was, from the first notice on.
    pub(super) least_offered: usize,
}

/// A claim that landed on a node that had its notice.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) id: String,
    /// How long the request was sent after the answer to the notice was here, in seconds: less than none where it was
    /// under way already.
    pub(super) late_seconds: f64,
    /// How many servers were on offer elsewhere.
    pub(super) elsewhere: usize,
}

impl Landing {
    /// Whether it could have gone elsewhere: it was asked for when the notice was known, and there was another server.
    pub(super) fn is_misplaced(&self) -> bool {
        self.late_seconds >= 0.0 && self.elsewhere > 0
    }
}

/// Goes through what was seen of a group that wants so many servers.
pub(super) fn tally(sights: &[Sight], notices: &[Notice], asked: &[Asked], wanted: usize) -> Tally {
    let mut notices: Vec<&Notice> = notices.iter().collect();
    notices.sort_by_key(|notice| notice.version);
    let sent: BTreeMap<&str, Timestamp> = asked.iter().map(|asked| (asked.id.as_str(), asked.sent)).collect();
    let mut walk = Walk { wanted, notices, ..Walk::default() };
    for sight in sights {
        walk.notice_until(sight.version);
        walk.see(sight, &sent);
    }
    walk.notice_until(u64::MAX);
    Tally {
        least_ready: walk.least_ready.unwrap_or(0),
        least_offered: walk.least_offered.unwrap_or(0),
        ..walk.tally
    }
}

#[derive(Default)]
struct Walk<'a> {
    wanted: usize,
    picture: Picture,
    /// In order; those before `given` have been given.
    notices: Vec<&'a Notice>,
    given: usize,
    noticed: BTreeMap<&'a str, &'a Notice>,
    pools: BTreeSet<u32>,
    least_ready: Option<usize>,
    least_offered: Option<usize>,
    tally: Tally,
}

impl Walk<'_> {
    /// Takes up the notices that stand before this place of the order.
    fn notice_until(&mut self, version: u64) {
        while let Some(notice) = self.notices.get(self.given).filter(|notice| notice.version < version) {
            self.given += 1;
            if self.pools.insert(notice.pool) {
                let pool: BTreeSet<&str> = self
                    .notices
                    .iter()
                    .filter(|other| other.pool == notice.pool)
                    .map(|other| other.node.as_str())
                    .collect();
                let on_it = |seen: &Seen| seen.node.as_deref().is_some_and(|node| pool.contains(node));
                self.tally
                    .lost
                    .extend(self.picture.uids(|seen| on_it(seen) && seen.state < State::Terminating));
            }
            self.noticed.insert(&notice.node, notice);
            self.measure();
        }
    }

    fn see(&mut self, sight: &Sight, sent: &BTreeMap<&str, Timestamp>) {
        let before = self.picture.put(sight);
        let held = before.and_then(|before| before.claim);
        if let Some(seen) = &sight.server
            && let Some(id) = seen.claim.as_ref().filter(|id| Some(*id) != held.as_ref())
            && let Some(notice) = seen.node.as_deref().and_then(|node| self.noticed.get(node))
            && let Some(sent) = sent.get(id.as_str())
        {
            let late_seconds = sent.duration_since(notice.at).as_secs_f64();
            self.tally.landings.push(Landing { id: id.clone(), late_seconds, elsewhere: self.offered() });
        }
        if self.given == 0 {
            return;
        }
        let ready = self.measure();
        if self.given == self.notices.len() && ready >= self.wanted {
            self.tally.ready_again.get_or_insert(sight.at);
        }
    }

    /// Notes how many are ready and on offer, and gives the first.
    fn measure(&mut self) -> usize {
        let (ready, offered) =
            (self.picture.count(|seen| seen.is_ready() && self.stays(seen)), self.offered());
        self.least_ready = Some(self.least_ready.map_or(ready, |least| least.min(ready)));
        self.least_offered = Some(self.least_offered.map_or(offered, |least| least.min(offered)));
        ready
    }

    /// How many are on offer where no notice is.
    fn offered(&self) -> usize {
        self.picture.count(|seen| seen.is_offered() && self.stays(seen))
    }

    fn stays(&self, seen: &Seen) -> bool {
        seen.node.as_deref().is_none_or(|node| !self.noticed.contains_key(node))
    }
}

#[cfg(test)]
mod tests {
    use gamekeeper::api::InstanceStatus;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + seconds).unwrap()
    }

    fn sight(version: u64, name: &str, node: &str, claim: Option<&str>) -> Sight {
        let server = Seen {
            name: name.to_owned(),
            state: State::StandingBy,
            claim: claim.map(str::to_owned),
            node: Some(node.to_owned()),
            instance: InstanceStatus::Active,
            sound: true,
        };
        let at = at(i64::try_from(version).unwrap());
        Sight { at, version, uid: name.to_owned(), server: Some(server) }
    }

    fn notice(version: u64, node: &str, pool: u32) -> Notice {
        Notice { node: node.to_owned(), pool, at: at(i64::try_from(version).unwrap()), version }
    }

    fn asked(id: &str, seconds: i64) -> Asked {
        Asked { id: id.to_owned(), sent: at(seconds), answer: Ok(String::new()) }
    }

    #[test]
    fn a_claim_is_misplaced_if_it_came_after_the_notice_and_there_was_another_server() {
        let sights = [
            sight(1, "a", "lost-1", None),
            sight(2, "b", "lost-1", None),
            sight(3, "c", "kept", None),
            sight(4, "a", "lost-1", Some("before")),
            sight(6, "b", "lost-1", Some("after")),
        ];
        let asked = [asked("before", 3), asked("after", 5)];
        let tally = tally(&sights, &[notice(5, "lost-1", 0)], &asked, 2);
        assert_eq!(tally.landings.len(), 1);
        assert_eq!(tally.landings[0].id, "after");
        assert!(tally.landings[0].is_misplaced());
        assert_eq!(tally.lost.len(), 2);
    }

    #[test]
    fn it_is_not_where_it_was_under_way_or_nothing_else_was_left() {
        let notices = [notice(5, "lost-1", 0)];
        let under_way =
            [sight(1, "a", "lost-1", None), sight(2, "c", "kept", None), sight(6, "a", "lost-1", Some("x"))];
        let found = tally(&under_way, &notices, &[asked("x", 4)], 2);
        assert_eq!((found.landings.len(), found.landings[0].is_misplaced()), (1, false));
        let none_left = [sight(1, "a", "lost-1", None), sight(6, "a", "lost-1", Some("x"))];
        let found = tally(&none_left, &notices, &[asked("x", 5)], 2);
        assert_eq!((found.landings.len(), found.landings[0].is_misplaced()), (1, false));
    }

    #[test]
    fn what_is_ready_is_counted_where_no_notice_is() {
        let sights = [
            sight(1, "a", "lost-1", None),
            sight(2, "b", "lost-2", None),
            sight(5, "c", "kept", None),
            sight(6, "d", "kept", Some("x")),
        ];
        // A pool is lost as a whole with the first notice.
        let notices = [notice(3, "lost-1", 0), notice(4, "lost-2", 0)];
        let tally = tally(&sights, &notices, &[], 2);
        assert_eq!((tally.lost.len(), tally.least_ready, tally.ready_again), (2, 0, Some(at(6))));
    }
}
