//! Row F20: what a node says of its own end, or of its fitness, in the words of each provider.
//!
//! A node that will be gone ends what runs there, whatever a group protects. One that is to be left, or is in doubt,
//! takes nothing new and has its games play on. Whatever is only a thought of somebody's, such as the cluster
//! autoscaler's `DeletionCandidateOfClusterAutoscaler`, is no sign: it comes and goes, and each turn would be a write.

use jiff::{SignedDuration, Timestamp};

/// What is made of a node's signs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notice {
    /// What becomes of its instances.
    pub verdict: Verdict,
    /// The sign, in words.
    pub cause: String,
    /// The provider needs its capacity: that speaks against the node's pool.
    pub interruption: bool,
}

/// What becomes of a node's instances.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Verdict {
    /// The node goes, with all that runs there.
    Ends {
        /// How long that takes from its first sign, where the provider says so.
        within: Option<SignedDuration>,
        /// When that sign was given, where it says so.
        since: Option<Timestamp>,
    },
    /// It is to be left.
    Drains,
}

/// Something that a node bears.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sign<'a> {
    /// `spec.unschedulable`.
    Cordon,
    /// A taint, by its key, and when it was put there if it says so.
    Taint(&'a str, Option<Timestamp>),
    /// A condition that is True: its type, its reason, and since when.
    Condition(&'a str, &'a str, Option<Timestamp>),
    /// An event of it: its reason, and when.
    Event(&'a str, Option<Timestamp>),
}

/// What a sign means, before it is known when it was given.
#[derive(Clone, Copy)]
enum Meaning {
    Interrupted(i64),
    EndsWithin(i64),
    Ends,
    Drains,
}

/// AWS gives 2 minutes; of GKE's 30 seconds 15 are for the pods of users.
const TAINTS: [(&str, Meaning, &str); 8] = [
    ("aws-node-termination-handler/spot-itn", Meaning::Interrupted(120), "its spot node is interrupted"),
    ("aws-node-termination-handler/asg-lifecycle-termination", Meaning::Ends, "its node is taken away"),
    ("aws-node-termination-handler/rebalance-recommendation", Meaning::Drains, "its spot node is at risk"),
    ("aws-node-termination-handler/scheduled-maintenance", Meaning::Drains, "its node is to be maintained"),
    ("cloud.google.com/impending-node-termination", Meaning::Interrupted(15), "its node is interrupted"),
    ("remediator.kubernetes.azure.com/unschedulable", Meaning::Ends, "its node is taken away"),
    ("ToBeDeletedByClusterAutoscaler", Meaning::Ends, "its node is scaled in"),
    ("node.kubernetes.io/out-of-service", Meaning::EndsWithin(0), "its node is out of service"),
];

/// Karpenter's, and those of Azure's scheduled events. A virtual machine that is unhealthy is not gone.
const EVENTS: [(&str, Meaning, &str); 10] = [
    ("SpotInterrupted", Meaning::Interrupted(120), "its spot node is interrupted"),
    ("SpotRebalanceRecommendation", Meaning::Drains, "its spot node is at risk"),
    ("InstanceStopping", Meaning::Ends, "its node is stopped"),
    ("InstanceTerminating", Meaning::Ends, "its node is taken away"),
    ("InstanceUnhealthy", Meaning::Drains, "its node is in trouble"),
    ("TerminatingOnInterruption", Meaning::Ends, "its node is taken away"),
    ("PreemptScheduled", Meaning::Interrupted(30), "its spot node is interrupted"),
    ("TerminateScheduled", Meaning::Ends, "its node is taken away"),
    ("RedeployScheduled", Meaning::Ends, "its node is taken away"),
    ("RebootScheduled", Meaning::Ends, "its node starts anew"),
];

/// How long an event of a node is a sign: what it announces has come by then.
const EVENT_COUNTS: SignedDuration = SignedDuration::from_mins(10);

/// Karpenter's taint stands on any node that it wants to replace, also for reasons that wait for the games there.
const KARPENTER: &str = "karpenter.sh/disrupted";

/// Events of a virtual machine on Azure, by the reason of the condition `VMEventScheduled`. Preemption comes 30 s ahead.
const AZURE: &str = "VMEventScheduled";

/// What the node problem detector finds: its node is unfit for more.
const PROBLEMS: [&str; 4] =
    ["KernelDeadlock", "ReadonlyFilesystem", "FrequentKubeletRestart", "FrequentContainerdRestart"];

/// The gravest of a node's signs, and of those that end it the one that does so first.
pub fn read<'a>(signs: impl IntoIterator<Item = Sign<'a>>) -> Option<Notice> {
    gravest(signs.into_iter().filter_map(meaning))
}

/// What an event of a node says of its end, while that is to come.
pub fn of_event(reason: &str, at: Timestamp, now: Timestamp) -> Option<Notice> {
    meaning(Sign::Event(reason, Some(at))).filter(|_| now.duration_since(at) < EVENT_COUNTS)
}

/// The gravest of these, and of those that end a node the one that does so first.
pub fn gravest(notices: impl IntoIterator<Item = Notice>) -> Option<Notice> {
    notices.into_iter().min_by_key(|notice| (notice.verdict == Verdict::Drains, ends(notice)))
}

/// For an order: those without a time come last.
fn ends(notice: &Notice) -> SignedDuration {
    match notice.verdict {
        Verdict::Ends { within: Some(within), .. } => within,
        Verdict::Ends { within: None, .. } | Verdict::Drains => SignedDuration::MAX,
    }
}

fn meaning(sign: Sign<'_>) -> Option<Notice> {
    let (meaning, since, cause) = match sign {
        Sign::Cordon => (Meaning::Drains, None, "its node is cordoned".to_owned()),
        Sign::Taint(KARPENTER, _) => {
            (Meaning::Drains, None, format!("its node is to be replaced (taint {KARPENTER})"))
        }
        Sign::Taint(key, since) => {
            let (_, meaning, words) = TAINTS.into_iter().find(|(known, ..)| *known == key)?;
            (meaning, since, format!("{words} (taint {key})"))
        }
        Sign::Event(reason, since) => {
            let (_, meaning, words) = EVENTS.into_iter().find(|(known, ..)| *known == reason)?;
            (meaning, since, format!("{words} (event {reason})"))
        }
        Sign::Condition(AZURE, reason, since) => {
            let meaning = if reason == "PreemptScheduled" { Meaning::Interrupted(30) } else { Meaning::Ends };
            let reason: String = reason.chars().take(64).collect();
            (meaning, since, format!("its node is taken away (condition {AZURE}, {reason})"))
        }
        Sign::Condition(type_, ..) => {
            let known = PROBLEMS.into_iter().find(|known| *known == type_)?;
            (Meaning::Drains, None, format!("its node is in trouble (condition {known})"))
        }
    };
    let verdict = match meaning {
        Meaning::Interrupted(seconds) | Meaning::EndsWithin(seconds) => {
            Verdict::Ends { within: Some(SignedDuration::from_secs(seconds)), since }
        }
        Meaning::Ends => Verdict::Ends { within: None, since },
        Meaning::Drains => Verdict::Drains,
    };
    let interruption = matches!(meaning, Meaning::Interrupted(_));
    Some(Notice { verdict, cause, interruption })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::at;

    fn verdict(sign: Sign<'_>) -> Option<Verdict> {
        read([sign]).map(|notice| notice.verdict)
    }

    fn ends(seconds: Option<i64>) -> Verdict {
        Verdict::Ends { within: seconds.map(SignedDuration::from_secs), since: None }
    }

    #[test]
    fn each_providers_words_for_an_end_are_known() {
        let taint = |key| verdict(Sign::Taint(key, None));
        assert_eq!(taint("aws-node-termination-handler/spot-itn"), Some(ends(Some(120))));
        assert_eq!(taint("aws-node-termination-handler/asg-lifecycle-termination"), Some(ends(None)));
        assert_eq!(taint("cloud.google.com/impending-node-termination"), Some(ends(Some(15))));
        assert_eq!(taint("remediator.kubernetes.azure.com/unschedulable"), Some(ends(None)));
        assert_eq!(taint("ToBeDeletedByClusterAutoscaler"), Some(ends(None)));
        assert_eq!(taint("node.kubernetes.io/out-of-service"), Some(ends(Some(0))));
        let azure = |reason| verdict(Sign::Condition("VMEventScheduled", reason, None));
        assert_eq!(azure("PreemptScheduled"), Some(ends(Some(30))));
        for reason in ["TerminateScheduled", "RedeployScheduled", "RebootScheduled"] {
            assert_eq!(azure(reason), Some(ends(None)));
        }
    }

    #[test]
    fn events_of_a_node_are_signs_for_a_while() {
        let says = |reason, now| of_event(reason, at(0), at(now)).map(|notice| notice.verdict);
        let ends = |seconds: Option<i64>| {
            Some(Verdict::Ends { within: seconds.map(SignedDuration::from_secs), since: Some(at(0)) })
        };
        assert_eq!(says("SpotInterrupted", 5), ends(Some(120)));
        assert_eq!(says("PreemptScheduled", 5), ends(Some(30)));
        for reason in [
            "InstanceStopping",
            "InstanceTerminating",
            "TerminatingOnInterruption",
            "TerminateScheduled",
            "RedeployScheduled",
            "RebootScheduled",
        ] {
            assert_eq!(says(reason, 5), ends(None), "{reason}");
        }
        assert_eq!(says("SpotRebalanceRecommendation", 5), Some(Verdict::Drains));
        assert_eq!(says("InstanceUnhealthy", 5), Some(Verdict::Drains));
        assert_eq!(says("NodeReady", 5), None);
        assert_eq!(says("SpotInterrupted", 601), None);
    }

    #[test]
    fn what_does_not_end_a_node_lets_its_games_play_on() {
        for sign in [
            Sign::Cordon,
            Sign::Taint("karpenter.sh/disrupted", None),
            Sign::Taint("aws-node-termination-handler/rebalance-recommendation", None),
            Sign::Taint("aws-node-termination-handler/scheduled-maintenance", None),
            Sign::Condition("KernelDeadlock", "DockerHung", None),
            Sign::Condition("ReadonlyFilesystem", "FilesystemIsReadOnly", None),
            Sign::Condition("FrequentKubeletRestart", "FrequentKubeletRestart", None),
            Sign::Condition("FrequentContainerdRestart", "FrequentContainerdRestart", None),
        ] {
            assert_eq!(verdict(sign), Some(Verdict::Drains), "{sign:?}");
        }
    }

    #[test]
    fn nothing_is_made_of_what_means_nothing() {
        for sign in [
            Sign::Taint("kubernetes.azure.com/scalesetpriority", None),
            Sign::Taint("DeletionCandidateOfClusterAutoscaler", None),
            Sign::Condition("Ready", "KubeletReady", None),
        ] {
            assert_eq!(verdict(sign), None, "{sign:?}");
        }
    }

    #[test]
    fn the_gravest_sign_counts_and_of_ends_the_first() {
        let notice = read([
            Sign::Cordon,
            Sign::Taint("ToBeDeletedByClusterAutoscaler", None),
            Sign::Taint("aws-node-termination-handler/spot-itn", Some(at(3))),
        ]);
        let notice = notice.unwrap();
        let within = Some(SignedDuration::from_secs(120));
        assert_eq!(notice.verdict, Verdict::Ends { within, since: Some(at(3)) });
        assert_eq!(
            notice.cause,
            "its spot node is interrupted (taint aws-node-termination-handler/spot-itn)"
        );
    }
}
