//! `cargo xtask crds`: the definitions in crds/, generated from the types.

use std::fs;

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
    let folder = Workspace::find()?.root().join("crds");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for (file, document) in gamekeeper::api::crd::documents()? {
        let path = folder.join(file);
        if fs::read_to_string(&path).is_ok_and(|there| there == document) {
            println!("{} is current", path.display());
            continue;
        }
        if args.check {
            bail!("{} is out of date: run `cargo xtask crds`", path.display());
        }
        fs::write(&path, document).with_context(|| format!("write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}
