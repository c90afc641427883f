//! Row F2: `replicas` as in force, within `minSize` and `maxSize`; the spec is left as written. Row A9: claims that
//! wait for a server add to it.

use crate::api::GameServerGroupSpec;

/// The number of servers in force, and what bounded it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InForce {
    /// How many servers the group is to have.
    pub desired: u32,
    /// How many claims wait for one of its servers.
    pub waiting: usize,
    /// What moved it away from `spec.replicas`.
    pub bound: Option<Bound>,
}

/// What moves the number in force away from `spec.replicas`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bound {
    /// Raised to `minSize`.
    Min,
    /// Cut to `maxSize`.
    Max,
    /// Raised to what is in use and what is waited for.
    Waiting,
}

/// What a group's servers are wanted for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Demand {
    /// How many claims wait for one of them.
    pub waiting: usize,
    /// How many of them are in use.
    pub in_use: usize,
}

/// The number in force for `spec`.
pub fn in_force(spec: &GameServerGroupSpec, demand: Demand) -> InForce {
    let (min, max) = (spec.min_size, spec.max_size.unwrap_or(i32::MAX));
    let (kept, bound) = match spec.replicas {
        replicas if replicas > max => (max, Some(Bound::Max)),
        replicas if replicas < min => (min, Some(Bound::Min)),
        replicas => (replicas, None),
    };
    let Demand { waiting, in_use } = demand;
    let wanted = i32::try_from(in_use.saturating_add(waiting)).unwrap_or(i32::MAX).min(max);
    let (desired, bound) =
        if waiting > 0 && wanted > kept { (wanted, Some(Bound::Waiting)) } else { (kept, bound) };
    InForce { desired: u32::try_from(desired).unwrap_or(0), waiting, bound }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures;

    #[test]
    fn replicas_count_within_min_and_max() {
        let mut spec = fixtures::group().spec;
        spec.min_size = 2;
        spec.max_size = Some(5);
        for (replicas, desired, bound) in
            [(0, 2, Some(Bound::Min)), (2, 2, None), (4, 4, None), (9, 5, Some(Bound::Max))]
        {
            spec.replicas = replicas;
            let in_force = in_force(&spec, Demand::default());
            assert_eq!((in_force.desired, in_force.bound), (desired, bound));
        }
    }

    /// Row A9. A group of none wants one for whoever waits; where enough are idle or starting, nothing is added.
    #[test]
    fn who_waits_adds_to_what_is_in_use() {
        let mut spec = fixtures::group().spec;
        for (replicas, max, waiting, in_use, desired, bound) in [
            (0, None, 1, 0, 1, Some(Bound::Waiting)),
            (0, None, 0, 1, 0, None),
            (10, None, 2, 4, 10, None),
            (10, None, 2, 10, 12, Some(Bound::Waiting)),
            (10, Some(11), 2, 10, 11, Some(Bound::Waiting)),
            (10, Some(10), 2, 10, 10, None),
        ] {
            (spec.replicas, spec.max_size) = (replicas, max);
            let in_force = in_force(&spec, Demand { waiting, in_use });
            assert_eq!((in_force.desired, in_force.bound), (desired, bound), "{replicas} {waiting} {in_use}");
        }
    }
}
