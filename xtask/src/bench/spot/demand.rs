//! Who comes to play, and for how long: the same for every policy.

use fastrand::Rng;

use super::market::{DAY, Seconds, exponential, stream, whole};

/// How many servers are kept.
pub(super) const SERVERS: u32 = 240;
/// How many of a hundred are in use, on average.
const USED_PERCENT: f64 = 70.0;
/// How long a session lasts on average.
const SESSION: f64 = 20.0 * 60.0;
/// How much that varies: the deviation of its logarithm.
const SPREAD: f64 = 0.5;

/// A session that somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Session {
    pub(super) at: Seconds,
    pub(super) lasts: Seconds,
}

/// The sessions of a day, the earliest first.
pub(super) fn of(seed: u64) -> Vec<Session> {
    let mut rng = Rng::with_seed(stream(seed, "sessions", 0));
    let between = SESSION * 100.0 / (f64::from(SERVERS) * USED_PERCENT);
    let mut now = exponential(&mut rng, between);
    let mut sessions = Vec::new();
    while now < f64::from(DAY) {
        let lasts = SESSION * (SPREAD * normal(&mut rng) - SPREAD * SPREAD / 2.0).exp();
        sessions.push(Session { at: whole(now), lasts: whole(lasts).max(60) });
        now += exponential(&mut rng, between);
    }
    sessions
}

/// By Box and Muller.
fn normal(rng: &mut Rng) -> f64 {
    let (radius, angle) = ((-2.0 * (1.0 - rng.f64()).ln()).sqrt(), std::f64::consts::TAU * rng.f64());
    radius * angle.cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_come_as_use_the_servers_as_much_as_is_asked_for() {
        let sessions = of(3);
        let played: u32 = sessions.iter().map(|session| session.lasts).sum();
        let used = f64::from(played) / f64::from(DAY) / f64::from(SERVERS);
        assert!((0.67..0.73).contains(&used), "{used}");
        assert_eq!(sessions, of(3));
    }
}
