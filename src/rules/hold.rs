//! Row F2: hold the number of servers that is in force.
//!
//! Each server fills a slot of its group. A slot without a server that counts gets a new one, named after the
//! slot and the pod that filled it last, so that a stale view makes no pod too many (case C13).

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::launch::{self, Retry};
use super::names::pod_name;
use super::observed::{Game, Member, Pod, Server};
use super::patch::ServerPatch;
use super::retire;
use crate::api::{EndReason, State};

/// What to do so that the number holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Pods to make.
    pub create: Vec<Launch>,
    /// Idle servers to retire.
    pub retire: Vec<Retire>,
    /// Failed pods whose slot is filled again, or is not wanted any more, as (name, UID).
    pub give_up: Vec<(String, String)>,
    /// Slots that wait after a failure.
    pub waiting: Vec<Waiting>,
}

/// A pod to make.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Launch {
    /// The place it fills.
    pub slot: u32,
    /// Its name.
    pub name: String,
    /// How many of its predecessors failed in a row.
    pub attempt: u32,
}

/// An idle server to retire.
#[derive(Clone, Debug, PartialEq)]
pub struct Retire {
    /// Its name.
    pub name: String,
    /// What retires it, if it is still idle.
    pub patch: ServerPatch,
    /// Why, in one word.
    pub reason: EndReason,
    /// Why, in words.
    pub message: String,
}

/// A slot that waits before it is filled again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Waiting {
    /// The pod that failed there last.
    pub failed: String,
    /// How it failed.
    pub message: String,
    /// How many have failed there in a row.
    pub failures: u32,
    /// When it is filled again.
    pub until: Timestamp,
}

/// How a member stands to the number.
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
        Some(server) if server.is_marked() => Standing::Marked,
        Some(_) | None => Standing::Counts,
    }
}

/// The group that a plan is for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its name.
    pub group: &'a str,
    /// Its UID.
    pub group_uid: &'a str,
    /// The revision of its template.
    pub revision: &'a str,
    /// The number in force.
    pub desired: u32,
}

/// The plan for a group whose `members` are all that is seen of it.
pub fn plan(wanted: Wanted<'_>, members: &[Member], now: Timestamp) -> Plan {
    let slots = by_slot(members);
    let counted = members.iter().filter(|member| standing(member) == Standing::Counts).count();
    let desired = usize::try_from(wanted.desired).unwrap_or(usize::MAX);
    let mut plan = Plan::default();
    fill(&mut plan, wanted, &slots, desired.saturating_sub(counted), now);
    thin_out(&mut plan, &slots, (counted, desired), now);
    give_up_stillborn(&mut plan, wanted, &slots, now);
    plan
}

/// A member in its slot.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    created_at: Timestamp,
    pod_uid: &'a str,
    member: &'a Member,
}

/// The members of each slot, the newest last.
type Slots<'a> = BTreeMap<u32, Vec<Place<'a>>>;

fn by_slot(members: &[Member]) -> Slots<'_> {
    let mut slots = Slots::new();
    for member in members {
        let place = match (&member.pod, &member.server) {
            (Some(pod), _) => Some((pod.slot, pod.created_at, pod.uid.as_str())),
            // Its pod has gone; it still tells whom the next one follows.
            (None, Some(server)) => {
                server.slot.map(|slot| (slot, server.created_at, server.pod_uid.as_str()))
            }
            (None, None) => None,
        };
        if let Some((slot, created_at, pod_uid)) = place {
            slots.entry(slot).or_default().push(Place { created_at, pod_uid, member });
        }
    }
    for slot in slots.values_mut() {
        slot.sort_by_key(|place| (place.created_at, place.pod_uid));
    }
    slots
}

/// Fills the lowest slots that have no server that counts.
fn fill(plan: &mut Plan, group: Wanted<'_>, slots: &Slots<'_>, missing: usize, now: Timestamp) {
    let empty = Vec::new();
    let mut missing = missing;
    for slot in 0.. {
        let beyond = slots.keys().next_back().is_none_or(|last| slot > *last);
        if missing == 0 && beyond {
            return;
        }
        let members = slots.get(&slot).unwrap_or(&empty);
        let filled = members.iter().any(|place| standing(place.member) == Standing::Counts);
        if filled || missing == 0 {
            plan.give_up.extend(members.iter().filter_map(|place| kept(place.member)));
            continue;
        }
        missing -= 1;
        let last = members.last();
        let retry = last.and_then(|place| retry(place.member, group.revision));
        match (retry, last) {
            (Some(retry), Some(place)) if retry.not_before > now => plan.waiting.push(Waiting {
                failed: place.member.name().to_owned(),
                message: retry.message,
                failures: retry.attempt,
                until: retry.not_before,
            }),
            (retry, last) => plan.create.push(Launch {
                slot,
                name: pod_name(group.group, group.group_uid, slot, last.map_or("", |place| place.pod_uid)),
                attempt: retry.map_or(0, |retry| retry.attempt),
            }),
        }
    }
}

/// When the slot may be filled again after `last`; a new template is tried at once.
fn retry(last: &Member, revision: &str) -> Option<Retry> {
    let same = last.pod.as_ref().is_some_and(|pod| pod.revision == revision);
    launch::retry(last).filter(|_| same)
}

/// A failed pod that rules/life.rs leaves to us.
fn kept(member: &Member) -> Option<(String, String)> {
    let (pod, server) = (member.pod.as_ref()?, member.server.as_ref()?);
    let failed = server.end.as_ref().is_some_and(|end| end.reason.is_failure());
    let done = server.state == State::Terminated && pod.ended().is_some() && !pod.deleting;
    (failed && done).then(|| (pod.name.clone(), pod.uid.clone()))
}

/// Retires idle servers above the number: what is not ready first, the youngest first. A game or a claim is
/// never ended for it (invariant I3): those stay until they end.
fn thin_out(plan: &mut Plan, slots: &Slots<'_>, (counted, desired): (usize, usize), now: Timestamp) {
    let mut idle: Vec<(&Pod, &Server)> = idle(slots).collect();
    idle.sort_by_key(|(pod, server)| (server.state, std::cmp::Reverse((pod.created_at, pod.slot))));
    for (_, server) in idle.into_iter().take(counted.saturating_sub(desired)) {
        let message = format!("the group has {counted} servers and wants {desired}");
        plan.retire.push(retire_idle(server, EndReason::ScaledIn, message, now));
    }
}

/// Servers that count and may be retired.
fn idle<'a>(slots: &Slots<'a>) -> impl Iterator<Item = (&'a Pod, &'a Server)> {
    slots
        .values()
        .flatten()
        .filter(|place| standing(place.member) == Standing::Counts)
        .filter_map(|place| Some((place.member.pod.as_ref()?, place.member.server.as_ref()?)))
        .filter(|(_, server)| retire::is_idle(server))
}

fn retire_idle(server: &Server, reason: EndReason, message: String, now: Timestamp) -> Retire {
    let patch = retire::when_idle(server, reason, &message, now);
    Retire { name: server.name.clone(), patch, reason, message }
}

/// Retires pods that never started and are of an older template: whoever mends an image's name does not wait for
/// the launch timeout of those that cannot be pulled.
fn give_up_stillborn(plan: &mut Plan, wanted: Wanted<'_>, slots: &Slots<'_>, now: Timestamp) {
    let stillborn = |pod: &Pod, server: &Server| {
        let unstarted = server.state == State::Creating && matches!(pod.game, Game::Waiting { .. });
        unstarted && pod.revision != wanted.revision
    };
    for (_, server) in idle(slots).filter(|(pod, server)| stillborn(pod, server)) {
        if plan.retire.iter().all(|retired| retired.name != server.name) {
            let message = "its template was replaced before its game had started".to_owned();
            plan.retire.push(retire_idle(server, EndReason::Outdated, message, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Shutdown;
    use crate::rules::fixtures::{active, at, claimed, crashed, creating, in_slot, standing_by};

    fn plan_for(desired: u32, members: &[Member]) -> Plan {
        let wanted = Wanted { group: "arena", group_uid: "uid", revision: "r1", desired };
        plan(wanted, members, at(100))
    }

    fn slots(plan: &Plan) -> Vec<u32> {
        plan.create.iter().map(|launch| launch.slot).collect()
    }

    fn retired(plan: &Plan) -> Vec<&str> {
        plan.retire.iter().map(|retired| retired.name.as_str()).collect()
    }

    #[test]
    fn empty_slots_are_filled_from_the_lowest() {
        let members = [in_slot(1, standing_by("b"))];
        assert_eq!(slots(&plan_for(3, &members)), [0, 2]);
    }

    #[test]
    fn the_right_number_asks_for_nothing() {
        let members = [in_slot(0, standing_by("a")), in_slot(5, active("b"))];
        assert_eq!(plan_for(2, &members), Plan::default());
    }

    /// Two leaders that see the same make the same pod.
    #[test]
    fn a_replacement_is_named_after_its_predecessor() {
        let mut gone = in_slot(0, active("a"));
        gone.server.as_mut().unwrap().state = State::Terminating;
        let plan = plan_for(1, &[gone]);
        assert_eq!(plan.create[0].name, pod_name("arena", "uid", 0, "pod-a"));
    }

    #[test]
    fn a_server_left_behind_still_tells_whom_the_next_follows() {
        let mut gone = in_slot(0, standing_by("a"));
        gone.pod = None;
        let plan = plan_for(1, &[gone]);
        assert_eq!(plan.create[0].name, pod_name("arena", "uid", 0, "pod-a"));
    }

    #[test]
    fn a_marked_server_is_replaced_and_plays_on() {
        let mut marked = in_slot(0, active("a"));
        marked.server.as_mut().unwrap().shutdown = Shutdown::WhenIdle;
        let plan = plan_for(1, &[marked]);
        assert_eq!((slots(&plan), plan.retire.len()), (vec![0], 0));
    }

    #[test]
    fn scale_in_takes_idle_servers_only() {
        let members = [
            in_slot(0, active("a")),
            in_slot(1, claimed("b", "m", 60)),
            in_slot(2, standing_by("c")),
            in_slot(3, creating("d")),
        ];
        assert_eq!(retired(&plan_for(3, &members)), ["d"]);
        assert_eq!(retired(&plan_for(2, &members)), ["d", "c"]);
        assert_eq!(retired(&plan_for(0, &members)), ["d", "c"]);
    }

    #[test]
    fn a_slot_that_failed_again_waits_and_no_other_is_filled_in_its_place() {
        let members = [in_slot(0, crashed("a", 3, 95))];
        let plan = plan_for(2, &members);
        assert_eq!(slots(&plan), [1]);
        assert_eq!(plan.waiting[0].until, at(115));
        assert_eq!(plan.waiting[0].failures, 4);
        assert!(plan.give_up.is_empty());
    }

    #[test]
    fn a_mended_template_is_tried_at_once() {
        let mut failed = in_slot(0, crashed("a", 3, 95));
        failed.pod.as_mut().unwrap().revision = "r0".to_owned();
        let plan = plan_for(1, &[failed]);
        assert_eq!((plan.create[0].attempt, plan.waiting.len()), (0, 0));
    }

    #[test]
    fn a_failed_pod_goes_when_its_slot_is_filled_or_not_wanted() {
        let failed = in_slot(0, crashed("a", 0, 50));
        assert_eq!(plan_for(1, std::slice::from_ref(&failed)).give_up, []);
        let both = [failed.clone(), in_slot(0, creating("b"))];
        assert_eq!(plan_for(1, &both).give_up, [("a".to_owned(), "pod-a".to_owned())]);
        assert_eq!(plan_for(0, &[failed]).give_up.len(), 1);
    }

    #[test]
    fn what_never_started_goes_with_its_template() {
        let mut outdated = in_slot(0, creating("a"));
        outdated.pod.as_mut().unwrap().revision = "r0".to_owned();
        let mut started = in_slot(1, standing_by("b"));
        started.pod.as_mut().unwrap().revision = "r0".to_owned();
        let plan = plan_for(3, &[outdated, started, in_slot(2, creating("c"))]);
        assert_eq!(retired(&plan), ["a"]);
        assert_eq!(plan.retire[0].reason, EndReason::Outdated);
    }

    /// Case C19.
    #[test]
    fn nothing_counts_below_zero() {
        assert_eq!(plan_for(0, &[]), Plan::default());
        assert_eq!(plan_for(0, &[in_slot(0, active("a"))]), Plan::default());
    }
}
