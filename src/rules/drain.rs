//! A node that is to be left: its instances are Draining for as long as it is. Games go on, and its servers are claimed
//! only when no other is left.
//!
//! Row F20: a node that goes takes all that runs there with it. Its instances are `SpotTerminating`, and stay so: a node
//! that comes back under its name is another machine, or has started anew (case C21), and nothing outlives that.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::notice::{Notice, Verdict};
use super::observed::{Node, Server};
use super::patch::ServerPatch;
use crate::api::{Instance, InstanceStatus};

/// An instance on the node of this name, as it is to be.
pub fn instance(node_name: &str, node: Option<&Node>, now: Timestamp) -> Instance {
    let (status, retire_at) = match node.and_then(|node| node.notice.as_ref()).map(|notice| notice.verdict) {
        None => (InstanceStatus::Active, None),
        Some(Verdict::Drains) => (InstanceStatus::Draining, None),
        Some(Verdict::Ends { within, since }) => {
            let end = within.and_then(|within| since.unwrap_or(now).checked_add(within).ok());
            (InstanceStatus::SpotTerminating, end.map(MicroTime))
        }
    };
    Instance {
        node_name: node_name.to_owned(),
        status,
        cause: node.and_then(|node| node.notice.as_ref()).map(|Notice { cause, .. }| cause.clone()),
        retire_at,
        capacity: node.map(|node| node.capacity.clone()).unwrap_or_default(),
        boot_id: node.map(|node| node.boot_id.clone()).filter(|id| !id.is_empty()),
    }
}

/// The patch that says what has become of the server's instance, and what that is.
/// `pool_cause` is why its capacity pool is to be left, if that is (row F5).
pub fn turn(
    server: &Server,
    node: Option<&Node>,
    pool_cause: Option<&str>,
    now: Timestamp,
) -> Option<(ServerPatch, Instance)> {
    let there = server.instance.as_ref()?;
    if server.is_ending() || server.goes_with_its_node() {
        return None;
    }
    let mut after = instance(&there.node_name, Some(node?), now);
    if let Some(cause) = pool_cause.filter(|_| after.status == InstanceStatus::Active) {
        (after.status, after.cause) = (InstanceStatus::Draining, Some(cause.to_owned()));
    }
    // The one that it was put on stands in its status for good.
    let boot_id = there.boot_id.clone().or(after.boot_id.take());
    if node.is_some_and(|node| !node.boot_id.is_empty() && Some(&node.boot_id) != boot_id.as_ref()) {
        after = Instance {
            status: InstanceStatus::SpotTerminating,
            cause: Some("its node has started anew".to_owned()),
            ..after
        };
    }
    if there.status == after.status {
        return None;
    }
    let after = Instance { boot_id, ..after };
    let patch = ServerPatch::of(&server.uid)
        .test(&["status", "instance", "nodeName"], &there.node_name)
        .test(&["status", "instance", "status"], there.status)
        .set(&["status", "instance"], &after);
    Some((patch, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{active, at, standing_by};
    use crate::rules::notice::{Sign, read};

    fn node(sign: Option<Sign<'_>>) -> Node {
        Node { notice: read(sign), boot_id: "boot-1".to_owned(), ..Node::default() }
    }

    fn turned(server: &Server, node: &Node) -> Option<Instance> {
        turn(server, Some(node), None, at(5)).map(|(_, instance)| instance)
    }

    #[test]
    fn a_cordoned_node_drains_what_plays_there_too() {
        for member in [standing_by("a"), active("a")] {
            let server = member.server.unwrap();
            assert_eq!(turned(&server, &node(None)), None);
            let after = turned(&server, &node(Some(Sign::Cordon))).unwrap();
            assert_eq!(after.status, InstanceStatus::Draining);
            assert_eq!(after.cause.as_deref(), Some("its node is cordoned"));
        }
    }

    #[test]
    fn uncordoned_it_is_active_again() {
        let mut server = standing_by("a").server.unwrap();
        let instance = server.instance.as_mut().unwrap();
        (instance.status, instance.cause) = (InstanceStatus::Draining, Some("cordoned".to_owned()));
        let after = turned(&server, &node(None)).unwrap();
        assert_eq!((after.status, after.cause), (InstanceStatus::Active, None));
    }

    #[test]
    fn of_a_node_that_is_not_seen_nothing_is_said() {
        let mut server = standing_by("a").server.unwrap();
        server.instance.as_mut().unwrap().status = InstanceStatus::Draining;
        assert_eq!(turn(&server, None, None, at(5)), None);
    }

    /// Row F5. A node's own notice says more.
    #[test]
    fn what_is_on_a_pool_that_is_not_viable_drains() {
        let server = active("a").server.unwrap();
        let turned = |node: &Node| turn(&server, Some(node), Some("its pool is out"), at(5)).unwrap().1;
        let after = turned(&node(None));
        assert_eq!(
            (after.status, after.cause.as_deref()),
            (InstanceStatus::Draining, Some("its pool is out"))
        );
        let out_of_service = node(Some(Sign::Taint("node.kubernetes.io/out-of-service", None)));
        assert_eq!(turned(&out_of_service).status, InstanceStatus::SpotTerminating);
    }

    /// Row F20. AWS says when its taint was put there, or the notice counts from when it is seen.
    #[test]
    fn a_notice_says_until_when_and_stays() {
        let interrupted = |since| node(Some(Sign::Taint("aws-node-termination-handler/spot-itn", since)));
        let mut server = active("a").server.unwrap();
        let after = turned(&server, &interrupted(None)).unwrap();
        assert_eq!(after.status, InstanceStatus::SpotTerminating);
        assert_eq!(after.retire_at, Some(MicroTime(at(125))));
        let earlier = turned(&server, &interrupted(Some(at(2)))).unwrap();
        assert_eq!(earlier.retire_at, Some(MicroTime(at(122))));
        server.instance = Some(after);
        assert_eq!(turned(&server, &node(None)), None);
    }

    /// Case C21.
    #[test]
    fn a_node_that_has_started_anew_has_ended_what_was_there() {
        let mut server = standing_by("a").server.unwrap();
        server.instance.as_mut().unwrap().boot_id = Some("boot-1".to_owned());
        assert_eq!(turned(&server, &node(None)), None);
        let again = Node { boot_id: "boot-2".to_owned(), ..Node::default() };
        let after = turned(&server, &again).unwrap();
        assert_eq!(after.status, InstanceStatus::SpotTerminating);
        assert_eq!(after.boot_id.as_deref(), Some("boot-1"));
        // Of one that says nothing, as in a moment's hiccup, nothing is known.
        assert_eq!(turned(&server, &Node::default()), None);
    }
}
