//! All policies on the same days.

use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context as _, Result};
use gamekeeper::rules::viability;
use serde::Serialize;

use super::demand;
use super::keeper::{Keeper, Verdicts};
use super::market::{Market, Seconds, Terms};
use super::plain::Plain;
use super::policy::{self, Day};

/// How long before a crunch the one with foresight knows of it.
const FORESIGHT: Seconds = 30 * 60;

/// The days of each policy, summed up.
#[derive(Clone, Debug, Default)]
pub(super) struct Days {
    market: &'static str,
    seeds: usize,
    gamekeeper: Day,
    plain: Day,
    clairvoyant: Day,
    foresight: Day,
    on_demand: Day,
}

/// What it comes to.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    market: &'static str,
    seeds: usize,
    sessions: usize,
    lost_gamekeeper: usize,
    lost_plain: usize,
    lost_clairvoyant: usize,
    lost_foresight: usize,
    pub(super) lost_ratio: f64,
    pub(super) clairvoyant_ratio: f64,
    pub(super) cost_ratio: f64,
    pub(super) cost_ratio_plain: f64,
    missed_gamekeeper: usize,
    missed_plain: usize,
    pub(super) floor_broken_seconds: u64,
}

/// The days of these seeds, in such a market and with such patience.
pub(super) fn over(
    seeds: impl IntoIterator<Item = u64>,
    market: &'static str,
    terms: Terms,
    rules: viability::Terms,
) -> Result<Days> {
    let left = Mutex::new(seeds.into_iter().collect::<Vec<_>>());
    let days = Mutex::new(Days { market, ..Days::default() });
    let next = || left.lock().ok().and_then(|mut left| left.pop());
    let work = || -> Result<()> {
        while let Some(seed) = next() {
            let day = one(seed, terms, rules)?;
            if let Ok(mut days) = days.lock() {
                days.add(&day);
            }
        }
        Ok(())
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let working: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        working.into_iter().try_for_each(|worker| worker.join().ok().context("a day came to no end")?)
    })?;
    days.into_inner().ok().context("a day came to no end")
}

fn one(seed: u64, terms: Terms, rules: viability::Terms) -> Result<Days> {
    let (market, sessions) = (Market::of(terms, seed), demand::of(seed));
    let keep = |strategy: &str, verdicts| {
        let mut keeper = Keeper::new(&market, strategy, verdicts)?;
        policy::run(&market, &sessions, &mut keeper, seed)
    };
    Ok(Days {
        market: "",
        seeds: 1,
        gamekeeper: keep("SpotPreferred", Verdicts::Learnt(rules))?,
        plain: policy::run(&market, &sessions, &mut Plain, seed)?,
        clairvoyant: keep("SpotPreferred", Verdicts::Known { ahead: 0 })?,
        foresight: keep("SpotPreferred", Verdicts::Known { ahead: FORESIGHT })?,
        on_demand: keep("OnDemandOnly", Verdicts::Learnt(rules))?,
    })
}

impl Days {
    fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.gamekeeper.add(&other.gamekeeper);
        self.plain.add(&other.plain);
        self.clairvoyant.add(&other.clairvoyant);
        self.foresight.add(&other.foresight);
        self.on_demand.add(&other.on_demand);
    }

    pub(super) fn compared(&self) -> Compared {
        let lost = |day: &Day| day.losses();
        Compared {
            market: self.market,
            seeds: self.seeds,
            sessions: self.gamekeeper.sessions,
            lost_gamekeeper: lost(&self.gamekeeper),
            lost_plain: lost(&self.plain),
            lost_clairvoyant: lost(&self.clairvoyant),
            lost_foresight: lost(&self.foresight),
            lost_ratio: quotient(number(lost(&self.gamekeeper)), number(lost(&self.plain))),
            clairvoyant_ratio: quotient(
                number(lost(&self.gamekeeper) + 1),
                number(lost(&self.clairvoyant) + 1),
            ),
            cost_ratio: quotient(self.gamekeeper.cost, self.on_demand.cost),
            cost_ratio_plain: quotient(self.plain.cost, self.on_demand.cost),
            missed_gamekeeper: self.gamekeeper.missed,
            missed_plain: self.plain.missed,
            floor_broken_seconds: self.gamekeeper.floor_broken,
        }
    }

    pub(super) fn print(&self) {
        println!(
            "\n{} market, {} days of {} sessions",
            self.market,
            self.seeds,
            self.gamekeeper.sessions / self.seeds.max(1)
        );
        println!("{:<12} {:>8} {:>8} {:>10} {:>8}", "", "lost", "missed", "cost", "floor s");
        for (name, day) in [
            ("gamekeeper", &self.gamekeeper),
            ("plain", &self.plain),
            ("clairvoyant", &self.clairvoyant),
            ("foresight", &self.foresight),
            ("on-demand", &self.on_demand),
        ] {
            println!(
                "{name:<12} {:>8} {:>8} {:>10.0} {:>8}",
                day.losses(),
                day.missed,
                day.cost,
                day.floor_broken
            );
            for (cause, count) in &day.lost {
                println!("{:<12} {count:>8} {}", "", cause.words());
            }
        }
    }
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// To three decimals.
fn quotient(one: f64, other: f64) -> f64 {
    (one / other * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each session that is asked for is missed, lost, played to its end, or still on.
    #[test]
    fn no_session_is_forgotten() {
        let days =
            one(1, Terms { calm: 2.0 * 3600.0, ..Terms::default() }, viability::Terms::default()).unwrap();
        for day in [&days.gamekeeper, &days.plain, &days.clairvoyant, &days.on_demand] {
            assert_eq!(day.sessions, day.missed + day.losses() + day.finished + day.still_on, "{day:?}");
            assert!(day.finished > 5_000, "{day:?}");
        }
        assert!(days.plain.losses() > 0 && days.on_demand.losses() == 0);
    }
}
