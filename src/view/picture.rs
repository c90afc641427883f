//! The picture itself: what is known, and what a change of it touches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod as KubePod};
use tokio::sync::mpsc;

use super::index::Offers;
use super::{Changed, Key, digest};
use crate::api::{GameServer, GameServerGroup};
use crate::rules::observed::{Member, Pod, Server, Version};
use crate::rules::offer;

/// Everything that is known of the cluster.
#[derive(Debug, Default)]
pub(super) struct Picture {
    pub(super) groups: BTreeMap<Key, Arc<GameServerGroup>>,
    pub(super) pods: BTreeMap<Key, Pod>,
    pub(super) servers: BTreeMap<Key, Server>,
    /// The address of each node, none where it has none yet.
    pub(super) nodes: BTreeMap<String, Option<String>>,
    pub(super) offers: Offers,
    /// The names of a group's pods and servers, by namespace and group UID.
    by_group: HashMap<(String, String), BTreeSet<Key>>,
    /// The servers that bear a claim, by namespace and id, with the version at which each claim was first seen.
    by_claim: HashMap<(String, String), BTreeSet<(Version, Key)>>,
    /// Versions that a lost write has shown to be old: such a server is not offered until it has changed.
    distrusted: HashMap<Key, Version>,
    /// The last version of objects that are gone, so that the late answer to a write does not bring them back.
    gone: HashMap<String, Version>,
    listeners: Vec<mpsc::UnboundedSender<Changed>>,
}

/// What is kept of an object to tell that it has gone.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) key: Key,
    pub(super) uid: String,
    pub(super) version: Version,
}

/// How many objects that are gone are remembered: more than there are writes in flight.
const GONE_LIMIT: usize = 4096;

impl Picture {
    pub(super) fn subscribe(&mut self) -> mpsc::UnboundedReceiver<Changed> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let names: BTreeSet<&Key> = self.pods.keys().chain(self.servers.keys()).collect();
        let groups = self.groups.keys().map(|key| Changed::Group(key.clone()));
        for change in groups.chain(names.into_iter().map(|key| Changed::Member(key.clone()))) {
            // The receiver is in our hands.
            let _ = sender.send(change);
        }
        self.listeners.push(sender);
        receiver
    }

    fn tell(&mut self, change: &Changed) {
        self.listeners.retain(|listener| listener.send(change.clone()).is_ok());
    }

    pub(super) fn put_group(&mut self, group: &GameServerGroup) {
        let Some(key) = key_of(&group.metadata) else { return };
        let newer =
            |old: &Arc<GameServerGroup>| digest::version(&old.metadata) < digest::version(&group.metadata);
        if self.is_gone(group.metadata.uid.as_deref(), digest::version(&group.metadata))
            || !self.groups.get(&key).is_none_or(newer)
        {
            return;
        }
        self.groups.insert(key.clone(), Arc::new(group.clone()));
        self.tell(&Changed::Group(key));
    }

    pub(super) fn remove_group(&mut self, gone: &Trace) {
        self.note_gone(gone);
        if self.groups.get(&gone.key).is_some_and(|there| there.metadata.uid.as_ref() == Some(&gone.uid)) {
            self.groups.remove(&gone.key);
        }
        self.tell(&Changed::Group(gone.key.clone()));
        // Whatever it left is looked at again: its group has gone.
        let left = self.by_group.get(&(gone.key.namespace.clone(), gone.uid.clone()));
        for member in left.cloned().unwrap_or_default() {
            self.tell(&Changed::Member(member));
        }
    }

    pub(super) fn put_pod(&mut self, pod: &KubePod) {
        let (Some(key), Some(pod)) = (key_of(&pod.metadata), digest::pod(pod)) else { return };
        let newer = self.pods.get(&key).is_none_or(|old| old.version < pod.version);
        if self.is_gone(Some(&pod.uid), pod.version) || !newer {
            return;
        }
        self.join(&key, &pod.group_uid);
        let group = Key::new(&key.namespace, &pod.group);
        self.pods.insert(key.clone(), pod);
        self.touched(&key, group);
    }

    pub(super) fn remove_pod(&mut self, gone: &Trace) {
        self.note_gone(gone);
        let key = &gone.key;
        if self.pods.get(key).is_some_and(|there| there.uid == gone.uid)
            && let Some(old) = self.pods.remove(key)
        {
            self.leave(key, &old.group_uid);
            self.touched(key, Key::new(&key.namespace, &old.group));
        }
    }

    pub(super) fn put_server(&mut self, server: &GameServer) {
        let (Some(key), Some(server)) = (key_of(&server.metadata), digest::server(server)) else { return };
        let newer = self.servers.get(&key).is_none_or(|old| old.version < server.version);
        if self.is_gone(Some(&server.uid), server.version) || !newer {
            return;
        }
        self.join(&key, &server.group_uid);
        let group = Key::new(&key.namespace, &server.group);
        let old = self.servers.get(&key).and_then(claim_id).map(str::to_owned);
        let new = claim_id(&server).map(str::to_owned);
        if old != new {
            self.forget_claim(&key, old);
            if let Some(id) = new {
                let bearers = self.by_claim.entry((key.namespace.clone(), id)).or_default();
                bearers.insert((server.version, key.clone()));
            }
        }
        if self.distrusted.get(&key).is_some_and(|old| *old < server.version) {
            self.distrusted.remove(&key);
        }
        self.servers.insert(key.clone(), server);
        self.touched(&key, group);
    }

    pub(super) fn remove_server(&mut self, gone: &Trace) {
        self.note_gone(gone);
        let key = &gone.key;
        if self.servers.get(key).is_some_and(|there| there.uid == gone.uid)
            && let Some(old) = self.servers.remove(key)
        {
            self.forget_claim(key, claim_id(&old).map(str::to_owned));
            self.distrusted.remove(key);
            self.leave(key, &old.group_uid);
            self.touched(key, Key::new(&key.namespace, &old.group));
        }
    }

    pub(super) fn put_node(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.clone() else { return };
        let address = digest::node_address(node);
        if self.nodes.get(&name) == Some(&address) {
            return;
        }
        self.nodes.insert(name.clone(), address);
        let waiting: Vec<Key> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.node.as_ref() == Some(&name))
            .map(|(key, _)| key.clone())
            .collect();
        for key in waiting {
            self.tell(&Changed::Member(key));
        }
    }

    pub(super) fn remove_node(&mut self, gone: &Trace) {
        self.nodes.remove(&gone.key.name);
    }

    pub(super) fn member(&self, key: &Key) -> Member {
        let (pod, server) = (self.pods.get(key), self.servers.get(key));
        let pod = match (pod, server) {
            // Left behind by another pod of that name: it is buried before the new one gets its own.
            (Some(pod), Some(server)) if server.pod_uid != pod.uid => None,
            (pod, _) => pod.cloned(),
        };
        Member { pod, server: server.cloned() }
    }

    pub(super) fn members(&self, namespace: &str, group_uid: &str) -> Vec<Member> {
        let names = self.by_group.get(&(namespace.to_owned(), group_uid.to_owned()));
        let of_group = |key: &Key| {
            let pod = self.pods.get(key).filter(|pod| pod.group_uid == group_uid);
            let server = self.servers.get(key).filter(|server| server.group_uid == group_uid);
            let own = |server: &&Server| pod.is_none_or(|pod| pod.uid == server.pod_uid);
            Member { pod: pod.cloned(), server: server.filter(own).cloned() }
        };
        names.into_iter().flatten().map(of_group).collect()
    }

    pub(super) fn host_ports(&self) -> BTreeSet<i32> {
        let held = self.pods.values().filter(|pod| pod.ended().is_none());
        held.flat_map(|pod| pod.host_ports.iter().map(|port| port.host_port)).collect()
    }

    pub(super) fn claimed_with(&self, namespace: &str, id: &str) -> Vec<Server> {
        let bearers = self.by_claim.get(&(namespace.to_owned(), id.to_owned()));
        let servers = bearers.into_iter().flatten().filter_map(|(_, key)| self.servers.get(key));
        servers.cloned().collect()
    }

    pub(super) fn claimed_in(&self, group: &Key) -> Vec<Server> {
        let Some(uid) = self.groups.get(group).and_then(|group| group.metadata.uid.clone()) else {
            return Vec::new();
        };
        let names = self.by_group.get(&(group.namespace.clone(), uid));
        let servers = names.into_iter().flatten().filter_map(|key| self.servers.get(key));
        servers.filter(|server| server.is_claimed()).cloned().collect()
    }

    /// The write to `key` was lost: what is known of it is older than the API server's.
    pub(super) fn distrust(&mut self, key: &Key) {
        if let Some(server) = self.servers.get(key) {
            self.distrusted.insert(key.clone(), server.version);
        }
    }

    pub(super) fn release(&mut self, key: &Key) {
        self.offers.release(key);
        self.offer(key);
    }

    /// Recomputes whether `key` is on offer.
    fn offer(&mut self, key: &Key) {
        let member = self.member(key);
        let Some(server) = &member.server else { return };
        let group = Key::new(&key.namespace, &server.group);
        let trusted = !self.distrusted.contains_key(key);
        self.offers.set(&group, key, trusted && offer::withheld(&member).is_none());
    }

    fn touched(&mut self, key: &Key, group: Key) {
        if self.servers.contains_key(key) {
            self.offer(key);
        } else {
            self.offers.set(&group, key, false);
        }
        self.tell(&Changed::Member(key.clone()));
        self.tell(&Changed::Group(group));
    }

    fn join(&mut self, key: &Key, group_uid: &str) {
        let group = (key.namespace.clone(), group_uid.to_owned());
        self.by_group.entry(group).or_default().insert(key.clone());
    }

    /// Takes `key` out of its group, unless a pod or a server of that name still belongs to it.
    fn leave(&mut self, key: &Key, group_uid: &str) {
        let pod = self.pods.get(key).is_some_and(|pod| pod.group_uid == group_uid);
        let server = self.servers.get(key).is_some_and(|server| server.group_uid == group_uid);
        let group = (key.namespace.clone(), group_uid.to_owned());
        if let Some(names) = self.by_group.get_mut(&group).filter(|_| !pod && !server) {
            names.remove(key);
            if names.is_empty() {
                self.by_group.remove(&group);
            }
        }
    }

    fn forget_claim(&mut self, key: &Key, id: Option<String>) {
        let Some(id) = id else { return };
        let claim = (key.namespace.clone(), id);
        if let Some(bearers) = self.by_claim.get_mut(&claim) {
            bearers.retain(|(_, bearer)| bearer != key);
            if bearers.is_empty() {
                self.by_claim.remove(&claim);
            }
        }
    }

    fn is_gone(&self, uid: Option<&str>, version: Version) -> bool {
        uid.and_then(|uid| self.gone.get(uid)).is_some_and(|gone| version <= *gone)
    }

    fn note_gone(&mut self, gone: &Trace) {
        if self.gone.len() >= GONE_LIMIT {
            self.gone.clear();
        }
        // A deletion event bears a version of its own; all that came before it is older.
        self.gone.insert(gone.uid.clone(), gone.version);
    }
}

fn claim_id(server: &Server) -> Option<&str> {
    server.claim.as_ref().map(|claim| claim.id.as_str())
}

fn key_of(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<Key> {
    Some(Key::new(metadata.namespace.clone()?, metadata.name.clone()?))
}
