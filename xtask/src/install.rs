//! The operator on a cluster: its images, its definitions and its Helm release.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::sleep;

use crate::access::Access;
use crate::cluster::Cluster;
use crate::command::output;
use crate::image::{self, REPOSITORY, VERSION};
use crate::progress::Progress;
use crate::trouble;
use crate::workspace::Workspace;

/// The chart, in the checkout.
pub(crate) const CHART: &str = "charts/gamekeeper";

/// The name of the Helm release.
pub(crate) const RELEASE: &str = "gamekeeper";

/// The namespace of the operator.
pub(crate) const NAMESPACE: &str = "gamekeeper-system";

/// The label that the chart gives the operator's pods.
pub(crate) const SELECTOR: &str = "app.kubernetes.io/name=gamekeeper";

/// Stands for a registry that has not been named.
const REGISTRY: &str = "REGISTRY";

/// How long the operator may take until it is ready.
const PATIENCE: Duration = Duration::from_mins(3);

/// How long an image may be refused to a pod until that is taken as final.
const PULL_PATIENCE: Duration = Duration::from_secs(30);

/// The images that pods name.
#[derive(Debug)]
pub(crate) struct Images {
    /// The operator and the agent.
    pub(crate) operator: String,
    /// What tells one build of the operator from another of the same name.
    build: String,
    /// The game of the sample.
    pub(crate) openarena: String,
    /// bash and curl.
    pub(crate) shell: String,
    /// Where they can be pushed to; to be chosen by the user if it was not named.
    registry: String,
}

impl Images {
    /// Packs the images, with `program` as the operator, and puts them into the node.
    pub(crate) fn import(workspace: &Workspace, cluster: &Cluster, program: &Path) -> Result<Self> {
        let output = workspace.images();
        let operator = image::operator(program, &output)?;
        let openarena = image::openarena(workspace, &output)?;
        let shell = image::shell(workspace, &output)?;
        for built in [&operator, &openarena, &shell] {
            cluster.ensure_image(built)?;
        }
        Ok(Self {
            operator: operator.name,
            build: operator.id,
            openarena: openarena.name,
            shell: shell.name,
            registry: REGISTRY.to_owned(),
        })
    }

    /// The images that nodes pull from the registry at `prefix`, or that were loaded into them under their own names.
    pub(crate) fn expected(registry: Option<&str>) -> Self {
        let prefix = registry.unwrap_or(REPOSITORY).trim_end_matches('/');
        let name = |repository: &str| format!("{prefix}/{repository}:{VERSION}");
        Self {
            operator: name("gamekeeper"),
            build: VERSION.to_owned(),
            openarena: name("samples/openarena"),
            shell: name("samples/shell"),
            registry: registry.map_or(REGISTRY, |_| prefix).to_owned(),
        }
    }

    /// How images come to be where a cluster's nodes find them.
    pub(crate) fn instructions(&self) -> String {
        let push = |containerfile: &str, repository: &str, folder: &str| {
            let image = format!("{}/{repository}:{VERSION}", self.registry);
            format!(
                "  docker build -f deploy/images/{containerfile}/Containerfile -t {image} \
                 --build-arg VERSION={VERSION} {folder} && docker push {image}\n"
            )
        };
        let mut text = format!(
            "The cluster's nodes must have, or be able to pull, {} and {}.\n\
             By way of a registry that is named with --registry:\n",
            self.operator, self.openarena
        );
        text += &push("operator", "gamekeeper", ".");
        text += &push("openarena", "samples/openarena", "deploy/images/openarena");
        text += "Or loaded into the nodes, without --registry: `cargo xtask image` says how to load its archives.";
        text
    }
}

/// Installs the operator, or brings it up to date, and waits until all of its replicas are ready.
///
/// `values` are those of the chart, the image apart.
pub(crate) async fn operator(
    workspace: &Workspace,
    access: &Access,
    images: &Images,
    values: &Value,
) -> Result<()> {
    // Helm makes definitions, but never changes them.
    let mut definitions = access.kubectl();
    definitions
        .args(["apply", "--server-side", "--force-conflicts", "--field-manager=gamekeeper-install"])
        .arg("--filename")
        .arg(workspace.root().join("crds"));
    output(&mut definitions).context("cannot apply the definitions in crds/")?;
    helm(workspace, access, images, values)?;
    rolled_out(access, images).await
}

fn helm(workspace: &Workspace, access: &Access, images: &Images, values: &Value) -> Result<()> {
    let (repository, tag) = images.operator.rsplit_once(':').context("the operator's image has no tag")?;
    let mut file = tempfile::Builder::new()
        .suffix(".json")
        .tempfile()
        .context("cannot make a temporary file for the chart's values")?;
    file.write_all(values.to_string().as_bytes()).context("cannot write the chart's values")?;
    let mut helm = access.helm();
    helm.args(["upgrade", "--install", RELEASE])
        .arg(workspace.root().join(CHART))
        .args(["--namespace", NAMESPACE, "--create-namespace", "--skip-crds", "--values"])
        .arg(file.path())
        .arg(format!("--set-string=image.repository={repository}"))
        .arg(format!("--set-string=image.tag={tag}"))
        // Another build under the same name starts new pods.
        .arg(format!(r"--set-string=podAnnotations.gamekeeper\.dev/build={}", images.build));
    output(&mut helm).context("cannot install the chart").map(drop)
}

async fn rolled_out(access: &Access, images: &Images) -> Result<()> {
    let client = access.client().await?;
    let mut progress = Progress::start("starting the operator");
    let start = Instant::now();
    loop {
        let pods = pods(&client).await?;
        let Some(missing) = missing(&client, &pods).await? else {
            progress.finish();
            return Ok(());
        };
        if let Some(problem) = pods.iter().find_map(trouble::of_pod) {
            if problem.is_about_image() && start.elapsed() > PULL_PATIENCE {
                bail!("{problem}\n{}", images.instructions());
            }
            progress.note(problem.to_string());
        } else {
            progress.note(missing.clone());
        }
        if start.elapsed() > PATIENCE {
            let option = access.kubectl_option();
            bail!(
                "the operator is not ready after {} s: {missing}; see \
                 `kubectl{option} -n {NAMESPACE} describe pods` and `kubectl{option} -n {NAMESPACE} logs deploy/{RELEASE}`",
                PATIENCE.as_secs()
            );
        }
        sleep(Duration::from_millis(300)).await;
    }
}

async fn pods(client: &Client) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let found = pods.list(&ListParams::default().labels(SELECTOR)).await;
    Ok(found.context("cannot list the operator's pods")?.items)
}

/// What is still missing until the deployment is as wanted and the pods before it are gone.
async fn missing(client: &Client, pods: &[Pod]) -> Result<Option<String>> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let deployment = deployments.get(RELEASE).await.context("cannot read the operator's deployment")?;
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let generation = deployment.metadata.generation;
    let status = deployment.status.unwrap_or_default();
    let ready = status.available_replicas.unwrap_or(0).min(status.updated_replicas.unwrap_or(0));
    let leaving = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
    Ok(if status.observed_generation != generation {
        Some("the deployment is new".to_owned())
    } else if ready < wanted {
        Some(format!("{ready} of {wanted} replicas are ready"))
    } else if leaving > 0 || status.replicas.unwrap_or(0) != wanted {
        Some("the replicas before are ending".to_owned())
    } else {
        None
    })
}
