//! The picture of the cluster: fed by watches and by the answers to our own writes, read by everyone.
//!
//! It holds what the rules look at and no whole objects, so that thousands of servers cost megabytes. Each
//! object's newest version wins, whichever way it came: an old watch event cannot undo what a write has shown
//! already (case C2).

mod digest;
mod feed;
mod held;
mod index;
mod picture;
mod readable;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::{mpsc, watch};

use crate::api::{GameServer, GameServerGroup, State};
use crate::rules::observed::{Member, Server, Version};
use crate::rules::ports::{self, NodeAddress};

pub use feed::{Scope, feed};
pub use held::Held;
use picture::{Picture, Source};

/// Names an object of a namespace.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// Something that a controller should look at again.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Changed {
    /// A group, or something that it holds.
    Group(Key),
    /// A pod or a game server of this name.
    Member(Key),
}

/// How many servers a group has.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Census {
    /// By state; states that no server is in are left out.
    pub states: BTreeMap<State, u32>,
    /// How many a claim may be given.
    pub on_offer: u32,
}

/// The view: cheap to clone, shared by all parts of the operator.
#[derive(Clone)]
pub struct View {
    picture: Arc<RwLock<Picture>>,
    watched: watch::Sender<Watched>,
}

/// How far the watches have come.
#[derive(Clone, Debug, Default)]
struct Watched {
    /// The newest version of a game server that a watch has delivered, by namespace: each may have its own watch.
    servers: BTreeMap<String, Version>,
    /// The kinds of objects whose first list has come in.
    listed: BTreeSet<String>,
}

impl Default for View {
    fn default() -> Self {
        Self { picture: Arc::default(), watched: watch::Sender::new(Watched::default()) }
    }
}

impl View {
    /// Waits until each watch has listed what there is: a picture with holes decides nothing.
    pub async fn ready(&self) {
        // The sender lives in self, so the wait ends by the condition alone.
        let _ = self.watched.subscribe().wait_for(|watched| watched.listed.len() == feed::KINDS).await;
    }

    /// Whether each watch has listed what there is.
    pub fn is_ready(&self) -> bool {
        self.watched.borrow().listed.len() == feed::KINDS
    }

    /// Waits until the watch has delivered a game server of `namespace` at `version` or newer: the echo of one's
    /// own write, after which all that was written there earlier has been seen too.
    pub async fn echoed(&self, namespace: &str, version: Version) {
        let seen =
            |watched: &Watched| watched.servers.get(namespace).is_some_and(|newest| *newest >= version);
        let _ = self.watched.subscribe().wait_for(seen).await;
    }

    /// All that changes from now on, and everything that is there now.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Changed> {
        self.picture.write().subscribe()
    }

    /// A group.
    pub fn group(&self, key: &Key) -> Option<Arc<GameServerGroup>> {
        self.picture.read().groups.get(key).cloned()
    }

    /// The UID of a group that cannot be read, and why.
    pub fn unreadable(&self, group: &Key) -> Option<(String, String)> {
        self.picture.read().unreadable.get(group).cloned()
    }

    /// Has a group looked at again.
    pub fn look_again(&self, group: &Key) {
        self.picture.write().look_again(group);
    }

    /// The UIDs of all groups.
    pub fn group_uids(&self) -> BTreeSet<String> {
        self.picture.read().groups.values().filter_map(|group| group.metadata.uid.clone()).collect()
    }

    /// Everything that is seen of the group with this UID in `namespace`.
    pub fn members(&self, namespace: &str, group_uid: &str) -> Vec<Member> {
        self.picture.read().members(namespace, group_uid)
    }

    /// Everything in `namespace` whose server names a group of this name, whichever UID that had.
    pub fn named(&self, namespace: &str, group: &str) -> Vec<Member> {
        self.picture.read().named(namespace, group)
    }

    /// The pod and the server of this name. A server that another pod of that name left behind comes first.
    pub fn member(&self, key: &Key) -> Member {
        self.picture.read().member(key)
    }

    /// The addresses of a node.
    pub fn node_addresses(&self, node: &str) -> Vec<NodeAddress> {
        self.picture.read().nodes.get(node).cloned().unwrap_or_default()
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.picture.read().nodes.len()
    }

    /// How many pods of ours hold each host port, in any namespace that is watched.
    pub fn host_ports(&self) -> ports::Held {
        self.picture.read().host_ports()
    }

    /// Takes the next server on offer in `group` out of the offer, starting at a place that `seed` decides. It
    /// is on offer again when the hold is dropped, unless it has changed by then.
    pub fn hold_one(&self, group: &Key, seed: u64) -> Option<Held> {
        let mut picture = self.picture.write();
        let key = picture.offers.hold(group, seed)?;
        let Some(server) = picture.servers.get(&key).cloned() else {
            picture.release(&key);
            return None;
        };
        drop(picture);
        Some(Held::new(key, server, Arc::clone(&self.picture)))
    }

    /// How many servers each group has, in which states, and how many of them are on offer. Servers of no group that
    /// is there are counted under empty names.
    pub fn census(&self) -> BTreeMap<Key, Census> {
        self.picture.read().census()
    }

    /// A server.
    pub fn server(&self, key: &Key) -> Option<Server> {
        self.picture.read().servers.get(key).cloned()
    }

    /// The servers that bear a claim of this id in `namespace`, in the order in which their claims were seen.
    pub fn claimed_with(&self, namespace: &str, id: &str) -> Vec<Server> {
        self.picture.read().claimed_with(namespace, id)
    }

    /// The servers of `group` that a claim holds.
    pub fn claimed_in(&self, group: &Key) -> Vec<Server> {
        self.picture.read().claimed_in(group)
    }

    /// Takes up a game server as one of our own writes has left it, and gives its digest.
    pub fn wrote_server(&self, server: &GameServer) -> Option<Server> {
        self.picture.write().put_server(Source::Write, server);
        digest::server(server)
    }

    /// Takes up a pod as one of our own writes has left it.
    pub fn wrote_pod(&self, pod: &k8s_openapi::api::core::v1::Pod) {
        self.picture.write().put_pod(Source::Write, pod);
    }

    /// Takes up a group as one of our own writes has left it.
    pub fn wrote_group(&self, group: &GameServerGroup) {
        self.picture.write().put_group(Source::Write, group);
    }
}

#[cfg(test)]
mod tests;
