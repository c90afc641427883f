//! Why a call gets no server.

use super::{DEADLINE, MOST_WAITING};
use crate::rules::request::Malformed;
use crate::write::WriteError;

/// Why no server is given.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The request's words are out of bounds.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Too many wait at this replica.
    #[error("{MOST_WAITING} callers wait for a server at this replica; ask again, or another replica")]
    Crowded,
    /// None of the groups is there.
    #[error("there is no GameServerGroup {groups} in namespace {namespace}")]
    NoSuchGroup {
        /// Their names.
        groups: String,
        /// The namespace.
        namespace: String,
    },
    /// There is no server of this name, in these groups.
    #[error("there is no GameServer {server} in namespace {namespace} that fits")]
    NoSuchServer {
        /// Its name.
        server: String,
        /// The namespace.
        namespace: String,
    },
    /// The server that is asked for cannot be had.
    #[error("GameServer {server} cannot be claimed: {why}")]
    Taken {
        /// Its name.
        server: String,
        /// What keeps it.
        why: &'static str,
    },
    /// All the groups are being deleted.
    #[error("being deleted: {groups}")]
    Deleting {
        /// Their names.
        groups: String,
    },
    /// No server ever has so many.
    #[error(
        "a server of {groups} has {most} seats at most (claim.sharing.capacity), and the claim asks for {seats}"
    )]
    TooManySeats {
        /// How many are asked for.
        seats: i32,
        /// How many a server has at most.
        most: i32,
        /// The groups.
        groups: String,
    },
    /// No server is on offer that fits.
    #[error("no server of {} is on offer that fits", groups.join(", "))]
    OutOfCapacity {
        /// The groups that were tried.
        groups: Vec<String>,
    },
    /// There would be servers, on instances that drain.
    #[error("all servers of {} that are on offer are on instances that drain; allow instanceStatus Draining", groups.join(", "))]
    Draining {
        /// The groups that were tried.
        groups: Vec<String>,
    },
    /// The id is that of another request.
    #[error("claim {id} was made with another request; use another id")]
    IdReused {
        /// The id.
        id: String,
    },
    /// There is no claim of this id.
    #[error("there is no claim {id} in namespace {namespace}")]
    NoSuchClaim {
        /// The id.
        id: String,
        /// The namespace.
        namespace: String,
    },
    /// The claim of this id has lapsed.
    #[error("claim {id} lapsed: its game was not Active by its deadline; claim anew with another id")]
    Expired {
        /// The id.
        id: String,
    },
    /// The claim of this id has been given back.
    #[error("claim {id} was released; claim anew with another id")]
    Released {
        /// The id.
        id: String,
    },
    /// The game of this id is over.
    #[error("the game of claim {id} is over; claim anew with another id")]
    Over {
        /// The id.
        id: String,
    },
    /// The game of this id is on, so its claim cannot be given back.
    #[error(
        "the game of claim {id} is Active: it ends by itself, or by spec.shutdown of GameServer {server}"
    )]
    Playing {
        /// The id.
        id: String,
        /// The server.
        server: String,
    },
    /// Time ran out. Nothing is kept for the caller; asked again, the answer may be a server.
    #[error("no answer within {} s; ask again with the same id", DEADLINE.as_secs())]
    Slow,
    /// The caller has gone; nobody reads this.
    #[error("the caller has gone")]
    Abandoned,
    /// The API server could not be reached, or refused. The claim may hold all the same.
    #[error("take a server; ask again with the same id")]
    Write(#[source] WriteError),
    /// The work was torn down, as when the operator stops. The claim may hold all the same.
    #[error("this replica stops; ask again with the same id")]
    Stopped,
}
