//! The servers on offer, in the order in which claims take them, so that a claim finds one without a look at the
//! others: instances that stay before those that drain, the newest revision before older ones, pools against which nothing speaks
//! before others, then node by node.
//!
//! Replicas that claim side by side from one group must rarely want the same server. As long as a rival is seen,
//! each empties nodes in an order of its own, and takes a node's servers from a place of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::Key;
use crate::api::ClaimStrategy;
use crate::rules::names::spread;

/// How long a claim of another replica makes it a rival.
const RIVALRY: Duration = Duration::from_secs(1);

/// How good an offer is; the least is the best.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Rank {
    /// Its instance drains.
    pub(super) draining: bool,
    /// Its revision is not its group's.
    pub(super) outdated: bool,
    /// Something speaks against its capacity pool.
    pub(super) suspect: bool,
    /// How far down it stands by its free seats; 0 where servers are not shared.
    pub(super) seats: i32,
}

/// Where a server on offer stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) group: Key,
    pub(super) rank: Rank,
    pub(super) node: String,
}

/// The servers on offer, by group.
#[derive(Debug, Default)]
pub(super) struct Offers {
    groups: HashMap<Key, BTreeMap<Rank, Nodes>>,
    places: HashMap<Key, Place>,
    /// In the hands of claims of this replica.
    held: HashSet<Key>,
    /// How many servers of each node are in use.
    loads: HashMap<String, u32>,
    /// The ranks in which each node has offers.
    by_node: HashMap<String, BTreeSet<(Key, Rank)>>,
    /// When another replica was last seen to claim from a group.
    rivals: HashMap<Key, Instant>,
    /// What tells this replica's order of nodes from others'.
    seed: u64,
    /// Where among a node's servers this replica begins.
    begin: u64,
}

/// The offers of one rank, by node.
#[derive(Debug, Default)]
struct Nodes {
    /// In an order of their own, which replicas enter at different places.
    servers: HashMap<String, BTreeSet<(u64, Key)>>,
    /// By how many servers of the node are in use; among equals in this replica's order.
    by_load: BTreeSet<(u32, u64, String)>,
    /// In this replica's order.
    by_turn: BTreeSet<(u64, String)>,
}

impl Offers {
    /// No offers yet, for the replica of this name.
    pub(super) fn of_replica(name: &str) -> Self {
        Self { seed: spread(name), begin: spread(name), ..Self::default() }
    }

    /// Says where `server` stands on offer, or that it does not. A held one stays out until its hold ends.
    pub(super) fn set(&mut self, server: &Key, place: Option<Place>) {
        let place = place.filter(|_| !self.held.contains(server));
        if self.places.get(server) == place.as_ref() {
            return;
        }
        if let Some(old) = self.places.remove(server) {
            self.take_out(server, &old);
        }
        if let Some(place) = place {
            self.put_in(server, &place);
            self.places.insert(server.clone(), place);
        }
    }

    /// How many are on offer, those apart that are held.
    pub(super) fn count(&self, group: &Key) -> usize {
        let ranks = self.groups.get(group).into_iter().flat_map(BTreeMap::values);
        ranks.flat_map(|nodes| nodes.servers.values()).map(BTreeSet::len).sum()
    }

    /// The servers on offer in `group`, the first to be taken first.
    pub(super) fn candidates(
        &self,
        group: &Key,
        strategy: ClaimStrategy,
        now: Instant,
    ) -> impl Iterator<Item = &Key> {
        let rivals = self.rivals.get(group).is_some_and(|then| now.duration_since(*then) < RIVALRY);
        let ranks = self.groups.get(group).into_iter().flat_map(BTreeMap::values);
        ranks.flat_map(move |nodes| {
            nodes.in_order(strategy, rivals).filter_map(|node| nodes.servers.get(node)).flat_map(|servers| {
                let start = (self.begin, Key::new("", ""));
                servers.range(start.clone()..).chain(servers.range(..start)).map(|(_, key)| key)
            })
        })
    }

    /// Takes a server out of the offer until [`Self::release`].
    pub(super) fn hold(&mut self, server: &Key) {
        self.held.insert(server.clone());
        self.set(server, None);
    }

    /// The servers that are held.
    pub(super) fn held(&self) -> impl Iterator<Item = &Key> {
        self.held.iter()
    }

    /// The group in which `server` is on offer, if it is.
    pub(super) fn group_of(&self, server: &Key) -> Option<&Key> {
        self.places.get(server).map(|place| &place.group)
    }

    /// Ends a hold. Whether it is on offer again is for [`Self::set`] to say.
    pub(super) fn release(&mut self, server: &Key) {
        self.held.remove(server);
    }

    /// Another replica took `server`: it is a rival for its group.
    pub(super) fn taken(&mut self, server: &Key, now: Instant) {
        if let Some(place) = self.places.get(server) {
            self.rivals.insert(place.group.clone(), now);
        }
    }

    /// Two replicas have come to the same place: this one goes on from another.
    pub(super) fn collided(&mut self) {
        self.begin = spread(&format!("{}/{}", self.seed, self.begin));
    }

    /// When this replica comes to `node`.
    fn turn(&self, node: &str) -> u64 {
        spread(&format!("{}/{node}", self.seed))
    }

    /// So many servers more or fewer of `node` are in use.
    pub(super) fn load(&mut self, node: &str, more: i32) {
        let old = self.loads.get(node).copied().unwrap_or(0);
        let new = old.saturating_add_signed(more);
        if new == 0 {
            self.loads.remove(node);
        } else {
            self.loads.insert(node.to_owned(), new);
        }
        let turn = self.turn(node);
        for (group, rank) in self.by_node.get(node).into_iter().flatten() {
            if let Some(nodes) = self.groups.get_mut(group).and_then(|ranks| ranks.get_mut(rank)) {
                nodes.by_load.remove(&(old, turn, node.to_owned()));
                nodes.by_load.insert((new, turn, node.to_owned()));
            }
        }
    }

    fn put_in(&mut self, server: &Key, place: &Place) {
        let load = self.loads.get(&place.node).copied().unwrap_or(0);
        let turn = self.turn(&place.node);
        let nodes = self.groups.entry(place.group.clone()).or_default().entry(place.rank).or_default();
        let servers = nodes.servers.entry(place.node.clone()).or_default();
        if servers.is_empty() {
            nodes.by_load.insert((load, turn, place.node.clone()));
            nodes.by_turn.insert((turn, place.node.clone()));
            let ranks = self.by_node.entry(place.node.clone()).or_default();
            ranks.insert((place.group.clone(), place.rank));
        }
        servers.insert((spread(&server.name), server.clone()));
    }

    fn take_out(&mut self, server: &Key, place: &Place) {
        let (load, turn) = (self.loads.get(&place.node).copied().unwrap_or(0), self.turn(&place.node));
        let Some(ranks) = self.groups.get_mut(&place.group) else { return };
        let Some(nodes) = ranks.get_mut(&place.rank) else { return };
        let Some(servers) = nodes.servers.get_mut(&place.node) else { return };
        servers.remove(&(spread(&server.name), server.clone()));
        if !servers.is_empty() {
            return;
        }
        nodes.servers.remove(&place.node);
        nodes.by_load.remove(&(load, turn, place.node.clone()));
        nodes.by_turn.remove(&(turn, place.node.clone()));
        if nodes.servers.is_empty() {
            ranks.remove(&place.rank);
        }
        if ranks.is_empty() {
            self.groups.remove(&place.group);
            self.rivals.remove(&place.group);
        }
        if let Some(ranks) = self.by_node.get_mut(&place.node) {
            ranks.remove(&(place.group.clone(), place.rank));
            if ranks.is_empty() {
                self.by_node.remove(&place.node);
            }
        }
    }
}

impl Nodes {
    /// The nodes, the first to be emptied first.
    fn in_order(&self, strategy: ClaimStrategy, rivals: bool) -> Box<dyn Iterator<Item = &String> + '_> {
        match (strategy, rivals) {
            (ClaimStrategy::Packed, true) => Box::new(self.by_turn.iter().map(|(_, node)| node)),
            (ClaimStrategy::Packed, false) => Box::new(self.by_load.iter().rev().map(|(.., node)| node)),
            (ClaimStrategy::Spread, _) => Box::new(self.by_load.iter().map(|(.., node)| node)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEST: Rank = Rank { draining: false, outdated: false, suspect: false, seats: 0 };

    fn arena() -> Key {
        Key::new("games", "arena")
    }

    fn place(rank: Rank, node: &str) -> Place {
        Place { group: arena(), rank, node: node.to_owned() }
    }

    fn offers(replica: &str, servers: &[(&str, Rank, &str)]) -> Offers {
        let mut offers = Offers::of_replica(replica);
        for (name, rank, node) in servers {
            offers.set(&Key::new("games", *name), Some(place(*rank, node)));
        }
        offers
    }

    fn order(offers: &Offers, strategy: ClaimStrategy) -> Vec<&str> {
        offers.candidates(&arena(), strategy, Instant::now()).map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn draining_instances_come_last_and_older_revisions_and_suspect_pools_later() {
        let worse = |draining, outdated| Rank { draining, outdated, suspect: false, seats: 0 };
        let offers = offers(
            "replica",
            &[
                ("draining-old", worse(true, true), "n"),
                ("draining", worse(true, false), "n"),
                ("old", worse(false, true), "n"),
                ("suspect", Rank { suspect: true, ..BEST }, "n"),
                ("best", BEST, "n"),
            ],
        );
        assert_eq!(
            order(&offers, ClaimStrategy::Packed),
            ["best", "suspect", "old", "draining", "draining-old"]
        );
    }

    #[test]
    fn packed_takes_the_fullest_node_first_and_spread_the_emptiest() {
        let mut offers = offers("replica", &[("a", BEST, "one"), ("b", BEST, "two"), ("c", BEST, "three")]);
        offers.load("two", 5);
        offers.load("three", 2);
        assert_eq!(order(&offers, ClaimStrategy::Packed), ["b", "c", "a"]);
        assert_eq!(order(&offers, ClaimStrategy::Spread), ["a", "c", "b"]);
        offers.load("two", -5);
        offers.load("one", 1);
        assert_eq!(order(&offers, ClaimStrategy::Packed), ["c", "a", "b"]);
    }

    #[test]
    fn each_server_is_a_candidate_once_from_any_place() {
        for replica in ["a", "b", "c", "d"] {
            let names: Vec<String> = (0..50).map(|number| format!("server-{number}")).collect();
            let servers: Vec<_> = names.iter().map(|name| (name.as_str(), BEST, "n")).collect();
            let offers = offers(replica, &servers);
            let seen: BTreeSet<&str> = order(&offers, ClaimStrategy::Packed).into_iter().collect();
            assert_eq!((seen.len(), order(&offers, ClaimStrategy::Packed).len()), (50, 50));
        }
    }

    /// Two replicas that see each other claim begin on different nodes, and on the same node at different servers.
    #[test]
    fn rivals_begin_at_different_places() {
        let nodes: Vec<String> = (0..200).map(|number| format!("node-{number}")).collect();
        let names: Vec<String> = (0..200).map(|number| format!("server-{number}")).collect();
        let spread: Vec<_> =
            names.iter().zip(&nodes).map(|(name, node)| (name.as_str(), BEST, node.as_str())).collect();
        let together: Vec<_> = names.iter().map(|name| (name.as_str(), BEST, "n")).collect();
        for servers in [spread, together] {
            let mut firsts = BTreeSet::new();
            for replica in ["one", "two", "three"] {
                let mut offers = offers(replica, &servers);
                offers.load("node-3", 7);
                offers.taken(&Key::new("games", "server-19"), Instant::now());
                firsts.insert(order(&offers, ClaimStrategy::Packed)[0].to_owned());
            }
            assert_eq!(firsts.len(), 3, "{firsts:?}");
        }
    }

    #[test]
    fn a_held_server_stays_out_until_its_hold_ends() {
        let mut offers = offers("replica", &[("a", BEST, "n")]);
        let key = Key::new("games", "a");
        offers.hold(&key);
        offers.set(&key, Some(place(BEST, "n")));
        assert!(order(&offers, ClaimStrategy::Packed).is_empty());
        offers.release(&key);
        offers.set(&key, Some(place(BEST, "n")));
        assert_eq!(order(&offers, ClaimStrategy::Packed), ["a"]);
    }

    #[test]
    fn what_is_taken_out_leaves_nothing_behind() {
        let mut offers = offers("replica", &[("a", BEST, "one"), ("b", BEST, "two")]);
        offers.load("one", 1);
        offers.load("one", -1);
        for name in ["a", "b"] {
            offers.set(&Key::new("games", name), None);
        }
        assert!(offers.groups.is_empty() && offers.by_node.is_empty() && offers.loads.is_empty());
    }
}
