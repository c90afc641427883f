//! A server of the market, as the operator's rules see one.

use gamekeeper::api::{
    Capacity, ClaimStatus, Health, Instance, InstanceStatus, Registration, Shutdown, State,
};
use gamekeeper::rules::hold::Launch;
use gamekeeper::rules::observed::{self, Game, Member, Pod};
use jiff::Timestamp;

use super::fleet::{Server, Stage};

/// The revision of all pods.
pub(super) const REVISION: &str = "r1";

/// One that has just been made.
pub(super) fn made(launch: &Launch, now: Timestamp) -> Member {
    let pod = Pod {
        name: launch.name.clone(),
        uid: launch.name.clone(),
        version: 1,
        group: "arena".to_owned(),
        group_uid: "arena".to_owned(),
        slot: launch.slot,
        revision: REVISION.to_owned(),
        registration: Registration::Automatic,
        after: None,
        created_at: now,
        deleting: false,
        ready: true,
        node: None,
        ips: Vec::new(),
        game: Game::Waiting { fault: None },
        labels: std::collections::BTreeMap::new(),
        unschedulable: None,
        ports: Vec::new(),
        host_ports: Vec::new(),
        pool: launch.pool.clone(),
        evictable: None,
        poke_port: None,
    };
    let server = observed::Server {
        name: launch.name.clone(),
        uid: launch.name.clone(),
        version: 1,
        group: "arena".to_owned(),
        group_uid: "arena".to_owned(),
        slot: Some(launch.slot),
        retained: false,
        revision: REVISION.to_owned(),
        labels: std::collections::BTreeMap::new(),
        failed_before: 0,
        pod_uid: launch.name.clone(),
        deleting: false,
        finalizer_at: Some(0),
        created_at: now,
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

/// The same one as it is now; its node is doomed once that had its notice.
pub(super) fn changed(member: &Member, to: &Server, doomed: bool) -> Member {
    let (Some(pod), Some(server)) = (&member.pod, &member.server) else { return member.clone() };
    let (mut pod, mut server) = (Pod::clone(pod), observed::Server::clone(server));
    (server.state, pod.game) = match to.stage {
        Stage::Pending(_) => (State::Creating, Game::Waiting { fault: None }),
        Stage::Starting(_) => (State::Initializing, Game::Running),
        Stage::Ready => (State::StandingBy, Game::Running),
        Stage::Played(_) => (State::Active, Game::Running),
        Stage::Leaving(_) => (State::Terminating, Game::Running),
    };
    if let Some(node) = to.node {
        let status = if doomed { InstanceStatus::SpotTerminating } else { InstanceStatus::Active };
        let node_name = format!("node-{node}");
        pod.node = Some(node_name.clone());
        let capacity = Capacity::default();
        server.instance =
            Some(Instance { node_name, status, cause: None, retire_at: None, capacity, boot_id: None });
    }
    Member { pod: Some(pod.into()), server: Some(server.into()) }
}

/// Whether players could be sent to it.
pub(super) fn is_ready(member: &Member) -> bool {
    member.server.as_ref().is_some_and(|server| server.state == State::StandingBy)
}
