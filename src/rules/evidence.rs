//! What happens to nodes and to launches that speaks against a capacity pool.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::notice::Verdict;
use super::observed::{Member, Node, Pod};
use super::pool::Pool;
use super::slots::is_ready;
use crate::api::{EndReason, Evidence, EvidenceKind};

/// What a node's notice says of its pool: an interruption speaks against it, a node that is scaled in or repaired does not.
pub fn of_node(name: &str, node: &Node, now: Timestamp) -> Option<(Pool, Evidence)> {
    let notice = node.notice.as_ref().filter(|notice| notice.interruption)?;
    let Verdict::Ends { since, .. } = notice.verdict else { return None };
    let evidence = Evidence {
        kind: EvidenceKind::Interrupted,
        of: of_start(name, node),
        message: notice.cause.clone(),
        at: MicroTime(since.unwrap_or(now)),
    };
    Some((Pool::of_node(&node.capacity)?, evidence))
}

/// What a launch says of its pool that never came to a node.
pub fn of_launch(member: &Member) -> Option<(Pool, Evidence)> {
    let (pod, server) = (member.pod.as_ref()?, member.server.as_ref()?);
    let end = server.end.as_ref().filter(|end| end.reason == EndReason::LaunchTimeout)?;
    if pod.node.is_some() {
        return None;
    }
    let words = pod.unschedulable.clone().unwrap_or_else(|| end.message.clone());
    Some((pod.pool.clone()?, undelivered(format!("pod {}", pod.name), &words, end.time.0)))
}

/// What it says of a node's pool that the node has gone, or has started anew, without a word, and with instances of ours.
pub fn of_loss(name: &str, node: &Node, now: Timestamp) -> Option<(Pool, Evidence)> {
    if node.notice.is_some() {
        return None;
    }
    let evidence = Evidence {
        kind: EvidenceKind::Lost,
        of: of_start(name, node),
        message: "it went without notice, with what ran there".to_owned(),
        at: MicroTime(now),
    };
    Some((Pool::of_node(&node.capacity)?, evidence))
}

/// A node may come back under its name.
fn of_start(name: &str, node: &Node) -> String {
    format!("node {name} {}", node.boot_id).trim_end().to_owned()
}

/// Why the cluster autoscaler cannot have a node, where its event of a pod (`NotTriggerScaleUp`) says that capacity is the
/// matter. That no group of nodes fits is another, for which the launch timeout is.
const NO_SCALE_UP: [&str; 2] = ["in backoff after failed scale-up", "max node group size reached"];

/// What the cluster autoscaler's event of a pod says of its pool.
pub fn of_scale_up(pod: &Pod, message: &str, at: Timestamp) -> Option<(Pool, Evidence)> {
    if pod.node.is_some() || !NO_SCALE_UP.iter().any(|words| message.contains(words)) {
        return None;
    }
    Some((pod.pool.clone()?, undelivered(format!("pod {}", pod.name), message, at)))
}

/// What Karpenter says, as the reason of an event or of the condition `Launched`, of a node that it cannot have.
const NO_NODE: [&str; 4] =
    ["InsufficientCapacityError", "LaunchFailed", "SpotQuotaExceeded", "VCPULimitExceeded"];

/// What is said of the pool that Karpenter's `NodeClaim` of this name was for.
pub fn of_node_claim(name: &str, reason: &str, message: &str, at: Timestamp) -> Option<Evidence> {
    let words = format!("{reason}: {message}");
    NO_NODE.contains(&reason).then(|| undelivered(format!("node claim {name}"), &words, at))
}

fn undelivered(of: String, message: &str, at: Timestamp) -> Evidence {
    let message = message.chars().take(512).collect();
    Evidence { kind: EvidenceKind::Undelivered, of, message, at: MicroTime(at) }
}

/// Whether a server was made for `pool` from this second on, and is ready there.
pub fn is_delivered(member: &Member, pool: &Pool, since: Timestamp) -> bool {
    let made_since = member.pod.as_ref().is_some_and(|pod| pod.created_at.as_second() >= since.as_second());
    made_since && is_ready(member) && member.pool().is_some_and(|placed| pool.holds(placed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Capacity, CapacityType, End};
    use crate::rules::fixtures::{at, creating, on_pool, pool, standing_by};
    use crate::rules::notice::{Sign, read};

    fn node(taint: &str) -> Node {
        let (instance_type, zone) = (Some("a".to_owned()), Some("z1".to_owned()));
        Node {
            capacity: Capacity { instance_type, capacity_type: Some(CapacityType::Spot), zone },
            notice: read([Sign::Taint(taint, None)]),
            boot_id: "boot-1".to_owned(),
            ..Node::default()
        }
    }

    #[test]
    fn an_interruption_speaks_against_the_nodes_pool_and_a_scale_in_does_not() {
        let (against, evidence) =
            of_node("n1", &node("aws-node-termination-handler/spot-itn"), at(7)).unwrap();
        assert_eq!(against, pool("a", "z1"));
        assert_eq!((evidence.of.as_str(), evidence.at.0), ("node n1 boot-1", at(7)));
        for taint in ["ToBeDeletedByClusterAutoscaler", "node.kubernetes.io/out-of-service", "other"] {
            assert_eq!(of_node("n1", &node(taint), at(7)), None);
        }
    }

    #[test]
    fn a_launch_that_found_no_node_in_time_speaks_against_its_pool() {
        let mut member = on_pool("a", creating("m"));
        assert_eq!(of_launch(&member), None);
        let time = MicroTime(at(300));
        let end = End { reason: EndReason::LaunchTimeout, message: "late".to_owned(), time };
        member.server.as_mut().unwrap().end = Some(end);
        // It was on a node: that is no matter of capacity.
        assert_eq!(of_launch(&member), None);
        member.pod.as_mut().unwrap().node = None;
        let (against, evidence) = of_launch(&member).unwrap();
        assert_eq!((against, evidence.kind), (pool("a", ""), EvidenceKind::Undelivered));
    }

    #[test]
    fn a_node_that_goes_without_a_word_speaks_against_its_pool() {
        let (against, evidence) = of_loss("n1", &node("other"), at(7)).unwrap();
        assert_eq!((against, evidence.kind), (pool("a", "z1"), EvidenceKind::Lost));
        assert_eq!(of_loss("n1", &node("ToBeDeletedByClusterAutoscaler"), at(7)), None);
    }

    /// Messages as the cluster autoscaler writes them.
    #[test]
    fn an_autoscaler_that_cannot_have_a_node_speaks_against_the_pods_pool() {
        let mut member = on_pool("a", creating("m"));
        let pod = member.pod.as_mut().unwrap();
        pod.node = None;
        let says = |words: &str| {
            of_scale_up(pod, &format!("pod didn't trigger scale-up: {words}"), at(9)).map(|(pool, _)| pool)
        };
        let a = Some(pool("a", ""));
        assert_eq!(says("1 in backoff after failed scale-up, 3 node(s) didn't match"), a);
        assert_eq!(says("2 max node group size reached"), a);
        assert_eq!(says("4 node(s) didn't match Pod's node affinity/selector"), None);
    }

    #[test]
    fn what_karpenter_cannot_have_is_told_from_what_else_it_says() {
        for reason in ["InsufficientCapacityError", "LaunchFailed", "SpotQuotaExceeded", "VCPULimitExceeded"]
        {
            let evidence = of_node_claim("c1", reason, "no", at(3)).unwrap();
            assert_eq!((evidence.kind, evidence.at.0), (EvidenceKind::Undelivered, at(3)));
        }
        assert_eq!(of_node_claim("c1", "DisruptionBlocked", "no", at(3)), None);
    }

    #[test]
    fn a_pool_has_delivered_once_what_was_made_for_it_since_is_ready() {
        let ready = on_pool("a", standing_by("m"));
        let made = ready.pod.as_ref().unwrap().created_at;
        let later = made + jiff::SignedDuration::from_secs(1);
        assert!(is_delivered(&ready, &pool("a", ""), made));
        assert!(!is_delivered(&ready, &pool("a", ""), later));
        assert!(!is_delivered(&ready, &pool("b", ""), made));
        assert!(!is_delivered(&on_pool("a", creating("m")), &pool("a", ""), made));
    }
}
