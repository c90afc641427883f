//! Row F2: hold the number of servers that is in force.
//!
//! Servers that are to leave their capacity pools (rules/balance.rs) count until their replacements are ready.
//!
//! Each server fills a slot of its group. A slot without a server that counts gets a new one, named after the
//! slot and the pod that filled it last, so that a stale view makes no pod too many (case C13).

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::balance::Balance;
use super::idle::{Ends, Idle, Retire, idle};
use super::launch::{self, Retry};
use super::moving::move_out;
use super::names::pod_name;
use super::observed::{Failure, Game, Member};
use super::pool::Pool;
use super::slots::{Slots, counts, is_ready};
use crate::api::{EndReason, GameServerGroup, State};

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
    /// The capacity pool that it is made for, if for one.
    pub pool: Option<Pool>,
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
    /// Which pools they go to, if they go to pools.
    pub balance: Option<&'a Balance>,
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
    let desired = usize::try_from(wanted.desired).unwrap_or(usize::MAX);
    let moving = wanted.balance.map(|balance| balance.outgoing(members, desired)).unwrap_or_default();
    let leaves: BTreeSet<&str> = moving.iter().map(|member| member.name()).collect();
    let stays = |member: &&Member| counts(member) && !leaves.contains(member.name());
    let staying: Vec<&Member> = members.iter().filter(stays).collect();
    let number = Number { counted: staying.len(), desired };
    let mut plan = Plan::default();
    let mut missing = missing(wanted.balance, number, &moving);
    let mut places = Vec::new();
    if let Some(balance) = wanted.balance {
        places = balance.places(staying.iter().copied(), missing);
        missing = places.len();
    }
    let open = open_slots(&slots, missing);
    for slot in &open {
        fill(&mut plan, wanted, &slots, *slot, now);
    }
    for (launch, pool) in plan.create.iter_mut().zip(places) {
        launch.pool = Some(pool);
    }
    plan.give_up = superseded(wanted, &slots, &open);
    let mut ends = Ends::default();
    retire_surplus(&mut ends, wanted.balance, &staying, number, now);
    if let Some(balance) = wanted.balance {
        move_out(&mut ends, balance, &moving, &staying, desired, now);
    }
    give_up_stillborn(&mut ends, wanted, &slots, now);
    Plan { retire: ends.retire, serve: ends.serve, ..plan }
}

/// How many servers are to be made.
fn missing(balance: Option<&Balance>, number: Number, moving: &[&Member]) -> usize {
    let Number { counted, desired } = number;
    match balance {
        None => desired.saturating_sub(counted),
        Some(balance) if balance.is_starved() => 0,
        Some(balance) => {
            balance.room(desired, counted, moving.iter().filter_map(|member| idle(member)).count())
        }
    }
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
            pool: None,
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
/// never ended for it (invariant I3): those stay until they end. Where they are balanced over pools, the fullest gives
/// first, and none that is ready before another is (invariant I6).
fn retire_surplus(
    ends: &mut Ends,
    balance: Option<&Balance>,
    staying: &[&Member],
    number: Number,
    now: Timestamp,
) {
    let Number { counted, desired } = number;
    let surplus = counted.saturating_sub(desired);
    if surplus == 0 {
        return;
    }
    let mut given: Vec<&Member> = staying.iter().copied().filter(|member| idle(member).is_some()).collect();
    given.sort_by_key(|member| idle(member).map(|idle| idle.order()));
    let mut ready = usize::MAX;
    if let Some(balance) = balance {
        given = balance.fullest_first(staying, given);
        ready = staying.iter().filter(|member| is_ready(member)).count().saturating_sub(desired);
    }
    let message = format!("the group has {counted} servers and wants {desired}");
    for member in given.into_iter().take(surplus) {
        if is_ready(member) {
            if ready == 0 {
                continue;
            }
            ready -= 1;
        }
        if let Some(idle) = idle(member) {
            ends.end(idle, EndReason::ScaledIn, message.clone(), now);
        }
    }
}

/// Retires pods that never started and are of an older revision: whoever mends an image's name does not wait for
/// the launch timeout of those that cannot be pulled.
fn give_up_stillborn(ends: &mut Ends, wanted: Wanted<'_>, slots: &Slots<'_>, now: Timestamp) {
    let stillborn = |idle: &Idle<'_>| {
        let unstarted = idle.state() == State::Creating && matches!(idle.pod.game, Game::Waiting { .. });
        unstarted && idle.pod.revision != wanted.revision
    };
    for idle in slots.all().filter_map(idle).filter(stillborn) {
        if !ends.has(&idle.pod.name) {
            let message = "its template was replaced before its game had started".to_owned();
            ends.end(idle, EndReason::Outdated, message, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{
        BalancingStrategy, GameServerGroupSpec, GameServerProtectionPolicy, Shutdown, Viability,
    };
    use crate::rules::fixtures::{
        active, at, claimed, crashed, creating, group, group_on, in_slot, on_pool, standing_by, unregistered,
    };
    use crate::rules::pool::Fitness;

    fn plan_for(desired: u32, members: &[Member]) -> Plan {
        let group = group();
        plan(Wanted { group: &group, revision: "r1", desired, balance: None }, members, at(100))
    }

    /// Of a group on spot pools a and b, of which these are not viable.
    fn balanced(spec: &GameServerGroupSpec, out: &[&str], desired: u32, members: &[Member]) -> Plan {
        let fitness = |pool: &Pool| {
            let out = out.contains(&pool.instance_type.as_str());
            Fitness { verdict: if out { Viability::NotViable } else { Viability::Viable }, price: None }
        };
        let balance = Balance::of(spec, &BTreeSet::new(), fitness).unwrap();
        let group = group();
        let wanted = Wanted { group: &group, revision: "r1", desired, balance: Some(&balance) };
        plan(wanted, members, at(100))
    }

    fn on(types: &[&str]) -> Vec<Member> {
        let mut members = Vec::new();
        for (slot, type_) in (0..).zip(types) {
            members.push(on_pool(type_, in_slot(slot, standing_by(&format!("m{slot}")))));
        }
        members
    }

    fn made_for(plan: &Plan) -> Vec<&str> {
        plan.create.iter().map(|launch| launch.pool.as_ref().unwrap().instance_type.as_str()).collect()
    }

    /// Rows F6 and F7, invariant I6: replacements first, within the surge; then as many go as are ready.
    #[test]
    fn what_leaves_a_pool_goes_as_its_replacements_become_ready() {
        let spec = group_on(&["a", "b"]).spec;
        let mut members = on(&["a", "a", "a", "a"]);
        let plan = balanced(&spec, &["a"], 4, &members);
        assert_eq!((made_for(&plan), plan.retire.len()), (vec!["b"], 0));
        assert_eq!(slots(&plan), [4]);
        // The replacement is there, and not ready yet.
        members.push(on_pool("b", in_slot(4, creating("new"))));
        assert_eq!(balanced(&spec, &["a"], 4, &members), Plan::default());
        members[4] = on_pool("b", in_slot(4, standing_by("new")));
        let plan = balanced(&spec, &["a"], 4, &members);
        assert_eq!(retired(&plan), ["m0"]);
        assert_eq!(plan.retire[0].reason, EndReason::Balanced);
    }

    /// Row F7, invariant I3.
    #[test]
    fn a_game_ends_for_its_pool_only_where_it_is_not_protected() {
        let mut spec = group_on(&["a", "b"]).spec;
        let mut members = on(&["a", "a", "b", "b"]);
        members[0].server.as_mut().unwrap().state = State::Active;
        members[1] = on_pool("a", in_slot(1, claimed("m1", "match", 60)));
        // Two replacements are ready.
        members.push(on_pool("b", in_slot(4, standing_by("m4"))));
        members.push(on_pool("b", in_slot(5, standing_by("m5"))));
        assert_eq!(balanced(&spec, &["a"], 4, &members), Plan::default());
        spec.game_server_protection_policy = GameServerProtectionPolicy::NoProtection;
        assert_eq!(retired(&balanced(&spec, &["a"], 4, &members)), ["m0"]);
    }

    /// Row F9.
    #[test]
    fn spot_alone_waits_until_a_pool_is_viable() {
        let mut spec = group_on(&["a"]).spec;
        spec.balancing_strategy = BalancingStrategy::SpotOnly;
        let members = on(&["a", "a"]);
        assert_eq!(balanced(&spec, &["a"], 3, &members), Plan::default());
        assert_eq!(made_for(&balanced(&spec, &[], 3, &members)), ["a"]);
    }

    /// Row F4: one by one, and what is too many goes only once what replaces it is ready.
    #[test]
    fn a_group_drifts_back_to_balance() {
        let spec = group_on(&["a", "b"]).spec;
        let mut members = on(&["a", "a", "a", "b"]);
        let plan = balanced(&spec, &[], 4, &members);
        assert_eq!((made_for(&plan), plan.retire.len()), (vec!["b"], 0));
        members.push(on_pool("b", in_slot(4, creating("new"))));
        assert_eq!(balanced(&spec, &[], 4, &members), Plan::default());
        members[4] = on_pool("b", in_slot(4, standing_by("new")));
        let plan = balanced(&spec, &[], 4, &members);
        assert_eq!((retired(&plan).len(), plan.create.len()), (1, 0));
        assert!(["m0", "m1", "m2"].contains(&retired(&plan)[0]));
        members.retain(|member| member.name() != retired(&plan)[0]);
        assert_eq!(balanced(&spec, &[], 4, &members), Plan::default());
    }

    #[test]
    fn a_balanced_group_scales_in_from_its_fullest_pool() {
        let spec = group_on(&["a", "b"]).spec;
        let members = on(&["a", "b", "b", "b"]);
        let plan = balanced(&spec, &[], 2, &members);
        let left: Vec<&str> =
            members.iter().map(Member::name).filter(|name| !retired(&plan).contains(name)).collect();
        assert_eq!((left.len(), left[0]), (2, "m0"));
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
