//! Capacity pools: which there are to be, and what they are called.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::names::short_hash;
use crate::api::names::LABEL_OWNER;
use crate::api::{BalancingStrategy, Capacity, CapacityPool, CapacityType, GameServerGroupSpec, Viability};

/// What tells a pool from others. An empty zone is any.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Pool {
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// The instance type.
    pub instance_type: String,
    /// The zone.
    pub zone: String,
}

impl Pool {
    /// The pool that a resource speaks of.
    pub fn of(pool: &CapacityPool) -> Self {
        Self {
            capacity_type: pool.spec.capacity_type,
            instance_type: pool.spec.instance_type.clone(),
            zone: pool.spec.zone.clone(),
        }
    }

    /// The pool that a node's labels name.
    pub fn of_node(capacity: &Capacity) -> Option<Self> {
        let (instance_type, capacity_type) = (capacity.instance_type.clone()?, capacity.capacity_type?);
        Some(Self { capacity_type, instance_type, zone: capacity.zone.clone().unwrap_or_default() })
    }

    /// Whether a node of `other` is one of this pool's.
    pub fn holds(&self, other: &Self) -> bool {
        let any = self.zone.is_empty() || self.zone == other.zone;
        any && self.is_beside(other)
    }

    /// Whether both are of one type, paid for alike, in whatever zones.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.capacity_type == other.capacity_type && self.instance_type == other.instance_type
    }

    /// The name of the resource of `owner`'s that speaks of it: a type such as `Standard_D4s_v5` is no object's name, and
    /// two operators in one cluster have pools of their own.
    pub fn name(&self, owner: &str) -> String {
        let readable: String = self
            .to_string()
            .chars()
            .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' })
            .take(180)
            .collect();
        format!("{}-{}", readable.trim_matches('-'), short_hash(&format!("{owner}/{self}")))
    }

    /// The pool that [`Self::to_string`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '/');
        let (instance_type, capacity_type, zone) = (parts.next()?, parts.next()?, parts.next()?);
        let capacity_type = match capacity_type {
            "spot" => CapacityType::Spot,
            "on-demand" => CapacityType::OnDemand,
            _ => return None,
        };
        Some(Self { capacity_type, instance_type: instance_type.to_owned(), zone: zone.to_owned() })
    }
}

/// What a pool is worth to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fitness {
    /// Whether it is fit for games.
    pub verdict: Viability,
    /// What one of its nodes costs an hour, if that is known.
    pub price: Option<f64>,
}

/// As `c7g.large/spot/zone-a`.
impl fmt::Display for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity_type = match self.capacity_type {
            CapacityType::Spot => "spot",
            CapacityType::OnDemand => "on-demand",
        };
        write!(formatter, "{}/{capacity_type}/{}", self.instance_type, self.zone)
    }
}

/// What the resources of `owner`'s pools are told by.
pub fn labels(owner: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(LABEL_OWNER.to_owned(), owner.to_owned())])
}

/// The pools that a group may use, in these zones; all zones are one where none is known.
pub fn named<'a>(
    spec: &'a GameServerGroupSpec,
    zones: &'a BTreeSet<String>,
) -> impl Iterator<Item = (Pool, i32)> + 'a {
    let capacity_types: &[CapacityType] = match spec.balancing_strategy {
        BalancingStrategy::SpotPreferred => &[CapacityType::Spot, CapacityType::OnDemand],
        BalancingStrategy::SpotOnly => &[CapacityType::Spot],
        BalancingStrategy::OnDemandOnly => &[CapacityType::OnDemand],
    };
    let anywhere = zones.is_empty().then(String::new);
    let places = move || zones.iter().cloned().chain(anywhere.clone());
    spec.instance_definitions.iter().flat_map(move |definition| {
        let places = places.clone();
        capacity_types.iter().flat_map(move |capacity_type| {
            places().map(move |zone| {
                let instance_type = definition.instance_type.clone();
                let pool = Pool { capacity_type: *capacity_type, instance_type, zone };
                (pool, definition.weighted_capacity)
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures;

    #[test]
    fn a_pool_is_written_and_read() {
        let pool = fixtures::pool("Standard_D4s_v5", "zone-1");
        assert_eq!(pool.to_string(), "Standard_D4s_v5/spot/zone-1");
        assert_eq!(Pool::parse(&pool.to_string()), Some(pool.clone()));
        assert_eq!(Pool::parse("a/reserved/b"), None);
        let name = pool.name("gamekeeper-system");
        assert!(name.starts_with("standard-d4s-v5-spot-zone-1-"), "{name}");
        assert_ne!(name, pool.name("other"));
    }

    #[test]
    fn a_group_names_its_types_in_each_zone_as_its_strategy_says() {
        let mut spec = fixtures::group_on(&["a", "b"]).spec;
        let count = |spec: &GameServerGroupSpec, zones: &[&str]| {
            let zones = zones.iter().map(ToString::to_string).collect();
            named(spec, &zones).count()
        };
        assert_eq!(count(&spec, &[]), 4);
        assert_eq!(count(&spec, &["z1", "z2", "z3"]), 12);
        spec.balancing_strategy = BalancingStrategy::SpotOnly;
        assert_eq!(count(&spec, &["z1", "z2", "z3"]), 6);
    }
}
