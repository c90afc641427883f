//! Rows F3 and F4: whether a pool is fit for games, from what has happened in it.
//!
//! Interruptions come together: 92 of 100 in one type and zone fall within 3 minutes of each other (arXiv 2604.16457). So
//! one is enough against its own zone, and little against others. Evidence fades by a half-life, and what turns a verdict
//! and what turns it back lie apart, with a least time between: so it does not flap.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use crate::api::{CapacityPoolStatus, Evidence, EvidenceKind, Override, Viability};

/// How long evidence takes to count half.
const HALF_LIFE: SignedDuration = SignedDuration::from_mins(10);
/// How much speaks against a pool that is not viable any more.
const NOT_VIABLE: f64 = 0.9;
/// How much at most against one that is viable again.
const VIABLE: f64 = 0.25;
/// How much of what happens in other zones counts against a pool.
const BESIDE: f64 = 0.2;
/// How long a verdict stands at least.
const LEAST: SignedDuration = SignedDuration::from_mins(3);
/// Evidence that counts no more than this is forgotten.
const FORGOTTEN: f64 = 0.05;
/// How much evidence is kept: as much as the schema takes.
const KEPT: usize = 32;

/// What is said of a pool whose verdict is given from outside.
const HELD: &str = "spec.override says so";

/// How much one piece of evidence weighs when it is fresh.
fn weight(kind: EvidenceKind) -> f64 {
    match kind {
        EvidenceKind::Interrupted | EvidenceKind::Undelivered => 1.0,
    }
}

/// What is left of a piece of evidence.
fn left(evidence: &Evidence, now: Timestamp) -> f64 {
    let age = now.duration_since(evidence.at.0).as_secs_f64().max(0.0);
    weight(evidence.kind) * (-age / HALF_LIFE.as_secs_f64()).exp2()
}

/// The status of a pool that had `before`, when `new` has happened in it and `beside` in pools of its type in other zones.
pub fn status(
    before: &CapacityPoolStatus,
    over: Override,
    new: Vec<Evidence>,
    beside: &[Evidence],
    now: Timestamp,
) -> CapacityPoolStatus {
    let known = |evidence: &Evidence| {
        before.evidence.iter().any(|known| known.of == evidence.of && known.kind == evidence.kind)
    };
    // What has been forgotten may still be seen: it is no news again.
    let is_news = |evidence: &Evidence| !known(evidence) && left(evidence, now) > FORGOTTEN;
    let mut evidence = before.evidence.clone();
    evidence.extend(new.into_iter().filter(is_news));
    let something_new = evidence.len() > before.evidence.len();
    let own: f64 = evidence.iter().map(|evidence| left(evidence, now)).sum();
    let others: f64 = beside.iter().map(|evidence| left(evidence, now)).sum();
    let score = own + BESIDE * others;
    let verdict = verdict(before, over, score, now);
    let held = before.message.as_deref().is_some_and(|words| words.starts_with(HELD));
    let same_hand = held == (over != Override::Auto);
    if verdict == before.verdict && same_hand && !something_new && before.since.is_some() {
        // What only fades is no news.
        return before.clone();
    }
    evidence.retain(|evidence| left(evidence, now) > FORGOTTEN);
    let surplus = evidence.len().saturating_sub(KEPT);
    evidence.drain(..surplus);
    let since = if verdict == before.verdict { before.since.clone() } else { None };
    let message = words(verdict, over, score, evidence.len());
    CapacityPoolStatus {
        verdict,
        since: Some(since.unwrap_or(MicroTime(now))),
        message: Some(message),
        evidence,
    }
}

fn verdict(before: &CapacityPoolStatus, over: Override, score: f64, now: Timestamp) -> Viability {
    match over {
        Override::Viable => return Viability::Viable,
        Override::NotViable => return Viability::NotViable,
        Override::Auto => {}
    }
    let stands = before.since.as_ref().is_some_and(|since| now.duration_since(since.0) < LEAST);
    match before.verdict {
        Viability::Viable if score >= NOT_VIABLE => Viability::NotViable,
        Viability::NotViable if score < VIABLE && !stands => Viability::Viable,
        unchanged => unchanged,
    }
}

fn words(verdict: Viability, over: Override, score: f64, pieces: usize) -> String {
    let evidence = format!("{pieces} pieces of evidence count {score:.2} against it");
    match (over, verdict) {
        (Override::Viable | Override::NotViable, _) => format!("{HELD}; {evidence}"),
        (Override::Auto, Viability::NotViable) => {
            format!("{evidence}; from {NOT_VIABLE} on it is not viable, below {VIABLE} it is again")
        }
        (Override::Auto, Viability::Viable) => {
            format!("{evidence}; from {NOT_VIABLE} on it is not viable")
        }
    }
}

/// Whether anything still counts against a pool.
pub fn counts_still(status: &CapacityPoolStatus, now: Timestamp) -> bool {
    status.evidence.iter().any(|evidence| left(evidence, now) > FORGOTTEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::at;

    fn interrupted(node: &str, seconds: i64) -> Evidence {
        let at = MicroTime(at(seconds));
        Evidence { kind: EvidenceKind::Interrupted, of: node.to_owned(), message: String::new(), at }
    }

    fn fresh() -> CapacityPoolStatus {
        status(&CapacityPoolStatus::default(), Override::Auto, Vec::new(), &[], at(0))
    }

    fn after(before: &CapacityPoolStatus, new: Vec<Evidence>, seconds: i64) -> CapacityPoolStatus {
        status(before, Override::Auto, new, &[], at(seconds))
    }

    #[test]
    fn one_interruption_is_enough_for_its_own_zone_and_little_for_others() {
        let out = after(&fresh(), vec![interrupted("a", 60)], 60);
        assert_eq!((out.verdict, out.since), (Viability::NotViable, Some(MicroTime(at(60)))));
        let beside = [interrupted("a", 60), interrupted("b", 60)];
        let still = status(&fresh(), Override::Auto, Vec::new(), &beside, at(60));
        assert_eq!(still.verdict, Viability::Viable);
    }

    #[test]
    fn it_comes_back_once_the_evidence_has_faded_and_not_before() {
        let out = after(&fresh(), vec![interrupted("a", 0)], 0);
        let returns = (0..7200).find(|second| after(&out, Vec::new(), *second).verdict == Viability::Viable);
        // Two half-lives.
        assert_eq!(returns, Some(1201));
        let worse = after(&out, vec![interrupted("b", 600)], 600);
        assert_eq!(worse.since, out.since);
        assert_eq!(after(&worse, Vec::new(), 1201).verdict, Viability::NotViable);
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
        let held = status(&out, Override::Viable, Vec::new(), &[], at(1));
        assert_eq!((held.verdict, held.evidence.len()), (Viability::Viable, 1));
        assert_eq!(
            status(&held, Override::Viable, vec![interrupted("b", 2)], &[], at(2)).verdict,
            Viability::Viable
        );
        assert_eq!(
            status(&fresh(), Override::NotViable, Vec::new(), &[], at(1)).verdict,
            Viability::NotViable
        );
    }

    #[test]
    fn evidence_is_bounded_and_forgotten() {
        let many = (0..90).map(|number| interrupted(&format!("node-{number}"), number)).collect();
        let out = after(&fresh(), many, 90);
        assert_eq!((out.evidence.len(), out.evidence[31].of.as_str()), (32, "node-89"));
        assert!(counts_still(&out, at(90)) && !counts_still(&out, at(9000)));
    }
}
