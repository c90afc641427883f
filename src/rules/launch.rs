//! Row P5: a server that fails is replaced, and one that fails again and again is replaced more and more slowly.
//!
//! A failed server is kept until its slot is filled again: it carries the count of failures over a restart of the
//! operator, and the log of its pod can be read meanwhile.

use jiff::{SignedDuration, Timestamp};

use super::observed::{Ended, Failure, Member, Server};
use crate::api::{EndReason, GameServerGroup, State};

/// The wait before the second failure in a row is replaced; it doubles from there.
const FIRST_WAIT: SignedDuration = SignedDuration::from_secs(5);

/// The longest wait.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// A server that ran this long before it failed starts its slot's count anew.
const STEADY: SignedDuration = SignedDuration::from_mins(10);

/// Why the game's container ended, given what its server last said. What its node took along has not failed.
pub fn verdict(ended: &Ended, server: Option<&Server>) -> (EndReason, String) {
    let (reason, words) = by_itself(ended, server.map_or(State::Creating, |server| server.state));
    match server.filter(|server| server.goes_with_its_node() && reason.is_failure()) {
        Some(server) => (EndReason::NodeEnding, format!("{}; {words}", server.cause())),
        None => (reason, words),
    }
}

fn by_itself(ended: &Ended, state: State) -> (EndReason, String) {
    let Some(code) = ended.exit_code else { return (EndReason::PodFailed, ended.message.clone()) };
    let words = if ended.message.is_empty() {
        format!("the game exited with code {code}")
    } else {
        format!("the game exited with code {code}: {}", ended.message)
    };
    let reason = match (code, state) {
        // Whoever said that it ends has ended, whichever way its container then went.
        (_, State::Terminating | State::Terminated) | (0, State::Active) => EndReason::SessionEnded,
        (0, State::Creating | State::Initializing | State::StandingBy) => EndReason::ExitedEarly,
        (_, State::Creating | State::Initializing | State::StandingBy | State::Active) => EndReason::Crashed,
    };
    (reason, words)
}

/// Whether a member of `group` is a failed server, to be kept until its slot is filled again.
pub fn is_kept(member: &Member, group: Option<&GameServerGroup>) -> bool {
    let lives = group.is_some_and(|group| group.metadata.deletion_timestamp.is_none());
    let failed = member.server.as_ref().is_some_and(|server| {
        server.state == State::Terminated && server.end.as_ref().is_some_and(|end| end.reason.is_failure())
    });
    let over = member.pod.as_ref().is_none_or(|pod| pod.ended().is_some());
    lives && failed && over
}

/// When, and after what, a failed server's slot may be filled again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Retry {
    /// Not before this.
    pub not_before: Timestamp,
    /// What the replacement comes after.
    pub failure: Failure,
}

/// When the replacement of `predecessor` may be made, if that failed.
pub fn retry(predecessor: &Member) -> Option<Retry> {
    let end = end_of(predecessor)?;
    if !end.reason.is_failure() {
        return None;
    }
    let known = predecessor.server.as_ref().map(|server| server.failed_before);
    let failed_before = known
        .or_else(|| predecessor.pod.as_ref()?.after.as_ref().map(|failure| failure.in_a_row))
        .filter(|_| end.ran < STEADY)
        .unwrap_or(0);
    let failure = Failure { in_a_row: failed_before.saturating_add(1), message: end.message };
    Some(Retry { not_before: end.time.checked_add(wait_after(failed_before)).ok()?, failure })
}

struct EndOf {
    reason: EndReason,
    message: String,
    time: Timestamp,
    ran: SignedDuration,
}

/// How a server ended: as it says, or as it will say in a moment of a pod that has ended.
fn end_of(member: &Member) -> Option<EndOf> {
    let server = member.server.as_ref();
    let ended = member.pod.as_ref().and_then(|pod| pod.ended());
    // A container that could not be started says that it did in 1970.
    let made = member.pod.as_ref().map(|pod| pod.created_at).or(server.map(|server| server.created_at));
    let started = ended.and_then(|ended| ended.started_at).max(made);
    let ran = |time: Timestamp| started.map_or(SignedDuration::ZERO, |started| time.duration_since(started));
    match (server.and_then(|server| server.end.as_ref()), ended) {
        (Some(end), _) => {
            let time = end.time.0;
            Some(EndOf { reason: end.reason, message: end.message.clone(), time, ran: ran(time) })
        }
        (None, Some(ended)) => {
            let (reason, message) = verdict(ended, server.map(|server| &**server));
            Some(EndOf { reason, message, time: ended.ended_at, ran: ran(ended.ended_at) })
        }
        (None, None) => None,
    }
}

/// Nothing after the first failure, then 5 s, 10 s, 20 s … up to 5 minutes.
fn wait_after(failed_before: u32) -> SignedDuration {
    match failed_before.checked_sub(1) {
        None => SignedDuration::ZERO,
        Some(doublings) => {
            FIRST_WAIT.checked_mul(1 << doublings.min(16)).map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::InstanceStatus;
    use crate::rules::fixtures::{at, crashed, group, standing_by};
    use crate::rules::observed::Game;

    fn next_try(predecessor: &Member) -> Option<(u32, Timestamp)> {
        retry(predecessor).map(|retry| (retry.failure.in_a_row, retry.not_before))
    }

    #[test]
    fn the_wait_doubles_up_to_five_minutes() {
        let waits: Vec<i64> = (0..10).map(|failed| wait_after(failed).as_secs()).collect();
        assert_eq!(waits, [0, 5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(wait_after(u32::MAX), LONGEST_WAIT);
    }

    #[test]
    fn a_first_failure_is_replaced_at_once_and_a_second_waits() {
        assert_eq!(next_try(&crashed("a", 0, 3)), Some((1, at(3))));
        assert_eq!(next_try(&crashed("a", 1, 3)), Some((2, at(8))));
    }

    /// The pod's end is seen before the server's state follows.
    #[test]
    fn a_failure_counts_before_its_server_says_so() {
        let mut member = crashed("a", 1, 3);
        let server = member.server.as_mut().unwrap();
        (server.state, server.end) = (State::Initializing, None);
        assert_eq!(next_try(&member), Some((2, at(8))));
    }

    /// A launch that took too long is ended by us, and its pod is deleted: its server remembers.
    #[test]
    fn a_failure_counts_after_its_pod_has_gone() {
        let mut member = crashed("a", 2, 3);
        member.pod = None;
        member.server.as_mut().unwrap().end.as_mut().unwrap().reason = EndReason::LaunchTimeout;
        assert_eq!(next_try(&member), Some((3, at(13))));
        assert!(is_kept(&member, Some(&group())));
        assert!(!is_kept(&member, None));
    }

    /// The kubelet's `StartError`: a mistyped entrypoint.
    #[test]
    fn a_container_that_never_started_did_not_run_long() {
        let mut member = crashed("a", 3, 5);
        let Game::Ended(ended) = &mut member.pod.as_mut().unwrap().game else { panic!("it has ended") };
        ended.started_at = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(next_try(&member), Some((4, at(25))));
    }

    #[test]
    fn a_server_that_ran_long_starts_the_count_anew() {
        assert_eq!(next_try(&crashed("a", 7, 601)), Some((1, at(601))));
    }

    #[test]
    fn an_exit_means_what_the_server_was_at() {
        let exit = |code| Ended {
            exit_code: Some(code),
            message: String::new(),
            started_at: Some(at(0)),
            ended_at: at(1),
        };
        let verdict = |code, state| {
            let mut server = standing_by("a").server.unwrap();
            server.state = state;
            verdict(&exit(code), Some(&server)).0
        };
        assert_eq!(verdict(0, State::Active), EndReason::SessionEnded);
        assert_eq!(verdict(143, State::Terminating), EndReason::SessionEnded);
        assert_eq!(verdict(0, State::StandingBy), EndReason::ExitedEarly);
        assert_eq!(verdict(1, State::Active), EndReason::Crashed);
    }

    /// Row F20: the next server of its slot is not kept waiting for it.
    #[test]
    fn what_a_node_takes_along_has_not_failed() {
        let mut member = crashed("a", 3, 5);
        let server = member.server.as_mut().unwrap();
        (server.state, server.end) = (State::Active, None);
        server.instance = standing_by("a").server.unwrap().instance.clone();
        assert!(next_try(&member).is_some());
        let server = member.server.as_mut().unwrap();
        server.instance.as_mut().unwrap().status = InstanceStatus::SpotTerminating;
        assert_eq!(next_try(&member), None);
    }
}
