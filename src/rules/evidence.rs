//! What happens to nodes and to launches that speaks against a capacity pool.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::notice::Verdict;
use super::observed::{Member, Node};
use super::pool::Pool;
use crate::api::{EndReason, Evidence, EvidenceKind};

/// What a node's notice says of its pool: an interruption speaks against it, a node that is scaled in or repaired does not.
pub fn of_node(name: &str, node: &Node, now: Timestamp) -> Option<(Pool, Evidence)> {
    let notice = node.notice.as_ref().filter(|notice| notice.interruption)?;
    let Verdict::Ends { since, .. } = notice.verdict else { return None };
    let evidence = Evidence {
        kind: EvidenceKind::Interrupted,
        // A node may come back under its name.
        of: format!("node {name} {}", node.boot_id).trim_end().to_owned(),
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
    let evidence = Evidence {
        kind: EvidenceKind::Undelivered,
        of: format!("pod {}", pod.name),
        message: words.chars().take(512).collect(),
        at: end.time.clone(),
    };
    Some((pod.pool.clone()?, evidence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Capacity, CapacityType, End};
    use crate::rules::fixtures::{at, creating, on_pool, pool};
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
}
