//! Rows F8 and F9: of the pools that a group names, those that its servers may be on, and those that new ones go to.

use std::collections::BTreeSet;

use super::pool::{self, Fitness, Pool};
use crate::api::{BalancingStrategy, CapacityType, GameServerGroupSpec, Viability};

/// A pool that a group names.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) pool: Pool,
    /// How many game servers one of its nodes holds.
    pub(super) weight: i32,
    pub(super) fitness: Fitness,
}

impl Named {
    /// What a game server costs there.
    fn price(&self) -> f64 {
        self.fitness.price.map_or(f64::INFINITY, |price| price / f64::from(self.weight.max(1)))
    }

    fn is(&self, verdict: Viability) -> bool {
        self.fitness.verdict == verdict
    }
}

/// The pools that a group names, in these zones.
pub(super) fn named(
    spec: &GameServerGroupSpec,
    zones: &BTreeSet<String>,
    fitness: impl Fn(&Pool) -> Fitness,
) -> Vec<Named> {
    let named = pool::named(spec, zones).map(|(pool, weight)| {
        let fitness = fitness(&pool);
        Named { pool, weight, fitness }
    });
    named.collect()
}

/// Row F9: the pools that servers may be on. A spot pool that is probed takes one server at a time, so that on-demand
/// capacity stays the way out until one has proved itself.
pub(super) fn kept(strategy: BalancingStrategy, named: &[Named]) -> Vec<Named> {
    let of = |capacity_type: CapacityType, fits: &dyn Fn(&Named) -> bool| -> Vec<Named> {
        named
            .iter()
            .filter(|named| named.pool.capacity_type == capacity_type && fits(named))
            .cloned()
            .collect()
    };
    let spot = of(CapacityType::Spot, &|named| !named.is(Viability::NotViable));
    // Somewhere the games must go: of on-demand capacity any will do where none is viable.
    let on_demand = || {
        let viable = of(CapacityType::OnDemand, &|named| !named.is(Viability::NotViable));
        if viable.is_empty() { of(CapacityType::OnDemand, &|_| true) } else { viable }
    };
    match strategy {
        BalancingStrategy::SpotPreferred if spot.iter().all(|named| named.is(Viability::Probing)) => {
            spot.into_iter().chain(on_demand()).collect()
        }
        BalancingStrategy::SpotPreferred | BalancingStrategy::SpotOnly => spot,
        BalancingStrategy::OnDemandOnly => on_demand(),
    }
}

/// Row F8: the pools that new servers go to: all of these, or the cheapest so many, by what a game server costs there. Those of unknown price come last, and those that are
/// probed beside the others.
pub(super) fn open(mut kept: Vec<Named>, count: Option<i32>) -> Vec<Named> {
    let Some(mut left) = count else { return kept };
    kept.sort_by(|one, other| one.price().total_cmp(&other.price()));
    kept.retain(|named| {
        let taken = left > 0;
        if taken && !named.is(Viability::Probing) {
            left -= 1;
        }
        taken
    });
    kept
}
