//! What a process remembers of its attempts to make pods for a group, and when the next one is due (row F1, case
//! C14). Nothing is lost with it: after a restart the first attempt finds the same.

use jiff::{SignedDuration, Timestamp};

use super::trouble::{Trouble, TroubleKind};

/// The wait after a first refusal; it doubles from there.
const FIRST_WAIT: SignedDuration = SignedDuration::from_secs(1);
/// The longest wait after a refusal: what a freed quota costs at most.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(30);
/// How many pods are asked for at once, once a first one has been made.
const BATCH: usize = 32;

/// The attempts at one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attempts {
    /// The revision that the API server has taken on trial.
    accepted: Option<String>,
    refusal: Option<Refusal>,
    /// How many refusals in a row.
    refusals: u32,
    /// Whether a pod has been made since the last refusal.
    made: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Refusal {
    by: Step,
    trouble: Trouble,
    not_before: Timestamp,
}

/// A step that can be refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Showing the template to the API server without making a pod.
    Trial,
    /// Making what a pod needs, or a pod.
    Creation,
    /// Making the server of a pod.
    Server,
}

impl Attempts {
    /// Whether a template of this revision is to be shown now.
    pub fn trial_is_due(&self, revision: &str, now: Timestamp) -> bool {
        self.accepted.as_deref() != Some(revision) && self.is_due(now)
    }

    /// Whether pods may be made now: their template is accepted, and no refusal asks to wait.
    pub fn creation_is_due(&self, revision: &str, now: Timestamp) -> bool {
        self.accepted.as_deref() == Some(revision) && self.is_due(now)
    }

    /// Whether no refusal asks to wait.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.refusal.as_ref().is_none_or(|refusal| refusal.not_before <= now)
    }

    /// The template of this revision has been taken, or refused for what is not its fault: a quota counts for
    /// pods that are wanted, and only these are held to it.
    pub fn shown(&mut self, revision: &str, refused: Option<Trouble>, now: Timestamp) {
        if let Some(trouble) = refused.filter(|trouble| trouble.kind != TroubleKind::QuotaExceeded) {
            return self.refused(Step::Trial, trouble, now);
        }
        self.accepted = Some(revision.to_owned());
        self.forget(Step::Trial);
    }

    /// A step was refused.
    pub fn refused(&mut self, by: Step, trouble: Trouble, now: Timestamp) {
        let doublings = self.refusals.min(16);
        let wait = FIRST_WAIT.checked_mul(1 << doublings).map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT));
        self.refusals = self.refusals.saturating_add(1);
        self.made = false;
        if trouble.kind == TroubleKind::TemplateRejected {
            self.accepted = None;
        }
        let not_before = now.checked_add(wait).unwrap_or(now);
        // The words name the pod whose server it was: those of the first stay, or a status that quotes them never rests.
        let same =
            |before: &Refusal| by == Step::Server && before.by == by && before.trouble.kind == trouble.kind;
        let trouble = self.refusal.take().filter(same).map_or(trouble, |before| before.trouble);
        self.refusal = Some(Refusal { by, trouble, not_before });
    }

    /// A pod was made.
    pub fn made(&mut self) {
        self.made = true;
        self.forget(Step::Creation);
    }

    /// A pod got its server.
    pub fn served(&mut self) {
        self.forget(Step::Server);
    }

    /// No pod is wanted: what making one was refused for does not matter any more.
    pub fn nothing_wanted(&mut self) {
        self.forget(Step::Creation);
    }

    fn forget(&mut self, by: Step) {
        if self.refusal.as_ref().is_some_and(|refusal| refusal.by == by) {
            self.refusal = None;
            self.refusals = 0;
        }
    }

    /// What stops new pods.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.refusal.as_ref().map(|refusal| &refusal.trouble)
    }

    /// When the next attempt is due, while something stops new pods.
    pub fn next(&self) -> Option<Timestamp> {
        self.refusal.as_ref().filter(|refusal| refusal.by != Step::Server).map(|refusal| refusal.not_before)
    }

    /// When the next try is due to make the server of a pod.
    pub fn serves_again(&self) -> Option<Timestamp> {
        self.refusal.as_ref().filter(|refusal| refusal.by == Step::Server).map(|refusal| refusal.not_before)
    }

    /// How many pods to ask for first: one, to see whether it is taken, or as many as at once.
    pub fn first_batch(&self) -> usize {
        if self.made { BATCH } else { 1 }
    }

    /// How many to ask for after `size` were made.
    pub fn next_batch(size: usize) -> usize {
        size.saturating_mul(2).min(BATCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::at;

    fn trouble(kind: TroubleKind) -> Trouble {
        Trouble { kind, message: "words".to_owned() }
    }

    #[test]
    fn refusals_wait_longer_and_longer() {
        let mut attempts = Attempts::default();
        attempts.shown("r1", None, at(0));
        let waits = (0..7).map(|_| {
            attempts.refused(Step::Creation, trouble(TroubleKind::QuotaExceeded), at(0));
            attempts.next().unwrap().duration_since(at(0)).as_secs()
        });
        assert_eq!(waits.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 30, 30]);
        assert!(!attempts.creation_is_due("r1", at(29)));
        assert!(attempts.creation_is_due("r1", at(30)));
        attempts.made();
        assert_eq!(attempts.trouble(), None);
    }

    #[test]
    fn a_refused_trial_is_tried_again_until_it_passes() {
        let mut attempts = Attempts::default();
        attempts.shown("r1", Some(trouble(TroubleKind::Forbidden)), at(0));
        assert!(!attempts.trial_is_due("r1", at(0)) && attempts.trial_is_due("r1", at(1)));
        // That nothing is wanted does not make the template a good one.
        attempts.nothing_wanted();
        assert!(attempts.trouble().is_some());
        attempts.shown("r1", None, at(1));
        assert_eq!((attempts.trouble(), attempts.next()), (None, None));
        assert!(!attempts.trial_is_due("r1", at(9)) && attempts.trial_is_due("r2", at(9)));
    }

    #[test]
    fn a_refused_creation_is_forgotten_when_nothing_is_wanted() {
        let mut attempts = Attempts::default();
        attempts.refused(Step::Creation, trouble(TroubleKind::QuotaExceeded), at(0));
        attempts.nothing_wanted();
        assert_eq!((attempts.trouble(), attempts.next()), (None, None));
    }

    #[test]
    fn a_quota_is_not_the_templates_fault() {
        let mut attempts = Attempts::default();
        attempts.shown("r1", Some(trouble(TroubleKind::QuotaExceeded)), at(0));
        assert_eq!(attempts.trouble(), None);
        assert!(attempts.creation_is_due("r1", at(0)));
    }

    /// Invariant I4: two pods that are refused their servers in turn make no status that changes for ever.
    #[test]
    fn what_refuses_servers_is_said_in_the_words_of_the_first() {
        let mut attempts = Attempts::default();
        for name in ["a", "b"] {
            let trouble =
                Trouble::refusal(403, &format!("gameservers {name} is forbidden: exceeded quota: few"));
            attempts.refused(Step::Server, trouble, at(0));
        }
        assert!(attempts.trouble().unwrap().message.contains("gameservers a "), "{attempts:?}");
        attempts.refused(Step::Server, Trouble::refusal(422, "gameservers b is invalid"), at(9));
        assert!(attempts.trouble().unwrap().message.contains("gameservers b "), "{attempts:?}");
    }

    #[test]
    fn a_first_pod_goes_alone() {
        let mut attempts = Attempts::default();
        assert_eq!(attempts.first_batch(), 1);
        attempts.made();
        assert_eq!(attempts.first_batch(), BATCH);
    }
}
