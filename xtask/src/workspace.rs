//! Where the project lies, and where what it builds for development is kept.

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

/// One checkout of the project, and the cache it shares with other checkouts.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    cache: PathBuf,
}

impl Workspace {
    /// Finds the checkout that the current folder belongs to.
    pub(crate) fn find() -> Result<Self> {
        let here = env::current_dir().context("cannot tell the current folder")?;
        let Some(root) = here.ancestors().find(|folder| folder.join("tools/kubernetes/go.mod").is_file())
        else {
            bail!(
                "{} is not inside a checkout of the project (no folder above it has \
                 tools/kubernetes/go.mod); change into the checkout and try again",
                here.display()
            );
        };
        let root = root.canonicalize().with_context(|| format!("cannot resolve {}", root.display()))?;
        Ok(Self { root, cache: cache_dir()? })
    }

    /// The folder of the checkout.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the pinned tools: `etcd`, `kubernetes` and so on.
    pub(crate) fn tools(&self) -> PathBuf {
        self.root.join("tools")
    }

    /// The cache, outside of any checkout.
    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// Where images are packed to, unless one asks for another place.
    pub(crate) fn images(&self) -> PathBuf {
        self.root.join("target/images")
    }

    /// Cargo in this checkout, by the toolchain that runs this program.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root).stdin(Stdio::null());
        // What cargo has told this program of its own package: build scripts that look at it (ring's does) would run
        // again, and with them half of the dependencies, whenever cargo is started from here and then from a shell.
        for (name, _) in env::vars_os() {
            let of_package =
                ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_NAME", "CARGO_CRATE_NAME", "OUT_DIR"];
            if name.to_str().is_some_and(|name| of_package.iter().any(|start| name.starts_with(start))) {
                cargo.env_remove(name);
            }
        }
        cargo
    }

    /// Eight hexadecimal digits that tell this checkout from every other one on the machine.
    pub(crate) fn short_hash(&self, salt: &str) -> String {
        let mut digest = Sha256::new();
        digest.update(self.root.as_os_str().as_encoded_bytes());
        digest.update([0]);
        digest.update(salt.as_bytes());
        let mut hash = hex(digest.finalize().as_slice());
        hash.truncate(8);
        hash
    }
}

/// Writes bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn cache_dir() -> Result<PathBuf> {
    let folder_in =
        |variable: &str| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(own) = folder_in("GAMEKEEPER_CACHE") {
        return Ok(own);
    }
    if let Some(caches) = folder_in("XDG_CACHE_HOME") {
        return Ok(caches.join("gamekeeper"));
    }
    let home = folder_in("HOME").context(
        "neither GAMEKEEPER_CACHE, XDG_CACHE_HOME nor HOME names an absolute folder; \
         set GAMEKEEPER_CACHE to the folder that built programs may be kept in",
    )?;
    Ok(home.join(".cache/gamekeeper"))
}
