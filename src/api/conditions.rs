//! Conditions: set so that `lastTransitionTime` moves on a transition only, or a status would never rest.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The group has all the servers it wants, ready.
pub const READY: &str = "Ready";
/// The template is one that pods can be made from.
pub const TEMPLATE_ACCEPTED: &str = "TemplateAccepted";
/// `spec.replicas` lies within `minSize` and `maxSize`.
pub const REPLICAS_IN_BOUNDS: &str = "ReplicasInBounds";
/// New servers come up as they should: False says what stops them.
pub const PROGRESSING: &str = "Progressing";
/// The group is being deleted, and what it waits for.
pub const DELETING: &str = "Deleting";
/// The group's agents answer pokes.
pub const AGENTS_REACHABLE: &str = "AgentsReachable";

/// The group's servers are on the capacity pools that they are to be on: False says which move.
pub const BALANCED: &str = "Balanced";

/// The API server's limit for a condition's message.
const MESSAGE_LIMIT: usize = 32_768;

/// A condition as a rule finds it, without its times.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// Its type, such as [`READY`].
    pub type_: &'static str,
    /// Whether it holds.
    pub holds: Holds,
    /// One CamelCase word.
    pub reason: String,
    /// The reason in words, with the numbers.
    pub message: String,
}

/// A condition's status.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Holds {
    /// `"True"`.
    True,
    /// `"False"`.
    False,
}

impl Holds {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
        }
    }
}

/// The conditions that `findings` make of `before`: a condition that is found no more goes.
pub fn apply(
    before: &[Condition],
    findings: Vec<Finding>,
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    findings
        .into_iter()
        .map(|finding| {
            let status = finding.holds.as_str();
            let since = before
                .iter()
                .find(|old| old.type_ == finding.type_ && old.status == status)
                .map_or(Time(now), |old| old.last_transition_time.clone());
            Condition {
                type_: finding.type_.to_owned(),
                status: status.to_owned(),
                reason: finding.reason,
                message: finding.message.chars().take(MESSAGE_LIMIT).collect(),
                last_transition_time: since,
                observed_generation: Some(generation),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(holds: Holds, message: &str) -> Vec<Finding> {
        vec![Finding { type_: READY, holds, reason: "R".into(), message: message.into() }]
    }

    #[test]
    fn time_moves_on_a_transition_only() {
        let first = apply(&[], ready(Holds::False, "0 of 3"), 1, Timestamp::UNIX_EPOCH);
        let later = Timestamp::from_second(60).unwrap();

        let same = apply(&first, ready(Holds::False, "1 of 3"), 1, later);
        assert_eq!(same[0].last_transition_time, first[0].last_transition_time);
        assert_eq!(same[0].message, "1 of 3");

        let turned = apply(&same, ready(Holds::True, "3 of 3"), 1, later);
        assert_eq!(turned[0].last_transition_time, Time(later));
    }

    #[test]
    fn what_is_found_no_more_goes() {
        let first = apply(&[], ready(Holds::True, ""), 1, Timestamp::UNIX_EPOCH);
        assert!(apply(&first, Vec::new(), 1, Timestamp::UNIX_EPOCH).is_empty());
    }
}
