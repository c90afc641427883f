//! The image of pods' sandboxes, made without a registry.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::state::{Home, Plan};
use crate::workspace::hex;

/// The image's name.
pub(crate) const NAME: &str = "gamekeeper.local/pause:1";

/// Writes the image as a docker archive: a layer with one static program, a config, a manifest.
pub(crate) fn write(home: &Home, plan: &Plan) -> Result<PathBuf> {
    let pause = plan.programs.pause();
    let program = fs::read(&pause).with_context(|| format!("cannot read {}", pause.display()))?;
    let mut layer = tar::Builder::new(Vec::new());
    add(&mut layer, "pause", 0o755, &program)?;
    let layer = layer.into_inner().context("cannot finish the layer of the pause image")?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))]},
    })
    .to_string()
    .into_bytes();
    let config_name = format!("{}.json", sha256(&config));
    let manifest = json!([
        {"Config": config_name, "RepoTags": [NAME], "Layers": ["layer.tar"]},
    ])
    .to_string()
    .into_bytes();

    let path = home.path("node/pause.tar");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut archive = tar::Builder::new(file);
    add(&mut archive, "manifest.json", 0o644, &manifest)?;
    add(&mut archive, &config_name, 0o644, &config)?;
    add(&mut archive, "layer.tar", 0o644, &layer)?;
    archive.finish().context("cannot finish the pause image")?;
    Ok(path)
}

fn add(archive: &mut tar::Builder<impl std::io::Write>, name: &str, mode: u32, content: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_cksum();
    archive
        .append_data(&mut header, name, content)
        .with_context(|| format!("cannot add {name} to the pause image"))
}

fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

/// Go's name of this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
