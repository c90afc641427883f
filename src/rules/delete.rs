//! Row F10, as far as it goes: a group that is deleted. Safe waits for games and claims, Force does not.

use jiff::Timestamp;

use super::hold::Retire;
use super::observed::{Member, Server};
use super::retire;
use crate::api::{DeletionPolicy, EndReason, Phase, State};

/// What to do for a group that is being deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Servers to retire.
    pub retire: Vec<Retire>,
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

/// The plan for a group with this policy whose `members` are all that is left of it.
pub fn plan(policy: DeletionPolicy, members: &[Member], now: Timestamp) -> Plan {
    let servers: Vec<&Server> = members
        .iter()
        .filter_map(|member| member.server.as_ref())
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
                DeletionPolicy::Safe => return None,
            };
            let (name, message) = (server.name.clone(), message.to_owned());
            Some(Retire { name, patch, reason: EndReason::GroupDeleted, message })
        })
        .collect();
    let playing = match policy {
        DeletionPolicy::Force => 0,
        DeletionPolicy::Safe => servers.iter().filter(|server| !retire::is_idle(server)).count(),
    };
    let phase = if playing > 0 { Phase::DeleteScheduled } else { Phase::Deleting };
    let stage = (!members.is_empty()).then_some(Stage { phase, playing, left: members.len() });
    Plan { retire, stage }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{active, at, claimed, standing_by};

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
    fn with_nothing_left_the_group_goes() {
        assert_eq!(plan(DeletionPolicy::Safe, &[], at(0)).stage, None);
    }
}
