//! Row F1: a group's phase, counts and conditions, from what is observed of it.

use jiff::Timestamp;

use super::balance::Balance;
use super::bounds::{Bound, InForce};
use super::delete::Stage;
use super::hold::Waiting;
use super::observed::Member;
use super::offer::withheld;
use super::reach::{self, Reach};
use super::slots::{Standing, counts as counts_toward, is_ready, standing};
use super::trouble::{self, Trouble, TroubleKind};
use crate::api::conditions::{self, Finding, Holds};
use crate::api::names::LABEL_GROUP_UID;
use crate::api::{GameServerGroup, GameServerGroupStatus, Phase, ServerCounts, Sharing, State};

/// What the status is made from, beside the group itself.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Everything that is seen of the group.
    pub members: &'a [Member],
    /// The number in force.
    pub in_force: InForce,
    /// Slots in back-off.
    pub waiting: &'a [Waiting],
    /// What the last attempt to make a pod met, if it was refused.
    pub refused: Option<&'a Trouble>,
    /// How its agents answer.
    pub reach: &'a Reach,
    /// Which pools its servers go to, if they go to pools.
    pub balance: Option<&'a Balance>,
    /// How far its deletion is, once it has begun.
    pub deletion: Option<Stage>,
    /// The time.
    pub now: Timestamp,
}

/// The status of `group`.
pub fn status(group: &GameServerGroup, seen: Observed<'_>) -> GameServerGroupStatus {
    let before = group.status.clone().unwrap_or_default();
    let counts = counts(seen.members, group.spec.claim.sharing.as_ref());
    let counted = seen.members.iter().filter(|member| counts_toward(member)).count();
    let ready = seen.members.iter().filter(|member| is_ready(member)).count();
    let desired = usize::try_from(seen.in_force.desired).unwrap_or(usize::MAX);
    let starved = seen.balance.and_then(trouble::of_pools).filter(|_| counted < desired);
    let trouble = trouble::foremost(seen.members, seen.waiting, seen.refused.or(starved.as_ref()));
    let phase = match seen.deletion {
        Some(stage) => stage.phase,
        None => phase(before.phase, trouble.is_some(), ready >= desired),
    };
    let generation = group.metadata.generation.unwrap_or(0);
    let asked = group.metadata.deletion_timestamp.is_some();
    let ready_finding = match seen.deletion {
        None if asked => deletion_waits(ready, desired),
        deletion => ready_finding(ready, desired, trouble.as_ref(), deletion),
    };
    let mut findings = vec![
        ready_finding,
        template_finding(seen.refused),
        bounds_finding(group, seen.in_force),
        progressing_finding(ready, desired, trouble.as_ref()),
    ];
    findings.extend(reach::finding(group, seen.reach));
    findings.extend(seen.balance.map(|balance| balance.finding(seen.members, desired)));
    findings.extend(seen.deletion.map(deletion_finding).or_else(|| asked.then(waiting_finding)));
    GameServerGroupStatus {
        phase,
        observed_generation: Some(generation),
        replicas: Some(number(counted)),
        desired_replicas: Some(number(desired)),
        waiting_claims: Some(number(seen.in_force.waiting)),
        selector: Some(format!("{LABEL_GROUP_UID}={}", group.metadata.uid.as_deref().unwrap_or_default())),
        servers: Some(counts),
        pools: seen.balance.map(|balance| balance.pools(seen.members)).unwrap_or_default(),
        conditions: conditions::apply(&before.conditions, findings, generation, seen.now),
    }
}

/// New → Activating → Active. Trouble on the way is Error, and heals; once Active, trouble is a condition.
fn phase(before: Phase, in_trouble: bool, complete: bool) -> Phase {
    match before {
        Phase::Active => Phase::Active,
        Phase::New | Phase::Activating | Phase::Error | Phase::DeleteScheduled | Phase::Deleting => {
            match (in_trouble, complete) {
                (true, _) => Phase::Error,
                (false, true) => Phase::Active,
                (false, false) => Phase::Activating,
            }
        }
    }
}

fn counts(members: &[Member], sharing: Option<&Sharing>) -> ServerCounts {
    let mut counts = ServerCounts::default();
    for member in members {
        let ending = standing(member) == Standing::Ending;
        let claimed = member.server.as_deref().is_some_and(super::observed::Server::is_claimed);
        let state = member.server.as_ref().map_or(State::Creating, |server| server.state);
        let count = match (ending, state) {
            (true, _) | (_, State::Terminating | State::Terminated) => &mut counts.ending,
            (false, State::Creating | State::Initializing) => &mut counts.starting,
            (false, State::StandingBy) if claimed => &mut counts.claimed,
            (false, State::StandingBy) => &mut counts.standing_by,
            (false, State::Active) => &mut counts.active,
        };
        *count += 1;
        if withheld(member, sharing).is_none() {
            counts.on_offer += 1;
        }
    }
    counts
}

fn finding(type_: &'static str, holds: Holds, reason: &str, message: String) -> Finding {
    Finding { type_, holds, reason: reason.to_owned(), message }
}

fn ready_finding(
    ready: usize,
    desired: usize,
    trouble: Option<&Trouble>,
    deletion: Option<Stage>,
) -> Finding {
    let message = format!("{ready} servers are ready or in use, {desired} wanted");
    match (deletion, trouble) {
        (Some(_), _) => finding(conditions::READY, Holds::False, "Deleting", message),
        (None, Some(trouble)) if ready < desired => finding(
            conditions::READY,
            Holds::False,
            trouble.kind.as_str(),
            format!("{message}; {}", trouble.message),
        ),
        (None, _) if ready < desired => finding(conditions::READY, Holds::False, "ServersStarting", message),
        (None, _) => finding(conditions::READY, Holds::True, "AllReady", message),
    }
}

/// For the column that is printed: a group that is to be deleted and goes on looks like any other.
fn deletion_waits(ready: usize, desired: usize) -> Finding {
    let message = format!("{ready} servers are ready or in use, {desired} wanted; then the group is deleted");
    finding(conditions::READY, Holds::False, "WaitingToBeDeleted", message)
}

fn template_finding(refused: Option<&Trouble>) -> Finding {
    match refused.filter(|trouble| trouble.kind == TroubleKind::TemplateRejected) {
        Some(trouble) => finding(
            conditions::TEMPLATE_ACCEPTED,
            Holds::False,
            trouble.kind.as_str(),
            format!("{}; change the group's spec", trouble.message),
        ),
        None => finding(conditions::TEMPLATE_ACCEPTED, Holds::True, "Accepted", String::new()),
    }
}

fn bounds_finding(group: &GameServerGroup, in_force: InForce) -> Finding {
    let InForce { desired, waiting, bound } = in_force;
    let replicas = group.spec.replicas;
    let (holds, reason, message) = match bound {
        None => (Holds::True, "WithinBounds", String::new()),
        Some(Bound::Min) => {
            (Holds::False, "BelowMinSize", format!("spec.replicas is {replicas}; minSize makes it {desired}"))
        }
        Some(Bound::Waiting) => (
            Holds::True,
            "ClaimsWaiting",
            format!(
                "spec.replicas is {replicas}; claims that wait for a server, {waiting}, make it {desired}"
            ),
        ),
        Some(Bound::Max) => {
            (Holds::False, "AboveMaxSize", format!("spec.replicas is {replicas}; maxSize makes it {desired}"))
        }
    };
    finding(conditions::REPLICAS_IN_BOUNDS, holds, reason, message)
}

fn progressing_finding(ready: usize, desired: usize, trouble: Option<&Trouble>) -> Finding {
    match trouble {
        Some(trouble) => {
            finding(conditions::PROGRESSING, Holds::False, trouble.kind.as_str(), trouble.message.clone())
        }
        None if ready < desired => {
            finding(conditions::PROGRESSING, Holds::True, "ServersStarting", String::new())
        }
        None => finding(conditions::PROGRESSING, Holds::True, "Complete", String::new()),
    }
}

/// The deletion is asked for and has not begun.
fn waiting_finding() -> Finding {
    let message =
        "waits until the group is Active or in Error; set spec.deletionPolicy to Force to delete it at once";
    finding(conditions::DELETING, Holds::True, "WaitingForActivation", message.to_owned())
}

fn deletion_finding(stage: Stage) -> Finding {
    let Stage { playing, left, .. } = stage;
    let (reason, message) = if playing > 0 {
        (
            "WaitingForGames",
            format!(
                "waits for servers that are claimed or Active: {playing}; set spec.deletionPolicy to Force to end them"
            ),
        )
    } else {
        ("RemovingServers", format!("servers and pods that are still to go: {left}"))
    };
    finding(conditions::DELETING, Holds::True, reason, message)
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{active, at, claimed, creating, group, standing_by};

    const UNASKED: Reach = Reach { reached: 0, missed: 0, unknown: 0, example: None };

    fn observed<'a>(members: &'a [Member], refused: Option<&'a Trouble>) -> Observed<'a> {
        let in_force = InForce { desired: 2, waiting: 0, bound: None };
        Observed {
            members,
            in_force,
            waiting: &[],
            refused,
            reach: &UNASKED,
            balance: None,
            deletion: None,
            now: at(0),
        }
    }

    fn in_phase(before: Phase, members: &[Member], refused: Option<&Trouble>) -> GameServerGroupStatus {
        let mut group = group();
        group.status = Some(GameServerGroupStatus { phase: before, ..GameServerGroupStatus::default() });
        status(&group, observed(members, refused))
    }

    fn quota() -> Trouble {
        Trouble { kind: TroubleKind::QuotaExceeded, message: "exceeded quota: pods".into() }
    }

    #[test]
    fn a_new_group_activates() {
        let starting = [creating("a")];
        assert_eq!(in_phase(Phase::New, &starting, None).phase, Phase::Activating);
        let ready = [standing_by("a"), active("b")];
        assert_eq!(in_phase(Phase::Activating, &ready, None).phase, Phase::Active);
    }

    #[test]
    fn trouble_while_activating_is_an_error_and_heals() {
        let failed = in_phase(Phase::Activating, &[], Some(&quota()));
        assert_eq!(failed.phase, Phase::Error);
        let ready = &failed.conditions[0];
        assert_eq!((ready.reason.as_str(), ready.status.as_str()), ("QuotaExceeded", "False"));
        assert!(ready.message.contains("exceeded quota: pods"));
        assert_eq!(in_phase(Phase::Error, &[creating("a")], None).phase, Phase::Activating);
    }

    #[test]
    fn trouble_after_active_is_a_condition() {
        let troubled = in_phase(Phase::Active, &[standing_by("a")], Some(&quota()));
        assert_eq!(troubled.phase, Phase::Active);
        assert_eq!(troubled.conditions[3].reason, "QuotaExceeded");
    }

    #[test]
    fn each_server_is_counted_once() {
        let mut withdrawn = standing_by("f");
        withdrawn.pod.as_mut().unwrap().deleting = true;
        let members = [standing_by("a"), claimed("b", "m", 60), active("c"), creating("d"), withdrawn];
        let counts = in_phase(Phase::Active, &members, None).servers.unwrap();
        let expected =
            ServerCounts { starting: 1, standing_by: 1, on_offer: 1, claimed: 1, active: 1, ending: 1 };
        assert_eq!(counts, expected);
    }

    /// Invariant I4: the same picture makes the same status.
    #[test]
    fn a_status_comes_to_rest() {
        let members = [standing_by("a"), standing_by("b")];
        let mut group = group();
        group.status = Some(status(&group, observed(&members, None)));
        let later = Observed { now: at(500), ..observed(&members, None) };
        assert_eq!(
            Some(status(&group, later)),
            group.status.map(|mut status| {
                status.phase = Phase::Active;
                status
            })
        );
    }

    #[test]
    fn the_kubelets_words_reach_the_status() {
        let mut pulling = creating("a");
        pulling.pod.as_mut().unwrap().game = crate::rules::observed::Game::Waiting {
            fault: Some(("ErrImagePull".into(), "no such image".into())),
        };
        let status = in_phase(Phase::Activating, &[pulling], None);
        assert_eq!(status.conditions[0].reason, "ImageUnavailable");
        assert!(status.conditions[0].message.contains("no such image"));
    }
}
