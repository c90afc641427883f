//! Remembers what an archive was packed from, so that half a gigabyte is not read and written for nothing.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::archive::{Image, Layer};

/// What stands beside an archive.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Stamp {
    inputs: Value,
    id: String,
    /// The archive as it was left, so that another one in its place is noticed.
    archive: Value,
}

impl Stamp {
    /// The id of the image in `archive`, if that was packed from `inputs` and nobody has changed it since.
    pub(super) fn current(archive: &Path, inputs: &Value) -> Option<String> {
        let stamp: Self = serde_json::from_slice(&fs::read(beside(archive)).ok()?).ok()?;
        let unchanged = stamp.archive == state(&fs::metadata(archive).ok()?);
        (unchanged && stamp.inputs == *inputs).then_some(stamp.id)
    }

    /// Remembers that `archive` was packed from `inputs`.
    pub(super) fn write(archive: &Path, inputs: Value, id: String) -> Result<()> {
        let metadata =
            fs::metadata(archive).with_context(|| format!("cannot look at {}", archive.display()))?;
        let stamp = Self { inputs, id, archive: state(&metadata) };
        let path = beside(archive);
        fs::write(&path, serde_json::to_vec_pretty(&stamp)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// All that an image's archive follows from.
pub(super) fn inputs(image: &Image<'_>) -> Result<Value> {
    let file = |path: &Path| -> Result<Value> {
        let metadata = fs::metadata(path)
            .with_context(|| format!("cannot look at {} for the image {}", path.display(), image.name))?;
        Ok(json!({"path": path, "state": state(&metadata)}))
    };
    let layers = image.layers.iter().map(|layer| match layer {
        Layer::RootFs(path) => file(path),
        Layer::Files(files) => files
            .iter()
            .map(|entry| Ok(json!({"at": entry.path, "mode": entry.mode, "file": file(&entry.host)?})))
            .collect::<Result<Value>>(),
    });
    Ok(json!({
        "name": image.name,
        "architecture": image.architecture,
        "layers": layers.collect::<Result<Value>>()?,
        "config": image.config,
    }))
}

fn state(metadata: &Metadata) -> Value {
    json!([metadata.len(), metadata.mtime(), metadata.mtime_nsec()])
}

fn beside(archive: &Path) -> PathBuf {
    archive.with_extension("stamp.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_holds_until_inputs_or_archive_change() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("image.tar");
        let inputs = json!({"name": "a"});
        assert_eq!(Stamp::current(&archive, &inputs), None);

        fs::write(&archive, "content").unwrap();
        Stamp::write(&archive, inputs.clone(), "sha".into()).unwrap();
        assert_eq!(Stamp::current(&archive, &inputs).as_deref(), Some("sha"));
        assert_eq!(Stamp::current(&archive, &json!({"name": "b"})), None);

        fs::write(&archive, "other content").unwrap();
        assert_eq!(Stamp::current(&archive, &inputs), None);
    }
}
