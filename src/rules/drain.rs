//! A cordoned node, as for an upgrade, is left: its instances are Draining until it is uncordoned. Games go on, and
//! its servers are claimed only when no other is left.

use super::observed::{Node, Server};
use super::patch::ServerPatch;
use crate::api::InstanceStatus;

/// What the instances of `node` are.
pub fn status(node: &Node) -> InstanceStatus {
    if node.cordoned { InstanceStatus::Draining } else { InstanceStatus::Active }
}

/// The patch that says what has become of the server's instance, and what that is.
pub fn turn(server: &Server, node: Option<&Node>) -> Option<(ServerPatch, InstanceStatus)> {
    let (instance, status) = (server.instance.as_ref()?, status(node?));
    if instance.status == status || server.is_ending() {
        return None;
    }
    let patch = ServerPatch::of(&server.uid)
        .test(&["status", "instance", "nodeName"], &instance.node_name)
        .set(&["status", "instance", "status"], status);
    Some((patch, status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{active, standing_by};

    fn node(cordoned: bool) -> Node {
        Node { addresses: Vec::new(), cordoned }
    }

    #[test]
    fn a_cordoned_node_drains_what_plays_there_too() {
        for member in [standing_by("a"), active("a")] {
            let server = member.server.unwrap();
            assert_eq!(turn(&server, Some(&node(false))), None);
            let (_, status) = turn(&server, Some(&node(true))).unwrap();
            assert_eq!(status, InstanceStatus::Draining);
        }
    }

    #[test]
    fn uncordoned_it_is_active_again() {
        let mut server = standing_by("a").server.unwrap();
        server.instance.as_mut().unwrap().status = InstanceStatus::Draining;
        assert_eq!(turn(&server, Some(&node(false))).unwrap().1, InstanceStatus::Active);
    }

    #[test]
    fn of_a_node_that_is_not_seen_nothing_is_said() {
        let mut server = standing_by("a").server.unwrap();
        server.instance.as_mut().unwrap().status = InstanceStatus::Draining;
        assert_eq!(turn(&server, None), None);
    }
}
