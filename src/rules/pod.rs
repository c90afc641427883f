//! Builds the pod of one server from its group's template, and the server's own object.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec,
    ResourceRequirements, SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use serde_json::{Value, json};

use super::eviction;
use super::hold::Launch;
use super::names::revision;
use super::observed;
use super::place::{self, CapacityLabels};
use crate::api::names::{
    AGENT_CONTAINER, ANNOTATION_ATTEMPT, ANNOTATION_LAST_FAILURE, ANNOTATION_POOL, ANNOTATION_PORTS,
    ANNOTATION_REGISTRATION, ENV_PREFIX, GAME_ACCOUNT, LABEL_GROUP, LABEL_GROUP_UID, LABEL_REVISION,
    LABEL_SLOT, POKE_PORT, POKE_PORT_NAME, REGISTERS_ITSELF, SERVER_FINALIZER, TELL_PORT,
};
use crate::api::{
    Agent, AgentProtocol, GameServer, GameServerGroup, GameServerSpec, Port, PortProtocol, Registration,
    Shutdown,
};

/// The pod for `launch` of `group`, with these host ports; `agent_image` is the image of its agent.
pub fn build(
    group: &GameServerGroup,
    launch: &Launch,
    host_ports: &[(String, i32)],
    agent_image: &str,
    labels: CapacityLabels,
) -> Pod {
    let template = &group.spec.template;
    let metadata = template.metadata.clone().unwrap_or_default();
    let mut own = metadata.labels.unwrap_or_default();
    own.extend(own_labels(group));
    own.insert(LABEL_REVISION.to_owned(), revision(&group.spec));
    own.insert(LABEL_SLOT.to_owned(), launch.slot.to_string());
    let mut annotations = metadata.annotations.unwrap_or_default();
    eviction::annotate(&mut annotations, group.spec.eviction);
    let names: Vec<&str> = group.spec.ports.iter().map(|port| port.name.as_str()).collect();
    annotations.insert(ANNOTATION_PORTS.to_owned(), names.join(","));
    match group.spec.registration {
        Registration::Automatic => {}
        Registration::Itself => {
            annotations.insert(ANNOTATION_REGISTRATION.to_owned(), REGISTERS_ITSELF.to_owned());
        }
    }
    if let Some(failure) = &launch.after {
        annotations.insert(ANNOTATION_ATTEMPT.to_owned(), failure.in_a_row.to_string());
        annotations.insert(ANNOTATION_LAST_FAILURE.to_owned(), failure.message.clone());
    }
    let mut spec = pod_spec(group, host_ports, agent_image);
    if let Some(pool) = &launch.pool {
        annotations.insert(ANNOTATION_POOL.to_owned(), pool.to_string());
        place::bind(&mut spec, pool, labels);
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(launch.name.clone()),
            namespace: group.metadata.namespace.clone(),
            labels: Some(own),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The labels by which a group's pods and servers are found.
pub fn own_labels(group: &GameServerGroup) -> BTreeMap<String, String> {
    BTreeMap::from([
        (LABEL_GROUP.to_owned(), group.metadata.name.clone().unwrap_or_default()),
        (LABEL_GROUP_UID.to_owned(), group.metadata.uid.clone().unwrap_or_default()),
    ])
}

fn pod_spec(group: &GameServerGroup, host_ports: &[(String, i32)], agent_image: &str) -> PodSpec {
    let mut pod = group.spec.template.spec.clone().unwrap_or_default();
    pod.restart_policy = Some("Never".to_owned());
    if pod.service_account_name.as_ref().is_none_or(String::is_empty) {
        pod.service_account_name = Some(GAME_ACCOUNT.to_owned());
    }
    if let Some(game) = pod.containers.first_mut() {
        let ports = group.spec.ports.iter();
        game.ports = Some(with_ports(game.ports.take().unwrap_or_default(), ports, host_ports));
        // Ahead of the template's own, so that these can refer to them by $(NAME).
        let mut env = environment(group, host_ports);
        env.append(&mut game.env.take().unwrap_or_default());
        game.env = Some(env);
    }
    if let Some(agent) = &group.spec.agent {
        let port = group.spec.ports.iter().find(|port| port.name == agent.port);
        let containers = pod.init_containers.get_or_insert_default();
        let port = port.map_or(0, |port| listens_on(port, host_ports));
        let mut container = agent_container(agent, port, agent_image);
        // There the agents of a node's pods would take each other's ports, and tell games of each other's servers.
        if pod.host_network != Some(true) {
            let_be_poked(&mut container);
        }
        containers.push(container);
    }
    pod
}

/// The container's ports with the group's: these win over a port of the same number and protocol.
fn with_ports<'a>(
    own: Vec<ContainerPort>,
    ports: impl Iterator<Item = &'a Port>,
    host_ports: &[(String, i32)],
) -> Vec<ContainerPort> {
    let ours: Vec<ContainerPort> = ports
        .map(|port| ContainerPort {
            name: Some(port.name.clone()),
            container_port: listens_on(port, host_ports),
            protocol: Some(port.protocol.as_str().to_owned()),
            host_port: host_port(port, host_ports),
            host_ip: None,
        })
        .collect();
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let is_ours = |port: &ContainerPort| {
        ours.iter()
            .any(|our| our.container_port == port.container_port && our.protocol == Some(protocol(port)))
    };
    let mut all: Vec<ContainerPort> = own.into_iter().filter(|port| !is_ours(port)).collect();
    all.extend(ours.clone());
    all
}

fn host_port(port: &Port, host_ports: &[(String, i32)]) -> Option<i32> {
    host_ports.iter().find(|(name, _)| *name == port.name).map(|(_, number)| *number)
}

/// Where the game listens in its pod. Without a containerPort (Passthrough) that is the host port.
fn listens_on(port: &Port, host_ports: &[(String, i32)]) -> i32 {
    port.container_port.or_else(|| host_port(port, host_ports)).unwrap_or(0)
}

/// What the game learns of itself: name, namespace, group, address, ports, and whose its `GameServer` is to be if it
/// registers itself.
fn environment(group: &GameServerGroup, host_ports: &[(String, i32)]) -> Vec<EnvVar> {
    let on_host = group.spec.ports.iter().any(|port| port.policy.is_on_host());
    let address = if on_host { "status.hostIP" } else { "status.podIP" };
    let mut env = vec![
        from_field("GAME_SERVER", "metadata.name"),
        from_field("NAMESPACE", "metadata.namespace"),
        value("GROUP", group.metadata.name.clone().unwrap_or_default()),
        from_field("ADDRESS", address),
        from_field("POD_UID", "metadata.uid"),
    ];
    env.extend(group.spec.ports.iter().map(|port| {
        let number = host_port(port, host_ports).unwrap_or_else(|| listens_on(port, host_ports));
        value(&format!("PORT_{}", port.name.to_uppercase().replace('-', "_")), number.to_string())
    }));
    env
}

fn value(name: &str, value: String) -> EnvVar {
    EnvVar { name: format!("{ENV_PREFIX}{name}"), value: Some(value), value_from: None }
}

fn from_field(name: &str, field: &str) -> EnvVar {
    let field_ref = ObjectFieldSelector { field_path: field.to_owned(), api_version: None };
    EnvVar {
        name: format!("{ENV_PREFIX}{name}"),
        value: None,
        value_from: Some(EnvVarSource { field_ref: Some(field_ref), ..EnvVarSource::default() }),
    }
}

/// The agent as a native sidecar: it starts before the game, and does not keep the pod when the game ends.
fn agent_container(agent: &Agent, port: i32, image: &str) -> Container {
    let protocol = match agent.protocol {
        AgentProtocol::IdTech3 => "id-tech3",
    };
    let quantity = |text: &str| Quantity(text.to_owned());
    Container {
        name: AGENT_CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        restart_policy: Some("Always".to_owned()),
        args: Some(vec![
            "agent".to_owned(),
            format!("--protocol={protocol}"),
            format!("--port={port}"),
            format!("--empty-seconds={}", agent.empty_seconds),
        ]),
        env: Some(vec![
            from_field("GAME_SERVER", "metadata.name"),
            from_field("NAMESPACE", "metadata.namespace"),
        ]),
        resources: Some(ResourceRequirements {
            requests: Some(BTreeMap::from([
                ("cpu".to_owned(), quantity("5m")),
                ("memory".to_owned(), quantity("16Mi")),
            ])),
            limits: Some(BTreeMap::from([("memory".to_owned(), quantity("64Mi"))])),
            claims: None,
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            run_as_user: Some(65532),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

/// Opens the agent's ports: the one for pokes, and the one on the loopback, which is none of the pod's.
fn let_be_poked(agent: &mut Container) {
    agent
        .args
        .get_or_insert_default()
        .extend([format!("--poke-port={POKE_PORT}"), format!("--tell-port={TELL_PORT}")]);
    agent.ports = Some(vec![ContainerPort {
        name: Some(POKE_PORT_NAME.to_owned()),
        container_port: i32::from(POKE_PORT),
        protocol: Some(PortProtocol::Tcp.as_str().to_owned()),
        ..ContainerPort::default()
    }]);
}

/// The game server of `pod`: named as it, owned by it, held until it has gone.
pub fn game_server(namespace: &str, pod: &observed::Pod) -> GameServer {
    let spec = GameServerSpec { group: pod.group.clone(), shutdown: Shutdown::Never };
    let mut server = GameServer::new(&pod.name, spec);
    server.metadata = ObjectMeta {
        name: Some(pod.name.clone()),
        namespace: Some(namespace.to_owned()),
        finalizers: Some(vec![SERVER_FINALIZER.to_owned()]),
        annotations: attempt(pod),
        labels: Some(server_labels(pod)),
        owner_references: Some(vec![owned_by(pod)]),
        ..ObjectMeta::default()
    };
    server
}

/// The labels of a server: those of its pod's template too, so that claims can select by them.
fn server_labels(pod: &observed::Pod) -> BTreeMap<String, String> {
    let mut labels = pod.labels.clone();
    labels.append(&mut ties(&pod.group, &pod.group_uid, pod.slot, &pod.revision));
    labels
}

/// The labels that tie a pod and its server to each other and to their group.
fn ties(group: &str, group_uid: &str, slot: u32, revision: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (LABEL_GROUP.to_owned(), group.to_owned()),
        (LABEL_GROUP_UID.to_owned(), group_uid.to_owned()),
        (LABEL_SLOT.to_owned(), slot.to_string()),
        (LABEL_REVISION.to_owned(), revision.to_owned()),
    ])
}

/// The count of failures: a server outlives its pod, and so does this.
fn attempt(pod: &observed::Pod) -> Option<BTreeMap<String, String>> {
    let failure = pod.after.as_ref()?;
    Some(BTreeMap::from([(ANNOTATION_ATTEMPT.to_owned(), failure.in_a_row.to_string())]))
}

fn owned_by(pod: &observed::Pod) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        controller: Some(true),
        // Not blocking: a pod deleted in the foreground would wait for its server, which waits for the pod.
        block_owner_deletion: Some(false),
    }
}

/// The change that ties a server to `pod`: one that was cut loose, or one that its process has registered. `there` is
/// the server's metadata as it stands.
pub fn tied(there: &ObjectMeta, pod: &observed::Pod) -> Value {
    let mut finalizers = there.finalizers.clone().unwrap_or_default();
    if finalizers.iter().all(|finalizer| finalizer != SERVER_FINALIZER) {
        finalizers.push(SERVER_FINALIZER.to_owned());
    }
    json!({"metadata": {
        "uid": there.uid,
        // A list is replaced as a whole: nobody's finalizer is to get lost.
        "resourceVersion": there.resource_version,
        "finalizers": finalizers,
        "labels": server_labels(pod),
        "annotations": attempt(pod).unwrap_or_default(),
        "ownerReferences": [owned_by(pod)],
    }})
}

/// The change that gives a pod back the labels by which it is ours, as its server has them; none if it bears them.
pub fn relabelled(server: &observed::Server, pod: &Pod) -> Option<Value> {
    let slot = server.slot?;
    let labels = ties(&server.group, &server.group_uid, slot, &server.revision);
    let there = pod.metadata.labels.clone().unwrap_or_default();
    let bears = labels.iter().all(|(name, value)| there.get(name) == Some(value));
    (!bears).then(|| json!({"metadata": {"uid": server.pod_uid, "labels": labels}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures;

    fn built(group: &GameServerGroup) -> PodSpec {
        let launch = Launch { slot: 2, name: "arena-x".into(), after: None, pool: None };
        build(group, &launch, &[("game".into(), 7100)], "agent:1", CapacityLabels::Karpenter).spec.unwrap()
    }

    fn variable(pod: &PodSpec, name: &str) -> Option<EnvVar> {
        pod.containers[0].env.as_ref()?.iter().find(|variable| variable.name == name).cloned()
    }

    #[test]
    fn the_game_learns_its_port_and_address() {
        let pod = built(&fixtures::group());
        assert_eq!(variable(&pod, "GAMEKEEPER_PORT_GAME").unwrap().value.as_deref(), Some("7100"));
        let address = variable(&pod, "GAMEKEEPER_ADDRESS").unwrap().value_from.unwrap();
        assert_eq!(address.field_ref.unwrap().field_path, "status.hostIP");
        assert_eq!(pod.containers[0].ports.as_ref().unwrap()[0].host_port, Some(7100));
    }

    #[test]
    fn a_game_passed_through_listens_on_the_host_port() {
        let mut group = fixtures::group_with_agent();
        group.spec.ports[0].policy = crate::api::PortPolicy::Passthrough;
        group.spec.ports[0].container_port = None;
        let pod = built(&group);
        let port = &pod.containers[0].ports.as_ref().unwrap()[0];
        assert_eq!((port.container_port, port.host_port), (7100, Some(7100)));
        assert_eq!(variable(&pod, "GAMEKEEPER_PORT_GAME").unwrap().value.as_deref(), Some("7100"));
        assert_eq!(pod.init_containers.unwrap()[0].args.as_ref().unwrap()[2], "--port=7100");
    }

    #[test]
    fn the_pod_runs_once_as_the_games_account() {
        let pod = built(&fixtures::group());
        assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
        assert_eq!(pod.service_account_name.as_deref(), Some(GAME_ACCOUNT));
        let mut group = fixtures::group();
        group.spec.template.spec.as_mut().unwrap().service_account_name = Some("own".into());
        assert_eq!(built(&group).service_account_name.as_deref(), Some("own"));
    }

    #[test]
    fn a_port_that_the_template_names_too_is_one_port() {
        let mut group = fixtures::group();
        let same =
            ContainerPort { container_port: 27960, protocol: Some("UDP".into()), ..ContainerPort::default() };
        let other = ContainerPort { container_port: 27960, ..ContainerPort::default() };
        group.spec.template.spec.as_mut().unwrap().containers[0].ports = Some(vec![same, other.clone()]);
        let ports = built(&group).containers[0].ports.clone().unwrap();
        assert_eq!(ports.len(), 2);
        assert_eq!(ports[0], other);
    }

    #[test]
    fn the_agent_is_a_native_sidecar_that_is_asked_for() {
        assert_eq!(built(&fixtures::group()).init_containers, None);
        let agent = built(&fixtures::group_with_agent()).init_containers.unwrap().remove(0);
        assert_eq!(agent.restart_policy.as_deref(), Some("Always"));
        assert_eq!(agent.args.unwrap()[2], "--port=27960");
    }

    #[test]
    fn the_agent_can_be_poked_where_its_pod_has_an_address_of_its_own() {
        let mut group = fixtures::group_with_agent();
        let agent = |group: &GameServerGroup| built(group).init_containers.unwrap().remove(0);
        let port = agent(&group).ports.unwrap().remove(0);
        assert_eq!((port.container_port, port.host_port), (9355, None));
        assert!(agent(&group).args.unwrap().contains(&"--poke-port=9355".to_owned()));

        group.spec.template.spec.as_mut().unwrap().host_network = Some(true);
        assert_eq!(agent(&group).ports, None);
        assert!(agent(&group).args.unwrap().iter().all(|arg| !arg.contains("poke")));
    }
}
