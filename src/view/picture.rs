//! The picture itself: what is known, and what a change of it touches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod as KubePod};
use tokio::sync::mpsc;

use super::index::Offers;
use super::{Census, Changed, Key, digest};
use crate::api::{GameServer, GameServerGroup};
use crate::rules::observed::{Member, Pod, Server, Version};
use crate::rules::offer;
use crate::rules::ports::{Held, NodeAddress};

/// Everything that is known of the cluster.
#[derive(Debug, Default)]
pub(super) struct Picture {
    pub(super) groups: BTreeMap<Key, Arc<GameServerGroup>>,
    /// The groups that cannot be read, with their UIDs and why.
    pub(super) unreadable: BTreeMap<Key, (String, String)>,
    pub(super) pods: BTreeMap<Key, Pod>,
    pub(super) servers: BTreeMap<Key, Server>,
    /// The addresses of each node.
    pub(super) nodes: BTreeMap<String, Vec<NodeAddress>>,
    pub(super) offers: Offers,
    /// The names of a group's pods and servers, by namespace and group UID.
    by_group: HashMap<(String, String), BTreeSet<Key>>,
    /// The servers that bear a claim, by namespace and id, with the version at which each claim was first seen.
    by_claim: HashMap<(String, String), BTreeSet<(Version, Key)>>,
    /// Servers that a lost write has shown to be seen too old: not offered until they have changed.
    distrusted: HashSet<Key>,
    gone: Gone,
    listeners: Vec<mpsc::UnboundedSender<Changed>>,
}

/// Where a piece of the picture comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Source {
    /// A watch.
    Watch,
    /// The answer to a write of ours, or to a read that a write depends on.
    Write,
}

/// What tells an object that has gone.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) key: Key,
    pub(super) uid: String,
}

impl Picture {
    pub(super) fn subscribe(&mut self) -> mpsc::UnboundedReceiver<Changed> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let names: BTreeSet<&Key> = self.pods.keys().chain(self.servers.keys()).collect();
        let groups = self.groups.keys().chain(self.unreadable.keys()).map(|key| Changed::Group(key.clone()));
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

    pub(super) fn put_group(&mut self, source: Source, group: &GameServerGroup) {
        let Some(key) = key_of(&group.metadata) else { return };
        let old = self.groups.get(&key);
        let version = digest::version(&group.metadata);
        let newer = old.is_none_or(|old| digest::version(&old.metadata) < version);
        if self.gone.refuses(source, group.metadata.uid.as_deref()) || !newer {
            return;
        }
        // What a group says of its servers' lives has changed: a timeout, or that it is being deleted.
        let shape = |group: &GameServerGroup| {
            (group.metadata.generation, group.metadata.deletion_timestamp.is_some())
        };
        let reshaped = old.is_none_or(|old| shape(old) != shape(group));
        self.groups.insert(key.clone(), Arc::new(group.clone()));
        self.unreadable.remove(&key);
        self.tell(&Changed::Group(key.clone()));
        if reshaped {
            self.tell_members(&key.namespace, group.metadata.uid.as_deref());
        }
    }

    /// A group whose spec or status is not what its type says: it is known by its name alone, and nothing is done
    /// for it or to it.
    pub(super) fn unreadable_group(&mut self, there: &Trace, why: &str) {
        self.groups.remove(&there.key);
        self.unreadable.insert(there.key.clone(), (there.uid.clone(), why.to_owned()));
        self.tell(&Changed::Group(there.key.clone()));
    }

    pub(super) fn look_again(&mut self, group: &Key) {
        self.tell(&Changed::Group(group.clone()));
    }

    /// Each member of a group is looked at again.
    fn tell_members(&mut self, namespace: &str, group_uid: Option<&str>) {
        let group = (namespace.to_owned(), group_uid.unwrap_or_default().to_owned());
        for member in self.by_group.get(&group).cloned().unwrap_or_default() {
            self.tell(&Changed::Member(member));
        }
    }

    pub(super) fn remove_group(&mut self, gone: &Trace) {
        self.unreadable.remove(&gone.key);
        self.gone.note(&gone.uid);
        if self.groups.get(&gone.key).is_some_and(|there| there.metadata.uid.as_ref() == Some(&gone.uid)) {
            self.groups.remove(&gone.key);
        }
        self.tell(&Changed::Group(gone.key.clone()));
        self.tell_members(&gone.key.namespace, Some(&gone.uid));
    }

    pub(super) fn put_pod(&mut self, source: Source, pod: &KubePod) {
        let Some(key) = key_of(&pod.metadata) else { return };
        let Some(pod) = digest::pod(pod) else {
            // Somebody has taken from it what makes it ours.
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            return self.drop_pod(&key, &uid);
        };
        let old = self.pods.get(&key);
        if self.gone.refuses(source, Some(&pod.uid)) || old.is_some_and(|old| old.version >= pod.version) {
            return;
        }
        let left = old.map(|old| old.group_uid.clone()).filter(|uid| *uid != pod.group_uid);
        let group = Key::new(&key.namespace, &pod.group);
        self.join(&key, &pod.group_uid);
        self.pods.insert(key.clone(), pod);
        if let Some(left) = left {
            self.leave(&key, &left);
        }
        self.touched(&key, group);
    }

    pub(super) fn remove_pod(&mut self, gone: &Trace) {
        self.gone.note(&gone.uid);
        self.drop_pod(&gone.key, &gone.uid);
    }

    fn drop_pod(&mut self, key: &Key, uid: &str) {
        if self.pods.get(key).is_some_and(|there| there.uid == uid)
            && let Some(old) = self.pods.remove(key)
        {
            self.leave(key, &old.group_uid);
            self.touched(key, Key::new(&key.namespace, &old.group));
        }
    }

    pub(super) fn put_server(&mut self, source: Source, server: &GameServer) {
        let (Some(key), Some(server)) = (key_of(&server.metadata), digest::server(server)) else { return };
        let old = self.servers.get(&key);
        let newer = old.is_none_or(|old| old.version < server.version);
        if self.gone.refuses(source, Some(&server.uid)) || !newer {
            return;
        }
        let left = old.map(|old| old.group_uid.clone()).filter(|uid| *uid != server.group_uid);
        let (old_claim, new_claim) = (old.and_then(claim_id), claim_id(&server).map(str::to_owned));
        if old_claim != new_claim.as_deref() {
            self.forget_claim(&key, old_claim.map(str::to_owned));
            if let Some(id) = new_claim {
                let bearers = self.by_claim.entry((key.namespace.clone(), id)).or_default();
                bearers.insert((server.version, key.clone()));
            }
        }
        self.join(&key, &server.group_uid);
        self.distrusted.remove(&key);
        let group = Key::new(&key.namespace, &server.group);
        self.servers.insert(key.clone(), server);
        if let Some(left) = left {
            self.leave(&key, &left);
        }
        self.touched(&key, group);
    }

    pub(super) fn census(&self) -> BTreeMap<Key, Census> {
        let on_offer = |group: &Key| u32::try_from(self.offers.count(group)).unwrap_or(u32::MAX);
        let of_group = |group: &Key| Census { on_offer: on_offer(group), ..Census::default() };
        let mut census: BTreeMap<Key, Census> =
            self.groups.keys().map(|group| (group.clone(), of_group(group))).collect();
        for (key, server) in &self.servers {
            let group = Key::new(&key.namespace, &server.group);
            let group = if self.groups.contains_key(&group) { group } else { Key::new("", "") };
            *census.entry(group).or_default().states.entry(server.state).or_default() += 1;
        }
        census
    }

    pub(super) fn remove_server(&mut self, gone: &Trace) {
        self.gone.note(&gone.uid);
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
        let addresses = digest::node_addresses(node);
        if self.nodes.get(&name) == Some(&addresses) {
            return;
        }
        self.nodes.insert(name.clone(), addresses);
        let on_it = self.pods.iter().filter(|(_, pod)| pod.node.as_ref() == Some(&name));
        for key in on_it.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.tell(&Changed::Member(key));
        }
    }

    pub(super) fn remove_node(&mut self, gone: &Trace) {
        self.nodes.remove(&gone.key.name);
    }

    /// The groups that are in the picture, of one namespace or of all.
    pub(super) fn known_groups(&self, namespace: Option<&str>) -> Vec<Trace> {
        let uid = |group: &Arc<GameServerGroup>| group.metadata.uid.clone().unwrap_or_default();
        traces(namespace, self.groups.iter().map(|(key, group)| (key, uid(group))))
    }

    /// The pods that are.
    pub(super) fn known_pods(&self, namespace: Option<&str>) -> Vec<Trace> {
        traces(namespace, self.pods.iter().map(|(key, pod)| (key, pod.uid.clone())))
    }

    /// The servers that are.
    pub(super) fn known_servers(&self, namespace: Option<&str>) -> Vec<Trace> {
        traces(namespace, self.servers.iter().map(|(key, server)| (key, server.uid.clone())))
    }

    /// The nodes that are.
    pub(super) fn known_nodes(&self) -> Vec<Trace> {
        let trace = |name: &String| Trace { key: Key::new("", name), uid: String::new() };
        self.nodes.keys().map(trace).collect()
    }

    pub(super) fn member(&self, key: &Key) -> Member {
        let (pod, server) = (self.pods.get(key), self.servers.get(key));
        let pod = match (pod, server) {
            // Left behind by another pod of that name: it is buried before the new one gets its own.
            (Some(pod), Some(server)) if !belongs(server, pod) => None,
            (pod, _) => pod.cloned(),
        };
        Member { pod, server: server.cloned() }
    }

    pub(super) fn members(&self, namespace: &str, group_uid: &str) -> Vec<Member> {
        let names = self.by_group.get(&(namespace.to_owned(), group_uid.to_owned()));
        let of_group = |key: &Key| {
            let pod = self.pods.get(key).filter(|pod| pod.group_uid == group_uid);
            let of_pod = |server: &&Server| pod.is_some_and(|pod| belongs(server, pod));
            let server = self.servers.get(key);
            let server = server.filter(|server| server.group_uid == group_uid || of_pod(server));
            let own = |server: &&Server| pod.is_none_or(|pod| belongs(server, pod));
            Member { pod: pod.cloned(), server: server.filter(own).cloned() }
        };
        names.into_iter().flatten().map(of_group).collect()
    }

    pub(super) fn named(&self, namespace: &str, group: &str) -> Vec<Member> {
        let of_group = |(key, server): &(&Key, &Server)| key.namespace == namespace && server.group == group;
        self.servers.iter().filter(of_group).map(|(key, _)| self.member(key)).collect()
    }

    pub(super) fn host_ports(&self) -> Held {
        let mut held = Held::new();
        for pod in self.pods.values().filter(|pod| pod.ended().is_none()) {
            for port in &pod.host_ports {
                *held.entry(*port).or_default() += 1;
            }
        }
        held
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

    /// A write to `key` was lost that rested on this version of it. What is newer by now stands.
    pub(super) fn distrust(&mut self, key: &Key, version: Version) {
        if self.servers.get(key).is_some_and(|server| server.version == version) {
            self.distrusted.insert(key.clone());
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
        let trusted = !self.distrusted.contains(key);
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
}

fn traces<'a>(namespace: Option<&str>, all: impl Iterator<Item = (&'a Key, String)>) -> Vec<Trace> {
    all.filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace))
        .map(|(key, uid)| Trace { key: key.clone(), uid })
        .collect()
}

/// The UIDs of what has gone. None of them ever returns, but the answer to a write may come late.
#[derive(Debug, Default)]
struct Gone {
    lately: HashSet<String>,
    before: HashSet<String>,
}

impl Gone {
    /// How many are remembered at least: more than there are writes in flight.
    const LIMIT: usize = 8192;

    fn note(&mut self, uid: &str) {
        if self.lately.len() >= Self::LIMIT {
            self.before = std::mem::take(&mut self.lately);
        }
        self.lately.insert(uid.to_owned());
    }

    /// Whether this comes too late. A watch is believed: it says what is.
    fn refuses(&self, source: Source, uid: Option<&str>) -> bool {
        match source {
            Source::Watch => false,
            Source::Write => uid.is_some_and(|uid| self.lately.contains(uid) || self.before.contains(uid)),
        }
    }
}

/// Whether a server is this pod's; also one that somebody has taken the owner from, as it still bears our finalizer.
fn belongs(server: &Server, pod: &Pod) -> bool {
    server.pod_uid == pod.uid || (server.pod_uid.is_empty() && server.held.is_some())
}

fn claim_id(server: &Server) -> Option<&str> {
    server.claim.as_ref().map(|claim| claim.id.as_str())
}

fn key_of(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<Key> {
    Some(Key::new(metadata.namespace.clone()?, metadata.name.clone()?))
}
