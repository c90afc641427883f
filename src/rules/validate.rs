//! What a template may not say, beyond what the schema's own rules refuse.

use k8s_openapi::api::core::v1::Container;

use crate::api::names::{ENV_PREFIX, POKE_PORT, TELL_PORT};
use crate::api::{GameServerGroupSpec, Port, PortProtocol};

/// A fault of a group's spec.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The template sets a variable that is the operator's.
    #[error(
        "container {container} sets {variable}: variables that start with {ENV_PREFIX} are set by the operator"
    )]
    Variable {
        /// The container.
        container: String,
        /// The variable.
        variable: String,
    },
    /// Two ports would be one.
    #[error("ports {first} and {second} are both {number}/{protocol}: give each its own containerPort")]
    SamePort {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// The container port.
        number: i32,
        /// The protocol.
        protocol: &'static str,
    },
    /// A port is the agent's.
    #[error("port {port} is {number}/TCP, where the agent listens: give it another containerPort")]
    AgentsPort {
        /// The port.
        port: String,
        /// Its number.
        number: i32,
    },
}

/// The first fault of `spec`.
///
/// # Errors
/// The fault, with the way out.
pub fn check(spec: &GameServerGroupSpec) -> Result<(), Fault> {
    let containers = spec.template.spec.iter().flat_map(|pod| &pod.containers);
    containers.into_iter().try_for_each(check_variables)?;
    check_ports(&spec.ports)?;
    spec.agent.iter().flat_map(|_| &spec.ports).try_for_each(beside_agent)
}

fn beside_agent(port: &Port) -> Result<(), Fault> {
    let agents = [POKE_PORT, TELL_PORT].map(i32::from);
    match port.container_port.filter(|number| agents.contains(number) && port.protocol == PortProtocol::Tcp) {
        Some(number) => Err(Fault::AgentsPort { port: port.name.clone(), number }),
        None => Ok(()),
    }
}

fn check_variables(container: &Container) -> Result<(), Fault> {
    let ours = container.env.iter().flatten().find(|variable| variable.name.starts_with(ENV_PREFIX));
    ours.map_or(Ok(()), |variable| {
        Err(Fault::Variable { container: container.name.clone(), variable: variable.name.clone() })
    })
}

fn check_ports(ports: &[Port]) -> Result<(), Fault> {
    for (index, first) in ports.iter().enumerate() {
        let same = |other: &&Port| {
            let same = other.container_port == first.container_port && other.protocol == first.protocol;
            same && first.container_port.is_some()
        };
        if let Some(second) = ports.iter().skip(index + 1).find(same) {
            return Err(Fault::SamePort {
                first: first.name.clone(),
                second: second.name.clone(),
                number: first.container_port.unwrap_or(0),
                protocol: first.protocol.as_str(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures;
    use k8s_openapi::api::core::v1::EnvVar;

    #[test]
    fn a_plain_template_is_fine() {
        assert_eq!(check(&fixtures::group().spec), Ok(()));
    }

    #[test]
    fn our_variables_are_refused() {
        let mut spec = fixtures::group().spec;
        let variable = EnvVar { name: "GAMEKEEPER_ADDRESS".into(), ..EnvVar::default() };
        spec.template.spec.as_mut().unwrap().containers[0].env = Some(vec![variable]);
        assert!(check(&spec).unwrap_err().to_string().contains("GAMEKEEPER_ADDRESS"));
    }

    #[test]
    fn two_ports_that_are_one_are_refused() {
        let mut spec = fixtures::group().spec;
        let mut second = spec.ports[0].clone();
        second.name = "query".into();
        spec.ports.push(second);
        assert!(matches!(check(&spec), Err(Fault::SamePort { number: 27960, .. })));
    }

    #[test]
    fn the_agents_ports_are_refused_beside_it() {
        for (group, expected) in [(fixtures::group(), false), (fixtures::group_with_agent(), true)] {
            let mut spec = group.spec;
            let mut query = spec.ports[0].clone();
            (query.name, query.container_port, query.protocol) =
                ("query".into(), Some(9355), PortProtocol::Tcp);
            spec.ports.push(query);
            assert_eq!(matches!(check(&spec), Err(Fault::AgentsPort { number: 9355, .. })), expected);
        }
    }
}
