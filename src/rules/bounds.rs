//! Row F2: `replicas` as in force, within `minSize` and `maxSize`; the spec is left as written.

use crate::api::GameServerGroupSpec;

/// The number of servers in force, and what bounded it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InForce {
    /// How many servers the group is to have.
    pub desired: u32,
    /// What moved it away from `spec.replicas`.
    pub bound: Option<Bound>,
}

/// A bound that overrules `spec.replicas`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bound {
    /// Raised to `minSize`.
    Min,
    /// Cut to `maxSize`.
    Max,
}

/// The number in force for `spec`.
pub fn in_force(spec: &GameServerGroupSpec) -> InForce {
    let (min, max) = (spec.min_size, spec.max_size.unwrap_or(i32::MAX));
    let (desired, bound) = match spec.replicas {
        replicas if replicas > max => (max, Some(Bound::Max)),
        replicas if replicas < min => (min, Some(Bound::Min)),
        replicas => (replicas, None),
    };
    InForce { desired: u32::try_from(desired).unwrap_or(0), bound }
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
            assert_eq!(in_force(&spec), InForce { desired, bound });
        }
    }
}
