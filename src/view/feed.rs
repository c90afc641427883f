//! The watches that feed the view, one a kind of object.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::time::Duration;

use futures::stream::{SelectAll, StreamExt};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::{self, Event as Brought};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use super::echoes::Echoes;
use super::node_claim::NodeClaim;
use super::picture::{Picture, Trace};
use super::readable::Readable;
use super::source::Source;
use super::{Key, View, digest};
use crate::api::names::{LABEL_GROUP_UID, LABEL_OWNER};
use crate::api::{CapacityPool, GameServer, GameServerClaim, GameServerGroup};
use crate::rules::observed::Version;

/// How long a watch lasts before it is taken up anew: as long as one may go on without a word that has lost its
/// object's storage, as when a definition is deleted and applied again.
const WATCH_SECONDS: u32 = 120;

/// The namespaces that the operator looks after.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Scope {
    /// All of them.
    Cluster,
    /// These.
    Namespaces(Vec<String>),
}

/// How many kinds of objects are awaited.
pub(super) const KINDS: usize = 6;

/// Feeds `view` for as long as it is polled. A watch that breaks is taken up again, with back-off.
/// Of the capacity pools it shows those of `owner`.
pub async fn feed(client: Client, scope: Scope, owner: String, view: View) {
    let every = watcher::Config::default().timeout(WATCH_SECONDS);
    let ours = every.clone().labels(LABEL_GROUP_UID);
    let of_owner = every.clone().labels(&format!("{LABEL_OWNER}={owner}"));
    tokio::join!(
        run::<GameServerGroup>(&view, namespaced(&client, &scope), every.clone()),
        run::<Pod>(&view, namespaced(&client, &scope), ours),
        run::<GameServer>(&view, namespaced(&client, &scope), every.clone()),
        run::<GameServerClaim>(&view, namespaced(&client, &scope), every.clone()),
        run::<CapacityPool>(&view, vec![(None, Api::all(client.clone()))], of_owner),
        run::<Node>(&view, vec![(None, Api::all(client.clone()))], every.clone()),
        run::<Event>(&view, of_no_namespace(&client), every.clone().fields("involvedObject.kind=Node")),
        run::<Event>(&view, of_no_namespace(&client), every.clone().fields("involvedObject.kind=NodeClaim")),
        run::<Event>(&view, namespaced(&client, &scope), every.clone().fields(NO_SCALE_UP)),
        run_where_served::<NodeClaim>(&view, Api::all(client.clone()), every),
    );
}

/// The cluster autoscaler's events of pods that it does nothing for.
const NO_SCALE_UP: &str = "involvedObject.kind=Pod,reason=NotTriggerScaleUp";

/// Where the events of what has no namespace are.
const NO_NAMESPACE: &str = "default";

fn of_no_namespace(client: &Client) -> Vec<(Option<String>, Api<Readable<Event>>)> {
    vec![(Some(NO_NAMESPACE.to_owned()), Api::namespaced(client.clone(), NO_NAMESPACE))]
}

/// How often it is asked whether a kind that need not be there is served by now.
const ASK_AGAIN: Duration = Duration::from_mins(5);

/// Watches a kind that need not be there, once it is.
async fn run_where_served<K: Fed>(view: &View, api: Api<Readable<K>>, config: watcher::Config) {
    while let Err(error) = api.list(&ListParams::default().limit(1)).await {
        debug!(kind = %K::kind(&()), %error, "not to be watched for now");
        tokio::time::sleep(ASK_AGAIN).await;
    }
    run(view, vec![(None, api)], config).await;
}

/// One watch of all namespaces, or one of each.
fn namespaced<K>(client: &Client, scope: &Scope) -> Vec<(Option<String>, Api<Readable<K>>)>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    let one = |name: &String| (Some(name.clone()), Api::namespaced(client.clone(), name));
    match scope {
        Scope::Cluster => vec![(None, Api::all(client.clone()))],
        Scope::Namespaces(names) => names.iter().map(one).collect(),
    }
}

/// A kind of object that feeds the picture.
pub(super) trait Fed:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static
{
    /// Whether nothing is decided before these have been listed.
    const IS_AWAITED: bool = true;
    fn put(picture: &mut Picture, source: Source, object: &Self);
    fn remove(picture: &mut Picture, gone: &Trace);
    /// Notes that this one cannot be read: it is known no more.
    fn unreadable(picture: &mut Picture, there: &Trace, why: &str) {
        warn!(kind = %Self::kind(&()), object = %there.key, why, "an object cannot be read");
        Self::remove(picture, there);
    }
    /// What the picture has of this kind, in one namespace or in all.
    fn known(picture: &Picture, namespace: Option<&str>) -> Vec<Trace>;
    /// Notes that everything up to this version has been delivered in this namespace.
    fn delivered(_: &mut Echoes, _namespace: &str, _: Version) {}
}

impl Fed for GameServerGroup {
    fn put(picture: &mut Picture, source: Source, object: &Self) {
        picture.put_group(source, object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_group(gone);
    }
    fn unreadable(picture: &mut Picture, there: &Trace, why: &str) {
        picture.unreadable_group(there, why);
    }
    fn known(picture: &Picture, namespace: Option<&str>) -> Vec<Trace> {
        picture.known_groups(namespace)
    }
}

impl Fed for Pod {
    fn put(picture: &mut Picture, source: Source, object: &Self) {
        picture.put_pod(source, object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_pod(gone);
    }
    fn known(picture: &Picture, namespace: Option<&str>) -> Vec<Trace> {
        picture.known_pods(namespace)
    }
}

impl Fed for GameServer {
    fn put(picture: &mut Picture, source: Source, object: &Self) {
        picture.put_server(source, object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_server(gone);
    }
    fn known(picture: &Picture, namespace: Option<&str>) -> Vec<Trace> {
        picture.known_servers(namespace)
    }
    fn delivered(echoes: &mut Echoes, namespace: &str, version: Version) {
        echoes.delivered(namespace, version);
    }
}

impl Fed for GameServerClaim {
    fn put(picture: &mut Picture, source: Source, object: &Self) {
        picture.put_claim(source, object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_claim(gone);
    }
    fn known(picture: &Picture, namespace: Option<&str>) -> Vec<Trace> {
        picture.known_claims(namespace)
    }
}

impl Fed for CapacityPool {
    fn put(picture: &mut Picture, source: Source, object: &Self) {
        picture.put_pool(source, object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_pool(gone);
    }
    fn known(picture: &Picture, _: Option<&str>) -> Vec<Trace> {
        picture.known_pools()
    }
}

impl Fed for Node {
    fn put(picture: &mut Picture, _: Source, object: &Self) {
        picture.put_node(object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_node(gone);
    }
    fn known(picture: &Picture, _: Option<&str>) -> Vec<Trace> {
        picture.known_nodes()
    }
}

/// Events go, and what they told stands.
impl Fed for Event {
    const IS_AWAITED: bool = false;
    fn put(picture: &mut Picture, _: Source, object: &Self) {
        picture.put_event(object);
    }
    fn remove(_: &mut Picture, _: &Trace) {}
    fn known(_: &Picture, _: Option<&str>) -> Vec<Trace> {
        Vec::new()
    }
}

impl Fed for NodeClaim {
    const IS_AWAITED: bool = false;
    fn put(picture: &mut Picture, _: Source, object: &Self) {
        picture.put_node_claim(object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.tidings.claim_gone(&gone.key.name);
    }
    fn known(picture: &Picture, _: Option<&str>) -> Vec<Trace> {
        let trace = |name: &String| Trace { key: Key::new("", name), uid: String::new() };
        picture.tidings.known_claims().map(trace).collect()
    }
}

async fn run<K: Fed>(view: &View, watches: Vec<(Option<String>, Api<Readable<K>>)>, config: watcher::Config) {
    let mut intakes: Vec<Intake<K>> =
        watches.iter().map(|(namespace, _)| Intake::new(view.clone(), namespace.clone())).collect();
    let mut events: SelectAll<_> = watches
        .into_iter()
        .enumerate()
        .map(|(index, (_, api))| {
            watch(api, config.clone()).default_backoff().map(move |event| (index, event)).boxed()
        })
        .collect();
    while let Some((index, event)) = events.next().await {
        match (intakes.get_mut(index), event) {
            (Some(intake), Ok(event)) => intake.take_up(event),
            (Some(_), Err(error)) => {
                warn!(kind = %K::kind(&()), %error, "watch broke; it is taken up again");
            }
            (None, _) => {}
        }
        if K::IS_AWAITED && intakes.iter().all(|intake| intake.complete) {
            view.listed.send_if_modified(|listed| listed.insert(K::kind(&()).into_owned()));
        }
    }
}

/// What one watch delivers, taken into the picture.
pub(super) struct Intake<K> {
    view: View,
    namespace: Option<String>,
    /// Whether a list has come in whole.
    complete: bool,
    /// What the picture had when a list began, and the list does not name so far. A list sends no deletions, and
    /// the picture has more than this watch brought: answers to writes.
    missing: BTreeMap<Key, Trace>,
    /// The newest version of each namespace in the list so far. A list comes in the order of names: only when it is
    /// whole has everything up to these versions been delivered.
    listed: BTreeMap<String, Version>,
    kind: PhantomData<K>,
}

impl<K: Fed> Intake<K> {
    pub(super) fn new(view: View, namespace: Option<String>) -> Self {
        let (missing, listed) = (BTreeMap::new(), BTreeMap::new());
        Self { view, namespace, complete: false, missing, listed, kind: PhantomData }
    }

    pub(super) fn take_up(&mut self, event: Brought<Readable<K>>) {
        match event {
            Brought::Init => {
                let known = K::known(&self.view.picture.read(), self.namespace.as_deref());
                self.missing = known.into_iter().map(|trace| (trace.key.clone(), trace)).collect();
                self.listed.clear();
            }
            Brought::InitApply(object) => {
                let (there, version) = self.put(Source::List, &object);
                if self.missing.get(&there.key).is_some_and(|known| known.uid == there.uid) {
                    self.missing.remove(&there.key);
                }
                let newest = self.listed.entry(there.key.namespace).or_default();
                *newest = version.max(*newest);
            }
            Brought::InitDone => {
                for gone in std::mem::take(&mut self.missing).into_values() {
                    K::remove(&mut self.view.picture.write(), &gone);
                }
                let listed = std::mem::take(&mut self.listed);
                let mut echoes = self.view.echoes.lock();
                for (namespace, version) in &listed {
                    K::delivered(&mut echoes, namespace, *version);
                }
                self.complete = true;
            }
            Brought::Apply(object) => {
                let (there, version) = self.put(Source::Watch, &object);
                self.delivered(&there, version);
            }
            Brought::Delete(object) => {
                let gone = trace(&object);
                K::remove(&mut self.view.picture.write(), &gone);
                self.delivered(&gone, digest::version(object.meta()));
            }
        }
    }

    fn put(&self, source: Source, object: &Readable<K>) -> (Trace, Version) {
        let there = trace(object);
        let mut picture = self.view.picture.write();
        match &object.object {
            Ok(object) => K::put(&mut picture, source, object),
            Err(why) => K::unreadable(&mut picture, &there, why),
        }
        (there, digest::version(object.meta()))
    }

    fn delivered(&self, trace: &Trace, version: Version) {
        K::delivered(&mut self.view.echoes.lock(), &trace.key.namespace, version);
    }
}

fn trace<K: Fed>(object: &Readable<K>) -> Trace {
    let key = Key::new(object.namespace().unwrap_or_default(), object.name_any());
    // The name of a node tells it, and that of a NodeClaim; that of anything else may be used again.
    let by_name = [Node::kind(&()), NodeClaim::kind(&())].contains(&K::kind(&()));
    let uid = if by_name { String::new() } else { object.uid().unwrap_or_default() };
    Trace { key, uid }
}
