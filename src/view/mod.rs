//! The picture of the cluster: fed by watches and by the answers to our own writes, read by everyone.
//!
//! It holds what the rules look at and no whole objects, so that thousands of servers cost megabytes. Each
//! object's newest version wins, whichever way it came: an old watch event cannot undo what a write has shown
//! already (case C2).

mod asked;
mod bearers;
mod capacity;
mod deadlines;
mod digest;
mod echoes;
mod feed;
mod gone;
mod held;
mod index;
mod listeners;
mod node_claim;
mod picture;
mod pools;
mod readable;
mod roster;
mod source;
mod tidings;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, mpsc, watch};

use crate::api::{
    CapacityPool, CapacityType, Claim, Evidence, GameServer, GameServerClaim, GameServerGroup, State,
};
use crate::rules::bounds::Demand;
use crate::rules::observed::{Asked, Member, Node, SeenPool, Server, Version};
use crate::rules::offer::Withheld;
use crate::rules::pool::{self, Fitness, Pool};
use crate::rules::ports;
use crate::rules::rivals::Rivals;

use echoes::Echoes;
pub use feed::{Scope, feed};
pub use held::Held;
use picture::{Picture, Trace};
use source::Source;

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
    /// A `GameServerClaim` of this name, or the server that bears its id.
    Claim(Key),
    /// A capacity pool, or what may speak against one.
    Pools,
}

/// How many servers a group has.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Census {
    /// By state; states that no server is in are left out.
    pub states: BTreeMap<State, u32>,
    /// How many run, by how their nodes are paid for.
    pub instances: BTreeMap<Option<CapacityType>, u32>,
    /// How many a claim may be given.
    pub on_offer: u32,
}

/// The view: cheap to clone, shared by all parts of the operator.
#[derive(Clone)]
pub struct View {
    picture: Arc<RwLock<Picture>>,
    echoes: Arc<Mutex<Echoes>>,
    /// The kinds of objects whose first list has come in.
    listed: watch::Sender<BTreeSet<String>>,
}

impl View {
    /// An empty view for the replica of this name, which takes servers in an order of its own.
    pub fn of_replica(name: &str) -> Self {
        let picture = Arc::new(RwLock::new(Picture::of_replica(name)));
        Self { picture, echoes: Arc::default(), listed: watch::Sender::new(BTreeSet::new()) }
    }

    /// Waits until each watch has listed what there is: a picture with holes decides nothing.
    pub async fn ready(&self) {
        // The sender lives in self, so the wait ends by the condition alone.
        let _ = self.listed.subscribe().wait_for(|listed| listed.len() == feed::KINDS).await;
    }

    /// Whether each watch has listed what there is.
    pub fn is_ready(&self) -> bool {
        self.listed.borrow().len() == feed::KINDS
    }

    /// Waits until the watch has delivered a game server of `namespace` at `version` or newer: the echo of one's
    /// own write, after which all that was written there earlier has been seen too.
    pub async fn echoed(&self, namespace: &str, version: Version) {
        let wait = self.echoes.lock().wait(namespace, version);
        if let Some(heard) = wait {
            // The sender stays until the version has come.
            let _ = heard.await;
        }
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

    /// A node.
    pub fn node(&self, name: &str) -> Option<Node> {
        self.picture.read().nodes.get(name).cloned()
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.picture.read().nodes.len()
    }

    /// How many pods of ours hold each host port, in any namespace that is watched.
    pub fn host_ports(&self) -> ports::Held {
        self.picture.read().host_ports()
    }

    /// Takes the first server on offer in `group` that `fits` out of the offer. It is on offer again when the hold is
    /// dropped, unless it has changed by then.
    pub fn hold_one(&self, group: &Key, fits: impl FnMut(&Server) -> bool) -> Option<Held> {
        let (key, server) = self.picture.write().hold(group, fits)?;
        Some(Held::new(key, server, Arc::clone(&self.picture)))
    }

    /// Whether a server of `group` that `fits` is on offer.
    pub fn offers(&self, group: &Key, fits: impl Fn(&Server) -> bool) -> bool {
        self.picture.read().first(group, fits).is_some()
    }

    /// Why a server is not on offer; none if it is, or is in the hands of a claim.
    pub fn withheld(&self, server: &Key) -> Option<Withheld> {
        let picture = self.picture.read();
        picture.withheld(server, &picture.member(server))
    }

    /// A `GameServerClaim`.
    pub fn asked(&self, key: &Key) -> Option<Arc<Asked>> {
        self.picture.read().asked.get(key)
    }

    /// Who waits for a server in `namespace`, the first first.
    pub fn waiting(&self, namespace: &str, now: Timestamp) -> Vec<Arc<Asked>> {
        self.picture.read().waiting(namespace, now)
    }

    /// The namespaces in which claims are pending.
    pub fn namespaces_waiting(&self) -> Vec<String> {
        self.picture.read().asked.namespaces_pending()
    }

    /// How many claims that wait make `group` want another server, and how many of its servers are in use.
    pub fn demand(&self, group: &Key, now: Timestamp) -> Demand {
        self.picture.read().demand(group, now)
    }

    /// Tells of each change of a claim, or of the server that bears its id.
    pub fn listen(&self, claim: &Key) -> Arc<Notify> {
        self.picture.write().listen(claim)
    }

    /// The capacity pools that are.
    pub fn pools(&self) -> Vec<SeenPool> {
        self.picture.read().pools.all().cloned().collect()
    }

    /// What a pool is worth to groups. One of which nothing is known is viable.
    pub fn fitness(&self, pool: &Pool) -> Fitness {
        self.picture.read().pools.fitness(pool)
    }

    /// Whether a server has got ready on `pool` that was made after this time.
    pub fn has_delivered(&self, pool: &Pool, since: Timestamp) -> bool {
        self.picture.read().has_delivered(pool, since)
    }

    /// The zones of pools: these, or those of the nodes where none is named.
    pub fn zones(&self, named: &BTreeSet<String>) -> BTreeSet<String> {
        if named.is_empty() { self.picture.read().zones() } else { named.clone() }
    }

    /// The pools that groups name, in these zones, or in those of the nodes where none is named.
    pub fn pools_wanted(&self, zones: &BTreeSet<String>) -> BTreeSet<Pool> {
        let zones = self.zones(zones);
        let picture = self.picture.read();
        let named = picture.groups.values().flat_map(|group| pool::named(&group.spec, &zones));
        named.map(|(pool, _)| pool).collect()
    }

    /// What may speak against capacity pools.
    pub fn happenings(&self, now: Timestamp) -> Vec<(Pool, Evidence)> {
        self.picture.read().happenings(now)
    }

    /// Takes up a capacity pool as one of our own writes has left it.
    pub fn wrote_pool(&self, pool: &CapacityPool) {
        self.picture.write().put_pool(Source::Write, pool);
    }

    /// Takes up a claim as one of our own writes has left it.
    pub fn wrote_claim(&self, claim: &GameServerClaim) {
        self.picture.write().put_claim(Source::Write, claim);
    }

    /// How many servers each group has, in which states, and how many of them are on offer. Servers of no group that
    /// is there are counted under empty names.
    pub fn census(&self) -> BTreeMap<Key, Census> {
        self.picture.read().census()
    }

    /// A server.
    pub fn server(&self, key: &Key) -> Option<Server> {
        self.picture.read().servers.get(key).map(|server| Server::clone(server))
    }

    /// The servers of `namespace` that are `wanted`, in the order of their names, `limit` of them from after this name on.
    pub fn servers_after(
        &self,
        namespace: &str,
        after: Option<&str>,
        limit: usize,
        wanted: impl Fn(&Server) -> bool,
    ) -> Vec<Server> {
        let from = Key::new(namespace, after.unwrap_or_default());
        let picture = self.picture.read();
        let later = picture.servers.range((Bound::Excluded(from), Bound::Unbounded));
        let of_namespace = later.take_while(|(key, _)| key.namespace == namespace);
        let wanted = of_namespace.map(|(_, server)| &**server).filter(|server| wanted(server));
        wanted.take(limit).cloned().collect()
    }

    /// The servers that bear a claim of this id in `namespace`, in the order in which their claims were seen.
    pub fn claimed_with(&self, namespace: &str, id: &str) -> Vec<Server> {
        self.picture.read().claimed_with(namespace, id)
    }

    /// What else is held by claim `id`, beside the first.
    pub fn rivals(&self, namespace: &str, id: &str) -> Rivals {
        self.picture.read().rivals(namespace, id)
    }

    /// The claims on this server whose ids held another server before.
    pub fn surplus(&self, key: &Key) -> Vec<Claim> {
        self.picture.read().surplus(key)
    }

    /// Whether another server than the one with this UID holds claim `id`, and it cannot be told which came first: it
    /// was seen in a list or a read, some time after.
    pub fn is_disputed(&self, namespace: &str, id: &str, uid: &str) -> bool {
        self.picture.read().is_disputed(namespace, id, uid)
    }

    /// Whether a server of `group` that `fits` is in the hands of a claim of this replica.
    pub fn is_in_hand(&self, group: &Key, fits: impl Fn(&Server) -> bool) -> bool {
        self.picture.read().is_in_hand(group, fits)
    }

    /// The servers of `group` on which a claim is due.
    pub fn due_in(&self, group: &Key, now: Timestamp) -> Vec<Server> {
        self.picture.read().due_in(group, now)
    }

    /// Takes up a game server as one of our own writes has left it, and gives its digest.
    pub fn wrote_server(&self, server: &GameServer) -> Option<Server> {
        self.picture.write().put_server(Source::Write, server);
        digest::server(server)
    }

    /// Takes up a game server as the API server has it now, and gives its digest.
    pub fn read_server(&self, server: &GameServer) -> Option<Server> {
        self.picture.write().put_server(Source::Read, server);
        digest::server(server)
    }

    /// Takes up that one of our own writes was the end of a game server.
    pub fn server_gone(&self, key: &Key, uid: &str) {
        self.picture.write().remove_server(&Trace { key: key.clone(), uid: uid.to_owned() });
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
