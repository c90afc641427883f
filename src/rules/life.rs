//! The life of one instance and its game server (rows P1, P4 to P6, F15): given both as they are seen, the one
//! next step.

use jiff::{SignedDuration, Timestamp};

use super::observed::{Game, Member, Node, Pod, Server};
use super::patch::ServerPatch;
use super::{drain, lapse, launch, ports, retire, rivals};
use crate::api::{Claim, EndReason, GameServerGroup, Instance, Registration, Shutdown, State};

/// What surrounds the instance.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Its group, where that is known.
    pub group: Option<&'a GameServerGroup>,
    /// Its node, where that is known.
    pub node: Option<&'a Node>,
    /// Why its capacity pool is to be left, if it is.
    pub pool_cause: Option<&'a str>,
    /// The claims on its server whose ids held another server before.
    pub surplus: &'a [Claim],
    /// The time.
    pub now: Timestamp,
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing to do until something changes, or this time has come.
    Rest(Option<Timestamp>),
    /// Make the game server of this pod.
    CreateServer,
    /// Change the server's status.
    Patch(ServerPatch, Change),
    /// Mark the server (its spec).
    Mark(ServerPatch),
    /// Delete the pod with this UID.
    DeletePod(String),
    /// Tie a server to its pod: its process has just registered it, or somebody has taken its owner, our labels or
    /// our finalizer from it.
    Tie,
    /// Say that no pod backs it: it is never on offer.
    Disown,
    /// No pod is seen: when the API server says so too, the server is Terminated and its finalizer goes.
    Bury,
    /// No group is seen: when the API server says so too, [`collect`] says what becomes of the instance.
    ConfirmGroup,
}

/// What a status change is about, for events and metrics.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The pod runs: Initializing, with the instance's data.
    Running,
    /// Its node is to be left, or goes, or is to be left no more.
    Turned(Instance),
    /// Claims lapsed, or players have come to their seats.
    Settled,
    /// The claim of this id holds another server, and this one was given back.
    GivenBack(String),
    /// Taken for its end.
    Retired(EndReason, String),
    /// The game has ended.
    Ended(EndReason, String),
}

/// The next step of an instance. Every write it asks for is conditional on what was seen.
pub fn step(member: &Member, around: Surroundings<'_>) -> Step {
    match (&member.pod, &member.server) {
        (None, Some(server)) if server.pod_uid.is_empty() && !server.deleting => Step::Disown,
        (None, Some(_)) if launch::is_kept(member, around.group) => Step::Rest(None),
        (None, Some(server)) if server.finalizer_at.is_some() => Step::Bury,
        // Without our finalizer the garbage collector takes a server whose pod has gone.
        (None, Some(_) | None) => Step::Rest(None),
        (Some(pod), None) => pod_alone(pod, around),
        (Some(pod), Some(server)) => both(member, pod, server, around),
    }
}

fn pod_alone(pod: &Pod, around: Surroundings<'_>) -> Step {
    if pod.deleting {
        return Step::Rest(None);
    }
    match around.group {
        None => Step::ConfirmGroup,
        Some(group) if pod.registration == Registration::Itself => unregistered(pod, group, around.now),
        Some(_) if pod.ended().is_some() => Step::DeletePod(pod.uid.clone()),
        // Also when the group is going: a server that is not seen may be there, and play. Once it is seen, what it
        // says decides.
        Some(_) => Step::CreateServer,
    }
}

/// Row F11: its process is to register itself, and has until the launch timeout. What is to be given up gets its
/// server from us. A name is taken once: if the process was faster, what it says counts; if we were, it can still say
/// that somebody plays, and one conditional patch decides as for any other server.
fn unregistered(pod: &Pod, group: &GameServerGroup, now: Timestamp) -> Step {
    if pod.ended().is_some() || refused_ports(pod).is_some() {
        return Step::CreateServer;
    }
    match launch_deadline(pod, group) {
        Some(due) if due <= now => Step::CreateServer,
        due => Step::Rest(due),
    }
}

fn launch_deadline(pod: &Pod, group: &GameServerGroup) -> Option<Timestamp> {
    let timeout = SignedDuration::from_secs(i64::from(group.spec.launch_timeout_seconds));
    pod.created_at.checked_add(timeout).ok()
}

fn both(member: &Member, pod: &Pod, server: &Server, around: Surroundings<'_>) -> Step {
    ended(member, pod, server, around)
        .or_else(|| untied(pod, server))
        .or_else(|| ending(pod, server))
        .or_else(|| unwanted(pod, server, around.now))
        .or_else(|| due_lapse(server, around.now))
        .or_else(|| surplus(server, around))
        .or_else(|| without_group(server, around))
        .or_else(|| running(pod, server, around))
        .or_else(|| turned(server, around))
        .or_else(|| taken_along(server, around.now))
        .unwrap_or_else(|| waiting(pod, server, around))
}

/// The game has ended, or its pod was failed by its node: the server is Terminated, then the pod goes.
fn ended(member: &Member, pod: &Pod, server: &Server, around: Surroundings<'_>) -> Option<Step> {
    let ended = pod.ended()?;
    if server.state != State::Terminated {
        let (reason, message) = launch::verdict(ended, Some(server));
        return Some(terminated(server, reason, &message, ended.ended_at));
    }
    // A failed pod goes when its slot is filled again (rules/hold.rs).
    let stays = pod.deleting || launch::is_kept(member, around.group);
    Some(if stays { Step::Rest(None) } else { Step::DeletePod(pod.uid.clone()) })
}

/// The server is Terminated, for this reason unless it says another already: how its container went after it was
/// retired adds nothing.
pub fn terminated(server: &Server, reason: EndReason, message: &str, time: Timestamp) -> Step {
    let patch = ServerPatch::of(&server.uid).test(&["status", "state"], server.state);
    match &server.end {
        Some(end) => Step::Patch(
            patch.set(&["status", "state"], State::Terminated),
            Change::Ended(end.reason, end.message.clone()),
        ),
        None => Step::Patch(
            patch.end(State::Terminated, reason, message, time),
            Change::Ended(reason, message.to_owned()),
        ),
    }
}

/// Whatever it is at, it must be known whose it is. One that is left for another group to adopt is between two.
fn untied(pod: &Pod, server: &Server) -> Option<Step> {
    let owned = server.pod_uid == pod.uid && server.finalizer_at.is_some();
    let tied = owned && server.group_uid == pod.group_uid && server.slot == Some(pod.slot);
    (!tied && !server.retained && !server.deleting).then_some(Step::Tie)
}

/// It has been retired, or has said that it ends: its pod goes.
fn ending(pod: &Pod, server: &Server) -> Option<Step> {
    let rest = || Step::Rest(None);
    server.is_ending().then(|| if pod.deleting { rest() } else { Step::DeletePod(pod.uid.clone()) })
}

/// Somebody wants it gone.
fn unwanted(pod: &Pod, server: &Server, now: Timestamp) -> Option<Step> {
    let retired =
        |patch, reason, message: &str| Step::Patch(patch, Change::Retired(reason, message.to_owned()));
    if pod.deleting {
        let message = "its pod was deleted";
        let patch = retire::at_once(server, EndReason::PodDeleted, message, now);
        return Some(retired(patch, EndReason::PodDeleted, message));
    }
    if server.deleting && server.shutdown == Shutdown::Never {
        return Some(Step::Mark(retire::mark(server)));
    }
    match server.shutdown {
        Shutdown::Now => {
            let message = "it was shut down (spec.shutdown: Now)";
            let patch = retire::at_once(server, EndReason::ShutDown, message, now);
            Some(retired(patch, EndReason::ShutDown, message))
        }
        Shutdown::WhenIdle => {
            retire::marked(server, now).map(|(patch, message)| retired(patch, EndReason::Marked, message))
        }
        Shutdown::Never => None,
    }
}

/// Its pod runs, and the server does not say so yet, or not all of it.
fn running(pod: &Pod, server: &Server, around: Surroundings<'_>) -> Option<Step> {
    let group = around.group?;
    let node_name = pod.node.clone().filter(|_| pod.game == Game::Running)?;
    let (address, ports) = {
        let addresses = around.node.map(|node| node.addresses.as_slice()).unwrap_or_default();
        ports::reached_at(group.spec.addressing.as_ref(), pod, addresses)
    };
    let first = server.state == State::Creating;
    // An address once given stays: a node's hiccup ends nobody's game (case C20).
    let address = address.filter(|_| server.address.is_none());
    if !first && address.is_none() && server.instance.is_some() {
        return None;
    }
    let instance = match &server.instance {
        Some(there) => there.clone(),
        None => drain::instance(&node_name, around.node, around.now),
    };
    let mut patch = ServerPatch::of(&server.uid)
        .test(&["status", "state"], server.state)
        .set(&["status", "instance"], instance);
    if first {
        patch = patch.set(&["status", "state"], State::Initializing);
    }
    if let Some(address) = address {
        patch = patch.set(&["status", "address"], address).set(&["status", "ports"], ports);
    }
    Some(Step::Patch(patch, Change::Running))
}

/// Its node is to be left, or is not any more.
fn turned(server: &Server, around: Surroundings<'_>) -> Option<Step> {
    let (patch, instance) = drain::turn(server, around.node, around.pool_cause, around.now)?;
    Some(Step::Patch(patch, Change::Turned(instance)))
}

/// Row F20: its node goes. Nothing is offered there any more, so what is idle makes room.
fn taken_along(server: &Server, now: Timestamp) -> Option<Step> {
    if !server.goes_with_its_node() || !retire::is_idle(server) {
        return None;
    }
    let message = server.cause().to_owned();
    let patch = retire::when_idle(server, EndReason::NodeEnding, &message, now);
    Some(Step::Patch(patch, Change::Retired(EndReason::NodeEnding, message)))
}

/// Its group has gone: it was left running on purpose, or the API server is to say so.
fn without_group(server: &Server, around: Surroundings<'_>) -> Option<Step> {
    match (around.group, server.retained) {
        (Some(_), _) => None,
        (None, true) => Some(Step::Rest(lapse::deadline(server))),
        (None, false) => Some(Step::ConfirmGroup),
    }
}

/// A claim whose time is over lapses, whatever has become of its group.
fn due_lapse(server: &Server, now: Timestamp) -> Option<Step> {
    lapse::lapse(server, now).map(|patch| Step::Patch(patch, Change::Settled))
}

fn surplus(server: &Server, around: Surroundings<'_>) -> Option<Step> {
    let (claim, patch) = rivals::give_back(server, around.surplus, around.now)?;
    Some(Step::Patch(patch, Change::GivenBack(claim.id)))
}

/// Time decides next: a claim's deadline, or the launch timeout.
fn waiting(pod: &Pod, server: &Server, around: Surroundings<'_>) -> Step {
    if let Some(deadline) = lapse::deadline(server) {
        let surplus = rivals::due(server, around.surplus);
        return Step::Rest(surplus.into_iter().chain([deadline]).min());
    }
    if let Some(step) = port_taken(pod, server, around.now) {
        return step;
    }
    let (true, Some(group)) = (server.state < State::StandingBy, around.group) else {
        return Step::Rest(None);
    };
    match launch_deadline(pod, group) {
        Some(due) if due <= around.now => {
            let message = format!(
                "it was not StandingBy {} s after it was made (spec.launchTimeoutSeconds)",
                group.spec.launch_timeout_seconds
            );
            let patch = retire::when_idle(server, EndReason::LaunchTimeout, &message, around.now);
            Step::Patch(patch, Change::Retired(EndReason::LaunchTimeout, message))
        }
        due => Step::Rest(due),
    }
}

/// A pod that no node takes for its host port, as another that is not ours holds it, is made again with another.
fn port_taken(pod: &Pod, server: &Server, now: Timestamp) -> Option<Step> {
    let refusal = refused_ports(pod).filter(|_| server.state == State::Creating)?;
    let ports: Vec<String> = pod.host_ports.iter().map(ToString::to_string).collect();
    let message = format!("no node had host port {} free: {refusal}", ports.join(" and "));
    let patch = retire::when_idle(server, EndReason::PortTaken, &message, now);
    Some(Step::Patch(patch, Change::Retired(EndReason::PortTaken, message)))
}

/// What the scheduler says of a pod whose host port no node has free.
fn refused_ports(pod: &Pod) -> Option<&str> {
    let refusal = pod.unschedulable.as_deref().filter(|_| pod.node.is_none())?;
    refusal.contains(NO_FREE_PORTS).then_some(refusal)
}

/// The scheduler's words for it.
const NO_FREE_PORTS: &str = "didn't have free ports";

/// What becomes of an instance whose group has gone without it, as when somebody took the group's finalizer
/// away: idle ones go, games are played to their end, claims wait for their deadline.
pub fn collect(member: &Member, now: Timestamp) -> Step {
    let message = "its group has gone";
    match (&member.pod, &member.server) {
        (Some(_), None) => Step::CreateServer,
        (_, Some(server)) if retire::is_idle(server) => Step::Patch(
            retire::when_idle(server, EndReason::GroupDeleted, message, now),
            Change::Retired(EndReason::GroupDeleted, message.to_owned()),
        ),
        (_, Some(server)) => Step::Rest(lapse::deadline(server)),
        (None, None) => Step::Rest(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::InstanceStatus;
    use crate::rules::fixtures::{active, at, claimed, crashed, creating, group, standing_by, unregistered};

    fn node() -> Node {
        Node { addresses: vec![("ExternalIP".to_owned(), "203.0.113.1".to_owned())], ..Node::default() }
    }

    fn next(member: &Member, now: i64) -> Step {
        let group = group();
        let around = Surroundings {
            group: Some(&group),
            node: Some(&node()),
            surplus: &[],
            pool_cause: None,
            now: at(now),
        };
        step(member, around)
    }

    fn change(step: &Step) -> Option<&Change> {
        match step {
            Step::Patch(_, change) => Some(change),
            _ => None,
        }
    }

    #[test]
    fn a_pod_gets_its_server_and_a_running_one_is_initializing() {
        let mut member = creating("a");
        let server = member.server.take();
        assert_eq!(next(&member, 0), Step::CreateServer);

        member.server = server;
        assert_eq!(next(&member, 0), Step::Rest(Some(at(300))));
        member.pod.as_mut().unwrap().game = Game::Running;
        assert_eq!(change(&next(&member, 0)), Some(&Change::Running));
    }

    #[test]
    fn a_server_at_rest_stays_at_rest() {
        assert_eq!(next(&standing_by("a"), 1_000_000), Step::Rest(None));
        assert_eq!(next(&active("a"), 1_000_000), Step::Rest(None));
    }

    #[test]
    fn a_launch_that_takes_too_long_is_given_up() {
        let step = next(&creating("a"), 300);
        assert!(matches!(change(&step), Some(Change::Retired(EndReason::LaunchTimeout, _))));
    }

    #[test]
    fn a_pod_that_no_node_takes_for_its_port_is_given_up() {
        let mut member = creating("a");
        let pod = member.pod.as_mut().unwrap();
        pod.node = None;
        pod.unschedulable = Some("0/1 nodes are available: 1 Insufficient cpu.".to_owned());
        assert_eq!(next(&member, 0), Step::Rest(Some(at(300))));
        member.pod.as_mut().unwrap().unschedulable = Some(
            "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
                .to_owned(),
        );
        let step = next(&member, 0);
        let Some(Change::Retired(EndReason::PortTaken, message)) = change(&step) else { panic!("{step:?}") };
        assert!(message.contains("host port 7777"));
    }

    #[test]
    fn a_claim_is_lapsed_when_due() {
        assert_eq!(next(&claimed("a", "m", 60), 59), Step::Rest(Some(at(60))));
        assert_eq!(change(&next(&claimed("a", "m", 60), 60)), Some(&Change::Settled));
    }

    /// Row F20: the claim first, then the server; a game plays on.
    #[test]
    fn a_node_that_goes_takes_what_is_idle_along_at_once() {
        let going = |mut member: Member| {
            let instance = member.server.as_mut().unwrap().instance.as_mut().unwrap();
            instance.status = InstanceStatus::SpotTerminating;
            member
        };
        let step = next(&going(standing_by("a")), 0);
        assert!(matches!(change(&step), Some(Change::Retired(EndReason::NodeEnding, _))), "{step:?}");
        assert_eq!(change(&next(&going(claimed("a", "m", 60)), 1)), Some(&Change::Settled));
        assert_eq!(next(&going(active("a")), 0), Step::Rest(None));
    }

    #[test]
    fn a_failed_pod_is_kept_until_its_slot_is_filled() {
        let mut member = crashed("a", 0, 5);
        assert_eq!(next(&member, 6), Step::Rest(None));
        member.server.as_mut().unwrap().end.as_mut().unwrap().reason = EndReason::SessionEnded;
        assert_eq!(next(&member, 6), Step::DeletePod("pod-a".into()));
    }

    /// Case C12: however long the grace period, it leaves at once.
    #[test]
    fn a_deleted_pod_takes_its_server_out_at_once() {
        let mut member = active("a");
        member.pod.as_mut().unwrap().deleting = true;
        assert!(matches!(change(&next(&member, 0)), Some(Change::Retired(EndReason::PodDeleted, _))));
    }

    #[test]
    fn a_mark_waits_for_the_game_and_a_shut_down_does_not() {
        let mut member = active("a");
        member.server.as_mut().unwrap().shutdown = Shutdown::WhenIdle;
        assert_eq!(next(&member, 0), Step::Rest(None));
        member.server.as_mut().unwrap().shutdown = Shutdown::Now;
        assert!(matches!(change(&next(&member, 0)), Some(Change::Retired(EndReason::ShutDown, _))));
    }

    #[test]
    fn a_server_deleted_by_hand_is_marked_and_its_game_goes_on() {
        let mut member = active("a");
        member.server.as_mut().unwrap().deleting = true;
        assert!(matches!(next(&member, 0), Step::Mark(_)));
        member.server.as_mut().unwrap().shutdown = Shutdown::WhenIdle;
        assert_eq!(next(&member, 0), Step::Rest(None));
    }

    #[test]
    fn a_server_without_a_pod_is_buried_while_it_is_held() {
        let mut member = standing_by("a");
        member.pod = None;
        assert_eq!(next(&member, 0), Step::Bury);
        member.server.as_mut().unwrap().finalizer_at = None;
        assert_eq!(next(&member, 0), Step::Rest(None));
    }

    #[test]
    fn what_ties_a_server_to_its_pod_is_put_back() {
        for untie in [
            |server: &mut Server| server.pod_uid = String::new(),
            |server: &mut Server| server.group_uid = String::new(),
            |server: &mut Server| server.slot = None,
            |server: &mut Server| server.finalizer_at = None,
        ] {
            let mut member = active("a");
            untie(member.server.as_mut().unwrap());
            assert_eq!(next(&member, 0), Step::Tie);
        }
    }

    /// Row F11.
    #[test]
    fn a_process_that_is_to_register_itself_is_waited_for() {
        let mut member = unregistered("a");
        assert_eq!(next(&member, 299), Step::Rest(Some(at(300))));
        assert_eq!(next(&member, 300), Step::CreateServer);
        member.pod.as_mut().unwrap().game = crashed("a", 0, 5).pod.unwrap().game.clone();
        assert_eq!(next(&member, 5), Step::CreateServer);
    }

    /// It comes without any of our labels and without our finalizer.
    #[test]
    fn a_server_that_its_process_has_registered_is_tied_to_its_pod_first() {
        let mut member = unregistered("a");
        let mut server = creating("a").server.unwrap();
        (server.group_uid, server.slot, server.finalizer_at) = (String::new(), None, None);
        member.server = Some(server);
        assert_eq!(next(&member, 0), Step::Tie);
    }

    #[test]
    fn a_server_that_no_pod_owns_is_told_so() {
        let mut member = standing_by("a");
        member.pod = None;
        member.server.as_mut().unwrap().pod_uid = String::new();
        assert_eq!(next(&member, 0), Step::Disown);
        // It can be deleted all the same.
        member.server.as_mut().unwrap().deleting = true;
        assert_eq!(next(&member, 0), Step::Bury);
    }

    /// The first thing that somebody does with a group whose servers keep failing.
    #[test]
    fn a_failed_server_goes_with_its_group() {
        let mut group = group();
        group.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        let around =
            Surroundings { group: Some(&group), node: None, surplus: &[], pool_cause: None, now: at(6) };
        let mut member = crashed("a", 4, 5);
        assert_eq!(step(&member, around), Step::DeletePod("pod-a".into()));
        member.pod = None;
        assert_eq!(step(&member, around), Step::Bury);
    }

    #[test]
    fn what_was_left_running_runs_on_and_ends_like_any_other() {
        let around = Surroundings { group: None, node: None, surplus: &[], pool_cause: None, now: at(0) };
        let mut left = standing_by("a");
        left.server.as_mut().unwrap().retained = true;
        assert_eq!(step(&left, around), Step::Rest(None));
        left.server.as_mut().unwrap().state = State::Terminating;
        assert_eq!(step(&left, around), Step::DeletePod("pod-a".into()));
    }

    #[test]
    fn a_claim_lapses_without_its_group_too() {
        let around =
            |now| Surroundings { group: None, node: None, surplus: &[], pool_cause: None, now: at(now) };
        assert_eq!(collect(&claimed("a", "m", 60), at(0)), Step::Rest(Some(at(60))));
        assert_eq!(change(&step(&claimed("a", "m", 60), around(60))), Some(&Change::Settled));
    }

    #[test]
    fn without_its_group_an_idle_instance_goes_and_a_game_stays() {
        let around = Surroundings { group: None, node: None, surplus: &[], pool_cause: None, now: at(0) };
        assert_eq!(step(&standing_by("a"), around), Step::ConfirmGroup);
        assert!(matches!(change(&collect(&standing_by("a"), at(0))), Some(Change::Retired(..))));
        assert_eq!(collect(&active("a"), at(0)), Step::Rest(None));
    }

    /// Case C20.
    #[test]
    fn an_address_is_not_blanked() {
        let member = active("a");
        let group = group();
        let around =
            Surroundings { group: Some(&group), node: None, surplus: &[], pool_cause: None, now: at(0) };
        assert_eq!(step(&member, around), Step::Rest(None));
    }
}
