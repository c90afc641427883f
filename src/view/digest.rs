//! From whole objects to what the rules look at.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStatus, Event, Node as KubeNode, Pod as KubePod, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::names::{
    AGENT_CONTAINER, ANNOTATION_ATTEMPT, ANNOTATION_LAST_FAILURE, ANNOTATION_POOL, ANNOTATION_PORTS,
    ANNOTATION_REGISTRATION, LABEL_CALLER_WAITS, LABEL_GROUP, LABEL_GROUP_UID, LABEL_RETAINED,
    LABEL_REVISION, LABEL_SLOT, POKE_PORT_NAME, PREFIX, REGISTERS_ITSELF, SERVER_FINALIZER, SLOTS,
};
use crate::api::{CapacityPool, GameServer, GameServerClaim, PortProtocol, Registration};
use crate::rules::notice::{self, Sign};
use crate::rules::observed::{
    Asked, AskedBy, Ended, Failure, Game, GamePort, Node, Pod, SeenPool, Server, Version,
};
use crate::rules::pool::Pool;
use crate::rules::request::Request;
use crate::rules::{capacity, eviction};

/// What the labels start with that the API server gives a pod when it is bound: its node's.
const TOPOLOGY: &str = "topology.kubernetes.io/";

/// The version of an object, 0 where it has none.
pub(super) fn version(metadata: &ObjectMeta) -> Version {
    metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// A pod of ours; none if it lacks our labels.
pub(super) fn pod(pod: &KubePod) -> Option<Pod> {
    let metadata = &pod.metadata;
    let label = |name: &str| metadata.labels.as_ref()?.get(name).cloned();
    let status = pod.status.as_ref();
    Some(Pod {
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
        version: version(metadata),
        group: label(LABEL_GROUP)?,
        group_uid: label(LABEL_GROUP_UID)?,
        slot: slot(metadata)?,
        revision: label(LABEL_REVISION).unwrap_or_default(),
        labels: other_labels(metadata),
        registration: registration(metadata),
        after: failure(metadata),
        created_at: metadata.creation_timestamp.as_ref()?.0,
        deleting: metadata.deletion_timestamp.is_some(),
        ready: status.is_some_and(is_ready),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        ips: status.map(ips).unwrap_or_default(),
        game: game(pod),
        unschedulable: status.and_then(unschedulable),
        ports: game_ports(pod),
        host_ports: host_ports(pod),
        pool: metadata
            .annotations
            .as_ref()
            .and_then(|annotations| Pool::parse(annotations.get(ANNOTATION_POOL)?)),
        evictable: metadata.annotations.as_ref().and_then(eviction::read),
        poke_port: poke_port(pod),
    })
}

/// The slot that an object's label names: one that a group can have.
fn slot(metadata: &ObjectMeta) -> Option<u32> {
    let slot: u32 = metadata.labels.as_ref()?.get(LABEL_SLOT)?.parse().ok()?;
    (slot < SLOTS).then_some(slot)
}

fn registration(metadata: &ObjectMeta) -> Registration {
    let annotations = metadata.annotations.as_ref();
    let said = annotations.and_then(|annotations| annotations.get(ANNOTATION_REGISTRATION));
    if said.is_some_and(|said| said == REGISTERS_ITSELF) {
        Registration::Itself
    } else {
        Registration::Automatic
    }
}

fn failure(metadata: &ObjectMeta) -> Option<Failure> {
    let annotations = metadata.annotations.as_ref()?;
    let in_a_row = annotations.get(ANNOTATION_ATTEMPT)?.parse().ok()?;
    let message = annotations.get(ANNOTATION_LAST_FAILURE).cloned().unwrap_or_default();
    Some(Failure { in_a_row, message })
}

fn ips(status: &PodStatus) -> Vec<String> {
    let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.clone());
    let all = if status.pod_ips.is_some() { all.collect() } else { Vec::from_iter(status.pod_ip.clone()) };
    all.into_iter().filter(|ip: &String| !ip.is_empty()).collect()
}

fn is_ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What the game, the first container, is at. A pod that has failed as a whole has ended whatever its
/// containers say: its node refused or evicted it (case C9).
fn game(pod: &KubePod) -> Game {
    let status = pod.status.as_ref();
    let name = pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|game| game.name.as_str());
    let container = status
        .and_then(|status| status.container_statuses.as_ref())
        .and_then(|all| all.iter().find(|container| Some(container.name.as_str()) == name));
    let state = container.and_then(|container| container.state.as_ref());
    if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
        return Game::Ended(ended(terminated, pod));
    }
    let phase = status.and_then(|status| status.phase.as_deref());
    if phase == Some("Failed") || phase == Some("Succeeded") {
        return Game::Ended(failed(pod));
    }
    if state.is_some_and(|state| state.running.is_some()) {
        return Game::Running;
    }
    Game::Waiting { fault: status.and_then(fault) }
}

fn ended(terminated: &ContainerStateTerminated, pod: &KubePod) -> Ended {
    let words = [terminated.reason.as_deref(), terminated.message.as_deref()];
    let message: Vec<&str> =
        words.into_iter().flatten().filter(|word| !word.is_empty() && *word != "Completed").collect();
    Ended {
        exit_code: Some(terminated.exit_code),
        message: message.join(": "),
        started_at: terminated.started_at.as_ref().map(|time| time.0),
        ended_at: terminated.finished_at.as_ref().map_or_else(|| made_at(pod), |time| time.0),
    }
}

/// A pod that failed without a word of its game's container.
fn failed(pod: &KubePod) -> Ended {
    let status = pod.status.as_ref();
    let words =
        [status.and_then(|status| status.reason.clone()), status.and_then(|status| status.message.clone())];
    let message: Vec<String> = words.into_iter().flatten().collect();
    let moved = status
        .and_then(|status| status.conditions.as_ref())
        .and_then(|all| all.iter().filter_map(|condition| condition.last_transition_time.as_ref()).max());
    Ended {
        exit_code: None,
        message: if message.is_empty() { "its pod has failed".to_owned() } else { message.join(": ") },
        started_at: status.and_then(|status| status.start_time.as_ref()).map(|time| time.0),
        ended_at: moved.map_or_else(|| made_at(pod), |time| time.0),
    }
}

fn made_at(pod: &KubePod) -> jiff::Timestamp {
    pod.metadata.creation_timestamp.as_ref().map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The kubelet's words for a container that cannot start: of the game, or of one that goes before it.
fn fault(status: &PodStatus) -> Option<(String, String)> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten()).find_map(container_fault)
}

fn container_fault(container: &ContainerStatus) -> Option<(String, String)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting
        .reason
        .as_deref()
        .filter(|reason| !matches!(*reason, "ContainerCreating" | "PodInitializing"))?;
    let message = waiting.message.clone().unwrap_or_default();
    Some((reason.to_owned(), format!("container {}: {message}", container.name)))
}

fn unschedulable(status: &PodStatus) -> Option<String> {
    let conditions = status.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    let refused = scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable");
    refused.then(|| scheduled.message.clone().unwrap_or_default())
}

fn host_ports(pod: &KubePod) -> Vec<i32> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| port.host_port)
        .collect()
}

fn poke_port(pod: &KubePod) -> Option<u16> {
    let containers = pod.spec.as_ref()?.init_containers.as_ref()?;
    let agent = containers.iter().find(|container| container.name == AGENT_CONTAINER)?;
    let ports = agent.ports.as_ref()?;
    let port = ports.iter().find(|port| port.name.as_deref() == Some(POKE_PORT_NAME))?;
    u16::try_from(port.container_port).ok()
}

/// The game's ports that the group named when the pod was made, in that order.
fn game_ports(pod: &KubePod) -> Vec<GamePort> {
    let game = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let ports: Vec<_> = game.iter().flat_map(|game| game.ports.iter().flatten()).collect();
    let annotations = pod.metadata.annotations.as_ref();
    let names = annotations.and_then(|annotations| annotations.get(ANNOTATION_PORTS));
    names
        .iter()
        .flat_map(|names| names.split(','))
        .filter_map(|name| {
            let port = ports.iter().find(|port| port.name.as_deref() == Some(name))?;
            let udp = port.protocol.as_deref() == Some(PortProtocol::Udp.as_str());
            Some(GamePort {
                name: name.to_owned(),
                container_port: port.container_port,
                host_port: port.host_port,
                protocol: if udp { PortProtocol::Udp } else { PortProtocol::Tcp },
            })
        })
        .collect()
}

/// A game server.
pub(super) fn server(server: &GameServer) -> Option<Server> {
    let metadata = &server.metadata;
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.kind == "Pod");
    let label = |name: &str| metadata.labels.as_ref()?.get(name);
    let status = server.status.clone().unwrap_or_default();
    Some(Server {
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
        version: version(metadata),
        group: server.spec.group.clone(),
        group_uid: label(LABEL_GROUP_UID).cloned().unwrap_or_default(),
        slot: slot(metadata),
        retained: label(LABEL_RETAINED).is_some_and(|retained| retained == "true"),
        revision: label(LABEL_REVISION).cloned().unwrap_or_default(),
        labels: other_labels(metadata),
        failed_before: failure(metadata).map_or(0, |failure| failure.in_a_row),
        pod_uid: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizer_at: metadata
            .finalizers
            .iter()
            .flatten()
            .position(|finalizer| finalizer == SERVER_FINALIZER),
        created_at: metadata.creation_timestamp.as_ref()?.0,
        shutdown: server.spec.shutdown,
        state: status.state,
        claim_status: status.claim_status,
        claim: status.claim,
        reservations: status.reservations,
        seated: status.seated,
        health: status.health,
        players: status.players,
        sessions: status.sessions,
        data: status.data,
        instance: status.instance,
        address: status.address,
        ports: status.ports,
        end: status.end,
    })
}

/// A claim that is an object.
pub(super) fn claim(claim: &GameServerClaim) -> Option<Asked> {
    let (metadata, spec) = (&claim.metadata, &claim.spec);
    let created = metadata.creation_timestamp.as_ref()?.0;
    // Nobody gets ahead of those who came in an earlier second by saying so.
    let latest = created.checked_add(SignedDuration::from_secs(1)).unwrap_or(created);
    let requested_at = spec.requested_at.as_ref().map_or(created, |time| time.0.clamp(created, latest));
    Some(Asked {
        uid: metadata.uid.clone()?,
        version: version(metadata),
        request: Request {
            id: metadata.name.clone()?,
            groups: spec.groups.clone(),
            server: spec.server.clone(),
            labels: spec.selector.clone().unwrap_or_default().match_labels,
            instance_status: spec.instance_status.clone(),
            data: spec.data.clone(),
            seats: spec.seats,
        },
        requested_at,
        wait: SignedDuration::from_secs(i64::from(spec.wait_seconds)),
        stays_seconds: spec.ttl_seconds_after_finished,
        deleting: metadata.deletion_timestamp.is_some(),
        owner: metadata
            .labels
            .iter()
            .flatten()
            .find(|(label, _)| *label == LABEL_CALLER_WAITS)
            .map_or(AskedBy::Somebody, |_| AskedBy::Caller),
        status: claim.status.clone().unwrap_or_default(),
    })
}

/// A capacity pool.
pub(super) fn pool(pool: &CapacityPool) -> Option<SeenPool> {
    let metadata = &pool.metadata;
    Some(SeenPool {
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
        version: version(metadata),
        deleting: metadata.deletion_timestamp.is_some(),
        pool: Pool::of(pool),
        over: pool.spec.over,
        advice: pool.spec.advice.clone(),
        status: pool.status.clone().unwrap_or_default(),
    })
}

/// A node.
pub(super) fn node(node: &KubeNode) -> Node {
    let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
    let addresses = status.into_iter().flat_map(|status| status.addresses.iter().flatten());
    let boot_id = status.and_then(|status| status.node_info.as_ref()).map(|info| info.boot_id.clone());
    let cordon = spec.filter(|spec| spec.unschedulable == Some(true)).map(|_| Sign::Cordon);
    let taints = spec.into_iter().flat_map(|spec| spec.taints.iter().flatten());
    let taints = taints.map(|taint| Sign::Taint(&taint.key, taint.time_added.as_ref().map(|time| time.0)));
    let conditions = status.into_iter().flat_map(|status| status.conditions.iter().flatten());
    let conditions = conditions.filter(|condition| condition.status == "True").map(|condition| {
        let since = condition.last_transition_time.as_ref().map(|time| time.0);
        Sign::Condition(&condition.type_, condition.reason.as_deref().unwrap_or_default(), since)
    });
    Node {
        addresses: addresses.map(|address| (address.type_.clone(), address.address.clone())).collect(),
        capacity: node.metadata.labels.as_ref().map(capacity::of).unwrap_or_default(),
        notice: notice::read(cordon.into_iter().chain(taints).chain(conditions)),
        boot_id: boot_id.unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
    }
}

/// What an event tells, of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
    /// When it was told last.
    pub(super) at: Timestamp,
}

/// An event.
pub(super) fn event(event: &Event) -> Option<Told<'_>> {
    let object = &event.involved_object;
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let at = series.or(event.event_time.as_ref()).map(|time| time.0);
    let at = at.max(event.last_timestamp.as_ref().map(|time| time.0));
    Some(Told {
        kind: object.kind.as_deref()?,
        namespace: object.namespace.as_deref().unwrap_or_default(),
        name: object.name.as_deref()?,
        uid: object.uid.as_deref().unwrap_or_default(),
        reason: event.reason.as_deref()?,
        message: event.message.as_deref().unwrap_or_default(),
        at: at.or(event.metadata.creation_timestamp.as_ref().map(|time| time.0))?,
    })
}

/// The labels that are neither ours nor put there by Kubernetes once a pod has its node.
fn other_labels(metadata: &ObjectMeta) -> BTreeMap<String, String> {
    let labels = metadata
        .labels
        .iter()
        .flatten()
        .filter(|(name, _)| !name.starts_with(PREFIX) && !name.starts_with(TOPOLOGY));
    labels.map(|(name, value)| (name.clone(), value.clone())).collect()
}
