//! The sample group of `OpenArena` servers, as the demo and the bench change it.

use std::fs;

use anyhow::{Context as _, Result};
use gamekeeper::api::{GameServerGroup, PortPolicy};
use k8s_openapi::api::core::v1::{Container, Namespace};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::workspace::Workspace;

/// The variable of the server that holds its console's password.
pub(crate) const PASSWORD: &str = "rconPassword";

const SAMPLE: &str = "deploy/samples/openarena.yaml";

/// The sample with another name, number and image.
pub(crate) fn group(workspace: &Workspace, name: &str, servers: i32, image: &str) -> Result<GameServerGroup> {
    let path = workspace.root().join(SAMPLE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut group: GameServerGroup =
        serde_saphyr::from_str(&text).with_context(|| format!("{} is no group", path.display()))?;
    group.metadata.name = Some(name.to_owned());
    group.spec.replicas = servers;
    group.spec.max_size = group.spec.max_size.map(|most| most.max(servers));
    game(&mut group)?.image = Some(image.to_owned());
    Ok(group)
}

/// The container that is the game.
pub(crate) fn game(group: &mut GameServerGroup) -> Result<&mut Container> {
    let pod = group.spec.template.spec.as_mut();
    pod.and_then(|pod| pod.containers.first_mut())
        .with_context(|| format!("the template in {SAMPLE} has no container"))
}

/// Gives its servers' consoles a password, without which they obey nobody.
pub(crate) fn open_console(group: &mut GameServerGroup, password: &str) -> Result<()> {
    let game = game(group)?;
    let sample = game.args.take().unwrap_or_default();
    let console = ["+set", PASSWORD, password].map(str::to_owned);
    game.args = Some(console.into_iter().chain(sample).collect());
    Ok(())
}

/// Makes its servers answer at their pods' own addresses, as the pods of a Deployment do.
pub(crate) fn use_pod_addresses(group: &mut GameServerGroup) {
    for port in &mut group.spec.ports {
        port.policy = PortPolicy::PodIp;
    }
}

/// Makes the namespace if it is not there.
pub(crate) async fn ensure_namespace(client: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let wanted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    namespaces
        .patch(name, &PatchParams::apply("gamekeeper-xtask"), &Patch::Apply(&wanted))
        .await
        .with_context(|| format!("cannot make the namespace {name}"))
        .map(drop)
}
