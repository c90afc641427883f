//! The addresses of a cluster: one /16 of its own, split into four ranges.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::command::output;

/// A cluster's /16, `10.B.0.0/16`, by its second octet.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Network {
    second_octet: u8,
}

/// Below 128 lie the ranges that other clusters and VPNs commonly take.
const FIRST: u8 = 128;

impl Network {
    /// A range that no address or route of this machine touches, nor any in `taken`.
    pub(crate) fn free(taken: &[Self]) -> Result<Self> {
        let listed = output(Command::new("ip").args(["-4", "-json", "route", "show", "table", "all"]))
            .context("cannot list the routes of this machine")?;
        let routes: Vec<Route> =
            serde_json::from_str(&listed).context("cannot read what `ip -json route` printed")?;
        let used: Vec<Range> = routes.iter().filter_map(|route| Range::parse(&route.dst)).collect();
        for second_octet in FIRST..=u8::MAX {
            let network = Self { second_octet };
            let range = Range { first: network.address(0, 0), prefix: 16 };
            let ours = taken.iter().any(|other| other.second_octet == second_octet);
            if !ours && !used.iter().any(|other| other.overlaps(range)) {
                return Ok(network);
            }
        }
        bail!(
            "every range from 10.{FIRST}.0.0/16 to 10.255.0.0/16 is in use on this machine; \
             `ip route show table all` shows by what"
        );
    }

    /// The addresses of a cluster without a node, where they only name things.
    pub(crate) fn unused() -> Self {
        Self { second_octet: FIRST }
    }

    /// All of the cluster's addresses.
    pub(crate) fn whole(self) -> String {
        self.range(0, 16)
    }

    /// The addresses of pods on the node.
    pub(crate) fn pods(self) -> String {
        self.range(0, 20)
    }

    /// The addresses of pods on fake nodes, where nobody answers.
    pub(crate) fn fake_pods(self) -> String {
        self.range(64, 18)
    }

    /// The addresses of services.
    pub(crate) fn services(self) -> String {
        self.range(128, 20)
    }

    /// The address of the service `kubernetes`: always the first of the range.
    pub(crate) fn kubernetes_service(self) -> Ipv4Addr {
        self.address(128, 1)
    }

    /// The host's end of the link to the node.
    pub(crate) fn host(self) -> Ipv4Addr {
        self.address(255, 1)
    }

    /// The node's address.
    pub(crate) fn node(self) -> Ipv4Addr {
        self.address(255, 2)
    }

    fn address(self, third: u8, fourth: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.second_octet, third, fourth)
    }

    fn range(self, third: u8, prefix: u8) -> String {
        format!("{}/{prefix}", self.address(third, 0))
    }
}

#[derive(Deserialize)]
struct Route {
    dst: String,
}

#[derive(Clone, Copy)]
struct Range {
    first: Ipv4Addr,
    prefix: u32,
}

impl Range {
    /// None for `default`, which overlaps everything and forbids nothing.
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let range = Self { first: address.parse().ok()?, prefix: prefix.parse().ok()? };
        (1..=32).contains(&range.prefix).then_some(range)
    }

    fn overlaps(self, other: Self) -> bool {
        let shift = 32 - self.prefix.min(other.prefix);
        u32::from(self.first) >> shift == u32::from(other.first) >> shift
    }
}

#[cfg(test)]
mod tests {
    use super::Range;

    fn overlap(one: &str, other: &str) -> Option<bool> {
        Some(Range::parse(one)?.overlaps(Range::parse(other)?))
    }

    #[test]
    fn a_range_overlaps_what_lies_in_it_and_what_it_lies_in() {
        assert_eq!(overlap("10.128.0.0/16", "10.128.255.2"), Some(true));
        assert_eq!(overlap("10.128.0.0/16", "10.0.0.0/8"), Some(true));
        assert_eq!(overlap("10.128.0.0/16", "10.129.0.0/16"), Some(false));
    }

    #[test]
    fn the_default_route_takes_no_range() {
        assert_eq!(overlap("default", "10.128.0.0/16"), None);
        assert_eq!(overlap("0.0.0.0/0", "10.128.0.0/16"), None);
    }
}
