//! The watches that feed the view, one a kind of object.

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures::stream::{SelectAll, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::picture::{Picture, Trace};
use super::{Key, View, Watched, digest};
use crate::api::names::LABEL_GROUP_UID;
use crate::api::{GameServer, GameServerGroup};

/// The namespaces that the operator looks after.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Scope {
    /// All of them.
    Cluster,
    /// These.
    Namespaces(Vec<String>),
}

/// How many kinds of objects are watched.
pub(super) const KINDS: usize = 4;

/// Feeds `view` for as long as it is polled. A watch that breaks is taken up again, with back-off.
pub async fn feed(client: Client, scope: Scope, view: View) {
    let ours = watcher::Config::default().labels(LABEL_GROUP_UID);
    let every = watcher::Config::default();
    tokio::join!(
        run::<GameServerGroup>(&view, namespaced(&client, &scope), every.clone()),
        run::<Pod>(&view, namespaced(&client, &scope), ours),
        run::<GameServer>(&view, namespaced(&client, &scope), every.clone()),
        run::<Node>(&view, vec![Api::all(client.clone())], every),
    );
}

fn namespaced<K>(client: &Client, scope: &Scope) -> Vec<Api<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match scope {
        Scope::Cluster => vec![Api::all(client.clone())],
        Scope::Namespaces(names) => names.iter().map(|name| Api::namespaced(client.clone(), name)).collect(),
    }
}

/// A kind of object that feeds the picture.
trait Fed: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static {
    fn put(picture: &mut Picture, object: &Self);
    fn remove(picture: &mut Picture, gone: &Trace);
    /// Notes that a watch has delivered this.
    fn delivered(_: &mut Watched, _: &Trace) {}
}

impl Fed for GameServerGroup {
    fn put(picture: &mut Picture, object: &Self) {
        picture.put_group(object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_group(gone);
    }
}

impl Fed for Pod {
    fn put(picture: &mut Picture, object: &Self) {
        picture.put_pod(object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_pod(gone);
    }
}

impl Fed for GameServer {
    fn put(picture: &mut Picture, object: &Self) {
        picture.put_server(object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_server(gone);
    }
    fn delivered(watched: &mut Watched, seen: &Trace) {
        let newest = watched.servers.entry(seen.key.namespace.clone()).or_default();
        *newest = seen.version.max(*newest);
    }
}

impl Fed for Node {
    fn put(picture: &mut Picture, object: &Self) {
        picture.put_node(object);
    }
    fn remove(picture: &mut Picture, gone: &Trace) {
        picture.remove_node(gone);
    }
}

/// What one watch knows, so that a list taken anew shows what has gone in between: a list sends no deletions.
#[derive(Debug, Default)]
struct Known {
    now: BTreeMap<Key, Trace>,
    listing: BTreeMap<Key, Trace>,
}

async fn run<K: Fed>(view: &View, apis: Vec<Api<K>>, config: watcher::Config) {
    let mut listed = vec![false; apis.len()];
    let mut known: Vec<Known> = apis.iter().map(|_| Known::default()).collect();
    let mut events: SelectAll<_> = apis
        .into_iter()
        .enumerate()
        .map(|(index, api)| {
            watch(api, config.clone()).default_backoff().map(move |event| (index, event)).boxed()
        })
        .collect();
    while let Some((index, event)) = events.next().await {
        let Some(known) = known.get_mut(index) else { continue };
        match event {
            Ok(event) => {
                let complete = matches!(event, Event::InitDone);
                take_up(view, known, event);
                if let Some(done) = listed.get_mut(index).filter(|_| complete) {
                    *done = true;
                    if listed.iter().all(|done| *done) {
                        // A watch that lists anew is counted once more, which changes nothing.
                        view.watched.send_modify(|watched| {
                            watched.listed.insert(K::kind(&()).into_owned());
                        });
                    }
                }
            }
            Err(error) => warn!(kind = %K::kind(&()), %error, "watch broke; it is taken up again"),
        }
    }
}

fn take_up<K: Fed>(view: &View, known: &mut Known, event: Event<K>) {
    match event {
        Event::Init => known.listing.clear(),
        Event::InitApply(object) => {
            let seen = put(view, &object);
            known.listing.insert(seen.key.clone(), seen);
        }
        Event::InitDone => {
            let listing = std::mem::take(&mut known.listing);
            let before = std::mem::replace(&mut known.now, listing);
            for gone in before.into_values() {
                if known.now.get(&gone.key).is_none_or(|there| there.uid != gone.uid) {
                    K::remove(&mut view.picture.write(), &gone);
                }
            }
        }
        Event::Apply(object) => {
            let seen = put(view, &object);
            known.now.insert(seen.key.clone(), seen);
        }
        Event::Delete(object) => {
            let gone = trace(&object);
            known.now.remove(&gone.key);
            K::remove(&mut view.picture.write(), &gone);
            view.watched.send_modify(|watched| K::delivered(watched, &gone));
        }
    }
}

fn put<K: Fed>(view: &View, object: &K) -> Trace {
    K::put(&mut view.picture.write(), object);
    let seen = trace(object);
    view.watched.send_modify(|watched| K::delivered(watched, &seen));
    seen
}

fn trace<K: Fed>(object: &K) -> Trace {
    Trace {
        key: Key::new(object.namespace().unwrap_or_default(), object.name_any()),
        uid: object.uid().unwrap_or_default(),
        version: digest::version(object.meta()),
    }
}
