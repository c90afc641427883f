//! What is remembered of pokes, and where they go.

use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;

use super::observed::{Game, Member};

/// What an agent is to hear of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Word {
    /// The claim of this id.
    Claim(String),
    /// Its node goes (row F20).
    NodeEnding,
}

/// What is remembered of the pokes of one pod's agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Poked {
    /// When the last one was.
    pub at: Timestamp,
    /// What it was about, if it was about anything.
    pub about: Option<Word>,
    /// How many there were about this.
    pub count: u32,
    /// How many in a row were not answered, up to the last one.
    pub missed: u32,
    /// What the first of these met.
    pub error: Option<String>,
}

impl Poked {
    pub(super) fn is_about(&self, word: &Word) -> bool {
        self.about.as_ref() == Some(word)
    }

    pub(super) fn has_told(&self, word: &Word) -> bool {
        self.is_about(word) && self.missed == 0
    }

    /// What is remembered after one more poke, about this if it is about anything.
    pub fn after(
        last: Option<Self>,
        about: Option<Word>,
        outcome: Result<(), String>,
        now: Timestamp,
    ) -> Self {
        let same = last.as_ref().is_some_and(|last| last.about == about);
        let count = last.as_ref().filter(|_| same).map_or(0, |last| last.count).saturating_add(1);
        let before = last.map(|last| (last.missed, last.error)).unwrap_or_default();
        let (missed, error) = match outcome {
            Ok(()) => (0, None),
            // The first one's words stay: a status that quotes them is to rest.
            Err(words) => (before.0.saturating_add(1), before.1.or(Some(words))),
        };
        Self { at: now, about, count, missed, error }
    }
}

/// Where the agent of a member can be poked, if it has one that runs.
pub fn address(member: &Member) -> Option<SocketAddr> {
    let pod = member.pod.as_ref().filter(|pod| !pod.deleting && pod.game == Game::Running)?;
    let ip: IpAddr = pod.ips.first()?.parse().ok()?;
    Some(SocketAddr::new(ip, pod.poke_port?))
}
