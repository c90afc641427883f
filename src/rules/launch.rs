//! Row P5: a server that fails is replaced, and one that fails again and again is replaced more and more slowly.

use jiff::{SignedDuration, Timestamp};

use super::observed::{Ended, Member};
use crate::api::{EndReason, State};

/// The wait before the second failure in a row is replaced; it doubles from there.
const FIRST_WAIT: SignedDuration = SignedDuration::from_secs(5);

/// The longest wait.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// A server that ran this long before it failed starts its slot's count anew.
const STEADY: SignedDuration = SignedDuration::from_mins(10);

/// Why the game's container ended, given what its server last said.
pub fn verdict(ended: &Ended, state: State) -> (EndReason, String) {
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

/// A failed server whose slot waits before it is filled again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Retry {
    /// The attempt that its replacement is: how many in a row will have failed before it.
    pub attempt: u32,
    /// Not before this.
    pub not_before: Timestamp,
    /// How the last one failed.
    pub message: String,
}

/// When the replacement of `predecessor` may be made, if that failed; none where nothing needs to wait.
pub fn retry(predecessor: &Member) -> Option<Retry> {
    let pod = predecessor.pod.as_ref()?;
    let ended = pod.ended()?;
    let (reason, message) = said(predecessor, ended);
    if !reason.is_failure() {
        return None;
    }
    let ran = ended.started_at.map_or(SignedDuration::ZERO, |started| ended.ended_at.duration_since(started));
    let failed_before = if ran >= STEADY { 0 } else { pod.attempt };
    let wait = wait_after(failed_before);
    Some(Retry {
        attempt: failed_before.saturating_add(1),
        not_before: ended.ended_at.checked_add(wait).ok()?,
        message,
    })
}

/// Why it ended: as its server says, or as it will say in a moment.
fn said(predecessor: &Member, ended: &Ended) -> (EndReason, String) {
    let server = predecessor.server.as_ref();
    match server.and_then(|server| server.end.as_ref()) {
        Some(end) => (end.reason, end.message.clone()),
        None => verdict(ended, server.map_or(State::Creating, |server| server.state)),
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
    use crate::rules::fixtures::{at, crashed};

    fn next_try(predecessor: &Member) -> Option<(u32, Timestamp)> {
        retry(predecessor).map(|retry| (retry.attempt, retry.not_before))
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
        assert_eq!(verdict(&exit(0), State::Active).0, EndReason::SessionEnded);
        assert_eq!(verdict(&exit(143), State::Terminating).0, EndReason::SessionEnded);
        assert_eq!(verdict(&exit(0), State::StandingBy).0, EndReason::ExitedEarly);
        assert_eq!(verdict(&exit(1), State::Active).0, EndReason::Crashed);
    }
}
