//! What runs a fleet, and how well it does on a day.

use std::collections::BTreeMap;

use anyhow::Result;
use fastrand::Rng;

use super::demand::{SERVERS, Session};
use super::fleet::{Blow, Fleet, Happened, Place, Server, Stage};
use super::market::{DAY, Market, Seconds, stream};

/// How much time passes between two looks.
pub(super) const STEP: Seconds = 5;
/// From when on players come: the first servers are ready by then.
const OPENS: Seconds = 600;

/// Whoever makes servers, ends them, and has players sent to them.
pub(super) trait Policy {
    /// Takes up what has happened, and does something about it. Gives how many servers it has ended that were ready.
    fn act(&mut self, fleet: &mut Fleet<'_>, happened: &[Happened], now: Seconds) -> Result<usize>;

    /// Whether players are sent to a server that is ready and whose node stays: those of the lowest rank first.
    fn rank(&self, server: &Server) -> u8;

    /// Whether it had left a place by then.
    fn had_left(&self, place: Place, at: Seconds) -> bool;
}

/// How a session was lost.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Cause {
    FirstWave,
    StillOn,
    CameBack,
    Alone,
}

impl Cause {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::FirstWave => "taken by the first wave of a crunch",
            Self::StillOn => "taken by a later wave: still on in a pool that was left",
            Self::CameBack => "taken by a later wave, in a pool that was in use",
            Self::Alone => "on a node that was interrupted by itself",
        }
    }
}

/// How a day went.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Day {
    /// Sessions that were asked for.
    pub(super) sessions: usize,
    /// Those for which no server was ready.
    pub(super) missed: usize,
    pub(super) finished: usize,
    pub(super) still_on: usize,
    pub(super) lost: BTreeMap<Cause, usize>,
    /// In hours of a node on demand.
    pub(super) cost: f64,
    /// How long fewer were ready than are wanted, from when the policy ended one until enough were again.
    pub(super) floor_broken: u64,
}

impl Day {
    pub(super) fn losses(&self) -> usize {
        self.lost.values().sum()
    }

    /// Takes up another day.
    pub(super) fn add(&mut self, other: &Self) {
        self.sessions += other.sessions;
        self.missed += other.missed;
        self.finished += other.finished;
        self.still_on += other.still_on;
        self.cost += other.cost;
        self.floor_broken += other.floor_broken;
        for (cause, count) in &other.lost {
            *self.lost.entry(*cause).or_default() += count;
        }
    }
}

/// Runs a day.
pub(super) fn run(market: &Market, sessions: &[Session], policy: &mut impl Policy, seed: u64) -> Result<Day> {
    let (mut fleet, mut day) = (Fleet::new(market), Day::default());
    let mut luck = Rng::with_seed(stream(seed, "luck", 0));
    let mut coming = sessions.iter().skip_while(|session| session.at < OPENS).peekable();
    let mut broken = false;
    for now in (0..DAY).step_by(usize::try_from(STEP).unwrap_or(1)) {
        let mut happened = fleet.pass(now, STEP);
        for happened in &happened {
            if let Happened::Lost { place, blow } = happened {
                *day.lost.entry(cause(policy, *place, *blow)).or_default() += 1;
            }
        }
        while let Some(session) = coming.next_if(|session| session.at <= now) {
            day.sessions += 1;
            match pick(&fleet, policy, &mut luck) {
                Some(id) => {
                    fleet.play(id, *session, now);
                    happened.push(Happened::Changed(id));
                }
                None => day.missed += 1,
            }
        }
        let ended = policy.act(&mut fleet, &happened, now)?;
        let enough = ready(&fleet) >= usize::try_from(SERVERS).unwrap_or(usize::MAX);
        broken = !enough && (broken || ended > 0);
        day.floor_broken += if broken { u64::from(STEP) } else { 0 };
    }
    (day.finished, day.still_on, day.cost) = (fleet.finished, fleet.played(), fleet.cost);
    Ok(day)
}

fn cause(policy: &impl Policy, place: Place, blow: Blow) -> Cause {
    match blow {
        Blow::First => Cause::FirstWave,
        Blow::Later(wave) if policy.had_left(place, wave) => Cause::StillOn,
        Blow::Later(_) => Cause::CameBack,
        Blow::Alone => Cause::Alone,
    }
}

/// Ready or in use, on nodes that stay.
fn ready(fleet: &Fleet<'_>) -> usize {
    let is_ready = |server: &&Server| matches!(server.stage, Stage::Ready | Stage::Played(_));
    fleet.servers.iter().filter(is_ready).filter(|server| !fleet.is_doomed(server)).count()
}

/// A server for a player: any of those of the lowest rank. Nobody is sent to a node that had its notice, whatever the policy:
/// such a node is cordoned.
fn pick(fleet: &Fleet<'_>, policy: &impl Policy, luck: &mut Rng) -> Option<usize> {
    let free = fleet.servers.iter().filter(|server| server.stage == Stage::Ready && !fleet.is_doomed(server));
    let ranked: Vec<(u8, usize)> = free.map(|server| (policy.rank(server), server.id)).collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min()?;
    let best: Vec<usize> = ranked.into_iter().filter(|(rank, _)| *rank == best).map(|(_, id)| id).collect();
    luck.choice(best)
}
