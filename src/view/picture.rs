//! The picture itself: what is known, and what a change of it touches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as KubePod;
use tokio::sync::{Notify, mpsc};

use super::asked::AskedFor;
use super::bearers::{self, Bearers};
use super::deadlines::Deadlines;
use super::gone::Gone;
use super::index::{Offers, Place, Rank};
use super::listeners::Listeners;
use super::pools::Pools;
use super::roster::Roster;
use super::source::Source;
use super::tidings::Tidings;
use super::{Census, Changed, Key, digest};
use crate::api::{
    Claim, EndReason, GameServer, GameServerClaim, GameServerGroup, InstanceStatus, Prefer, Sharing, State,
};
use crate::rules::bounds::Demand;
use crate::rules::names::revision;
use crate::rules::observed::{Asked, Member, Node, Pod, Server, Shared, Version};
use crate::rules::offer::Withheld;
use crate::rules::ports::Held;
use crate::rules::rivals::{Order, Rivals};
use crate::rules::{offer, queue, seats};

/// Everything that is known of the cluster.
#[derive(Debug, Default)]
pub(super) struct Picture {
    pub(super) groups: BTreeMap<Key, Arc<GameServerGroup>>,
    /// The groups that cannot be read, with their UIDs and why.
    pub(super) unreadable: BTreeMap<Key, (String, String)>,
    pub(super) pods: BTreeMap<Key, Shared<Pod>>,
    pub(super) servers: BTreeMap<Key, Shared<Server>>,
    /// The revision that each group wants.
    revisions: HashMap<Key, String>,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) pools: Pools,
    pub(super) tidings: Tidings,
    pub(super) offers: Offers,
    pub(super) asked: AskedFor,
    /// How many servers of each group are in use and not marked.
    in_use: HashMap<Key, usize>,
    roster: Roster,
    bearers: Bearers,
    deadlines: Deadlines,
    /// Servers that a lost write has shown to be seen too old: not offered until they have changed.
    distrusted: HashSet<Key>,
    pub(super) gone: Gone,
    listeners: Listeners,
}

/// What tells an object that has gone.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) key: Key,
    pub(super) uid: String,
}

impl Picture {
    pub(super) fn of_replica(name: &str) -> Self {
        Self { offers: Offers::of_replica(name), ..Self::default() }
    }

    pub(super) fn subscribe(&mut self) -> mpsc::UnboundedReceiver<Changed> {
        let names: BTreeSet<&Key> = self.pods.keys().chain(self.servers.keys()).collect();
        let groups = self.groups.keys().chain(self.unreadable.keys()).map(|key| Changed::Group(key.clone()));
        // Also of those that have gone and left a server claimed.
        let made_for = self.servers.iter().flat_map(|(key, server)| {
            let objects = server.claims().filter(|claim| claim.object.is_some());
            objects.map(|claim| Key::new(&key.namespace, claim.id.clone()))
        });
        let claims: BTreeSet<Key> = self.asked.iter().map(|(key, _)| key.clone()).chain(made_for).collect();
        let claims = claims.into_iter().map(Changed::Claim);
        let names = names.into_iter().map(|key| Changed::Member(key.clone()));
        self.listeners.add(groups.chain(claims).chain(names).chain([Changed::Pools]))
    }

    pub(super) fn tell(&mut self, change: &Changed) {
        self.listeners.tell(change);
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
            self.revisions.insert(key.clone(), revision(&group.spec));
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

    /// Each member of a group is looked at again, also where it stands on offer.
    fn tell_members(&mut self, namespace: &str, group_uid: Option<&str>) {
        let members = self.roster.of(namespace, group_uid.unwrap_or_default());
        for member in members.cloned().collect::<Vec<_>>() {
            self.offer(&member);
            self.tell(&Changed::Member(member));
        }
    }

    pub(super) fn remove_group(&mut self, gone: &Trace) {
        self.unreadable.remove(&gone.key);
        self.gone.note(&gone.uid);
        if self.groups.get(&gone.key).is_some_and(|there| there.metadata.uid.as_ref() == Some(&gone.uid)) {
            self.groups.remove(&gone.key);
            self.revisions.remove(&gone.key);
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
        self.roster.join(&key, &pod.group_uid);
        self.pods.insert(key.clone(), pod.into());
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
        if self.gone.refuses(source, Some(&server.uid)) {
            return;
        }
        if !newer {
            if source == Source::Watch {
                self.bearers.date(&key, &server);
            }
            return;
        }
        let left = old.map(|old| old.group_uid.clone()).filter(|uid| *uid != server.group_uid);
        if server.is_claimed() && source == Source::Watch {
            self.offers.taken(&key, Instant::now());
        }
        let old = old.cloned();
        let old = old.as_deref();
        self.count_use(&key.namespace, old, Some(&server));
        self.tell_claims(&key.namespace, old, Some(&server));
        self.bearers.put(&key, old, Some(&server), source == Source::Watch);
        self.deadlines.put(&key, old, Some(&server));
        self.roster.join(&key, &server.group_uid);
        self.distrusted.remove(&key);
        let group = Key::new(&key.namespace, &server.group);
        if server.end.as_ref().is_some_and(|end| end.reason == EndReason::LaunchTimeout)
            || self.is_probe(&key)
        {
            self.tell(&Changed::Pools);
        }
        self.servers.insert(key.clone(), server.into());
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
            let counts = census.entry(group).or_default();
            *counts.states.entry(server.state).or_default() += 1;
            if let Some(instance) = server.instance.as_ref().filter(|_| server.state < State::Terminated) {
                *counts.instances.entry(instance.capacity.capacity_type).or_default() += 1;
            }
        }
        census
    }

    pub(super) fn remove_server(&mut self, gone: &Trace) {
        self.gone.note(&gone.uid);
        let key = &gone.key;
        if self.servers.get(key).is_some_and(|there| there.uid == gone.uid)
            && let Some(old) = self.servers.remove(key)
        {
            self.bearers.put(key, Some(&old), None, true);
            self.deadlines.put(key, Some(&old), None);
            self.distrusted.remove(key);
            self.count_use(&key.namespace, Some(&old), None);
            self.tell_claims(&key.namespace, Some(&old), None);
            self.leave(key, &old.group_uid);
            self.touched(key, Key::new(&key.namespace, &old.group));
        }
    }

    /// Keeps count of the servers in use, by node and by group, but for those that are replaced already.
    fn count_use(&mut self, namespace: &str, old: Option<&Server>, new: Option<&Server>) {
        let is_used = |server: &&Server| server.is_in_use() && !server.is_replaced();
        let (old, new) = (old.filter(is_used), new.filter(is_used));
        let (left, taken) = (old.and_then(Server::node), new.and_then(Server::node));
        if left != taken {
            for (node, more) in [(left, -1), (taken, 1)] {
                if let Some(node) = node {
                    self.offers.load(node, more);
                }
            }
        }
        let group = |server: &Server| Key::new(namespace, &server.group);
        if let Some(server) = new {
            *self.in_use.entry(group(server)).or_default() += 1;
        }
        if let Some(group) = old.map(group)
            && let Some(count) = self.in_use.get_mut(&group)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.in_use.remove(&group);
            }
        }
    }

    /// A server that bears, or bore, the id of a claim has changed.
    fn tell_claims(&mut self, namespace: &str, old: Option<&Server>, new: Option<&Server>) {
        let ids: BTreeSet<&str> = [old, new].into_iter().flatten().flat_map(bearers::ids).collect();
        for id in ids {
            let key = Key::new(namespace, id);
            if self.asked.get(&key).is_some() {
                self.tell(&Changed::Claim(key));
            }
        }
    }

    pub(super) fn put_claim(&mut self, source: Source, claim: &GameServerClaim) {
        let (Some(key), Some(asked)) = (key_of(&claim.metadata), digest::claim(claim)) else { return };
        let old = self.asked.get(&key);
        let newer = old.is_none_or(|old| old.version < asked.version);
        if self.gone.refuses(source, Some(&asked.uid)) || !newer {
            return;
        }
        let groups = asked.request.groups.clone();
        self.asked.put(&key, asked);
        self.tell_asked(key, groups);
    }

    pub(super) fn remove_claim(&mut self, gone: &Trace) {
        self.gone.note(&gone.uid);
        if self.asked.get(&gone.key).is_some_and(|there| there.uid == gone.uid)
            && let Some(old) = self.asked.remove(&gone.key)
        {
            self.tell_asked(gone.key.clone(), old.request.groups.clone());
        }
    }

    /// A claim has changed: so has what the groups that it names are to have.
    fn tell_asked(&mut self, key: Key, groups: Vec<String>) {
        for group in groups {
            self.tell(&Changed::Group(Key::new(&key.namespace, group)));
        }
        self.tell(&Changed::Claim(key));
    }

    pub(super) fn known_claims(&self, namespace: Option<&str>) -> Vec<Trace> {
        traces(namespace, self.asked.iter().map(|(key, asked)| (key, asked.uid.clone())))
    }

    pub(super) fn listen(&mut self, claim: &Key) -> Arc<Notify> {
        self.listeners.of_claim(claim)
    }

    pub(super) fn waiting(&self, namespace: &str, now: Timestamp) -> Vec<Arc<Asked>> {
        let served = |asked: &Asked| self.bearers.of(namespace, asked.id()).next().is_some();
        let pending = self.asked.pending(namespace);
        pending.filter(|asked| queue::waits(asked, served(asked), now)).cloned().collect()
    }

    pub(super) fn demand(&self, group: &Key, now: Timestamp) -> Demand {
        let namespace = &group.namespace;
        let in_use = |key: &Key| self.in_use.get(key).copied().unwrap_or(0);
        let room = |name: &str| {
            let key = Key::new(namespace, name);
            let group = self.groups.get(&key)?;
            Some(queue::Room { group, in_use: in_use(&key) })
        };
        let waiting = self.waiting(namespace, now);
        let here = waiting.iter().filter(|asked| queue::wakes(asked, room) == Some(&group.name));
        let waiting = queue::servers_for(here, self.sharing(group).as_ref());
        Demand { waiting, in_use: in_use(group) }
    }

    /// The groups that are in the picture, readable or not, of one namespace or of all.
    pub(super) fn known_groups(&self, namespace: Option<&str>) -> Vec<Trace> {
        let uid = |group: &Arc<GameServerGroup>| group.metadata.uid.clone().unwrap_or_default();
        let readable = self.groups.iter().map(|(key, group)| (key, uid(group)));
        let unreadable = self.unreadable.iter().map(|(key, (uid, _))| (key, uid.clone()));
        traces(namespace, readable.chain(unreadable))
    }

    /// The pods that are.
    pub(super) fn known_pods(&self, namespace: Option<&str>) -> Vec<Trace> {
        traces(namespace, self.pods.iter().map(|(key, pod)| (key, pod.uid.clone())))
    }

    /// The servers that are.
    pub(super) fn known_servers(&self, namespace: Option<&str>) -> Vec<Trace> {
        traces(namespace, self.servers.iter().map(|(key, server)| (key, server.uid.clone())))
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
        let of_group = |key: &Key| {
            let pod = self.pods.get(key).filter(|pod| pod.group_uid == group_uid);
            let of_pod = |server: &&Shared<Server>| pod.is_some_and(|pod| belongs(server, pod));
            let server = self.servers.get(key);
            let server = server.filter(|server| server.group_uid == group_uid || of_pod(server));
            let own = |server: &&Shared<Server>| pod.is_none_or(|pod| belongs(server, pod));
            Member { pod: pod.cloned(), server: server.filter(own).cloned() }
        };
        self.roster.of(namespace, group_uid).map(of_group).collect()
    }

    pub(super) fn named(&self, namespace: &str, group: &str) -> Vec<Member> {
        let of_group =
            |(key, server): &(&Key, &Shared<Server>)| key.namespace == namespace && server.group == group;
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
        self.in_order(namespace, id).0.into_iter().cloned().collect()
    }

    pub(super) fn rivals(&self, namespace: &str, id: &str) -> Rivals {
        let (bearers, order) = self.in_order(namespace, id);
        Rivals::among(bearers.into_iter(), id, order)
    }

    /// The servers that bear claims of this id, in the order of these, and whether that is known. The server that its
    /// object is bound to goes before all others.
    fn in_order(&self, namespace: &str, id: &str) -> (Vec<&Server>, Order) {
        let servers = self.bearers.of(namespace, id).filter_map(|key| self.servers.get(key));
        let mut servers: Vec<&Server> = servers.map(|server| &**server).collect();
        let order = self.bearers.order(namespace, id);
        if servers.len() < 2 {
            return (servers, order);
        }
        let bound =
            self.asked.get(&Key::new(namespace, id)).and_then(|asked| asked.status.server_uid.clone());
        match servers.iter().position(|server| bound.as_ref() == Some(&server.uid)) {
            Some(place) => {
                let bound = servers.remove(place);
                servers.insert(0, bound);
                (servers, Order::Known)
            }
            None => (servers, order),
        }
    }

    /// The claims on this server whose ids held another before.
    pub(super) fn surplus(&self, key: &Key) -> Vec<Claim> {
        let Some(server) = self.servers.get(key) else { return Vec::new() };
        let is_surplus = |claim: &&Claim| match self.rivals(&key.namespace, &claim.id) {
            Rivals::Later(later) => later.iter().any(|later| later.uid == server.uid),
            Rivals::None | Rivals::Unordered(_) => false,
        };
        server.claims().filter(is_surplus).cloned().collect()
    }

    /// Whether another server than this one holds a claim of this id, and it cannot be told which came first.
    pub(super) fn is_disputed(&self, namespace: &str, id: &str, uid: &str) -> bool {
        let others = self.bearers.undated(namespace, id).filter_map(|key| self.servers.get(key));
        others.into_iter().any(|server| server.uid != uid && server.is_held_by(id))
    }

    pub(super) fn is_in_hand(&self, group: &Key, fits: impl Fn(&Server) -> bool) -> bool {
        let is_it = |server: &Shared<Server>| server.group == group.name && fits(server);
        let of_group = |key: &Key| self.servers.get(key).is_some_and(is_it);
        self.offers.held().any(|key| key.namespace == group.namespace && of_group(key))
    }

    pub(super) fn due_in(&self, group: &Key, now: Timestamp) -> Vec<Server> {
        let servers = self.deadlines.due(group, now).filter_map(|key| self.servers.get(key));
        servers.map(|server| Server::clone(server)).collect()
    }

    /// A write to `key` was lost that rested on this version of it. What is newer by now stands.
    pub(super) fn distrust(&mut self, key: &Key, version: Version) {
        if self.servers.get(key).is_some_and(|server| server.version == version) {
            self.distrusted.insert(key.clone());
            self.offers.collided();
        }
    }

    /// Takes the first server on offer in `group` that `fits` out of the offer.
    pub(super) fn hold(&mut self, group: &Key, fits: impl FnMut(&Server) -> bool) -> Option<(Key, Server)> {
        let (key, server) = self.first(group, fits)?;
        let found = (key.clone(), Server::clone(server));
        self.offers.hold(&found.0);
        Some(found)
    }

    /// The first server on offer in `group` that `fits`.
    pub(super) fn first(
        &self,
        group: &Key,
        mut fits: impl FnMut(&Server) -> bool,
    ) -> Option<(&Key, &Server)> {
        let strategy = self.groups.get(group).map(|group| group.spec.claim.strategy).unwrap_or_default();
        let candidates = self.offers.candidates(group, strategy, Instant::now());
        let mut servers = candidates.filter_map(|key| Some((key, &**self.servers.get(key)?)));
        servers.find(|(_, server)| fits(server))
    }

    pub(super) fn release(&mut self, key: &Key) {
        self.offers.release(key);
        self.offer(key);
        // Who found nothing meanwhile looks again.
        if let Some(group) = self.offers.group_of(key).cloned() {
            self.tell(&Changed::Group(group));
        }
    }

    /// Recomputes whether `key` is on offer.
    pub(super) fn offer(&mut self, key: &Key) {
        let member = self.member(key);
        let Some(server) = &member.server else { return };
        let on_offer = !self.distrusted.contains(key) && self.withheld(key, &member).is_none();
        let sharing = self.sharing(&Key::new(&key.namespace, &server.group));
        let place = on_offer.then(|| self.place(key, server, sharing));
        self.offers.set(key, place);
    }

    /// Why `member`, of this key, is not on offer. Row F20: from the moment at which its node is seen to go, which its own
    /// status says a write later.
    pub(super) fn withheld(&self, key: &Key, member: &Member) -> Option<Withheld> {
        let server = member.server.as_deref();
        let sharing = server.and_then(|server| self.sharing(&Key::new(&key.namespace, &server.group)));
        let node = server.and_then(Server::node).and_then(|node| self.nodes.get(node));
        let goes = || node.filter(|node| node.goes()).map(|_| Withheld::NodeEnding);
        offer::withheld(member, sharing.as_ref()).or_else(goes)
    }

    /// How `group` shares its servers.
    pub(super) fn sharing(&self, group: &Key) -> Option<Sharing> {
        self.groups.get(group).and_then(|group| group.spec.claim.sharing)
    }

    fn place(&self, key: &Key, server: &Server, sharing: Option<Sharing>) -> Place {
        let group = Key::new(&key.namespace, &server.group);
        let status = server.instance.as_ref().map(|instance| instance.status);
        let rank = Rank {
            draining: status == Some(InstanceStatus::Draining),
            outdated: self.revisions.get(&group).is_some_and(|revision| *revision != server.revision),
            suspect: self
                .pods
                .get(key)
                .and_then(|pod| pod.pool.as_ref())
                .is_some_and(|pool| self.pools.is_suspect(pool)),
            seats: sharing.map_or(0, |sharing| match sharing.prefer {
                Prefer::Fullest => seats::free(&sharing, server),
                Prefer::Emptiest => -seats::free(&sharing, server),
            }),
        };
        Place { group, rank, node: server.node().unwrap_or_default().to_owned() }
    }

    fn touched(&mut self, key: &Key, group: Key) {
        if self.servers.contains_key(key) {
            self.offer(key);
        } else {
            self.offers.set(key, None);
        }
        self.tell(&Changed::Member(key.clone()));
        self.tell(&Changed::Group(group));
    }

    /// Takes `key` out of its group, unless a pod or a server of that name still belongs to it.
    fn leave(&mut self, key: &Key, group_uid: &str) {
        let pod = self.pods.get(key).is_some_and(|pod| pod.group_uid == group_uid);
        let server = self.servers.get(key).is_some_and(|server| server.group_uid == group_uid);
        if !pod && !server {
            self.roster.leave(key, group_uid);
        }
    }
}

pub(super) fn traces<'a>(
    namespace: Option<&str>,
    all: impl Iterator<Item = (&'a Key, String)>,
) -> Vec<Trace> {
    all.filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace))
        .map(|(key, uid)| Trace { key: key.clone(), uid })
        .collect()
}

/// Whether a server is the pod's of its name; also one that somebody has taken the owner from.
fn belongs(server: &Server, pod: &Pod) -> bool {
    server.pod_uid == pod.uid || (server.pod_uid.is_empty() && server.group == pod.group)
}

fn key_of(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<Key> {
    Some(Key::new(metadata.namespace.clone()?, metadata.name.clone()?))
}
