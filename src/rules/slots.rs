//! A group's members by the slot that they fill.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::names::pod_name;
use super::observed::Member;
use crate::api::State;

/// How a member stands to the number of its group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// It counts.
    Counts,
    /// It still runs, but is to end, and is replaced already.
    Marked,
    /// It is on its way out, or out.
    Ending,
}

/// How `member` stands to the number of its group.
pub fn standing(member: &Member) -> Standing {
    let Some(pod) = &member.pod else { return Standing::Ending };
    if pod.deleting || pod.ended().is_some() {
        return Standing::Ending;
    }
    match &member.server {
        Some(server) if server.is_ending() => Standing::Ending,
        Some(server) if server.is_replaced() => Standing::Marked,
        Some(_) | None => Standing::Counts,
    }
}

/// Whether `member` counts toward the number of its group.
pub fn counts(member: &Member) -> bool {
    standing(member) == Standing::Counts
}

/// Ready for players on a node that answers, or in use: what a group is to have `replicas` of.
pub(super) fn is_ready(member: &Member) -> bool {
    let in_use = member.server.as_ref().is_some_and(|server| server.state == State::Active);
    if !in_use && member.pod.as_ref().is_some_and(|pod| !pod.ready) {
        return false;
    }
    let reported = member
        .server
        .as_ref()
        .is_some_and(|server| (State::StandingBy..=State::Active).contains(&server.state));
    reported && counts(member)
}

/// The members of a group by slot, the older ones first.
pub(super) struct Slots<'a> {
    slots: BTreeMap<u32, Vec<Place<'a>>>,
}

/// A member in its slot.
struct Place<'a> {
    made: (Timestamp, &'a str),
    member: &'a Member,
}

impl<'a> Slots<'a> {
    pub(super) fn of(members: &'a [Member]) -> Self {
        let mut slots: BTreeMap<u32, Vec<Place<'a>>> = BTreeMap::new();
        for member in members {
            let place = match (&member.pod, &member.server) {
                (Some(pod), _) => Some((pod.slot, (pod.created_at, pod.uid.as_str()))),
                // Its pod has gone; it still tells whom the next one follows.
                (None, Some(server)) => {
                    server.slot.map(|slot| (slot, (server.created_at, server.pod_uid.as_str())))
                }
                (None, None) => None,
            };
            if let Some((slot, made)) = place {
                slots.entry(slot).or_default().push(Place { made, member });
            }
        }
        for places in slots.values_mut() {
            places.sort_by_key(|place| place.made);
        }
        Self { slots }
    }

    /// The slots that somebody is in, with whether one of them counts.
    pub(super) fn occupied(&self) -> impl Iterator<Item = (u32, bool)> {
        self.slots.iter().map(|(slot, places)| (*slot, places.iter().any(|place| counts(place.member))))
    }

    /// Everybody in `slot`.
    pub(super) fn members(&self, slot: u32) -> impl Iterator<Item = &'a Member> {
        self.slots.get(&slot).into_iter().flatten().map(|place| place.member)
    }

    /// Everybody.
    pub(super) fn all(&self) -> impl Iterator<Item = &'a Member> {
        self.slots.values().flatten().map(|place| place.member)
    }

    /// Whom the next pod of `slot` follows, with its pod's UID: the one who has no successor here yet. Times alone
    /// cannot tell: they have whole seconds.
    pub(super) fn last(&self, slot: u32, group: &str, group_uid: &str) -> Option<(&'a Member, &'a str)> {
        let places = self.slots.get(&slot)?;
        let names: BTreeSet<&str> = places.iter().map(|place| place.member.name()).collect();
        let followed =
            |place: &&Place<'_>| names.contains(pod_name(group, group_uid, slot, place.made.1).as_str());
        let last = places.iter().rev().find(|place| !followed(place)).or_else(|| places.last())?;
        Some((last.member, last.made.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::creating;

    /// Both were made in the same second, and the one that came later sorts first.
    #[test]
    fn the_last_of_a_slot_is_the_one_without_a_successor() {
        let mut first = creating("a");
        first.pod.as_mut().unwrap().uid = "z".to_owned();
        let mut second = creating("b");
        let pod = second.pod.as_mut().unwrap();
        (pod.uid, pod.name) = ("y".to_owned(), pod_name("arena", "uid", 0, "z"));
        let members = [first, second];
        let last = Slots::of(&members).last(0, "arena", "uid").map(|(_, uid)| uid);
        assert_eq!(last, Some("y"));
    }
}
