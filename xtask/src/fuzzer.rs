//! Schemathesis, which drives an API from its OpenAPI document: pinned in tools/schemathesis, and installed once, into
//! the cache.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::command::output;
use crate::host;
use crate::programs::lock;
use crate::workspace::{Workspace, hex};

const REQUIREMENTS: &str = "tools/schemathesis/requirements.txt";

/// Written last, so that an installation that was interrupted is begun anew.
const DONE: &str = "installed";

/// Installs it if the cache lacks it, and returns where the program is.
pub(crate) fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let requirements = workspace.root().join(REQUIREMENTS);
    let pins = fs::read(&requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let version = output(python().arg("--version")).context(NO_PYTHON)?;
    let key = hex(&Sha256::new().chain_update(&pins).chain_update(&version).finalize());
    let cache = workspace.cache().join("programs");
    let folder = cache.join(format!("schemathesis-{}", key.get(..12).unwrap_or(&key)));
    let program = folder.join("bin/schemathesis");
    if folder.join(DONE).is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot create the cache {}", cache.display()))?;
    let _lock = lock(&cache.join("schemathesis.lock"))?;
    if folder.join(DONE).is_file() {
        return Ok(program);
    }
    if output(python().args(["-c", "import ensurepip, venv"])).is_err() {
        bail!(NO_PYTHON);
    }
    eprintln!("installing Schemathesis");
    // Its programs name this very folder, so it is made where it stays.
    output(python().args(["-m", "venv", "--clear"]).arg(&folder))
        .context("cannot make a Python environment")?;
    let mut install = Command::new(folder.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--requirement"]).arg(&requirements);
    output(&mut install).context("cannot install Schemathesis from PyPI")?;
    fs::write(folder.join(DONE), "").context("cannot finish the installation of Schemathesis")?;
    Ok(program)
}

const NO_PYTHON: &str = "the claim API is tested with Schemathesis, which needs Python 3 with venv: install Debian's \
                         python3-venv or what corresponds to it";

fn python() -> Command {
    let mut python = Command::new("python3");
    python.env("PATH", host::path());
    python
}
