//! Rows F4 to F9: which pools a group's servers go to, and which of them are to move.
//!
//! What is on a pool that is not viable, or on capacity that is only a way out, moves: its replacement is launched first, and
//! it goes when that is ready, idle ones first. Then the servers are evened out over the pools, one at a time.

use std::collections::{BTreeMap, BTreeSet};

use super::choice::{self, Named};
use super::observed::{Member, Pod};
use super::pool::{Fitness, Pool};
use super::retire;
use super::slots::{counts, is_ready};
use crate::api::conditions::{BALANCED, Finding, Holds};
use crate::api::{
    BalancingStrategy, GameServerGroupSpec, GameServerProtectionPolicy, GroupPool, SuspendedAction, Viability,
};

/// How many servers there may be above the number, while they move: one in so many, and one at least.
const SURGE: usize = 4;

/// How many pools a status shows: as many as the schema takes.
const SHOWN: usize = 64;

/// Where the servers of a group go.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Balance {
    /// The pools that the group names.
    named: BTreeMap<Pool, Viability>,
    /// Those that new servers are made for, with their weights.
    open: Vec<(Pool, i32)>,
    /// Those that servers may stay on: the open ones, and those that are only dearer.
    kept: BTreeSet<Pool>,
    /// Whether what runs elsewhere is replaced.
    moves: bool,
    /// Whether games there are played to their end.
    pub protects: bool,
}

impl Balance {
    /// The balance of a group in these zones; none for one that names no instance types.
    pub fn of(
        spec: &GameServerGroupSpec,
        zones: &BTreeSet<String>,
        fitness: impl Fn(&Pool) -> Fitness,
    ) -> Option<Self> {
        if spec.instance_definitions.is_empty() {
            return None;
        }
        let named: Vec<Named> = choice::named(spec, zones, fitness);
        let kept = choice::kept(spec.balancing_strategy, &named);
        let open = choice::open(kept.clone(), spec.cheapest_pools);
        Some(Self {
            named: named.iter().map(|named| (named.pool.clone(), named.fitness.verdict)).collect(),
            open: open.into_iter().map(|open| (open.pool, open.weight)).collect(),
            kept: kept.into_iter().map(|kept| kept.pool).collect(),
            moves: is_balanced(spec),
            protects: spec.game_server_protection_policy == GameServerProtectionPolicy::FullProtection,
        })
    }

    /// Whether no pool is open: nothing can be made.
    pub fn is_starved(&self) -> bool {
        self.open.is_empty()
    }

    /// The pools that the group is on, and those that it may not use, for its status.
    pub fn pools(&self, members: &[Member]) -> Vec<GroupPool> {
        let there = Numbers::of(members.iter().filter(|member| counts(member)));
        let mut pools = self.named.clone();
        for pool in there.counts.keys() {
            pools.entry(pool.clone()).or_default();
        }
        let entries = pools.into_iter().map(|(pool, verdict)| GroupPool {
            pool: pool.to_string(),
            verdict,
            servers: i32::try_from(there.count(&pool)).unwrap_or(i32::MAX),
        });
        entries.filter(|entry| entry.servers > 0 || entry.verdict != Viability::Viable).take(SHOWN).collect()
    }

    /// Which servers move, for the group's condition.
    pub fn finding(&self, members: &[Member], desired: usize) -> Finding {
        let moving = Numbers::of(self.outgoing(members, desired).into_iter());
        let finding = |holds, reason: &str, message| Finding {
            type_: BALANCED,
            holds,
            reason: reason.to_owned(),
            message,
        };
        if !self.moves {
            return finding(Holds::True, "NotBalanced", "servers stay where they are".to_owned());
        }
        if moving.counts.is_empty() {
            return finding(Holds::True, "Balanced", String::new());
        }
        let pools: Vec<String> =
            moving.counts.iter().map(|(pool, count)| format!("{count} on {pool}")).collect();
        let to = if self.is_starved() {
            "waits for a pool that is viable".to_owned()
        } else {
            "each goes once a replacement is ready, after its game".to_owned()
        };
        finding(Holds::False, "Moving", format!("servers that are to move: {}; {to}", pools.join(", ")))
    }

    fn leaves(&self, placed: &Pool) -> bool {
        // One made before any zone was known is where it may be, whichever that is.
        self.moves && !self.kept.iter().any(|pool| placed.holds(pool))
    }

    /// Which of the members that count are to move. Where all are where they may be, and ready, that is one of those on
    /// the pool that has too many.
    pub fn outgoing<'a>(&self, members: &'a [Member], desired: usize) -> Vec<&'a Member> {
        let there: Vec<&Member> = members.iter().filter(|member| counts(member)).collect();
        let leaves = |member: &&Member| member.pool().is_some_and(|placed| self.leaves(placed));
        let outgoing: Vec<&Member> = there.iter().copied().filter(leaves).collect();
        if !outgoing.is_empty() || !self.moves {
            return outgoing;
        }
        let settled = there.len() == desired && there.iter().all(|member| is_ready(member));
        settled.then(|| self.too_many(&there)).flatten().into_iter().collect()
    }

    /// An idle member of the pool that has so many that one elsewhere would be no worse.
    fn too_many<'a>(&self, there: &[&'a Member]) -> Option<&'a Member> {
        let mut number = Numbers::of(there.iter().copied());
        let fullest =
            self.open.iter().max_by(|one, other| number.share(one).total_cmp(&number.share(other)))?;
        let on_it = |member: &&&Member| member.pool() == Some(&fullest.0);
        let idle = |member: &&&Member| {
            member.server.as_ref().is_some_and(|server| retire::is_idle(server)) && is_ready(member)
        };
        let one = there.iter().filter(on_it).filter(idle).min_by_key(|member| member.name())?;
        let before = number.share(fullest);
        number.take(&fullest.0);
        let elsewhere = self.next(&number)?;
        let better = number.share_with_one_more(elsewhere) < before;
        (elsewhere.0 != fullest.0 && better).then_some(*one)
    }

    /// The order in which idle servers are given up that are too many: from the fullest pool each time.
    pub(super) fn fullest_first<'a>(
        &self,
        there: &[&'a Member],
        mut idle: Vec<&'a Member>,
    ) -> Vec<&'a Member> {
        let mut number = Numbers::of(there.iter().copied());
        let weight =
            |pool: &Pool| self.open.iter().find(|(open, _)| open == pool).map_or(1, |(_, weight)| *weight);
        let mut order = Vec::new();
        while !idle.is_empty() {
            let share = |member: &&Member| {
                member.pool().map_or(f64::INFINITY, |pool| number.share(&(pool.clone(), weight(pool))))
            };
            // The first among equals: they come in the order in which they would go otherwise.
            let fullest = idle.iter().map(share).fold(f64::NEG_INFINITY, f64::max);
            let Some(place) = idle.iter().position(|member| share(member) >= fullest) else { break };
            let member = idle.remove(place);
            if let Some(pool) = member.pool() {
                number.take(pool);
            }
            order.push(member);
        }
        order
    }

    /// Where the next server goes: where it makes the least of its weight. A pool that is probed gets none while one is
    /// on its way there.
    fn next(&self, number: &Numbers) -> Option<&(Pool, i32)> {
        let probed = |pool: &Pool| self.named.get(pool) == Some(&Viability::Probing);
        let share = |open: &&(Pool, i32)| number.share_with_one_more(open);
        let takes = |(pool, _): &&(Pool, i32)| !(probed(pool) && number.is_awaited(pool));
        self.open.iter().filter(takes).min_by(|one, other| share(one).total_cmp(&share(other)))
    }

    /// Where the next `count` servers go, when these are there already: fewer where pools take no more for now.
    pub fn places<'a>(&self, there: impl Iterator<Item = &'a Member>, count: usize) -> Vec<Pool> {
        let mut number = Numbers::of(there);
        let mut places = Vec::new();
        for _ in 0..count {
            let Some((pool, _)) = self.next(&number) else { break };
            number.put(pool);
            places.push(pool.clone());
        }
        places
    }

    /// How many servers may be made, of a group that wants `desired`, when so many stay, and so many are idle that move.
    pub fn room(&self, desired: usize, staying: usize, moving_idle: usize) -> usize {
        let surge = desired.div_ceil(SURGE).max(1);
        let most = desired.saturating_add(surge).saturating_sub(staying.saturating_add(moving_idle));
        desired.saturating_sub(staying).min(most)
    }
}

/// Row F3: balancing is off with on-demand capacity alone, and while it is suspended (row F17).
fn is_balanced(spec: &GameServerGroupSpec) -> bool {
    spec.balancing_strategy != BalancingStrategy::OnDemandOnly
        && !spec.suspended_actions.contains(&SuspendedAction::ReplaceInstanceTypes)
}

/// Row F5: why the instance of a pod is to be left for its pool's sake.
pub fn cause(spec: &GameServerGroupSpec, pod: &Pod, fitness: impl Fn(&Pool) -> Fitness) -> Option<String> {
    let pool = pod.pool.as_ref().filter(|_| is_balanced(spec) && !spec.instance_definitions.is_empty())?;
    (fitness(pool).verdict == Viability::NotViable).then(|| format!("its capacity pool {pool} is not viable"))
}

/// How many servers each pool has.
#[derive(Default)]
struct Numbers {
    counts: BTreeMap<Pool, usize>,
    /// The pools where one of them is not ready yet.
    awaited: BTreeSet<Pool>,
}

impl Numbers {
    fn of<'a>(members: impl Iterator<Item = &'a Member>) -> Self {
        let mut numbers = Self::default();
        for member in members {
            if let Some(pool) = member.pool() {
                *numbers.counts.entry(pool.clone()).or_default() += 1;
                if !is_ready(member) {
                    numbers.awaited.insert(pool.clone());
                }
            }
        }
        numbers
    }

    /// Takes up one that is still to be made.
    fn put(&mut self, pool: &Pool) {
        *self.counts.entry(pool.clone()).or_default() += 1;
        self.awaited.insert(pool.clone());
    }

    fn is_awaited(&self, pool: &Pool) -> bool {
        self.awaited.contains(pool)
    }

    fn take(&mut self, pool: &Pool) {
        if let Some(count) = self.counts.get_mut(pool) {
            *count = count.saturating_sub(1);
        }
    }

    fn count(&self, pool: &Pool) -> usize {
        self.counts.get(pool).copied().unwrap_or(0)
    }

    /// Servers by weight.
    fn share(&self, (pool, weight): &(Pool, i32)) -> f64 {
        quotient(self.count(pool), *weight)
    }

    fn share_with_one_more(&self, (pool, weight): &(Pool, i32)) -> f64 {
        quotient(self.count(pool).saturating_add(1), *weight)
    }
}

fn quotient(count: usize, weight: i32) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / f64::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::CapacityType;
    use crate::rules::fixtures::{active, creating, group_on, on_pool, pool, standing_by};

    const ALL: fn(&Pool) -> Fitness = |_| Fitness { verdict: Viability::Viable, price: None };

    fn with(type_: &'static str, verdict: Viability) -> impl Fn(&Pool) -> Fitness {
        move |pool| {
            let it = pool.instance_type == type_ && pool.capacity_type == CapacityType::Spot;
            Fitness { verdict: if it { verdict } else { Viability::Viable }, price: None }
        }
    }

    fn without(type_: &'static str) -> impl Fn(&Pool) -> Fitness {
        with(type_, Viability::NotViable)
    }

    fn balance(types: &[&str], fitness: impl Fn(&Pool) -> Fitness) -> Balance {
        Balance::of(&group_on(types).spec, &BTreeSet::new(), fitness).unwrap()
    }

    fn types(places: &[Pool]) -> Vec<&str> {
        places.iter().map(|pool| pool.instance_type.as_str()).collect()
    }

    /// Row F8.
    #[test]
    fn servers_of_equal_pools_differ_by_one_at_most_and_weights_hold() {
        let even = balance(&["a", "b", "c"], ALL);
        assert_eq!(types(&even.places([].iter(), 5)), ["a", "b", "c", "a", "b"]);
        let there = [on_pool("a", standing_by("1")), on_pool("a", standing_by("2"))];
        assert_eq!(types(&even.places(there.iter(), 3)), ["b", "c", "b"]);
        let mut group = group_on(&["a", "b"]);
        group.spec.instance_definitions[1].weighted_capacity = 3;
        let weighted = Balance::of(&group.spec, &BTreeSet::new(), ALL).unwrap();
        let places = weighted.places([].iter(), 8);
        assert_eq!(types(&places).into_iter().filter(|type_| *type_ == "b").count(), 6);
    }

    /// Row F4.
    #[test]
    fn a_pool_that_is_not_viable_gets_no_server() {
        assert_eq!(types(&balance(&["a", "b"], without("a")).places([].iter(), 3)), ["b", "b", "b"]);
    }

    /// Row F9.
    #[test]
    fn on_demand_is_the_way_out_unless_spot_alone_is_asked_for() {
        let mut spec = group_on(&["a"]).spec;
        let open = |spec: &GameServerGroupSpec, fitness: &dyn Fn(&Pool) -> Fitness| {
            Balance::of(spec, &BTreeSet::new(), fitness).unwrap().open
        };
        let first = |open: Vec<(Pool, i32)>| open.first().map(|(pool, _)| pool.capacity_type);
        assert_eq!(first(open(&spec, &ALL)), Some(CapacityType::Spot));
        assert_eq!(first(open(&spec, &without("a"))), Some(CapacityType::OnDemand));
        assert_eq!(
            first(open(&spec, &|_| Fitness { verdict: Viability::NotViable, price: None })),
            Some(CapacityType::OnDemand)
        );
        spec.balancing_strategy = BalancingStrategy::SpotOnly;
        assert!(Balance::of(&spec, &BTreeSet::new(), without("a")).unwrap().is_starved());
        spec.balancing_strategy = BalancingStrategy::OnDemandOnly;
        assert_eq!(first(open(&spec, &ALL)), Some(CapacityType::OnDemand));
        spec.instance_definitions.clear();
        assert_eq!(Balance::of(&spec, &BTreeSet::new(), ALL), None);
    }

    /// Row F4: a probed pool takes one, and another once that is ready.
    #[test]
    fn a_pool_that_is_probed_gets_one_server_at_a_time() {
        let probed = balance(&["a", "b"], with("a", Viability::Probing));
        assert_eq!(types(&probed.places([].iter(), 3)), ["a", "b", "b"]);
        assert_eq!(types(&probed.places([on_pool("a", creating("1"))].iter(), 2)), ["b", "b"]);
        assert_eq!(types(&probed.places([on_pool("a", standing_by("1"))].iter(), 3)), ["b", "a", "b"]);
        let mut spec = group_on(&["a"]).spec;
        spec.balancing_strategy = BalancingStrategy::SpotOnly;
        let alone = Balance::of(&spec, &BTreeSet::new(), with("a", Viability::Probing)).unwrap();
        assert_eq!(types(&alone.places([].iter(), 3)), ["a"]);
        // On demand is left only once a spot pool has proved itself.
        spec.balancing_strategy = BalancingStrategy::SpotPreferred;
        let mut member = on_pool("a", standing_by("1"));
        member.pod.as_mut().unwrap().pool.as_mut().unwrap().capacity_type = CapacityType::OnDemand;
        let members = [member];
        let outgoing = |verdict| {
            let balance = Balance::of(&spec, &BTreeSet::new(), with("a", verdict)).unwrap();
            (balance.open.len(), balance.outgoing(&members, 2).len())
        };
        assert_eq!(outgoing(Viability::NotViable), (1, 0));
        assert_eq!(outgoing(Viability::Probing), (2, 0));
        assert_eq!(outgoing(Viability::Viable), (1, 1));
    }

    /// Row F8: what is dearer gets no new server, and nothing moves for a price.
    #[test]
    fn a_group_may_ask_for_the_cheapest_pools() {
        let mut group = group_on(&["a", "b", "c", "d"]);
        group.spec.instance_definitions[1].weighted_capacity = 4;
        let priced = |pool: &Pool| {
            let price = match pool.instance_type.as_str() {
                "a" => Some(0.3),
                "b" => Some(1.0),
                "c" => Some(0.4),
                _ => None,
            };
            Fitness { verdict: Viability::Viable, price }
        };
        group.spec.cheapest_pools = Some(2);
        let cheap = Balance::of(&group.spec, &BTreeSet::new(), priced).unwrap();
        assert_eq!(types(&cheap.places([].iter(), 5)), ["b", "b", "b", "b", "a"]);
        assert!(cheap.outgoing(&[on_pool("d", standing_by("1"))], 1).is_empty());
        group.spec.cheapest_pools = Some(9);
        assert_eq!(Balance::of(&group.spec, &BTreeSet::new(), priced).unwrap().open.len(), 4);
        // A probed one does not stand for the others.
        group.spec.cheapest_pools = Some(1);
        let probed = |pool: &Pool| {
            let verdict = if pool.instance_type == "b" { Viability::Probing } else { Viability::Viable };
            Fitness { verdict, ..priced(pool) }
        };
        let probed = Balance::of(&group.spec, &BTreeSet::new(), probed).unwrap();
        assert_eq!(types(&probed.places([].iter(), 3)), ["b", "a", "a"]);
    }

    #[test]
    fn what_is_on_a_pool_that_is_not_viable_moves_unless_that_is_suspended() {
        let members = [on_pool("a", standing_by("1")), on_pool("b", active("2"))];
        let balance = balance(&["a", "b"], without("b"));
        let names = |balance: &Balance| -> Vec<String> {
            balance.outgoing(&members, 2).iter().map(|member| member.name().to_owned()).collect()
        };
        assert_eq!(names(&balance), ["2"]);
        // Row F17.
        let mut spec = group_on(&["a", "b"]).spec;
        spec.suspended_actions = vec![SuspendedAction::ReplaceInstanceTypes];
        let suspended = Balance::of(&spec, &BTreeSet::new(), without("b")).unwrap();
        assert!(names(&suspended).is_empty());
        assert_eq!(types(&suspended.places([].iter(), 2)), ["a", "a"]);
        let pod = members[1].pod.as_ref().unwrap();
        assert_eq!(cause(&spec, pod, without("b")), None);
        let balanced = group_on(&["a", "b"]).spec;
        assert_eq!(cause(&balanced, pod, without("b")).unwrap(), "its capacity pool b/spot/ is not viable");
    }

    #[test]
    fn what_was_made_before_a_zone_was_known_stays() {
        let zones = BTreeSet::from(["z1".to_owned()]);
        let balance = Balance::of(&group_on(&["a"]).spec, &zones, ALL).unwrap();
        assert!(balance.outgoing(&[on_pool("a", standing_by("1"))], 1).is_empty());
        assert_eq!(balance.outgoing(&[on_pool("b", standing_by("1"))], 1).len(), 1);
    }

    /// The group drifts back to balance, one server at a time, and rests once it is even.
    #[test]
    fn one_of_too_many_moves_and_no_more() {
        let balance = balance(&["a", "b"], ALL);
        let on = |types: &[&str]| -> Vec<Member> {
            let member = |(index, type_): (usize, &&str)| on_pool(type_, standing_by(&format!("m{index}")));
            types.iter().enumerate().map(member).collect()
        };
        assert_eq!(balance.outgoing(&on(&["a", "a", "a", "b"]), 4)[0].name(), "m0");
        assert!(balance.outgoing(&on(&["a", "a", "b"]), 3).is_empty());
        assert!(balance.outgoing(&on(&["a", "a", "b", "b"]), 4).is_empty());
        // One is still to be made: nothing moves for evenness meanwhile.
        assert!(balance.outgoing(&on(&["a", "a", "a", "b"]), 5).is_empty());
        let mut played = on(&["a", "a", "a", "b"]);
        for member in &mut played {
            member.server.as_mut().unwrap().state = crate::api::State::Active;
        }
        assert!(balance.outgoing(&played, 4).is_empty());
        assert_eq!(pool("a", ""), balance.open[0].0);
    }

    /// Row K3.
    #[test]
    fn a_group_shows_where_it_is_and_what_it_may_not_use() {
        let balance = balance(&["a", "b", "c"], without("b"));
        let shown = balance.pools(&[on_pool("a", standing_by("1")), on_pool("b", active("2"))]);
        let shown: Vec<_> =
            shown.iter().map(|entry| (entry.pool.as_str(), entry.verdict, entry.servers)).collect();
        assert_eq!(shown, [("a/spot/", Viability::Viable, 1), ("b/spot/", Viability::NotViable, 1)]);
    }

    #[test]
    fn replacements_are_launched_within_the_surge() {
        let balance = balance(&["a"], ALL);
        // All eight are idle on a pool that is left: two more at first.
        assert_eq!(balance.room(8, 0, 8), 2);
        assert_eq!(balance.room(8, 2, 8), 0);
        assert_eq!(balance.room(8, 2, 6), 2);
        // Those that are played make no room scarce: they go when their games end.
        assert_eq!(balance.room(8, 0, 0), 8);
        assert_eq!(balance.room(0, 0, 4), 0);
    }
}
