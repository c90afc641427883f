//! Row F2: hold the number of servers that is in force.
//!
//! Each server fills a slot of its group. A slot without a server that counts gets a new one, named after the
//! slot and the pod that filled it last, so that a stale view makes no pod too many (case C13).

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;

use super::launch::{self, Retry};
use super::names::pod_name;
use super::observed::{Failure, Game, Member, Pod, Server};
use super::patch::ServerPatch;
use super::retire;
use super::slots::{Slots, counts};
use crate::api::{EndReason, GameServerGroup, Registration, State};

/// What to do so that the number holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Pods to make.
    pub create: Vec<Launch>,
    /// Idle servers to retire.
    pub retire: Vec<Retire>,
    /// The names of surplus pods whose process has not registered itself yet: they are given servers, to be retired.
    pub serve: Vec<String>,
    /// The names of failed servers whose slot is filled again, or is not wanted any more.
    pub give_up: Vec<String>,
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
    /// The failures it comes after.
    pub after: Option<Failure>,
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
    /// The server that failed there last.
    pub failed: String,
    /// Its failure, and how many in a row it makes.
    pub failure: Failure,
    /// When the slot is filled again.
    pub until: Timestamp,
}

/// What a group wants.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The group.
    pub group: &'a GameServerGroup,
    /// The revision of what shapes its pods.
    pub revision: &'a str,
    /// The number in force.
    pub desired: u32,
}

impl Wanted<'_> {
    fn name(&self) -> &str {
        self.group.metadata.name.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.group.metadata.uid.as_deref().unwrap_or_default()
    }
}

/// The plan for a group whose `members` are all that is seen of it.
pub fn plan(wanted: Wanted<'_>, members: &[Member], now: Timestamp) -> Plan {
    let slots = Slots::of(members);
    let number = Number {
        counted: members.iter().filter(|member| counts(member)).count(),
        desired: usize::try_from(wanted.desired).unwrap_or(usize::MAX),
    };
    let mut plan = Plan::default();
    let open = open_slots(&slots, number.desired.saturating_sub(number.counted));
    for slot in &open {
        fill(&mut plan, wanted, &slots, *slot, now);
    }
    plan.give_up = superseded(wanted, &slots, &open);
    retire_surplus(&mut plan, &slots, number, now);
    give_up_stillborn(&mut plan, wanted, &slots, now);
    plan
}

#[derive(Clone, Copy)]
struct Number {
    counted: usize,
    desired: usize,
}

/// The lowest slots that have no server that counts, as many as are missing.
fn open_slots(slots: &Slots<'_>, missing: usize) -> BTreeSet<u32> {
    let filled: BTreeSet<u32> =
        slots.occupied().filter(|(_, filled)| *filled).map(|(slot, _)| slot).collect();
    (0..).filter(|slot| !filled.contains(slot)).take(missing).collect()
}

/// Fills a slot, or says what it waits for.
fn fill(plan: &mut Plan, wanted: Wanted<'_>, slots: &Slots<'_>, slot: u32, now: Timestamp) {
    let last = slots.last(slot, wanted.name(), wanted.uid());
    let retry = last.and_then(|(member, _)| retry(member, wanted.revision));
    match (retry, last) {
        (Some(retry), Some((member, _))) if retry.not_before > now => plan.waiting.push(Waiting {
            failed: member.name().to_owned(),
            failure: retry.failure,
            until: retry.not_before,
        }),
        (retry, last) => plan.create.push(Launch {
            slot,
            name: pod_name(wanted.name(), wanted.uid(), slot, last.map_or("", |(_, uid)| uid)),
            after: retry.map(|retry| retry.failure),
        }),
    }
}

/// When the slot may be filled again after `last`; a new revision is tried at once.
fn retry(last: &Member, revision: &str) -> Option<Retry> {
    let made_from = match (&last.pod, &last.server) {
        (Some(pod), _) => &pod.revision,
        (None, Some(server)) => &server.revision,
        (None, None) => return None,
    };
    launch::retry(last).filter(|_| made_from == revision)
}

/// Failed servers that are kept no longer: all but those in slots that are still to be filled.
fn superseded(wanted: Wanted<'_>, slots: &Slots<'_>, open: &BTreeSet<u32>) -> Vec<String> {
    let done = slots.occupied().map(|(slot, _)| slot).filter(|slot| !open.contains(slot));
    done.flat_map(|slot| slots.members(slot))
        .filter(|member| launch::is_kept(member, Some(wanted.group)))
        .filter(|member| member.pod.as_ref().is_none_or(|pod| !pod.deleting))
        .map(|member| member.name().to_owned())
        .collect()
}

/// Idle servers above the number, to be retired: what is not ready first, the youngest first. A game or a claim is
/// never ended for it (invariant I3): those stay until they end.
fn retire_surplus(plan: &mut Plan, slots: &Slots<'_>, number: Number, now: Timestamp) {
    let Number { counted, desired } = number;
    let mut idle: Vec<Idle<'_>> = idle(slots).collect();
    idle.sort_by_key(|idle| (idle.state(), Reverse((idle.pod.created_at, idle.pod.slot))));
    let message = format!("the group has {counted} servers and wants {desired}");
    for idle in idle.into_iter().take(counted.saturating_sub(desired)) {
        plan.end(idle, EndReason::ScaledIn, message.clone(), now);
    }
}

/// A pod that counts and may be given up, with its server. Without one its process is yet to register itself.
#[derive(Clone, Copy)]
struct Idle<'a> {
    pod: &'a Pod,
    server: Option<&'a Server>,
}

impl Idle<'_> {
    fn state(&self) -> State {
        self.server.map_or(State::Creating, |server| server.state)
    }
}

fn idle<'a>(slots: &Slots<'a>) -> impl Iterator<Item = Idle<'a>> {
    let idle = |member: &'a Member| {
        let (pod, server) = (member.pod.as_deref()?, member.server.as_deref());
        let idle = match server {
            Some(server) => retire::is_idle(server),
            // One that we make is on its way.
            None => pod.registration == Registration::Itself,
        };
        idle.then_some(Idle { pod, server })
    };
    slots.all().filter(|member| counts(member)).filter_map(idle)
}

impl Plan {
    fn end(&mut self, idle: Idle<'_>, reason: EndReason, message: String, now: Timestamp) {
        let Some(server) = idle.server else { return self.serve.push(idle.pod.name.clone()) };
        let patch = retire::when_idle(server, reason, &message, now);
        self.retire.push(Retire { name: server.name.clone(), patch, reason, message });
    }

    fn ends(&self, name: &str) -> bool {
        self.serve.iter().any(|served| served == name)
            || self.retire.iter().any(|retired| retired.name == name)
    }
}

/// Retires pods that never started and are of an older revision: whoever mends an image's name does not wait for
/// the launch timeout of those that cannot be pulled.
fn give_up_stillborn(plan: &mut Plan, wanted: Wanted<'_>, slots: &Slots<'_>, now: Timestamp) {
    let stillborn = |idle: &Idle<'_>| {
        let unstarted = idle.state() == State::Creating && matches!(idle.pod.game, Game::Waiting { .. });
        unstarted && idle.pod.revision != wanted.revision
    };
    for idle in idle(slots).filter(stillborn) {
        if !plan.ends(&idle.pod.name) {
            let message = "its template was replaced before its game had started".to_owned();
            plan.end(idle, EndReason::Outdated, message, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Shutdown;
    use crate::rules::fixtures::{
        active, at, claimed, crashed, creating, group, in_slot, standing_by, unregistered,
    };

    fn plan_for(desired: u32, members: &[Member]) -> Plan {
        let group = group();
        plan(Wanted { group: &group, revision: "r1", desired }, members, at(100))
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
        assert_eq!(plan.create[0].name, pod_name("arena", "group-uid", 0, "pod-a"));
    }

    #[test]
    fn a_server_left_behind_still_tells_whom_the_next_follows() {
        let mut gone = in_slot(0, standing_by("a"));
        gone.pod = None;
        let plan = plan_for(1, &[gone]);
        assert_eq!(plan.create[0].name, pod_name("arena", "group-uid", 0, "pod-a"));
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
        assert_eq!(plan.waiting[0].failure.in_a_row, 4);
        assert!(plan.give_up.is_empty());
    }

    #[test]
    fn a_mended_template_is_tried_at_once() {
        let mut failed = in_slot(0, crashed("a", 3, 95));
        failed.pod.as_mut().unwrap().revision = "r0".to_owned();
        let plan = plan_for(1, &[failed]);
        assert_eq!((&plan.create[0].after, plan.waiting.len()), (&None, 0));
    }

    #[test]
    fn a_failed_pod_goes_when_its_slot_is_filled_or_not_wanted() {
        let failed = in_slot(0, crashed("a", 0, 50));
        assert!(plan_for(1, std::slice::from_ref(&failed)).give_up.is_empty());
        let both = [failed.clone(), in_slot(0, creating("b"))];
        assert_eq!(plan_for(1, &both).give_up, ["a"]);
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

    /// Row F11.
    #[test]
    fn a_surplus_pod_that_has_not_registered_itself_is_given_a_server_to_retire() {
        let members = [in_slot(0, standing_by("a")), in_slot(1, standing_by("b")), unregistered_in(2, "c")];
        let plan = plan_for(2, &members);
        assert_eq!((plan.serve, plan.retire), (vec!["c".to_owned()], Vec::new()));
        assert_eq!(plan_for(3, &members), Plan::default());
    }

    fn unregistered_in(slot: u32, name: &str) -> Member {
        let mut member = unregistered(name);
        member.pod.as_mut().unwrap().slot = slot;
        member
    }

    /// Invariant I8: whatever a label says, a plan is as long as what it does.
    #[test]
    fn a_far_slot_costs_nothing() {
        let members = [in_slot(u32::MAX, standing_by("a"))];
        assert_eq!(slots(&plan_for(2, &members)), [0]);
    }

    /// Case C19.
    #[test]
    fn nothing_counts_below_zero() {
        assert_eq!(plan_for(0, &[]), Plan::default());
        assert_eq!(plan_for(0, &[in_slot(0, active("a"))]), Plan::default());
    }
}
