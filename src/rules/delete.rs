//! Row F10: a group that is deleted. Safe waits for games and claims, Force does not, Retain leaves all of them
//! running.

use jiff::Timestamp;

use super::adopt;
use super::idle::Retire;
use super::observed::{Member, Pod, Server};
use super::patch::ServerPatch;
use super::retire;
use crate::api::{DeletionPolicy, EndReason, Phase, Registration, State};

/// What to do for a group that is being deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Servers to retire.
    pub retire: Vec<Retire>,
    /// The names of pods whose process has not registered itself yet: they are given servers, to which all this
    /// applies like to any other.
    pub serve: Vec<String>,
    /// Servers to mark as left running.
    pub retain: Vec<(String, ServerPatch)>,
    /// Where the deletion stands; none when nothing is left and the finalizer can go.
    pub stage: Option<Stage>,
}

/// How far a deletion is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stage {
    /// [`Phase::DeleteScheduled`] while it waits for games, then [`Phase::Deleting`].
    pub phase: Phase,
    /// Servers that are claimed or Active and are waited for.
    pub playing: usize,
    /// Servers and pods that are still there.
    pub left: usize,
}

/// Whether a deletion waits until the group has become Active, or has failed to: a group in the middle of its
/// activation is not torn apart. Force does not wait.
pub fn waits_for_activation(policy: DeletionPolicy, phase: Phase) -> bool {
    let activating = match phase {
        Phase::New | Phase::Activating => true,
        Phase::Active | Phase::Error | Phase::DeleteScheduled | Phase::Deleting => false,
    };
    activating && policy != DeletionPolicy::Force
}

/// The plan for a group with this policy whose `members` are all that is left of it.
pub fn plan(policy: DeletionPolicy, members: &[Member], now: Timestamp) -> Plan {
    let servers: Vec<&Server> = members
        .iter()
        .filter_map(|member| member.server.as_deref())
        .filter(|server| server.state < State::Terminating)
        .collect();
    let message = "its group is being deleted";
    let retire = servers
        .iter()
        .filter_map(|server| {
            let patch = match policy {
                DeletionPolicy::Force => retire::at_once(server, EndReason::GroupDeleted, message, now),
                DeletionPolicy::Safe if retire::is_idle(server) => {
                    retire::when_idle(server, EndReason::GroupDeleted, message, now)
                }
                DeletionPolicy::Safe | DeletionPolicy::Retain => return None,
            };
            let (name, message) = (server.name.clone(), message.to_owned());
            Some(Retire { name, patch, reason: EndReason::GroupDeleted, message })
        })
        .collect();
    let retain: Vec<_> = servers
        .iter()
        .filter(|server| policy == DeletionPolicy::Retain && !server.retained)
        .map(|server| (server.name.clone(), adopt::retain(server)))
        .collect();
    // Under Retain what runs is out of the way once it is marked, and what ends is collected without the group.
    let left = match policy {
        DeletionPolicy::Safe | DeletionPolicy::Force => members.len(),
        DeletionPolicy::Retain => {
            let unmarked = |member: &&Member| member.server.is_none() && member.pod.is_some();
            retain.len() + members.iter().filter(unmarked).count()
        }
    };
    let playing = match policy {
        DeletionPolicy::Force | DeletionPolicy::Retain => 0,
        DeletionPolicy::Safe => servers.iter().filter(|server| !retire::is_idle(server)).count(),
    };
    let phase = if playing > 0 { Phase::DeleteScheduled } else { Phase::Deleting };
    let stage = (left > 0).then_some(Stage { phase, playing, left });
    let unregistered = |pod: &&Pod| pod.registration == Registration::Itself && !pod.deleting;
    let serve = members
        .iter()
        .filter(|member| member.server.is_none())
        .filter_map(|member| member.pod.as_deref().filter(unregistered))
        .map(|pod| pod.name.clone())
        .collect();
    Plan { retire, serve, retain, stage }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{active, at, claimed, standing_by, unregistered};

    fn names(plan: &Plan) -> Vec<&str> {
        plan.retire.iter().map(|retired| retired.name.as_str()).collect()
    }

    #[test]
    fn safe_waits_for_games_and_claims() {
        let members = [standing_by("a"), active("b"), claimed("c", "m", 60)];
        let plan = plan(DeletionPolicy::Safe, &members, at(0));
        assert_eq!(names(&plan), ["a"]);
        assert_eq!(plan.stage, Some(Stage { phase: Phase::DeleteScheduled, playing: 2, left: 3 }));
    }

    #[test]
    fn force_waits_for_nobody() {
        let members = [standing_by("a"), active("b")];
        let plan = plan(DeletionPolicy::Force, &members, at(0));
        assert_eq!(names(&plan), ["a", "b"]);
        assert_eq!(plan.stage.map(|stage| stage.phase), Some(Phase::Deleting));
    }

    #[test]
    fn retain_marks_what_runs_and_then_lets_go() {
        let mut members = [standing_by("a"), active("b")];
        let marking = plan(DeletionPolicy::Retain, &members, at(0));
        assert!(marking.retire.is_empty());
        assert_eq!((marking.retain.len(), marking.stage.map(|stage| stage.left)), (2, Some(2)));
        for member in &mut members {
            member.server.as_mut().unwrap().retained = true;
        }
        let done = plan(DeletionPolicy::Retain, &members, at(0));
        assert_eq!((done.retain.len(), done.stage), (0, None));
    }

    #[test]
    fn what_has_not_registered_itself_is_given_a_server_first() {
        let plan = plan(DeletionPolicy::Safe, &[unregistered("a")], at(0));
        assert_eq!((plan.serve, plan.stage.map(|stage| stage.left)), (vec!["a".to_owned()], Some(1)));
    }

    #[test]
    fn only_force_does_not_wait_for_an_activation() {
        assert!(waits_for_activation(DeletionPolicy::Safe, Phase::Activating));
        assert!(waits_for_activation(DeletionPolicy::Retain, Phase::New));
        assert!(!waits_for_activation(DeletionPolicy::Force, Phase::Activating));
        assert!(!waits_for_activation(DeletionPolicy::Safe, Phase::Error));
    }

    #[test]
    fn with_nothing_left_the_group_goes() {
        assert_eq!(plan(DeletionPolicy::Safe, &[], at(0)).stage, None);
    }
}
