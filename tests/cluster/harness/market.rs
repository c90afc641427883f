//! Capacity pools on nodes that kwok answers for, and groups over them.

use std::collections::BTreeMap;

use gamekeeper::api::{CapacityPool, CapacityType, GameServer, State, Viability};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::world::{silent_group, status};
use super::{World, eventually};

const ZONE: &str = "zone-1";

/// A world whose operator knows one zone, with nodes of these types, spot and on demand.
pub(crate) async fn market(name: &str, types: &[&str]) -> World {
    let mut world = World::without_operator(name).await;
    market_with(&mut world, types, &[]).await;
    world
}

/// Starts the operator of a world with these arguments too, and makes its nodes.
pub(crate) async fn market_with(world: &mut World, types: &[&str], arguments: &[&str]) {
    world.with_arguments(&[&["--zone", ZONE], arguments].concat());
    world.start_operator().await;
    for type_ in types {
        for capacity_type in ["spot", "on-demand"] {
            node(world, type_, capacity_type, "1").await;
        }
    }
}

/// Instance types are the cluster's: each world has its own.
pub(crate) fn type_in(world: &World, type_: &str) -> String {
    format!("{}.{type_}", world.namespace)
}

pub(crate) async fn node(world: &World, type_: &str, capacity_type: &str, number: &str) -> String {
    let labels = json!({
        "karpenter.sh/capacity-type": capacity_type, "topology.kubernetes.io/zone": ZONE,
        "node.kubernetes.io/instance-type": type_in(world, type_),
    });
    world.labelled_node(&format!("{type_}-{capacity_type}-{number}"), &labels).await
}

pub(crate) async fn group_on(world: &World, types: &[&str], replicas: u32, more: &str) {
    let types: Vec<Value> =
        types.iter().map(|type_| json!({"instanceType": type_in(world, type_)})).collect();
    let spec = format!("replicas: {replicas}\n          instanceDefinitions: {}{more}", json!(types));
    let yaml = silent_group("arena", replicas).replace(&format!("replicas: {replicas}"), &spec);
    world.apply(&world.on_fake_nodes(&yaml)).await;
}

pub(crate) fn pool_api(world: &World) -> Api<CapacityPool> {
    Api::all(world.client.clone())
}

/// The pool of this world's, once it has this verdict.
pub(crate) async fn pool_until(
    world: &World,
    type_: &str,
    capacity_type: CapacityType,
    verdict: Viability,
) -> CapacityPool {
    let ours = ListParams::default().labels(&format!("gamekeeper.dev/operator={}", world.namespace));
    let type_ = type_in(world, type_);
    let look = || async {
        let pools = pool_api(world).list(&ours).await.unwrap().items;
        let mut pools = pools.into_iter();
        pools.find(|pool| pool.spec.instance_type == type_ && pool.spec.capacity_type == capacity_type)
    };
    let said = |pool: &Option<CapacityPool>| {
        let status = pool.as_ref().and_then(|pool| pool.status.as_ref());
        status.is_some_and(|status| status.verdict == verdict && status.since.is_some())
    };
    eventually("the pool has its verdict", look, said).await.unwrap()
}

pub(crate) async fn hold_for(world: &World, pool: &CapacityPool, verdict: &str) {
    let patch = Patch::Merge(json!({"spec": {"override": verdict}}));
    pool_api(world).patch(&pool.name_any(), &PatchParams::default(), &patch).await.unwrap();
}

/// Says something of a pool, as a tool of the user's would.
pub(crate) async fn advise(world: &World, pool: &CapacityPool, advice: Value) -> Result<(), kube::Error> {
    let patch = Patch::Merge(json!({"spec": {"advice": advice}}));
    pool_api(world).patch(&pool.name_any(), &PatchParams::default(), &patch).await.map(drop)
}

/// The short name of the type that a server's pod was made for.
pub(crate) fn type_of(server: &GameServer) -> Option<String> {
    let type_ = status(server).instance?.capacity.instance_type?;
    type_.rsplit('.').next().map(str::to_owned)
}

pub(crate) fn lives(server: &GameServer) -> bool {
    status(server).state < State::Terminating
}

/// How many servers that live each type has.
pub(crate) fn numbers(servers: &[GameServer]) -> BTreeMap<String, usize> {
    let mut numbers = BTreeMap::new();
    for type_ in servers.iter().filter(|server| lives(server)).filter_map(type_of) {
        *numbers.entry(type_).or_default() += 1;
    }
    numbers
}

pub(crate) fn on<'a>(servers: &'a [GameServer], type_: &str) -> Vec<&'a GameServer> {
    servers.iter().filter(|server| type_of(server).as_deref() == Some(type_)).collect()
}

/// Reports all that comes up as ready, until the servers of the group are as `good` says.
pub(crate) async fn servers_until(
    world: &World,
    what: &str,
    good: impl Fn(&[GameServer]) -> bool,
) -> Vec<GameServer> {
    let look = || async {
        let servers = world.servers().await;
        for server in servers.iter().filter(|server| status(server).state == State::Initializing) {
            let _ = world.try_patch_status(&server.name_any(), json!({"state": "StandingBy"})).await;
        }
        servers
    };
    eventually(what, look, |servers| good(servers)).await
}

pub(crate) async fn made_for(world: &World, type_: &str) -> Vec<Pod> {
    let of_type = format!("{}/", type_in(world, type_));
    let pods = world.pods().await.into_iter();
    pods.filter(|pod| {
        pod.annotations().get("gamekeeper.dev/capacity-pool").is_some_and(|pool| pool.starts_with(&of_type))
    })
    .collect()
}

pub(crate) fn is_on(capacity_type: CapacityType) -> impl Fn(&GameServer) -> bool {
    move |server| {
        let instance = status(server).instance;
        instance.is_some_and(|instance| instance.capacity.capacity_type == Some(capacity_type))
    }
}

/// Whether so many servers that live are all there, on such capacity, ready.
pub(crate) fn all_on(count: usize, capacity_type: CapacityType) -> impl Fn(&[GameServer]) -> bool {
    move |servers| {
        servers.len() == count
            && servers.iter().all(is_on(capacity_type))
            && servers.iter().all(|server| status(server).state >= State::StandingBy)
    }
}
