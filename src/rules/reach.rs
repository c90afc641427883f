//! Whether a group's agents can be reached, from what is remembered of their pokes: a condition of the group.

use super::observed::Member;
use super::poked::{self, Poked};
use crate::api::GameServerGroup;
use crate::api::conditions::{AGENTS_REACHABLE, Finding, Holds};
use crate::api::names::POKE_PORT;

/// How many pokes in a row an agent may miss, as when it is just being started again.
const MISSES: u32 = 2;
/// How many slots, from the first, are asked when more is said of a group than this process has seen.
const SAMPLE: u32 = 16;

/// How the agents of a group answer.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reach {
    /// How many answered the last poke.
    pub(super) reached: usize,
    /// How many did not, and not the one before.
    pub(super) missed: usize,
    /// How many are to be asked and have not been.
    pub(super) unknown: usize,
    /// The first of those who did not, by name, and what its poke met.
    pub(super) example: Option<String>,
}

/// The reach of a group with these members, of whose pokes this is remembered.
pub fn reach<'a>(members: &'a [Member], last: impl Fn(&'a Member) -> Option<&'a Poked>) -> Reach {
    let mut reach = Reach::default();
    let mut first: Option<&Member> = None;
    for member in members {
        let Some(address) = poked::address(member) else { continue };
        match last(member) {
            Some(last) if misses(last) => {
                reach.missed += 1;
                if first.is_none_or(|first| member.name() < first.name()) {
                    first = Some(member);
                    let error = last.error.as_deref().unwrap_or_default();
                    reach.example = Some(format!("{} at {address}: {error}", member.name()));
                }
            }
            Some(last) if last.missed == 0 => reach.reached += 1,
            Some(_) => reach.unknown += 1,
            None if is_in_sample(member) => reach.unknown += 1,
            None => {}
        }
    }
    reach
}

/// Whether an agent of which this is remembered counts as one that does not answer.
pub fn misses(last: &Poked) -> bool {
    last.missed >= MISSES
}

/// Whether the group says that its agents cannot be reached.
pub fn is_in_doubt(group: &GameServerGroup) -> bool {
    let conditions = group.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == AGENTS_REACHABLE && condition.status == "False")
}

/// Whether a member is asked when its group is in doubt.
pub(super) fn is_in_sample(member: &Member) -> bool {
    member.pod.as_ref().is_some_and(|pod| pod.slot < SAMPLE)
}

/// The condition of a group; none for one without agents.
pub fn finding(group: &GameServerGroup, reach: &Reach) -> Option<Finding> {
    group.spec.agent.as_ref()?;
    let finding =
        |holds, reason: String, message| Some(Finding { type_: AGENTS_REACHABLE, holds, reason, message });
    if let Some(example) = &reach.example {
        let (missed, asked) = (reach.missed, reach.missed + reach.reached);
        let message = format!(
            "of the {asked} agents that were poked last, {missed} do not answer ({example}): their games do not hear \
             of claims; let the operator's pods reach TCP port {POKE_PORT} of these (NetworkPolicies, the pod network)"
        );
        return finding(Holds::False, "PokesFail".to_owned(), message);
    }
    let before = group.status.iter().flat_map(|status| &status.conditions);
    let before = before.into_iter().find(|condition| condition.type_ == AGENTS_REACHABLE);
    match before.filter(|before| before.status == "False" && reach.unknown > 0) {
        // What another process found stands until this one knows.
        Some(before) => finding(Holds::False, before.reason.clone(), before.message.clone()),
        None => finding(Holds::True, "Reachable".to_owned(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{at, conditioned, group, group_with_agent, standing_by, with_agent};

    fn missed(count: u32) -> Poked {
        Poked { at: at(0), about: None, count: 1, missed: count, error: Some("Connection refused".into()) }
    }

    /// The condition of a group of two, a and b, whose agents missed so many pokes; none of one not yet poked.
    fn found(group: &GameServerGroup, misses: [Option<u32>; 2]) -> Finding {
        let members = ["b", "a"].map(|name| with_agent(standing_by(name)));
        let known = misses.map(|misses| misses.map(missed));
        let of = |member: &Member| known[usize::from(member.name() == "b")].as_ref();
        finding(group, &reach(&members, of)).unwrap()
    }

    #[test]
    fn agents_that_do_not_answer_are_told_of_and_heal() {
        let group = group_with_agent();
        assert_eq!(found(&group, [None, None]).holds, Holds::True);
        assert_eq!(found(&group, [Some(1), None]).holds, Holds::True);
        let found_out = found(&group, [Some(2), Some(0)]);
        assert_eq!(found_out.holds, Holds::False);
        let words =
            "of the 2 agents that were poked last, 1 do not answer (a at 10.0.0.1:9355: Connection refused)";
        assert!(found_out.message.starts_with(words), "{}", found_out.message);
        let doubted = conditioned(group, AGENTS_REACHABLE, "False");
        assert_eq!(found(&doubted, [Some(0), Some(0)]).holds, Holds::True);
    }

    /// Invariant I4: nothing moves the message while the same agents go on missing.
    #[test]
    fn the_words_rest() {
        let group = group_with_agent();
        assert_eq!(found(&group, [Some(2), Some(2)]), found(&group, [Some(3), Some(9)]));
        assert!(found(&group, [Some(2), Some(2)]).message.contains("(a at"));
    }

    #[test]
    fn what_another_process_found_stands_until_this_one_knows() {
        let doubted = conditioned(group_with_agent(), AGENTS_REACHABLE, "False");
        assert_eq!(found(&doubted, [None, None]).holds, Holds::False);
        assert_eq!(found(&doubted, [Some(0), None]).holds, Holds::False);
        assert_eq!(found(&doubted, [Some(0), Some(1)]).holds, Holds::False);
        assert_eq!(finding(&doubted, &Reach::default()).unwrap().holds, Holds::True);
    }

    #[test]
    fn a_group_without_agents_has_no_such_condition() {
        assert_eq!(finding(&group(), &Reach::default()), None);
    }
}
