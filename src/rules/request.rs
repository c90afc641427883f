//! Rows F12 and F16: what may be asked for.

use std::collections::BTreeMap;

use serde::Serialize;

use super::names::short_hash;
use crate::api::{Claim, ClaimableStatus};

/// The longest claim id, in characters.
pub const ID_LIMIT: usize = 128;
/// The longest name of a group, in characters.
const GROUP_NAME_LIMIT: usize = 63;
/// The longest name of a server, in characters.
const SERVER_NAME_LIMIT: usize = 253;

/// The most groups a claim may name.
pub const GROUPS_LIMIT: usize = 16;

/// The most labels a claim may select by.
pub const LABELS_LIMIT: usize = 16;

/// The longest data that a claim hands to a game, in characters.
pub const DATA_LIMIT: usize = 1024;

/// The most seats that a claim may ask for.
pub const SEATS_LIMIT: i32 = 200;

/// What a caller asks for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Request {
    /// The caller's id: asked again with it, the answer is the same. It is an object's name, as a claim that waits is
    /// a `GameServerClaim` of that name.
    #[serde(skip)]
    pub id: String,
    /// The groups to take a server of, the first that has one.
    pub groups: Vec<String>,
    /// The one server to take.
    pub server: Option<String>,
    /// The labels that the server must bear.
    pub labels: BTreeMap<String, String>,
    /// What its instance may be; anything if empty.
    pub instance_status: Vec<ClaimableStatus>,
    /// What the game is handed.
    pub data: Option<String>,
    /// How many seats, where the server is shared.
    pub seats: i32,
}

/// What is wrong with a claim's words.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// The id is empty or too long.
    #[error("id has {found} characters; it needs 1 to {ID_LIMIT}")]
    IdLength {
        /// How many it has.
        found: usize,
    },
    /// The id is no name of an object.
    #[error(
        "id {id} is no name of a Kubernetes object: lower-case letters, digits, '-' and '.', with a letter or digit \
         at both ends"
    )]
    Id {
        /// The id.
        id: String,
    },
    /// No group, or too many.
    #[error("groups has {found} names; it needs 1 to {GROUPS_LIMIT}")]
    Groups {
        /// How many it has.
        found: usize,
    },
    /// A name of a group or a server is empty or too long.
    #[error("{name:?} is no name of a group or a server: that has 1 to {limit} characters")]
    Name {
        /// The name.
        name: String,
        /// How many characters it may have.
        limit: usize,
    },
    /// Too many labels.
    #[error("the selector has {found} labels; it takes {LABELS_LIMIT} at most")]
    Labels {
        /// How many it has.
        found: usize,
    },
    /// Too many instance statuses.
    #[error("instanceStatus has {found} entries; it takes 2 at most")]
    InstanceStatus {
        /// How many it has.
        found: usize,
    },
    /// Seats out of bounds.
    #[error("seats is {found}; it needs 1 to {SEATS_LIMIT}")]
    Seats {
        /// How many.
        found: i32,
    },
    /// Data that is empty or too long.
    #[error("data has {found} characters; it needs 1 to {DATA_LIMIT}")]
    Data {
        /// How many it has.
        found: usize,
    },
}

impl Request {
    /// Checks what the schema of a `GameServerClaim` would check.
    ///
    /// # Errors
    /// What is wrong, and what is right.
    pub fn check(&self) -> Result<(), Malformed> {
        let found = self.id.chars().count();
        if !(1..=ID_LIMIT).contains(&found) {
            return Err(Malformed::IdLength { found });
        }
        if !is_object_name(&self.id) {
            return Err(Malformed::Id { id: self.id.clone() });
        }
        let found = self.groups.len();
        if !(1..=GROUPS_LIMIT).contains(&found) {
            return Err(Malformed::Groups { found });
        }
        let names = self.groups.iter().map(|group| (group, GROUP_NAME_LIMIT));
        for (name, limit) in names.chain(self.server.iter().map(|server| (server, SERVER_NAME_LIMIT))) {
            if !(1..=limit).contains(&name.chars().count()) {
                return Err(Malformed::Name { name: name.clone(), limit });
            }
        }
        if self.labels.len() > LABELS_LIMIT {
            return Err(Malformed::Labels { found: self.labels.len() });
        }
        if self.instance_status.len() > 2 {
            return Err(Malformed::InstanceStatus { found: self.instance_status.len() });
        }
        if !(1..=SEATS_LIMIT).contains(&self.seats) {
            return Err(Malformed::Seats { found: self.seats });
        }
        match self.data.as_ref().map(|data| data.chars().count()) {
            Some(found) if !(1..=DATA_LIMIT).contains(&found) => Err(Malformed::Data { found }),
            Some(_) | None => Ok(()),
        }
    }

    /// A hash of all that is asked for, but for the id. It stands in the claim, so that the same id with another
    /// request is told from a request made again.
    pub fn fingerprint(&self) -> String {
        // Plain data with string keys always has a JSON form.
        short_hash(&serde_json::to_string(self).unwrap_or_default())
    }

    /// Whether `claim`, made under its id, was made for another request.
    pub fn differs_from(&self, claim: &Claim) -> bool {
        !claim.request.is_empty() && claim.request != self.fingerprint()
    }
}

/// RFC 1123, as the API server checks most names.
fn is_object_name(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.split('.').all(|part| {
        let (first, last) = (part.bytes().next(), part.bytes().next_back());
        first.is_some_and(inside)
            && last.is_some_and(inside)
            && part.bytes().all(|byte| inside(byte) || byte == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures;

    #[test]
    fn words_out_of_bounds_are_named() {
        let with = |change: fn(&mut Request)| {
            let mut request = request();
            change(&mut request);
            request.check()
        };
        assert_eq!(with(|request| request.id.clear()), Err(Malformed::IdLength { found: 0 }));
        assert_eq!(with(|request| request.id = "x".repeat(129)), Err(Malformed::IdLength { found: 129 }));
        for id in ["Match", "a_b", "-a", "a-", "a..b", "a b"] {
            let mut request = request();
            request.id = id.to_owned();
            assert_eq!(request.check(), Err(Malformed::Id { id: id.to_owned() }));
        }
        assert_eq!(with(|request| request.groups.clear()), Err(Malformed::Groups { found: 0 }));
        assert_eq!(with(|request| request.data = Some(String::new())), Err(Malformed::Data { found: 0 }));
        assert_eq!(with(|_| {}), Ok(()));
    }

    #[test]
    fn the_same_id_with_another_request_is_told() {
        let claim = fixtures::claimed("a", "match-1", 60).server.unwrap().claim.clone().unwrap();
        let mut other = request();
        assert!(!other.differs_from(&claim));
        other.data = Some("map=castle".to_owned());
        assert!(other.differs_from(&claim));
    }

    fn request() -> Request {
        fixtures::request("match-1")
    }
}
