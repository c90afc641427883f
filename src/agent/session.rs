//! From what the game answers to what is reported: a pure step, so that it can be tested without a game.

use std::time::Duration;

use tokio::time::Instant;

use crate::api::{Players, State};

/// The least time between two reports of a mere change in the number of players.
const PLAYERS_INTERVAL: Duration = Duration::from_secs(5);

/// What is to be reported.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Report {
    /// The new state, where it has changed.
    pub(super) state: Option<State>,
    /// The players, where they have changed.
    pub(super) players: Option<Players>,
}

/// One session of the game, from its first answer to its end.
#[derive(Debug)]
pub(super) struct Session {
    state: State,
    players: Option<Players>,
    empty_for: Duration,
    /// When the game was last seen with a player in it, or the agent began to look.
    last_played: Instant,
    /// When players were last reported.
    counted: Option<Instant>,
    answered: bool,
}

impl Session {
    /// A session of which nothing is known yet.
    pub(super) fn new(empty_for: Duration, now: Instant) -> Self {
        Self {
            state: State::Creating,
            players: None,
            empty_for,
            last_played: now,
            counted: None,
            answered: false,
        }
    }

    /// What to report now that the game has answered with `seen`, or not at all.
    pub(super) fn next(&mut self, seen: Option<Players>, now: Instant) -> Option<Report> {
        let seen = seen?;
        self.answered = true;
        if seen.count > 0 {
            self.last_played = now;
        }
        let state = self.state_for(seen, now);
        let due = self.counted.is_none_or(|then| now.duration_since(then) >= PLAYERS_INTERVAL);
        let players = (self.players != Some(seen) && (due || state.is_some())).then_some(seen);
        (state.is_some() || players.is_some()).then_some(Report { state, players })
    }

    /// Ready when it answers; in use when a player is in; over when none has been in for long enough after that.
    fn state_for(&self, seen: Players, now: Instant) -> Option<State> {
        match self.state {
            State::Creating | State::Initializing if seen.count > 0 => Some(State::Active),
            State::Creating | State::Initializing => Some(State::StandingBy),
            State::StandingBy => (seen.count > 0).then_some(State::Active),
            State::Active => {
                let empty = now.duration_since(self.last_played) >= self.empty_for;
                empty.then_some(State::Terminating)
            }
            State::Terminating | State::Terminated => None,
        }
    }

    /// `report` has got through.
    pub(super) fn reported(&mut self, report: &Report, now: Instant) {
        if let Some(state) = report.state {
            self.state = state;
        }
        if let Some(players) = report.players {
            self.players = Some(players);
            self.counted = Some(now);
        }
    }

    /// The resource says that it is at `state`. If that is Active, and not by our own word, its players are given
    /// `time_to_come` before they count as gone.
    pub(super) fn told(&mut self, state: State, time_to_come: Duration, now: Instant) {
        if state == State::Active && self.state < State::Active {
            self.last_played = self.last_played.max(now + time_to_come);
        }
        self.state = state;
    }

    /// Whether the game has ever answered.
    pub(super) fn has_answered(&self) -> bool {
        self.answered
    }

    /// Whether nothing is left to report.
    pub(super) fn is_over(&self) -> bool {
        self.state >= State::Terminating
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Story {
        session: Session,
        start: Instant,
    }

    impl Story {
        fn begins(state: State) -> Self {
            let start = Instant::now();
            let mut story = Self { session: Session::new(Duration::from_secs(30), start), start };
            story.told(0, state, 0);
            story
        }

        /// The resource says so at this second, when players have so many seconds to come.
        fn told(&mut self, second: u64, state: State, time_to_come: u64) {
            let now = self.start + Duration::from_secs(second);
            self.session.told(state, Duration::from_secs(time_to_come), now);
        }

        /// What is reported, and got through, when the game answers so many players at this second.
        fn at(&mut self, second: u64, players: Option<i32>) -> Option<Report> {
            let now = self.start + Duration::from_secs(second);
            let seen = players.map(|count| Players { count, capacity: 12 });
            let report = self.session.next(seen, now)?;
            self.session.reported(&report, now);
            Some(report)
        }

        fn state_at(&mut self, second: u64, players: Option<i32>) -> Option<State> {
            self.at(second, players).and_then(|report| report.state)
        }
    }

    #[test]
    fn a_game_is_ready_active_and_over() {
        let mut story = Story::begins(State::Initializing);
        assert_eq!(story.at(0, None), None);
        assert_eq!(story.state_at(1, Some(0)), Some(State::StandingBy));
        assert_eq!(story.state_at(100, Some(0)), None);
        assert_eq!(story.state_at(101, Some(1)), Some(State::Active));
        assert_eq!(story.state_at(130, Some(0)), None);
        assert_eq!(story.state_at(131, Some(0)), Some(State::Terminating));
        assert!(story.session.is_over());
    }

    #[test]
    fn players_who_come_back_in_time_go_on() {
        let mut story = Story::begins(State::Active);
        assert_eq!(story.state_at(29, Some(2)), None);
        assert_eq!(story.state_at(58, Some(0)), None);
        assert_eq!(story.state_at(59, Some(0)), Some(State::Terminating));
    }

    #[test]
    fn only_changes_are_reported_and_counts_at_a_bounded_rate() {
        let mut story = Story::begins(State::Active);
        let reports =
            (0..20).filter(|second| story.at(*second, Some(1 + i32::try_from(*second).unwrap())).is_some());
        assert_eq!(reports.count(), 4);
        assert!(story.at(25, Some(5)).is_some());
        assert!((26..50).all(|second| story.at(second, Some(5)).is_none()));
    }

    #[test]
    fn a_game_that_falls_silent_changes_nothing() {
        let mut story = Story::begins(State::Active);
        story.at(0, Some(3));
        assert!((1..100).all(|second| story.at(second, None).is_none()));
    }

    /// Row P3, confirmation Immediate: the claim makes the game Active before anybody plays.
    #[test]
    fn players_of_a_game_that_others_made_active_have_time_to_come() {
        let mut story = Story::begins(State::StandingBy);
        story.told(1000, State::Active, 60);
        assert_eq!(story.state_at(1089, Some(0)), None);
        assert_eq!(story.state_at(1090, Some(0)), Some(State::Terminating));

        let mut story = Story::begins(State::StandingBy);
        story.told(1000, State::Active, 60);
        assert_eq!(story.state_at(1089, Some(1)), None);
        // Our own word, or the same again, gives nobody more time.
        story.told(1090, State::Active, 60);
        assert_eq!(story.state_at(1119, Some(0)), Some(State::Terminating));
    }

    #[test]
    fn a_game_that_others_ended_is_over() {
        let mut story = Story::begins(State::StandingBy);
        story.told(5, State::Terminating, 0);
        assert!(story.session.is_over());
        assert_eq!(story.at(6, Some(3)).and_then(|report| report.state), None);
    }
}
