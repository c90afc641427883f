//! What may be given up of a group's instances, and how.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::observed::{Member, Pod, Server};
use super::patch::ServerPatch;
use super::retire;
use super::slots::counts;
use crate::api::{EndReason, Registration, State};

/// An idle server to retire.
#[derive(Clone, Debug, PartialEq)]
pub struct Retire {
    /// Its name.
    pub name: String,
    /// What retires it, if it is still idle.
    pub patch: ServerPatch,
    /// Why, in one word.
    pub reason: EndReason,
    /// Why, in words.
    pub message: String,
}

/// What is given up.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Servers to retire.
    pub(super) retire: Vec<Retire>,
    /// The names of pods whose process has not registered itself yet: they are given servers, to be retired.
    pub(super) serve: Vec<String>,
}

impl Ends {
    pub(super) fn end(&mut self, idle: Idle<'_>, reason: EndReason, message: String, now: Timestamp) {
        let Some(server) = idle.server else { return self.serve.push(idle.pod.name.clone()) };
        let patch = retire::when_idle(server, reason, &message, now);
        self.retire.push(Retire { name: server.name.clone(), patch, reason, message });
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.serve.iter().any(|served| served == name)
            || self.retire.iter().any(|retired| retired.name == name)
    }
}

/// A pod that counts and may be given up, with its server. Without one its process is yet to register itself.
#[derive(Clone, Copy)]
pub(super) struct Idle<'a> {
    pub(super) pod: &'a Pod,
    pub(super) server: Option<&'a Server>,
}

impl Idle<'_> {
    pub(super) fn state(&self) -> State {
        self.server.map_or(State::Creating, |server| server.state)
    }

    /// What is given up first comes first.
    pub(super) fn order(&self) -> (State, Reverse<(Timestamp, u32)>) {
        (self.state(), Reverse((self.pod.created_at, self.pod.slot)))
    }
}

/// A member that counts, if it is idle.
pub(super) fn idle(member: &Member) -> Option<Idle<'_>> {
    let (pod, server) = (member.pod.as_deref().filter(|_| counts(member))?, member.server.as_deref());
    let idle = match server {
        Some(server) => retire::is_idle(server),
        // One that we make is on its way.
        None => pod.registration == Registration::Itself,
    };
    idle.then_some(Idle { pod, server })
}
