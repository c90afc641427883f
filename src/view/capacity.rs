//! Nodes, capacity pools, and what happens to them, in the picture.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node as KubeNode};

use super::node_claim::NodeClaim;
use super::picture::{Picture, Trace};
use super::source::Source;
use super::{Changed, Key, digest};
use crate::api::{CapacityPool, Evidence, Viability};
use crate::rules::observed::{Node, Pod, SeenPool};
use crate::rules::pool::Pool;
use crate::rules::{evidence, notice};

impl Picture {
    pub(super) fn put_node(&mut self, node: &KubeNode) {
        let Some(name) = node.metadata.name.clone() else { return };
        let mut node = digest::node(node);
        let old = self.nodes.get(&name);
        if let Some(old) = old.filter(|old| !old.boot_id.is_empty() && old.boot_id != node.boot_id) {
            self.lose(&name, &old.clone());
        }
        node.notice = notice::gravest(node.notice.into_iter().chain(self.tidings.notice(&name, &node.uid)));
        self.see(&name, node);
    }

    pub(super) fn remove_node(&mut self, gone: &Trace) {
        if let Some(node) = self.nodes.remove(&gone.key.name) {
            self.lose(&gone.key.name, &node);
        }
    }

    /// A node has gone, or has started anew.
    fn lose(&mut self, name: &str, node: &Node) {
        self.tidings.forget_notice(name);
        let took = |pod: &Pod| pod.node.as_deref() == Some(name) && !pod.deleting && pod.ended().is_none();
        if self.pods.values().any(|pod| took(pod))
            && let Some(loss) = evidence::of_loss(name, node, Timestamp::now())
        {
            self.tidings.happened(loss);
            self.tell(&Changed::Pools);
        }
    }

    /// Takes up a node as it is now.
    fn see(&mut self, name: &str, node: Node) {
        let old = self.nodes.get(name);
        if old == Some(&node) {
            return;
        }
        let zone = old.and_then(|old| old.capacity.zone.clone());
        let another_zone = zone != node.capacity.zone;
        self.nodes.insert(name.to_owned(), node);
        self.tell(&Changed::Pools);
        if another_zone {
            self.tell_placed();
        }
        let on_it = self.pods.iter().filter(|(_, pod)| pod.node.as_deref() == Some(name));
        for key in on_it.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.offer(&key);
            self.tell(&Changed::Member(key));
        }
    }

    /// The nodes that are.
    pub(super) fn known_nodes(&self) -> Vec<Trace> {
        let trace = |name: &String| Trace { key: Key::new("", name), uid: String::new() };
        self.nodes.keys().map(trace).collect()
    }

    /// The zones of the nodes.
    pub(super) fn zones(&self) -> BTreeSet<String> {
        self.nodes.values().filter_map(|node| node.capacity.zone.clone()).collect()
    }

    pub(super) fn put_pool(&mut self, source: Source, pool: &CapacityPool) {
        let Some(seen) = digest::pool(pool).filter(|seen| !self.gone.refuses(source, Some(&seen.uid))) else {
            return;
        };
        let pool = seen.pool.clone();
        if self.pools.put(seen) {
            self.turned(&pool);
        }
        self.tell(&Changed::Pools);
    }

    pub(super) fn remove_pool(&mut self, gone: &Trace) {
        self.gone.note(&gone.uid);
        if let Some(pool) = self.pools.remove(&gone.key.name, &gone.uid) {
            self.turned(&pool);
        }
        self.tell(&Changed::Pools);
    }

    /// The capacity pools that are.
    pub(super) fn known_pools(&self) -> Vec<Trace> {
        let trace = |seen: &SeenPool| Trace { key: Key::new("", &seen.name), uid: seen.uid.clone() };
        self.pools.all().map(trace).collect()
    }

    /// A pool is another for groups and claims: whatever is placed by it is looked at again.
    fn turned(&mut self, pool: &Pool) {
        self.tell_placed();
        let on_it = self.pods.iter().filter(|(_, pod)| pod.pool.as_ref() == Some(pool));
        for key in on_it.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.offer(&key);
            self.tell(&Changed::Member(key));
        }
    }

    /// The groups whose servers go to pools are looked at again.
    fn tell_placed(&mut self) {
        let placed = self.groups.iter().filter(|(_, group)| !group.spec.instance_definitions.is_empty());
        for group in placed.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.tell(&Changed::Group(group));
        }
    }

    /// Whether the pod of this name was made for a pool that is probed.
    pub(super) fn is_probe(&self, key: &Key) -> bool {
        let pool = self.pods.get(key).and_then(|pod| pod.pool.as_ref());
        pool.is_some_and(|pool| self.pools.fitness(pool).verdict == Viability::Probing)
    }

    /// Whether a server is ready on `pool` that was made after this time.
    pub(super) fn has_delivered(&self, pool: &Pool, since: Timestamp) -> bool {
        let placed = self.pods.iter().filter(|(_, pod)| pod.pool.is_some());
        placed.map(|(key, _)| self.member(key)).any(|member| evidence::is_delivered(&member, pool, since))
    }

    pub(super) fn put_event(&mut self, event: &Event) {
        let Some(told) = digest::event(event) else { return };
        let happened = match told.kind {
            "Node" => return self.put_node_event(&told),
            "Pod" => {
                let pod = self.pods.get(&Key::new(told.namespace, told.name));
                let pod = pod.filter(|pod| pod.uid == told.uid);
                pod.and_then(|pod| evidence::of_scale_up(pod, told.message, told.at))
                    .map(|happened| self.tidings.happened(happened))
            }
            "NodeClaim" => evidence::of_node_claim(told.name, told.reason, told.message, told.at)
                .map(|evidence| self.tidings.failed(told.name, evidence)),
            _ => None,
        };
        if happened.is_some() {
            self.tell(&Changed::Pools);
        }
    }

    fn put_node_event(&mut self, told: &digest::Told<'_>) {
        let Some(notice) = notice::of_event(told.reason, told.at, Timestamp::now()) else { return };
        self.tidings.noticed(told.name, told.uid, notice);
        if let Some(mut node) = self.nodes.get(told.name).cloned() {
            let noticed = self.tidings.notice(told.name, &node.uid);
            node.notice = notice::gravest(node.notice.into_iter().chain(noticed));
            self.see(told.name, node);
        }
    }

    pub(super) fn put_node_claim(&mut self, claim: &NodeClaim) {
        let Some(name) = claim.metadata.name.clone() else { return };
        if let Some(pool) = Pool::of_node(&claim.capacity()) {
            self.tidings.claimed(&name, pool);
        }
        if let Some(evidence) = claim.trouble(Timestamp::now()) {
            self.tidings.failed(&name, evidence);
            self.tell(&Changed::Pools);
        }
    }

    /// What may speak against capacity pools.
    pub(super) fn happenings(&self, now: Timestamp) -> Vec<(Pool, Evidence)> {
        let of_nodes = self.nodes.iter().filter_map(|(name, node)| evidence::of_node(name, node, now));
        let placed = self.pods.iter().filter(|(_, pod)| pod.pool.is_some());
        let of_launches = placed.filter_map(|(key, _)| evidence::of_launch(&self.member(key)));
        of_nodes.chain(of_launches).chain(self.tidings.all()).collect()
    }
}
