//! The ports that players connect to, and the address that they are given.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A port of the game.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.policy == 'Passthrough' ? !has(self.containerPort) : has(self.containerPort)").message("a port has a containerPort, but for policy Passthrough: there the game listens on the host port it is given"))]
pub struct Port {
    /// Its name: a DNS label of at most 15 characters.
    #[schemars(length(min = 1, max = 15), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Where the game listens, in its container. Left out with `Passthrough`: there it listens on the host port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub container_port: Option<i32>,
    /// `UDP` unless set.
    #[serde(default)]
    pub protocol: PortProtocol,
    /// How players reach it.
    #[serde(default)]
    pub policy: PortPolicy,
}

impl PortPolicy {
    /// Whether players reach it on the node.
    pub fn is_on_host(self) -> bool {
        match self {
            Self::HostPort | Self::Passthrough => true,
            Self::PodIp => false,
        }
    }
}

/// Which of a node's or a pod's addresses players are given.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Addressing {
    /// The types of a node's addresses, the first that the node has; for ports on the host.
    #[serde(default = "default_node_address_types")]
    #[schemars(length(min = 1, max = 5))]
    pub node_types: Vec<NodeAddressType>,
    /// Only addresses of this family; any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<AddressFamily>,
}

/// What a group that says nothing gets: see [`Addressing`].
pub fn default_node_address_types() -> Vec<NodeAddressType> {
    vec![NodeAddressType::ExternalIp, NodeAddressType::InternalIp]
}

/// A type of a node's addresses, as Kubernetes names them.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum NodeAddressType {
    /// Reached from outside the cluster.
    #[serde(rename = "ExternalIP")]
    ExternalIp,
    /// Reached within it.
    #[serde(rename = "InternalIP")]
    InternalIp,
    /// A name reached from outside.
    #[serde(rename = "ExternalDNS")]
    ExternalDns,
    /// A name reached within.
    #[serde(rename = "InternalDNS")]
    InternalDns,
    /// The node's own name.
    Hostname,
}

impl NodeAddressType {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExternalIp => "ExternalIP",
            Self::InternalIp => "InternalIP",
            Self::ExternalDns => "ExternalDNS",
            Self::InternalDns => "InternalDNS",
            Self::Hostname => "Hostname",
        }
    }
}

/// A family of IP addresses.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum AddressFamily {
    /// Such as 203.0.113.1.
    IPv4,
    /// Such as `2001:db8::1`.
    IPv6,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum PortProtocol {
    /// User Datagram Protocol.
    #[default]
    #[serde(rename = "UDP")]
    Udp,
    /// Transmission Control Protocol.
    #[serde(rename = "TCP")]
    Tcp,
}

impl PortProtocol {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
        }
    }
}

/// How players reach a port.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum PortPolicy {
    /// On the node's address, at a port that the operator picks.
    #[default]
    HostPort,
    /// As `HostPort`, and the game listens on that very port: for games that tell players where they are.
    Passthrough,
    /// On the pod's own address, at `containerPort`: for players, or a proxy, inside the cluster's network.
    #[serde(rename = "PodIP")]
    PodIp,
}
