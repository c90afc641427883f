//! `cargo xtask image`: the operator's image and the samples', built without Docker and without a registry.
//!
//! Each becomes a docker-archive that a container runtime imports. `deploy/images` has the same images as
//! Containerfiles, for those who push to a registry.

mod archive;
mod elf;
mod operator;
mod rootfs;
mod stamp;

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Result;
use clap::ValueEnum;

use crate::workspace::Workspace;
use archive::{Config, HostFile, Image, Layer};
pub(crate) use operator::{Profile, build as build_operator, build_for_tests, static_cargo};
use stamp::Stamp;

/// The user of every image; the number that distroless images call nonroot.
const USER: &str = "65532:65532";

/// The images' tag: the workspace's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where the images belong unless they are pushed elsewhere.
pub(crate) const REPOSITORY: &str = "gamekeeper.dev";

/// Builds container images as archives.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which image.
    #[arg(value_enum, default_value_t = Which::All)]
    image: Which,
    /// Where the archives go [default: target/images of the workspace].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Build the operator with the dev profile: faster to build, larger.
    #[arg(long)]
    debug: bool,
}

/// The images that there are.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    /// The operator, which is the agent as well.
    Operator,
    /// A real game: the server of the package openarena-server.
    Openarena,
    /// A shell and curl, for a game that is a script.
    Shell,
    /// All of them.
    All,
}

/// An image that has been packed.
#[derive(Debug)]
pub(crate) struct Built {
    /// Repository and tag, as a pod names it.
    pub(crate) name: String,
    /// The image's id: the same content has the same.
    pub(crate) id: String,
    /// The docker-archive.
    pub(crate) archive: PathBuf,
}

impl fmt::Display for Built {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}  {}", self.name, self.archive.display())
    }
}

/// Builds what `args` asks for and says how to load it.
pub(crate) fn run(args: Args) -> Result<()> {
    let workspace = Workspace::find()?;
    let output = args.output.unwrap_or_else(|| workspace.images());
    let profile = if args.debug { Profile::Dev } else { Profile::Release };
    let operator = || operator(&build_operator(&workspace, profile)?, &output);
    let built = match args.image {
        Which::Operator => vec![operator()?],
        Which::Openarena => vec![openarena(&workspace, &output)?],
        Which::Shell => vec![shell(&workspace, &output)?],
        Which::All => vec![operator()?, openarena(&workspace, &output)?, shell(&workspace, &output)?],
    };
    for image in &built {
        println!("{image}");
    }
    println!(
        "\nLoad an archive where the cluster's nodes find it; then pods name the image with imagePullPolicy IfNotPresent:\n  \
         containerd     ctr -n k8s.io images import ARCHIVE\n  \
         kind           kind load image-archive ARCHIVE\n  \
         minikube       minikube image load ARCHIVE\n  \
         k3s            k3s ctr images import ARCHIVE\n  \
         Docker         docker load --input ARCHIVE"
    );
    Ok(())
}

/// `gamekeeper.dev/gamekeeper`: the static program alone.
pub(crate) fn operator(program: &Path, output: &Path) -> Result<Built> {
    let file = HostFile { path: "/gamekeeper".into(), host: program.to_path_buf(), mode: 0o755 };
    let config = Config { entrypoint: strings(&["/gamekeeper"]), ..config("gamekeeper") };
    pack("gamekeeper", Layer::Files(vec![file]), config, &output.join("operator.tar"))
}

/// `gamekeeper.dev/samples/openarena`: the game server of Debian's package `openarena-server`.
///
/// It writes under `/tmp` alone, so a pod with a read-only root file system mounts an emptyDir there.
pub(crate) fn openarena(workspace: &Workspace, output: &Path) -> Result<Built> {
    let layer = rootfs::build("openarena", &["openarena-server"], workspace.cache())?;
    let config = Config {
        entrypoint: strings(&[
            "/usr/games/openarena-server",
            "+set",
            "dedicated",
            "1",
            "+set",
            "ttycon",
            "0",
        ]),
        cmd: strings(&["+set", "sv_maxclients", "12", "+map", "oa_dm1"]),
        env: strings(&["PATH=/usr/games:/usr/bin:/bin", "HOME=/tmp"]),
        exposed_ports: ["27960/udp".to_owned()].into(),
        ..config("openarena")
    };
    pack("samples/openarena", Layer::RootFs(layer), config, &output.join("openarena.tar"))
}

/// `gamekeeper.dev/samples/shell`: bash, curl and busybox, for a game that is a script and reports its own state.
pub(crate) fn shell(workspace: &Workspace, output: &Path) -> Result<Built> {
    let layer = rootfs::build("shell", &["busybox", "curl"], workspace.cache())?;
    let config = Config {
        cmd: strings(&["/bin/bash"]),
        env: strings(&["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"]),
        ..config("shell")
    };
    pack("samples/shell", Layer::RootFs(layer), config, &output.join("shell.tar"))
}

/// An image that is one static program, written to `archive`.
pub(crate) fn single_program(name: &str, program: &Path, archive: &Path) -> Result<()> {
    let path = format!("/{}", program.file_name().unwrap_or_default().display());
    let file = HostFile { path: path.clone(), host: program.to_path_buf(), mode: 0o755 };
    let config = Config { entrypoint: vec![path], ..Config::default() };
    let layers = vec![Layer::Files(vec![file])];
    archive::write(&Image { name, architecture: host_architecture(), layers, config }, archive).map(drop)
}

/// What all images share.
fn config(title: &str) -> Config {
    let labels = [("org.opencontainers.image.title", title), ("org.opencontainers.image.version", VERSION)];
    Config {
        user: USER.to_owned(),
        working_dir: "/".to_owned(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..Config::default()
    }
}

/// Packs an image, unless the archive is there already and was packed from the very same.
fn pack(repository: &str, layer: Layer, config: Config, archive: &Path) -> Result<Built> {
    let name = format!("{REPOSITORY}/{repository}:{VERSION}");
    let image = Image { name: &name, architecture: host_architecture(), layers: vec![layer], config };
    let inputs = stamp::inputs(&image)?;
    if let Some(id) = Stamp::current(archive, &inputs) {
        return Ok(Built { name, id, archive: archive.to_path_buf() });
    }
    let started = Instant::now();
    let id = archive::write(&image, archive)?;
    Stamp::write(archive, inputs, id.clone())?;
    let bytes = std::fs::metadata(archive)?.len();
    eprintln!("packed {name}: {} MB in {:.1} s", bytes.div_ceil(1_000_000), started.elapsed().as_secs_f64());
    Ok(Built { name, id, archive: archive.to_path_buf() })
}

fn strings(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|&part| part.to_owned()).collect()
}

/// The host's architecture in Go's words, which images use.
fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64le" => "ppc64le",
        same => same,
    }
}
