//! The image of pods' sandboxes, made without a registry.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::state::{Home, Plan};
use crate::image;

/// The image's name.
pub(crate) const NAME: &str = "gamekeeper.local/pause:1";

/// Writes the image as a docker archive.
pub(crate) fn write(home: &Home, plan: &Plan) -> Result<PathBuf> {
    let archive = home.path("node/pause.tar");
    image::single_program(NAME, &plan.programs.pause(), &archive).context("cannot pack the pause image")?;
    Ok(archive)
}
