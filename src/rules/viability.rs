//! Rows F3 and F4: whether a pool is fit for games, from what has happened in it.
//!
//! Interruptions come together: 92 of 100 in one type and zone fall within 3 minutes of each other (arXiv 2604.16457). So
//! one is enough against its own zone, and little against others. Evidence fades by a half-life, and what turns a verdict
//! and what turns it back lie apart, with a least time between: so it does not flap.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use crate::api::{Advice, CapacityPoolStatus, Evidence, Override, Viability};

/// How much speaks against a pool that is not viable any more.
const NOT_VIABLE: f64 = 0.9;
/// How much at most against one that is viable again.
const VIABLE: f64 = 0.25;
/// How much of what happens in other zones counts against a pool.
const BESIDE: f64 = 0.2;
/// Evidence that counts no more than this is forgotten.
const FORGOTTEN: f64 = 0.05;
/// How much evidence is kept: as much as the schema takes.
const KEPT: usize = 32;
/// A placement score that says that a request will hardly succeed.
const UNLIKELY: i32 = 2;
/// How much an advised rate of interruptions counts at most: less than [`VIABLE`], so that a pool can return.
const ADVISED: f64 = 0.2;

/// What is said of a pool whose verdict is given from outside.
const HELD: &str = "spec.override says so";

/// How patient verdicts are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    /// How long evidence takes to count half.
    pub half_life: SignedDuration,
    /// How long it stands at least that a pool is not viable.
    pub least: SignedDuration,
}

impl Default for Terms {
    fn default() -> Self {
        // So that a pool is left for most of a crunch of some hours: `cargo xtask bench spot --sweep`.
        Self { half_life: SignedDuration::from_hours(1), least: SignedDuration::from_mins(3) }
    }
}

/// What there is to say of a pool.
#[derive(Clone, Debug, Default)]
pub struct Told<'a> {
    /// `spec.override`.
    pub over: Override,
    /// `spec.advice`.
    pub advice: Option<&'a Advice>,
    /// What has happened in it.
    pub new: Vec<Evidence>,
    /// What has happened in pools of its type in other zones.
    pub beside: &'a [Evidence],
    /// Whether a server has got ready there that was made since the pool is probed.
    pub delivered: bool,
}

impl Terms {
    /// The status of a pool that had `before`.
    pub fn status(self, before: &CapacityPoolStatus, told: &Told<'_>, now: Timestamp) -> CapacityPoolStatus {
        let known = |evidence: &Evidence| {
            before.evidence.iter().any(|known| known.of == evidence.of && known.kind == evidence.kind)
        };
        // What has been forgotten may still be seen: it is no news again.
        let is_news = |evidence: &Evidence| !known(evidence) && self.left(evidence, now) > FORGOTTEN;
        let mut evidence = before.evidence.clone();
        let news: Vec<&Evidence> = told.new.iter().filter(|evidence| is_news(evidence)).collect();
        let something_new = !news.is_empty() && {
            // Where it is full it takes no more: what was put out for something newer would be news again as long as it
            // is seen.
            evidence.retain(|evidence| self.left(evidence, now) > FORGOTTEN);
            let room = KEPT.saturating_sub(evidence.len());
            let surplus = news.len().saturating_sub(room);
            evidence.extend(news.into_iter().skip(surplus).cloned());
            room > 0
        };
        let own: f64 = evidence.iter().map(|evidence| self.left(evidence, now)).sum();
        let others: f64 = told.beside.iter().map(|evidence| self.left(evidence, now)).sum();
        let score = Score { happened: own + BESIDE * others, advised: advised(told.advice) };
        let verdict = self.verdict(before, told, score, now);
        let held = before.message.as_deref().is_some_and(|words| words.starts_with(HELD));
        let same_hand = held == (told.over != Override::Auto);
        // What only fades is no news, until nothing is left of it.
        let cleared = !before.evidence.is_empty() && !self.counts_still(before, now);
        let settled = verdict == before.verdict && same_hand && before.since.is_some();
        if settled && !something_new && !cleared {
            return before.clone();
        }
        evidence.retain(|evidence| self.left(evidence, now) > FORGOTTEN);
        let since = if verdict == before.verdict { before.since.clone() } else { None };
        let message = words(verdict, told.over, score, evidence.len());
        CapacityPoolStatus {
            verdict,
            since: Some(since.unwrap_or(MicroTime(now))),
            message: Some(message),
            evidence,
        }
    }

    fn verdict(
        self,
        before: &CapacityPoolStatus,
        told: &Told<'_>,
        score: Score,
        now: Timestamp,
    ) -> Viability {
        match told.over {
            Override::Viable => return Viability::Viable,
            Override::NotViable => return Viability::NotViable,
            Override::Auto => {}
        }
        let stands = before.since.as_ref().is_some_and(|since| now.duration_since(since.0) < self.least);
        match before.verdict {
            Viability::Viable | Viability::Probing if score.sum() >= NOT_VIABLE => Viability::NotViable,
            Viability::NotViable if score.sum() < VIABLE && !stands => Viability::Probing,
            Viability::Probing if told.delivered => Viability::Viable,
            unchanged => unchanged,
        }
    }

    /// What is left of a piece of evidence. Fresh, each kind counts 1.
    fn left(self, evidence: &Evidence, now: Timestamp) -> f64 {
        let age = now.duration_since(evidence.at.0).as_secs_f64().max(0.0);
        (-age / self.half_life.as_secs_f64()).exp2()
    }

    /// Whether anything still counts against a pool.
    pub fn counts_still(self, status: &CapacityPoolStatus, now: Timestamp) -> bool {
        status.evidence.iter().any(|evidence| self.left(evidence, now) > FORGOTTEN)
    }
}

/// How much speaks against a pool.
#[derive(Clone, Copy)]
struct Score {
    happened: f64,
    advised: f64,
}

impl Score {
    fn sum(self) -> f64 {
        self.happened + self.advised
    }
}

/// How much advice counts, as long as it stands.
fn advised(advice: Option<&Advice>) -> f64 {
    let Some(advice) = advice else { return 0.0 };
    if advice.placement_score.is_some_and(|score| score <= UNLIKELY) {
        return NOT_VIABLE;
    }
    (f64::from(advice.interruption_percent.unwrap_or(0)) / 100.0).min(ADVISED)
}

fn words(verdict: Viability, over: Override, score: Score, pieces: usize) -> String {
    let mut evidence = format!("{pieces} pieces of evidence count {:.2} against it", score.happened);
    if score.advised > 0.0 {
        evidence = format!("{evidence}, spec.advice {:.2}", score.advised);
    }
    match (over, verdict) {
        (Override::Viable | Override::NotViable, _) => format!("{HELD}; {evidence}"),
        (Override::Auto, Viability::NotViable) => {
            format!("{evidence}; from {NOT_VIABLE} on it is not viable, below {VIABLE} it is tried again")
        }
        (Override::Auto, Viability::Probing) => {
            format!("{evidence}; one server at a time is launched there until one is ready")
        }
        (Override::Auto, Viability::Viable) => {
            format!("{evidence}; from {NOT_VIABLE} on it is not viable")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::EvidenceKind;
    use crate::rules::fixtures::at;

    fn interrupted(node: &str, seconds: i64) -> Evidence {
        let at = MicroTime(at(seconds));
        Evidence { kind: EvidenceKind::Interrupted, of: node.to_owned(), message: String::new(), at }
    }

    const TERMS: Terms =
        Terms { half_life: SignedDuration::from_mins(10), least: SignedDuration::from_mins(3) };

    fn fresh() -> CapacityPoolStatus {
        TERMS.status(&CapacityPoolStatus::default(), &Told::default(), at(0))
    }

    fn after(before: &CapacityPoolStatus, new: Vec<Evidence>, seconds: i64) -> CapacityPoolStatus {
        TERMS.status(before, &Told { new, ..Told::default() }, at(seconds))
    }

    fn held(
        before: &CapacityPoolStatus,
        over: Override,
        new: Vec<Evidence>,
        seconds: i64,
    ) -> CapacityPoolStatus {
        TERMS.status(before, &Told { over, new, ..Told::default() }, at(seconds))
    }

    fn beside(beside: &[Evidence], advice: Option<&Advice>) -> Viability {
        TERMS.status(&fresh(), &Told { advice, beside, ..Told::default() }, at(60)).verdict
    }

    #[test]
    fn one_interruption_is_enough_for_its_own_zone_and_little_for_others() {
        let out = after(&fresh(), vec![interrupted("a", 60)], 60);
        assert_eq!((out.verdict, out.since), (Viability::NotViable, Some(MicroTime(at(60)))));
        assert_eq!(beside(&[interrupted("a", 60), interrupted("b", 60)], None), Viability::Viable);
    }

    #[test]
    fn it_is_probed_once_the_evidence_has_faded_and_not_before() {
        let out = after(&fresh(), vec![interrupted("a", 0)], 0);
        let returns = (0..7200).find(|second| after(&out, Vec::new(), *second).verdict == Viability::Probing);
        // Two half-lives.
        assert_eq!(returns, Some(1201));
        let worse = after(&out, vec![interrupted("b", 600)], 600);
        assert_eq!(worse.since, out.since);
        assert_eq!(after(&worse, Vec::new(), 1201).verdict, Viability::NotViable);
    }

    #[test]
    fn a_probe_that_is_ready_brings_it_back_and_one_that_is_not_takes_it_out() {
        let out = after(&fresh(), vec![interrupted("a", 0)], 0);
        let probed = after(&out, Vec::new(), 1300);
        assert_eq!((probed.verdict, &probed.since), (Viability::Probing, &Some(MicroTime(at(1300)))));
        assert_eq!(after(&probed, Vec::new(), 2500), probed);
        let told = Told { delivered: true, ..Told::default() };
        assert_eq!(TERMS.status(&probed, &told, at(1400)).verdict, Viability::Viable);
        let again = after(&probed, vec![interrupted("probe", 1400)], 1400);
        assert_eq!(again.verdict, Viability::NotViable);
    }

    #[test]
    fn advice_takes_a_pool_out_that_will_hardly_deliver_and_makes_one_that_is_often_interrupted_suspect() {
        let advice = |interruption_percent, placement_score| Advice {
            interruption_percent,
            placement_score,
            price_per_hour: None,
        };
        assert_eq!(beside(&[], Some(&advice(None, Some(2)))), Viability::NotViable);
        assert_eq!(beside(&[], Some(&advice(Some(100), Some(3)))), Viability::Viable);
        let four: Vec<Evidence> = ["a", "b", "c", "d"].iter().map(|node| interrupted(node, 60)).collect();
        assert_eq!(beside(&four, None), Viability::Viable);
        let often = advice(Some(20), None);
        assert_eq!(beside(&four, Some(&often)), Viability::NotViable);
        // It returns all the same.
        let told = || Told { advice: Some(&often), ..Told::default() };
        let out = TERMS.status(&fresh(), &Told { new: vec![interrupted("a", 0)], ..told() }, at(0));
        let returns = |second| TERMS.status(&out, &told(), at(second)).verdict == Viability::Probing;
        assert!(!returns(2500) && returns(2600));
    }

    /// Invariant I4: once, when nothing is left of it.
    #[test]
    fn what_is_forgotten_goes_from_the_status() {
        let out = after(&fresh(), vec![interrupted("a", 0)], 0);
        let back = TERMS.status(
            &after(&out, Vec::new(), 1300),
            &Told { delivered: true, ..Told::default() },
            at(1400),
        );
        assert_eq!(after(&back, Vec::new(), 2500), back);
        let clear = after(&back, Vec::new(), 2700);
        assert_eq!((clear.verdict, clear.evidence.len(), &clear.since), (Viability::Viable, 0, &back.since));
        assert_eq!(after(&clear, Vec::new(), 9000), clear);
    }

    #[test]
    fn what_is_known_counts_once_and_what_fades_is_no_news() {
        let out = after(&fresh(), vec![interrupted("a", 0)], 0);
        assert_eq!(after(&out, vec![interrupted("a", 90)], 90), out);
        assert_eq!(after(&out, Vec::new(), 900), out);
    }

    /// Invariant I4: as a launch that is kept while nothing takes its place.
    #[test]
    fn what_was_forgotten_and_is_still_seen_is_no_news() {
        assert_eq!(after(&fresh(), vec![interrupted("a", 0)], 2700), fresh());
    }

    #[test]
    fn the_override_wins_and_the_evidence_is_kept() {
        let out = after(&fresh(), vec![interrupted("a", 0)], 0);
        let viable = held(&out, Override::Viable, Vec::new(), 1);
        assert_eq!((viable.verdict, viable.evidence.len()), (Viability::Viable, 1));
        assert_eq!(held(&viable, Override::Viable, vec![interrupted("b", 2)], 2).verdict, Viability::Viable);
        assert_eq!(held(&fresh(), Override::NotViable, Vec::new(), 1).verdict, Viability::NotViable);
    }

    /// Invariant I4: a pool of more nodes than it keeps evidence of, all of which are seen for as long as they last.
    #[test]
    fn what_there_was_no_room_for_is_no_news_while_it_is_still_seen() {
        let many = |seconds| (0..40).map(|number| interrupted(&format!("node-{number}"), seconds)).collect();
        let out = after(&fresh(), many(0), 0);
        assert_eq!(after(&out, many(1), 1), out);
        let thirty = (0..30).map(|number| interrupted(&format!("a-{number}"), 0)).collect();
        let full = after(&after(&fresh(), thirty, 0), many(1), 1);
        assert_eq!((full.evidence.len(), full.evidence[31].of.as_str()), (32, "node-39"));
        assert_eq!(after(&full, many(2), 2), full);
    }

    #[test]
    fn evidence_is_bounded_and_forgotten() {
        let many = (0..90).map(|number| interrupted(&format!("node-{number}"), number)).collect();
        let out = after(&fresh(), many, 90);
        assert_eq!((out.evidence.len(), out.evidence[31].of.as_str()), (32, "node-89"));
        assert!(TERMS.counts_still(&out, at(90)) && !TERMS.counts_still(&out, at(9000)));
    }
}
