//! Ports: which host port a pod asks for, and where its players reach it (rows A1 and F12).
//!
//! A number serves on every node at once. Nothing is kept of who has which but the pods themselves, so none leaks
//! over a restart.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::names::spread;
use super::observed::{NodeAddress, Pod};
use crate::api::ports::default_node_address_types;
use crate::api::{AddressFamily, Addressing, GameServerPort, Port};

/// The host ports that there are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pool {
    /// The numbers that pods are given.
    pub range: RangeInclusive<u16>,
    /// How many nodes there are to give each of them once. None known (a cluster at zero nodes) counts as one.
    pub nodes: usize,
}

/// No host port is left.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "all host ports from {from} to {to} are in use on each of {nodes} nodes; widen the operator's range (the chart's \
     hostPorts) or add nodes"
)]
pub struct Exhausted {
    from: u16,
    to: u16,
    nodes: usize,
}

/// How many pods hold each host port.
pub type Held = BTreeMap<i32, usize>;

/// A host port for each of `ports` that wants one, for the pod called `name`: those that the fewest pods hold.
///
/// Among equals the search starts at a place that the name decides, so that two groups which launch at the same
/// moment rarely pick the same; the scheduler keeps the pods of one number apart, and one that fits nowhere is made
/// again with another name (rules/life.rs).
///
/// # Errors
/// All are held as often as there are nodes.
pub fn pick(ports: &[Port], name: &str, pool: &Pool, held: &Held) -> Result<Vec<(String, i32)>, Exhausted> {
    let (from, to) = (*pool.range.start(), *pool.range.end());
    let nodes = pool.nodes.max(1);
    let wanted: Vec<&Port> = ports.iter().filter(|port| port.policy.is_on_host()).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let count = u64::from(to.saturating_sub(from)) + 1;
    let start = spread(name) % count;
    let mut numbers: Vec<(usize, u64, i32)> = pool
        .range
        .clone()
        .map(|number| {
            let distance = (u64::from(number - from) + count - start) % count;
            (held.get(&i32::from(number)).copied().unwrap_or(0), distance, i32::from(number))
        })
        .filter(|(holders, ..)| *holders < nodes)
        .collect();
    numbers.sort_unstable();
    let mut numbers = numbers.into_iter().map(|(.., number)| number);
    wanted
        .into_iter()
        .map(|port| {
            numbers.next().map(|number| (port.name.clone(), number)).ok_or(Exhausted { from, to, nodes })
        })
        .collect()
}

/// Where players reach `pod` on a node with these addresses: its address, once that is known, and its ports there.
/// The pod is asked, not its group, whose ports may be others by now.
pub fn reached_at(
    addressing: Option<&Addressing>,
    pod: &Pod,
    node: &[NodeAddress],
) -> (Option<String>, Vec<GameServerPort>) {
    let family = addressing.and_then(|addressing| addressing.family);
    let address = if pod.ports.iter().any(|port| port.host_port.is_some()) {
        of_node(addressing, node)
    } else {
        pod.ips.iter().find(|address| fits(address, family)).cloned()
    };
    let ports = pod.ports.iter().map(|port| GameServerPort {
        name: port.name.clone(),
        port: port.host_port.unwrap_or(port.container_port),
        protocol: port.protocol,
    });
    (address, ports.collect())
}

fn of_node(addressing: Option<&Addressing>, node: &[NodeAddress]) -> Option<String> {
    let family = addressing.and_then(|addressing| addressing.family);
    let types =
        addressing.map_or_else(default_node_address_types, |addressing| addressing.node_types.clone());
    let of_type = |wanted: &str| {
        node.iter().find(|(type_, address)| type_ == wanted && !address.is_empty() && fits(address, family))
    };
    types.into_iter().find_map(|wanted| of_type(wanted.as_str())).map(|(_, address)| address.clone())
}

/// A name fits any family: what it stands for is the resolver's to say.
fn fits(address: &str, family: Option<AddressFamily>) -> bool {
    match (address.parse::<IpAddr>(), family) {
        (Ok(IpAddr::V4(_)), Some(AddressFamily::IPv6)) | (Ok(IpAddr::V6(_)), Some(AddressFamily::IPv4)) => {
            false
        }
        (Ok(_) | Err(_), _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{NodeAddressType, PortPolicy};
    use crate::rules::fixtures;

    fn pool(range: RangeInclusive<u16>, nodes: usize) -> Pool {
        Pool { range, nodes }
    }

    fn game() -> Vec<Port> {
        fixtures::group().spec.ports
    }

    #[test]
    fn a_number_is_given_again_only_when_all_are_held() {
        let pool = pool(7000..=7001, 2);
        let mut held = Held::new();
        let mut given = Vec::new();
        for name in ["a", "b", "c", "d"] {
            let number = pick(&game(), name, &pool, &held).unwrap()[0].1;
            *held.entry(number).or_default() += 1;
            given.push(number);
        }
        assert_eq!(held, Held::from([(7000, 2), (7001, 2)]));
        assert_ne!(given[0], given[1]);
        let full = pick(&game(), "e", &pool, &held).unwrap_err();
        assert!(full.to_string().contains("from 7000 to 7001") && full.to_string().contains("2 nodes"));
    }

    #[test]
    fn a_cluster_at_zero_nodes_can_start() {
        assert!(pick(&game(), "a", &pool(7000..=7000, 0), &Held::new()).is_ok());
    }

    #[test]
    fn ports_on_the_pod_take_none() {
        let mut ports = game();
        ports[0].policy = PortPolicy::PodIp;
        let full = Held::from([(7000, 1)]);
        assert_eq!(pick(&ports, "a", &pool(7000..=7000, 1), &full), Ok(Vec::new()));
    }

    #[test]
    fn another_name_starts_at_another_place() {
        let pool = pool(7000..=8000, 1);
        let numbers = ["a", "b", "c"].map(|name| pick(&game(), name, &pool, &Held::new()).unwrap()[0].1);
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2]);
    }

    fn node() -> Vec<NodeAddress> {
        [
            ("InternalIP", "10.0.0.9"),
            ("InternalIP", "2001:db8::9"),
            ("ExternalIP", "203.0.113.1"),
            ("Hostname", "n1"),
        ]
        .map(|(type_, address)| (type_.to_owned(), address.to_owned()))
        .into()
    }

    fn pod(host_port: Option<i32>) -> Pod {
        let mut pod = fixtures::standing_by("a").pod.unwrap();
        pod.ips = vec!["10.0.0.1".to_owned(), "2001:db8::1".to_owned()];
        pod.ports[0].host_port = host_port;
        Pod::clone(&pod)
    }

    fn address(addressing: Option<&Addressing>, host_port: Option<i32>) -> Option<String> {
        reached_at(addressing, &pod(host_port), &node()).0
    }

    fn chosen(node_types: &[NodeAddressType], family: Option<AddressFamily>) -> Addressing {
        Addressing { node_types: node_types.to_vec(), family }
    }

    #[test]
    fn the_nodes_external_address_comes_first_unless_the_group_says_otherwise() {
        use NodeAddressType::{ExternalDns, ExternalIp, Hostname, InternalIp};
        let v6 = Some(AddressFamily::IPv6);
        assert_eq!(address(None, Some(7777)).as_deref(), Some("203.0.113.1"));
        for (addressing, expected) in [
            (chosen(&[InternalIp], None), Some("10.0.0.9")),
            (chosen(&[ExternalIp, InternalIp], v6), Some("2001:db8::9")),
            (chosen(&[ExternalDns, Hostname], v6), Some("n1")),
            (chosen(&[ExternalDns], None), None),
        ] {
            assert_eq!(address(Some(&addressing), Some(7777)).as_deref(), expected);
        }
    }

    #[test]
    fn ports_on_the_pod_are_reached_at_the_pods_address_of_the_family() {
        assert_eq!(address(None, None).as_deref(), Some("10.0.0.1"));
        let v6 = chosen(&[NodeAddressType::InternalIp], Some(AddressFamily::IPv6));
        assert_eq!(address(Some(&v6), None).as_deref(), Some("2001:db8::1"));
    }

    #[test]
    fn ports_are_those_that_players_connect_to() {
        for (host_port, number) in [(Some(7777), 7777), (None, 27960)] {
            assert_eq!(reached_at(None, &pod(host_port), &node()).1[0].port, number);
        }
    }
}
