//! Writes container images as docker-archives, without Docker and without a registry.
//!
//! The form is that of `docker save`: a tar of `manifest.json`, the image's configuration and one `layer.tar` a layer,
//! after the [image specification v1.2]. containerd (`ctr images import`), `docker load`, `podman load`, kind and
//! minikube read it. The same input gives the same bytes: names are sorted and times are fixed, so that an image that
//! has not changed keeps its digest and is not loaded again.
//!
//! [image specification v1.2]: https://github.com/moby/docker-image-spec/blob/main/v1.2.md

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::workspace::hex;

/// The time that every entry carries, in seconds since 1970: 2025-01-01T00:00:00Z.
pub(crate) const EPOCH_SECONDS: u64 = 1_735_689_600;

/// [`EPOCH_SECONDS`] as an image's configuration writes it.
const EPOCH: &str = "2025-01-01T00:00:00Z";

/// An image to write.
pub(crate) struct Image<'a> {
    /// Repository and tag, such as `gamekeeper.dev/gamekeeper:0.1.0`.
    pub(crate) name: &'a str,
    /// The architecture in Go's words: `amd64`, `arm64`.
    pub(crate) architecture: &'a str,
    /// The layers, lowest first.
    pub(crate) layers: Vec<Layer>,
    /// How a container of it runs.
    pub(crate) config: Config,
}

/// One layer's content.
pub(crate) enum Layer {
    /// A whole root file system, a tar on disk.
    RootFs(PathBuf),
    /// Single files from the host.
    Files(Vec<HostFile>),
}

/// A file of the host at its place in the image, owned by root.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostFile {
    /// The absolute path in the image.
    pub(crate) path: String,
    /// Where its content is now.
    pub(crate) host: PathBuf,
    /// The permission bits.
    pub(crate) mode: u32,
}

/// What a container of the image runs, in the field names of the image specification.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Config {
    /// The program with the arguments that always hold.
    pub(crate) entrypoint: Vec<String>,
    /// The arguments that a pod's `args` replace.
    pub(crate) cmd: Vec<String>,
    /// `NAME=value` pairs.
    pub(crate) env: Vec<String>,
    /// Numeric `uid:gid`, so that `runAsNonRoot` can be checked.
    pub(crate) user: String,
    /// The directory that it starts in.
    pub(crate) working_dir: String,
    /// Ports such as `27960/udp`; documentation only, as everywhere.
    #[serde(serialize_with = "as_set")]
    pub(crate) exposed_ports: BTreeSet<String>,
    /// Annotations such as `org.opencontainers.image.version`.
    pub(crate) labels: BTreeMap<String, String>,
}

/// The specification writes a set as an object of empty objects.
fn as_set<S: serde::Serializer>(set: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(set.iter().map(|key| (key, json!({}))))
}

/// Writes the image to `target`, which exists only when it is complete, and returns the image's id.
pub(crate) fn write(image: &Image<'_>, target: &Path) -> Result<String> {
    let directory = target.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).with_context(|| {
        format!("could not make {}: choose another place with --output", directory.display())
    })?;
    let mut unfinished =
        tempfile::Builder::new().prefix(".image-").tempfile_in(directory).with_context(|| {
            format!("could not write in {}: choose another place with --output", directory.display())
        })?;
    let id = write_to(image, unfinished.as_file_mut())
        .with_context(|| format!("could not write {}", target.display()))?;
    let file = unfinished.persist(target).with_context(|| format!("could not write {}", target.display()))?;
    make_readable(&file).with_context(|| format!("could not set the permissions of {}", target.display()))?;
    Ok(id)
}

/// A temporary file is its owner's alone; an image is for whoever loads it.
pub(crate) fn make_readable(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

/// The id is the digest of the configuration, which names the digests of the layers.
fn write_to(image: &Image<'_>, output: &mut impl Write) -> Result<String> {
    let mut archive = Builder::new(output);
    let mut diff_ids = Vec::new();
    let mut paths = Vec::new();
    for layer in &image.layers {
        let mut content = open_layer(layer)?;
        let digest = sha256(&mut content)?;
        content.seek(SeekFrom::Start(0))?;
        let path = format!("{digest}/layer.tar");
        // Two equal layers are one entry, or readers refuse the archive for its duplicate.
        if !paths.contains(&path) {
            let size = content.metadata()?.len();
            append(&mut archive, &path, size, &mut BufReader::with_capacity(1 << 20, content))?;
        }
        paths.push(path);
        diff_ids.push(format!("sha256:{digest}"));
    }

    let history: Vec<_> =
        diff_ids.iter().map(|_| json!({"created": EPOCH, "created_by": "cargo xtask image"})).collect();
    let config = serde_json::to_vec(&json!({
        "architecture": image.architecture,
        "os": "linux",
        "created": EPOCH,
        "config": image.config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": history,
    }))?;
    let id = sha256(&mut config.as_slice())?;
    let config_path = format!("{id}.json");
    append(&mut archive, &config_path, config.len() as u64, &mut config.as_slice())?;

    let manifest =
        serde_json::to_vec(&json!([{"Config": config_path, "RepoTags": [image.name], "Layers": paths}]))?;
    append(&mut archive, "manifest.json", manifest.len() as u64, &mut manifest.as_slice())?;
    archive.into_inner()?.flush()?;
    Ok(id)
}

fn open_layer(layer: &Layer) -> Result<File> {
    match layer {
        Layer::RootFs(path) => File::open(path)
            .with_context(|| format!("could not open the root file system {}", path.display())),
        Layer::Files(files) => pack(files),
    }
}

/// A layer of single files: their directories first, then the files, both sorted.
fn pack(files: &[HostFile]) -> Result<File> {
    let mut builder =
        Builder::new(tempfile::tempfile().context("could not make a temporary file for a layer")?);
    let mut files = files.to_vec();
    files.sort();
    let mut directories = BTreeSet::new();
    for file in &files {
        ensure!(file.path.starts_with('/'), "the image path {} is not absolute", file.path);
        directories.extend(Path::new(&file.path).ancestors().skip(1).filter_map(relative));
    }
    for directory in directories {
        let mut header = header(EntryType::Directory, 0o755, 0);
        builder.append_data(&mut header, directory, io::empty())?;
    }
    for file in &files {
        let content = File::open(&file.host)
            .with_context(|| format!("could not open {} for the image", file.host.display()))?;
        let mut header = header(EntryType::Regular, file.mode, content.metadata()?.len());
        builder.append_data(&mut header, file.path.trim_start_matches('/'), content)?;
    }
    let mut layer = builder.into_inner()?;
    layer.seek(SeekFrom::Start(0))?;
    Ok(layer)
}

/// The path within the root; none for the root itself, which every image has.
fn relative(path: &Path) -> Option<PathBuf> {
    path.strip_prefix("/").ok().filter(|path| !path.as_os_str().is_empty()).map(Path::to_path_buf)
}

fn append(archive: &mut Builder<impl Write>, path: &str, size: u64, content: &mut impl Read) -> Result<()> {
    archive.append_data(&mut header(EntryType::Regular, 0o644, size), path, content)?;
    Ok(())
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(EPOCH_SECONDS);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn sha256(content: &mut impl Read) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let length = content.read(&mut buffer)?;
        match buffer.get(..length) {
            Some(read) if !read.is_empty() => hasher.update(read),
            Some(_) | None => break,
        }
    }
    Ok(hex(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn read_back(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut entries = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            assert_eq!(entry.header().mtime().unwrap(), EPOCH_SECONDS);
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            assert!(entries.insert(path, content).is_none(), "a path stands twice");
        }
        entries
    }

    fn image(directory: &Path) -> Image<'static> {
        let program = directory.join("program");
        std::fs::write(&program, "a program").unwrap();
        let rootfs = directory.join("rootfs.tar");
        std::fs::write(&rootfs, "a root file system").unwrap();
        let file = |path: &str| HostFile { path: path.into(), host: program.clone(), mode: 0o755 };
        Image {
            name: "gamekeeper.dev/test:1",
            architecture: "amd64",
            layers: vec![Layer::RootFs(rootfs), Layer::Files(vec![file("/usr/games/b"), file("/a")])],
            config: Config {
                entrypoint: vec!["/a".into()],
                user: "65532:65532".into(),
                exposed_ports: ["27960/udp".into()].into(),
                ..Config::default()
            },
        }
    }

    fn bytes(image: &Image<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_to(image, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn archive_reads_back_with_the_digests_it_states() {
        let directory = tempfile::tempdir().unwrap();
        let entries = read_back(&bytes(&image(directory.path())));

        let manifest: Value = serde_json::from_slice(&entries["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"], json!(["gamekeeper.dev/test:1"]));
        let config_path = manifest[0]["Config"].as_str().unwrap();
        let config_bytes = &entries[config_path];
        assert_eq!(config_path, format!("{}.json", sha256(&mut config_bytes.as_slice()).unwrap()));

        let config: Value = serde_json::from_slice(config_bytes).unwrap();
        let layers = manifest[0]["Layers"].as_array().unwrap();
        let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap();
        assert_eq!((layers.len(), diff_ids.len()), (2, 2));
        for (path, diff_id) in layers.iter().zip(diff_ids) {
            let mut content = entries[path.as_str().unwrap()].as_slice();
            assert_eq!(diff_id, &json!(format!("sha256:{}", sha256(&mut content).unwrap())));
        }
        assert_eq!(entries[layers[0].as_str().unwrap()], b"a root file system");
    }

    #[test]
    fn configuration_uses_the_names_of_the_specification() {
        let directory = tempfile::tempdir().unwrap();
        let config = serde_json::to_value(image(directory.path()).config).unwrap();
        assert_eq!(config["Entrypoint"], json!(["/a"]));
        assert_eq!(config["User"], "65532:65532");
        assert_eq!(config["ExposedPorts"], json!({"27960/udp": {}}));
        assert!(config.get("WorkingDir").is_some());
    }

    #[test]
    fn layer_of_files_is_sorted_and_brings_its_directories() {
        let directory = tempfile::tempdir().unwrap();
        let image = image(directory.path());
        let mut layer = Vec::new();
        open_layer(&image.layers[1]).unwrap().read_to_end(&mut layer).unwrap();
        let mut archive = tar::Archive::new(layer.as_slice());
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let path = entry.path().unwrap().to_string_lossy().into_owned();
                (path, entry.header().mode().unwrap(), entry.size())
            })
            .collect();
        let expected =
            [("usr", 0o755, 0), ("usr/games", 0o755, 0), ("a", 0o755, 9), ("usr/games/b", 0o755, 9)];
        assert_eq!(entries, expected.map(|(path, mode, size)| (path.to_owned(), mode, size)));
    }

    #[test]
    fn same_input_gives_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let mut image = image(directory.path());
        let first = bytes(&image);
        if let Layer::Files(files) = &mut image.layers[1] {
            files.reverse();
        }
        assert_eq!(first, bytes(&image));
    }

    #[test]
    fn equal_layers_stand_in_the_archive_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut image = image(directory.path());
        image.layers.push(Layer::RootFs(directory.path().join("rootfs.tar")));
        let entries = read_back(&bytes(&image));
        let manifest: Value = serde_json::from_slice(&entries["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["Layers"].as_array().unwrap().len(), 3);
        assert_eq!(entries.len(), 4);
    }

    #[test]
    fn relative_image_path_is_refused() {
        let file = HostFile { path: "a".into(), host: "/dev/null".into(), mode: 0o644 };
        assert!(pack(&[file]).unwrap_err().to_string().contains("not absolute"));
    }
}
