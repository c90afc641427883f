//! A spot market, drawn from a seed: when pools are in a crunch, when their nodes are taken back, when none can be had, and
//! what they cost. It knows nothing of who rents there.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;

/// Seconds since the market opened.
pub(super) type Seconds = u32;

/// How long a day is.
pub(super) const DAY: Seconds = 24 * 3600;

/// How many pools there are: three instance types in two zones.
pub(super) const POOLS: usize = 6;

/// What a market is drawn by. None of these times is measured: they are a bad day, and the sweep varies them. Where a
/// provider's own figures hold (fewer than 5 in 100 instances are interrupted in a month, by nOps' account of a billion
/// dollars of spend), hardly anybody loses anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Terms {
    /// How long a pool is calm, on average (an assumption).
    pub(super) calm: f64,
    /// How long it is in a crunch, on average: some hours (an assumption).
    pub(super) crunch: f64,
    /// How long there is between the waves of a crunch, on average (an assumption). The first one opens it.
    pub(super) between_waves: f64,
    /// How likely a wave takes a node (an assumption).
    pub(super) hit: f64,
    /// The share of a wave that comes within [`WAVE`]: 92 of 100 (arXiv 2604.16457, 2,635 interruptions on AWS and Azure).
    pub(super) together: f64,
    /// How much of a crunch no node can be had, in stretches of [`Terms::out`] on average (an assumption).
    pub(super) out_share: f64,
    /// How long such a stretch is on average (an assumption).
    pub(super) out: f64,
    /// How long a node lives in calm, on average: of 100, 5 are interrupted in a month (nOps; the Spot Advisor's lowest band).
    pub(super) lives: f64,
    /// What a spot node costs, where one on demand costs 1: users save 50 to 70 of 100 (their reports; AWS says up to 90).
    pub(super) price: (f64, f64),
    /// Whether interruptions come in waves. If not, as many come on average, each by itself, and nodes can always be had.
    pub(super) clustered: bool,
}

/// Within which most of a wave comes.
pub(super) const WAVE: f64 = 180.0;

impl Default for Terms {
    fn default() -> Self {
        Self {
            calm: 12.0 * 3600.0,
            crunch: 3.0 * 3600.0,
            between_waves: 40.0 * 60.0,
            hit: 0.5,
            together: 0.92,
            out_share: 0.6,
            out: 3600.0,
            lives: 30.0 * 24.0 * 3600.0 / 0.05,
            price: (0.3, 0.5),
            clustered: true,
        }
    }
}

impl Terms {
    /// How many interruptions an hour of a node's has, on average.
    fn rate(&self) -> f64 {
        let crunch = self.crunch / (self.calm + self.crunch);
        // One wave opens a crunch, and the others follow.
        let waves = crunch * (1.0 / self.between_waves + 1.0 / self.crunch);
        waves * self.hit + 1.0 / self.lives
    }

    /// The same number of interruptions without their crunches.
    pub(super) fn alone(self) -> Self {
        Self { lives: 1.0 / self.rate(), clustered: false, ..self }
    }
}

/// A pool's day.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pool {
    pub(super) price: f64,
    /// When it is in a crunch.
    pub(super) crunches: Vec<Range<Seconds>>,
    /// When no node can be had.
    pub(super) out: Vec<Range<Seconds>>,
    pub(super) waves: Vec<Wave>,
    seed: u64,
}

/// When nodes are taken back together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wave {
    pub(super) at: Seconds,
    /// Whether it opens a crunch.
    pub(super) first: bool,
    seed: u64,
}

/// All pools' day.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Market {
    pub(super) pools: Vec<Pool>,
    terms: Terms,
}

impl Market {
    pub(super) fn of(terms: Terms, seed: u64) -> Self {
        let pools = (0..POOLS).map(|number| Pool::of(&terms, stream(seed, "pool", number))).collect();
        Self { pools, terms }
    }

    /// When a wave takes each of the nodes that are there, the oldest first; none where it spares one.
    pub(super) fn hits(&self, wave: &Wave, nodes: usize) -> Vec<Option<Seconds>> {
        let mut rng = Rng::with_seed(wave.seed);
        // Whoever rents more sees the same luck for the nodes that others have too.
        let mut hit = || {
            let (taken, after) =
                (rng.f64() < self.terms.hit, exponential(&mut rng, mean_delay(self.terms.together)));
            taken.then(|| wave.at.saturating_add(whole(after)))
        };
        (0..nodes).map(|_| hit()).collect()
    }

    /// How long a pool's node of this number lives if no wave takes it.
    pub(super) fn life(&self, pool: usize, node: usize) -> Seconds {
        let seed = self.pools.get(pool).map_or(0, |pool| pool.seed);
        whole(exponential(&mut Rng::with_seed(stream(seed, "node", node)), self.terms.lives))
    }
}

/// The mean delay of a wave's hits, so that this share comes within [`WAVE`].
fn mean_delay(together: f64) -> f64 {
    -WAVE / (1.0 - together).ln()
}

impl Pool {
    fn of(terms: &Terms, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (low, high) = terms.price;
        let price = low + (high - low) * rng.f64();
        let mut pool = Self { price, crunches: Vec::new(), out: Vec::new(), waves: Vec::new(), seed };
        if !terms.clustered {
            return pool;
        }
        let mut now = exponential(&mut rng, terms.calm);
        while now < f64::from(DAY) {
            let end = now + exponential(&mut rng, terms.crunch);
            pool.crunch(terms, now..end, &mut rng);
            now = end + exponential(&mut rng, terms.calm);
        }
        pool
    }

    fn crunch(&mut self, terms: &Terms, lasts: Range<f64>, rng: &mut Rng) {
        self.crunches.push(whole(lasts.start)..whole(lasts.end));
        let mut wave = lasts.start;
        while wave < lasts.end {
            self.waves.push(Wave { at: whole(wave), first: wave <= lasts.start, seed: rng.u64(..) });
            wave += exponential(rng, terms.between_waves);
        }
        // What is taken back is not given out at once.
        let had = terms.out * (1.0 - terms.out_share) / terms.out_share;
        let mut out = lasts.start;
        while out < lasts.end {
            let end = (out + exponential(rng, terms.out)).min(lasts.end);
            self.out.push(whole(out)..whole(end));
            out = end + exponential(rng, had);
        }
    }

    pub(super) fn is_out(&self, now: Seconds) -> bool {
        self.out.iter().any(|out| out.contains(&now))
    }

    /// Whether it is in a crunch at some time until then.
    pub(super) fn is_crunched(&self, now: Seconds, until: Seconds) -> bool {
        self.crunches.iter().any(|crunch| crunch.start <= until && now < crunch.end)
    }
}

/// A seed of its own for each use, so that one who draws more does not change the luck of others.
pub(super) fn stream(seed: u64, use_: &str, number: usize) -> u64 {
    let mut mixed = Rng::with_seed(seed);
    let salt = use_.bytes().fold(0_u64, |salt, byte| salt.wrapping_mul(257).wrapping_add(byte.into()));
    Rng::with_seed(
        mixed.u64(..) ^ salt ^ u64::try_from(number).unwrap_or_default().wrapping_mul(0x9E37_79B9_7F4A_7C15),
    )
    .u64(..)
}

pub(super) fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -(1.0 - rng.f64()).ln() * mean
}

/// Whole seconds; a time beyond all days is as good as never.
pub(super) fn whole(seconds: f64) -> Seconds {
    let whole = Duration::from_secs_f64(seconds.clamp(0.0, 1e9)).as_secs();
    Seconds::try_from(whole).unwrap_or(Seconds::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_market_is_told_by_its_seed() {
        let market = |seed| Market::of(Terms::default(), seed);
        assert_eq!(market(7), market(7));
        assert_ne!(market(7), market(8));
    }

    #[test]
    fn of_a_wave_92_of_100_come_within_3_minutes() {
        let market = Market::of(Terms::default(), 1);
        let (mut all, mut together) = (0_u32, 0_u32);
        for seed in 0..200 {
            let wave = Wave { at: 1000, first: true, seed };
            for hit in market.hits(&wave, 100).into_iter().flatten() {
                all += 1;
                together += u32::from(hit < 1180);
            }
        }
        assert!((9_500..10_500).contains(&all), "{all}");
        let share = f64::from(together) / f64::from(all);
        assert!((0.91..0.93).contains(&share), "{share}");
    }

    /// Whoever rents more nodes does not change what happens to the first ones.
    #[test]
    fn luck_goes_by_the_order_of_nodes() {
        let market = Market::of(Terms::default(), 1);
        let wave = Wave { at: 0, first: false, seed: 5 };
        assert_eq!(market.hits(&wave, 3), market.hits(&wave, 9)[..3]);
        assert_eq!(market.life(2, 4), market.life(2, 4));
    }

    #[test]
    fn nothing_can_be_had_for_the_share_of_crunches_that_is_asked_for() {
        let (mut crunched, mut out) = (0_u32, 0_u32);
        for seed in 0..100 {
            for pool in Market::of(Terms::default(), seed).pools {
                crunched += pool.crunches.iter().map(|crunch| crunch.end - crunch.start).sum::<u32>();
                out += pool.out.iter().map(|out| out.end - out.start).sum::<u32>();
                assert!(pool.waves.iter().all(|wave| pool.is_crunched(wave.at, wave.at)));
            }
        }
        // Each crunch opens with such a stretch.
        let share = f64::from(out) / f64::from(crunched);
        assert!((0.6..0.8).contains(&share), "{share}");
    }
}
