//! Ports: which host port a pod asks for, and where its players reach it (row A1).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::names::spread;
use super::observed::Pod;
use crate::api::{GameServerPort, Port, PortPolicy};

/// The host ports that pods are given. The range that peers use as well, clear of Kubernetes' node ports.
pub const HOST_PORTS: RangeInclusive<i32> = 7000..=8000;

/// No host port is left.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("all {} host ports from {} to {} are in use", HOST_PORTS.count(), HOST_PORTS.start(), HOST_PORTS.end())]
pub struct Exhausted;

/// A host port for each of `ports` that wants one, for the pod called `name`, clear of `used`.
///
/// The search starts at a place that the name decides, so that two groups which launch at the same moment
/// rarely pick the same; where they do, the scheduler keeps the pods apart, and a pod that fits nowhere is
/// replaced at its launch timeout.
///
/// # Errors
/// All are in use.
pub fn pick(ports: &[Port], name: &str, used: &BTreeSet<i32>) -> Result<Vec<(String, i32)>, Exhausted> {
    let count = HOST_PORTS.end() - HOST_PORTS.start() + 1;
    let start = i32::try_from(spread(name) % u64::from(count.unsigned_abs())).unwrap_or(0);
    let mut free = (0..count)
        .map(|step| HOST_PORTS.start() + (start + step) % count)
        .filter(|port| !used.contains(port));
    ports
        .iter()
        .filter(|port| port.policy == PortPolicy::HostPort)
        .map(|port| free.next().map(|number| (port.name.clone(), number)).ok_or(Exhausted))
        .collect()
}

/// Where players reach `pod`: its address, once that is known, and its ports there.
pub fn reached_at(
    ports: &[Port],
    pod: &Pod,
    node_address: Option<&str>,
) -> (Option<String>, Vec<GameServerPort>) {
    let on_host = ports.iter().any(|port| port.policy == PortPolicy::HostPort);
    let address = if on_host { node_address } else { pod.ip.as_deref() };
    let number = |port: &Port| match port.policy {
        PortPolicy::PodIp => Some(port.container_port),
        PortPolicy::HostPort => {
            pod.host_ports.iter().find(|held| held.name == port.name).map(|held| held.host_port)
        }
    };
    let ports = ports
        .iter()
        .filter_map(|port| {
            number(port).map(|number| GameServerPort {
                name: port.name.clone(),
                port: number,
                protocol: port.protocol,
            })
        })
        .collect();
    (address.filter(|address| !address.is_empty()).map(str::to_owned), ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures;

    #[test]
    fn ports_in_use_are_passed_over() {
        let ports = fixtures::group().spec.ports;
        let first = pick(&ports, "a", &BTreeSet::new()).unwrap();
        let second = pick(&ports, "a", &BTreeSet::from([first[0].1])).unwrap();
        assert_ne!(first, second);
        assert!(HOST_PORTS.contains(&second[0].1));
    }

    #[test]
    fn the_last_port_is_given_and_then_none() {
        let ports = fixtures::group().spec.ports;
        let mut used: BTreeSet<i32> = HOST_PORTS.collect();
        assert_eq!(pick(&ports, "a", &used), Err(Exhausted));
        used.remove(&7500);
        assert_eq!(pick(&ports, "a", &used), Ok(vec![("game".to_owned(), 7500)]));
    }

    #[test]
    fn host_ports_are_reached_at_the_node_and_others_at_the_pod() {
        let pod = fixtures::standing_by("a").pod.unwrap();
        let mut ports = fixtures::group().spec.ports;
        let (address, at_node) = reached_at(&ports, &pod, Some("203.0.113.1"));
        assert_eq!((address.as_deref(), at_node[0].port), (Some("203.0.113.1"), 7777));
        ports[0].policy = PortPolicy::PodIp;
        let (address, at_pod) = reached_at(&ports, &pod, None);
        assert_eq!((address.as_deref(), at_pod[0].port), (Some("10.0.0.1"), 27960));
    }
}
