//! A cluster as the commands reach it: the embedded one, or one of the user's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::cluster::Cluster;
use crate::host;
use crate::programs::Programs;
use crate::workspace::Workspace;

/// The way to a cluster's API server, as its administrator.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    way: Way,
    kubectl: PathBuf,
    helm: PathBuf,
}

#[derive(Clone, Debug)]
enum Way {
    /// The embedded cluster's folder has its kubeconfig and keeps what kubectl and Helm write.
    Embedded { folder: PathBuf, kubeconfig: PathBuf },
    /// A context of the user's kubeconfig.
    Context(String),
}

impl Access {
    /// To the embedded cluster.
    pub(crate) fn embedded(cluster: &Cluster) -> Self {
        let programs = cluster.programs();
        Self {
            way: Way::Embedded { folder: cluster.dir().to_path_buf(), kubeconfig: cluster.kubeconfig() },
            kubectl: programs.kubectl(),
            helm: programs.helm(),
        }
    }

    /// To the cluster of a context in the user's kubeconfig, with the user's own kubectl and Helm where there are.
    pub(crate) fn context(workspace: &Workspace, context: &str) -> Result<Self> {
        let kubectl = on_path("kubectl").or_else(|| Programs::built_kubectl(workspace)).context(
            "kubectl is not on the PATH; install it, or have it built with `cargo xtask cluster up --no-node`",
        )?;
        let helm = on_path("helm").map_or_else(|| Programs::ensure_helm(workspace), Ok)?;
        Ok(Self { way: Way::Context(context.to_owned()), kubectl, helm })
    }

    /// kubectl for this cluster.
    pub(crate) fn kubectl(&self) -> Command {
        let mut kubectl = Command::new(&self.kubectl);
        match &self.way {
            Way::Embedded { folder, kubeconfig } => {
                kubectl.arg("--kubeconfig").arg(kubeconfig);
                // Not in the user's own folder, where it would outlive the cluster.
                kubectl.arg("--cache-dir").arg(folder.join("kubectl-cache"));
                // No proxy of the user's knows the way to a cluster on this machine.
                kubectl.env("NO_PROXY", "*");
            }
            Way::Context(context) => {
                kubectl.arg("--context").arg(context);
            }
        }
        kubectl
    }

    /// Helm for this cluster.
    pub(crate) fn helm(&self) -> Command {
        let mut helm = Command::new(&self.helm);
        match &self.way {
            Way::Embedded { folder, kubeconfig } => {
                helm.arg("--kubeconfig").arg(kubeconfig).env("NO_PROXY", "*");
                for (variable, name) in
                    [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
                {
                    helm.env(variable, folder.join("helm").join(name));
                }
            }
            Way::Context(context) => {
                helm.arg("--kube-context").arg(context);
            }
        }
        helm
    }

    /// A client for this cluster.
    pub(crate) async fn client(&self) -> Result<Client> {
        let config = match &self.way {
            Way::Embedded { kubeconfig, .. } => {
                let read = Kubeconfig::read_from(kubeconfig)
                    .with_context(|| format!("cannot read {}", kubeconfig.display()))?;
                let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
                config.proxy_url = None;
                config
            }
            Way::Context(context) => {
                let options =
                    KubeConfigOptions { context: Some(context.clone()), ..KubeConfigOptions::default() };
                Config::from_kubeconfig(&options).await.with_context(|| {
                    format!("the kubeconfig has no context {context}; see `kubectl config get-contexts`")
                })?
            }
        };
        Client::try_from(config).context("cannot make a client for the cluster")
    }

    /// What a user puts behind `kubectl` to reach this cluster, with a blank before it.
    pub(crate) fn kubectl_option(&self) -> String {
        match &self.way {
            Way::Embedded { .. } => String::new(),
            Way::Context(context) => format!(" --context {context}"),
        }
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    host::path().split(':').map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}
