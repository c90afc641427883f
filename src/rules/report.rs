//! Row A3: a matchmaker sets the players and sessions of servers whose games do not report them.

use super::observed::{Pod, Server};
use super::patch::ServerPatch;
use crate::api::Players;

/// What is set of one server: absolute numbers; what is left out stays.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Report {
    /// The server's name.
    pub name: String,
    /// Its players.
    pub players: Option<Players>,
    /// Its sessions.
    pub sessions: Option<i32>,
}

/// Why a server's numbers are not set.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// There is no server of this name.
    #[error("there is no GameServer of this name")]
    NoSuchServer,
    /// An agent counts, and would set them back.
    #[error("its agent reports its players")]
    Agent,
    /// Nobody plays there any more.
    #[error("it is Terminating or Terminated")]
    Over,
}

/// The patch that sets what `report` says.
///
/// # Errors
/// The server's numbers are not to be set.
pub fn set(report: &Report, server: Option<&Server>, pod: Option<&Pod>) -> Result<ServerPatch, Refusal> {
    let server = server.ok_or(Refusal::NoSuchServer)?;
    if server.is_ending() {
        return Err(Refusal::Over);
    }
    if pod.is_some_and(|pod| pod.poke_port.is_some()) {
        return Err(Refusal::Agent);
    }
    let mut patch = ServerPatch::of(&server.uid);
    if let Some(players) = report.players {
        patch = patch.set(&["status", "players"], players);
    }
    if let Some(sessions) = report.sessions {
        patch = patch.set(&["status", "sessions"], sessions);
    }
    Ok(patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::State;
    use crate::rules::fixtures::{server_json, standing_by};

    fn report() -> Report {
        Report { name: "a".to_owned(), players: Some(Players { count: 3, capacity: 8 }), sessions: None }
    }

    #[test]
    fn numbers_are_set_and_others_stay() {
        let member = standing_by("a");
        let mut server = member.server.unwrap();
        server.sessions = Some(2);
        let mut json = server_json(&server);
        let patch = set(&report(), Some(&server), member.pod.as_deref()).unwrap();
        json_patch::patch(&mut json, &patch.into_json()).unwrap();
        assert_eq!(
            (&json["status"]["players"]["count"], &json["status"]["sessions"]),
            (&3.into(), &2.into())
        );
    }

    #[test]
    fn what_an_agent_counts_or_is_over_is_left_alone() {
        let member = standing_by("a");
        let (mut pod, mut server) = (member.pod.unwrap(), member.server.unwrap());
        assert_eq!(set(&report(), None, None), Err(Refusal::NoSuchServer));
        pod.poke_port = Some(9355);
        assert_eq!(set(&report(), Some(&server), Some(&pod)), Err(Refusal::Agent));
        server.state = State::Terminating;
        assert_eq!(set(&report(), Some(&server), None), Err(Refusal::Over));
    }
}
