//! What stops new servers, in the words of whoever stops them (row F1).

use super::balance::Balance;
use super::hold::Waiting;
use super::observed::{Game, Member, Pod};
use super::slots::counts;
use crate::api::State;

/// What stops new servers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trouble {
    /// What kind it is.
    pub kind: TroubleKind,
    /// The words of whoever refused: the API server, the kubelet, the scheduler, the game.
    pub message: String,
}

/// A kind of trouble; the order is that of how much it explains, the most first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum TroubleKind {
    /// The template cannot be made into a pod.
    TemplateRejected,
    /// A quota of the namespace is used up (case C14).
    QuotaExceeded,
    /// The API server forbids the pod.
    Forbidden,
    /// The API server refuses the pod for another reason, or a webhook does.
    CreateRefused,
    /// All host ports are in use.
    HostPortsExhausted,
    /// No capacity pool is viable, and the group takes no other (row F9).
    NoViablePool,
    /// The image cannot be had.
    ImageUnavailable,
    /// The kubelet cannot start the container.
    ContainerCannotStart,
    /// Servers fail again and again: they crash, exit before anybody plays, or do not get ready in time.
    KeepsFailing,
    /// No node takes the pod.
    Unschedulable,
}

impl TroubleKind {
    /// Its CamelCase word, a condition's reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TemplateRejected => "TemplateRejected",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::Forbidden => "Forbidden",
            Self::CreateRefused => "CreateRefused",
            Self::HostPortsExhausted => "HostPortsExhausted",
            Self::NoViablePool => "NoViablePool",
            Self::ImageUnavailable => "ImageUnavailable",
            Self::ContainerCannotStart => "ContainerCannotStart",
            Self::KeepsFailing => "KeepsFailing",
            Self::Unschedulable => "Unschedulable",
        }
    }
}

impl Trouble {
    /// What a refusal by the API server means: its HTTP code and its words.
    pub fn refusal(code: u16, message: &str) -> Self {
        let kind = match code {
            403 if message.contains("exceeded quota") => TroubleKind::QuotaExceeded,
            403 => TroubleKind::Forbidden,
            400 | 422 => TroubleKind::TemplateRejected,
            _ => TroubleKind::CreateRefused,
        };
        Self { kind, message: message.to_owned() }
    }
}

/// What stops new servers where no pool is open to them.
pub fn of_pools(balance: &Balance) -> Option<Trouble> {
    let message = "none of the group's spot pools is viable, and its balancingStrategy is SpotOnly: \
        `kubectl get capacitypools` says why; it goes on by itself once one is viable";
    balance.is_starved().then(|| Trouble { kind: TroubleKind::NoViablePool, message: message.to_owned() })
}

/// The trouble that explains most, of what is seen of a group's members, of its slots in back-off, and of what the
/// API server refused.
pub fn foremost(members: &[Member], waiting: &[Waiting], refused: Option<&Trouble>) -> Option<Trouble> {
    let of_pods = members.iter().filter(|member| counts(member)).filter_map(of_member);
    refused
        .cloned()
        .into_iter()
        .chain(of_pods)
        .chain(of_waiting(waiting))
        .min_by(|left, right| (left.kind, &left.message).cmp(&(right.kind, &right.message)))
}

fn of_member(member: &Member) -> Option<Trouble> {
    let pod = member.pod.as_ref()?;
    let unready = member.server.as_ref().is_none_or(|server| server.state < State::StandingBy);
    of_pod(pod).or_else(|| of_failures(pod).filter(|_| unready))
}

fn of_pod(pod: &Pod) -> Option<Trouble> {
    let name = &pod.name;
    let Game::Waiting { fault } = &pod.game else { return None };
    if let Some((reason, message)) = fault {
        let kind = if reason.contains("Image") || reason == "RegistryUnavailable" {
            TroubleKind::ImageUnavailable
        } else {
            TroubleKind::ContainerCannotStart
        };
        return Some(Trouble { kind, message: format!("pod {name}: {reason}: {message}") });
    }
    let message = pod.unschedulable.as_ref()?;
    Some(Trouble { kind: TroubleKind::Unschedulable, message: format!("pod {name}: {message}") })
}

/// A server that follows failures is in trouble until it is ready: one failure is an accident, two are a habit.
fn of_failures(pod: &Pod) -> Option<Trouble> {
    let failure = pod.after.as_ref().filter(|failure| failure.in_a_row > 1)?;
    let message = format!(
        "pod {} follows {} failures in a row; the last: {}",
        pod.name, failure.in_a_row, failure.message
    );
    Some(Trouble { kind: TroubleKind::KeepsFailing, message })
}

fn of_waiting(waiting: &[Waiting]) -> Option<Trouble> {
    let first = waiting.first()?;
    let message = format!(
        "places that wait after failures: {}; in that of {}, {} failed in a row, the last: {}; next try at {}",
        waiting.len(),
        first.failed,
        first.failure.in_a_row,
        first.failure.message,
        first.until.strftime("%H:%M:%SZ"),
    );
    Some(Trouble { kind: TroubleKind::KeepsFailing, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{creating, standing_by};
    use crate::rules::observed::Failure;

    #[test]
    fn the_cause_that_explains_most_comes_first() {
        let mut nowhere = creating("a");
        nowhere.pod.as_mut().unwrap().unschedulable = Some("0/3 nodes are available".to_owned());
        let quota = Trouble::refusal(403, "exceeded quota: few");
        let first = foremost(&[nowhere.clone()], &[], Some(&quota)).unwrap();
        assert_eq!(first.kind, TroubleKind::QuotaExceeded);
        assert_eq!(foremost(&[nowhere], &[], None).unwrap().kind, TroubleKind::Unschedulable);
        assert_eq!(foremost(&[standing_by("b")], &[], None), None);
    }

    #[test]
    fn a_launch_that_failed_twice_is_in_trouble_until_it_is_ready() {
        let mut again = creating("a");
        let pod = again.pod.as_mut().unwrap();
        pod.after = Some(Failure { in_a_row: 1, message: "the game exited with code 7".to_owned() });
        assert_eq!(foremost(&[again.clone()], &[], None), None);
        again.pod.as_mut().unwrap().after.as_mut().unwrap().in_a_row = 2;
        let trouble = foremost(&[again.clone()], &[], None).unwrap();
        assert!(trouble.message.contains("2 failures in a row; the last: the game exited with code 7"));
        again.server.as_mut().unwrap().state = State::StandingBy;
        assert_eq!(foremost(&[again], &[], None), None);
    }
}
