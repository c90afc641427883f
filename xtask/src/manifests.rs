//! `cargo xtask manifests`: deploy/gamekeeper.yaml, for those who install without Helm.
//!
//! It is what Helm makes of the chart with its default values, the definitions of the resources included, behind the
//! namespace that Helm would make by itself.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args as ClapArgs;

use crate::command::output;
use crate::install::{CHART, NAMESPACE, RELEASE};
use crate::programs::Programs;
use crate::workspace::Workspace;

const FILE: &str = "deploy/gamekeeper.yaml";

/// Objects that Helm does not look after must not say that it does, or a later `helm install` believes it.
const MANAGED_BY_HELM: &str = "app.kubernetes.io/managed-by: Helm";

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Only say whether the checked-in file is current
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    if args.check { check(&workspace) } else { write(&workspace) }
}

/// Fails unless the checked-in file is what the chart says.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let path = workspace.root().join(FILE);
    if fs::read_to_string(&path).unwrap_or_default() != render(workspace)? {
        bail!("{} is out of date: run `cargo xtask manifests`", path.display());
    }
    println!("{} is current", path.display());
    Ok(())
}

fn write(workspace: &Workspace) -> Result<()> {
    let path = workspace.root().join(FILE);
    fs::write(&path, render(workspace)?).with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

fn render(workspace: &Workspace) -> Result<String> {
    let mut helm = Command::new(Programs::ensure_helm(workspace)?);
    helm.args(["template", RELEASE]).arg(workspace.root().join(CHART)).args([
        "--namespace",
        NAMESPACE,
        "--include-crds",
    ]);
    let rendered = output(&mut helm).context("cannot render the chart")?;
    let ours: String = rendered
        .lines()
        .filter(|line| line.trim() != MANAGED_BY_HELM)
        .flat_map(|line| [line.trim_end(), "\n"])
        .collect();
    Ok(format!(
        "# Gamekeeper as charts/gamekeeper has it by default. Written by `cargo xtask manifests`; do not edit.\n\
         #\n\
         #   kubectl apply -f {FILE}\n\
         ---\n\
         apiVersion: v1\n\
         kind: Namespace\n\
         metadata:\n  \
           name: {NAMESPACE}\n{ours}"
    ))
}
