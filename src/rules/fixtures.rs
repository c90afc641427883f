//! What the tests of the rules start from. The group is YAML as a user would write it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use serde_json::{Value, json};

use super::observed::{Asked, Ended, Game, GamePort, Member, Pod, Server};
use super::pool::Pool;
use super::{claim, seats};
use crate::api::{
    CapacityType, ClaimStatus, End, EndReason, GameServerClaimStatus, GameServerGroup, GameServerPort,
    Health, Instance, InstanceDefinition, PortProtocol, Registration, Shutdown, State,
};

/// So many seconds into the first day of 2026.
pub(crate) fn at(seconds: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

pub(crate) fn group() -> GameServerGroup {
    serde_saphyr::from_str(
        "
        apiVersion: gamekeeper.dev/v1alpha1
        kind: GameServerGroup
        metadata: {name: arena, namespace: games, uid: group-uid, generation: 1}
        spec:
          replicas: 2
          ports:
          - {name: game, containerPort: 27960}
          template:
            spec:
              containers:
              - {name: game, image: openarena}
        ",
    )
    .unwrap()
}

pub(crate) fn group_with_agent() -> GameServerGroup {
    let mut group = group();
    group.spec.agent = serde_json::from_value(json!({"protocol": "IdTech3", "port": "game"})).unwrap();
    group
}

/// A pod that has just been made, and its server.
pub(crate) fn creating(name: &str) -> Member {
    let pod = Pod {
        name: name.to_owned(),
        uid: format!("pod-{name}"),
        version: 1,
        group: "arena".to_owned(),
        group_uid: "group-uid".to_owned(),
        slot: 0,
        revision: "r1".to_owned(),
        labels: BTreeMap::new(),
        registration: Registration::Automatic,
        after: None,
        created_at: at(0),
        deleting: false,
        ready: true,
        node: Some("node-1".to_owned()),
        ips: vec!["10.0.0.1".to_owned()],
        game: Game::Waiting { fault: None },
        unschedulable: None,
        ports: vec![GamePort {
            name: "game".to_owned(),
            container_port: 27960,
            host_port: Some(7777),
            protocol: PortProtocol::Udp,
        }],
        host_ports: vec![7777],
        pool: None,
        evictable: None,
        poke_port: None,
    };
    let server = Server {
        name: name.to_owned(),
        uid: format!("server-{name}"),
        version: 2,
        group: "arena".to_owned(),
        group_uid: "group-uid".to_owned(),
        slot: Some(0),
        retained: false,
        revision: "r1".to_owned(),
        labels: BTreeMap::new(),
        failed_before: 0,
        pod_uid: pod.uid.clone(),
        deleting: false,
        finalizer_at: Some(0),
        created_at: at(0),
        shutdown: Shutdown::Never,
        state: State::Creating,
        claim_status: ClaimStatus::Unclaimed,
        claim: None,
        reservations: Vec::new(),
        seated: 0,
        health: Health::Healthy,
        players: None,
        sessions: None,
        data: None,
        instance: None,
        address: None,
        ports: Vec::new(),
        end: None,
    };
    Member { pod: Some(pod.into()), server: Some(server.into()) }
}

pub(crate) fn standing_by(name: &str) -> Member {
    let mut member = creating(name);
    member.pod.as_mut().unwrap().game = Game::Running;
    let server = member.server.as_mut().unwrap();
    server.state = State::StandingBy;
    server.instance = Some(Instance { node_name: "node-1".to_owned(), ..Instance::default() });
    server.address = Some("203.0.113.1".to_owned());
    server.ports = vec![GameServerPort { name: "game".to_owned(), port: 7777, protocol: PortProtocol::Udp }];
    member
}

/// A spot pool.
pub(crate) fn pool(instance_type: &str, zone: &str) -> Pool {
    let (instance_type, zone) = (instance_type.to_owned(), zone.to_owned());
    Pool { capacity_type: CapacityType::Spot, instance_type, zone }
}

/// A group that may run on these instance types.
pub(crate) fn group_on(types: &[&str]) -> GameServerGroup {
    let mut group = group();
    let definition =
        |type_: &&str| InstanceDefinition { instance_type: (*type_).to_owned(), weighted_capacity: 1 };
    group.spec.instance_definitions = types.iter().map(definition).collect();
    group
}

/// Made for the spot pool of this type, in no zone.
pub(crate) fn on_pool(instance_type: &str, mut member: Member) -> Member {
    member.pod.as_mut().unwrap().pool = Some(pool(instance_type, ""));
    member
}

/// Whose status says this of a condition.
pub(crate) fn conditioned(mut group: GameServerGroup, type_: &str, status: &str) -> GameServerGroup {
    let condition = Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: "Said".to_owned(),
        message: "as it was said".to_owned(),
        last_transition_time: Time(at(0)),
        observed_generation: Some(1),
    };
    group.status.get_or_insert_default().conditions.push(condition);
    group
}

/// With an agent in the pod that can be poked.
pub(crate) fn with_agent(mut member: Member) -> Member {
    member.pod.as_mut().unwrap().poke_port = Some(9355);
    member
}

/// A pod whose process is to register itself and has not yet.
pub(crate) fn unregistered(name: &str) -> Member {
    let mut member = creating(name);
    let pod = member.pod.as_mut().unwrap();
    (pod.registration, pod.game) = (Registration::Itself, Game::Running);
    member.server = None;
    member
}

/// Claimed at second 0 until `seconds`.
pub(crate) fn claimed(name: &str, id: &str, seconds: i64) -> Member {
    let mut member = standing_by(name);
    let server = member.server.as_mut().unwrap();
    server.claim_status = ClaimStatus::Claimed;
    server.claim = Some(claim::made(&request(id), "matchmaker", SignedDuration::from_secs(seconds), at(0)));
    member
}

/// A server on which each of these reserves a seat at second 0.
pub(crate) fn shared_by(ids: &[&str]) -> Member {
    let mut member = standing_by("a");
    let server = member.server.as_mut().unwrap();
    server.claim_status = ClaimStatus::Claimed;
    let claim = |id: &&str| {
        let request = request(id);
        seats::asked_for(claim::made(&request, "matchmaker", SignedDuration::from_secs(60), at(0)), &request)
    };
    server.reservations = ids.iter().map(claim).collect();
    member
}

pub(crate) fn active(name: &str) -> Member {
    let mut member = claimed(name, &format!("game-on-{name}"), 60);
    member.server.as_mut().unwrap().state = State::Active;
    member
}

/// Started at second 0 and crashed at `seconds`, after so many predecessors that failed.
pub(crate) fn crashed(name: &str, failed_before: u32, seconds: i64) -> Member {
    let mut member = standing_by(name);
    let pod = member.pod.as_mut().unwrap();
    pod.game = Game::Ended(Ended {
        exit_code: Some(1),
        message: "Error".to_owned(),
        started_at: Some(at(0)),
        ended_at: at(seconds),
    });
    let server = member.server.as_mut().unwrap();
    server.failed_before = failed_before;
    server.state = State::Terminated;
    server.end = Some(End {
        reason: EndReason::Crashed,
        message: "the game exited with code 1".to_owned(),
        time: MicroTime(at(seconds)),
    });
    member
}

pub(crate) fn in_slot(slot: u32, mut member: Member) -> Member {
    member.pod.as_mut().unwrap().slot = slot;
    member.server.as_mut().unwrap().slot = Some(slot);
    member
}

/// A claim for the group arena, asked for at second `at_second`, that waits for so many seconds.
pub(crate) fn asked(id: &str, at_second: i64, wait_seconds: i64) -> Asked {
    Asked {
        uid: format!("claim-{id}"),
        version: 1,
        request: request(id),
        requested_at: at(at_second),
        wait: SignedDuration::from_secs(wait_seconds),
        stays_seconds: 600,
        deleting: false,
        owner: super::observed::AskedBy::Somebody,
        status: GameServerClaimStatus::default(),
    }
}

/// A request for a server of the group arena.
pub(crate) fn request(id: &str) -> super::request::Request {
    super::request::Request {
        id: id.to_owned(),
        groups: vec!["arena".to_owned()],
        seats: 1,
        ..super::request::Request::default()
    }
}

/// The resource of `server`, as far as patches look at it.
pub(crate) fn server_json(server: &Server) -> Value {
    json!({
        "metadata": {"uid": server.uid, "resourceVersion": server.version.to_string()},
        "spec": {"group": server.group, "shutdown": server.shutdown},
        "status": {
            "state": server.state,
            "claimStatus": server.claim_status,
            "claim": server.claim,
            "health": server.health,
            "instance": server.instance,
            "sessions": server.sessions,
        },
    })
}
