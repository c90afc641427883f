//! `cargo xtask crds`: the definitions in crds/, generated from the types.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args as ClapArgs;

use crate::workspace::Workspace;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Only say whether the checked-in definitions are current
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    if args.check { check(&workspace) } else { write(&workspace) }
}

/// Fails unless the checked-in definitions are what the types say.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    for (path, document) in definitions(workspace)? {
        if fs::read_to_string(&path).is_ok_and(|there| there == document) {
            println!("{} is current", path.display());
        } else {
            bail!("{} is out of date: run `cargo xtask crds`", path.display());
        }
    }
    Ok(())
}

fn write(workspace: &Workspace) -> Result<()> {
    for (path, document) in definitions(workspace)? {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        fs::write(&path, document).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

fn definitions(workspace: &Workspace) -> Result<Vec<(PathBuf, String)>> {
    let folder = workspace.root().join("crds");
    let documents = gamekeeper::api::crd::documents().context("cannot write the types as definitions")?;
    Ok(documents.into_iter().map(|(file, document)| (folder.join(file), document)).collect())
}
