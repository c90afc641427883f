//! `cargo xtask image`: the operator's image and the samples', built without Docker and without a registry.
//!
//! Each becomes a docker-archive that a container runtime imports. `deploy/images` has the same images as
//! Containerfiles, for those who push to a registry.

mod archive;
mod elf;
mod operator;
mod rootfs;

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};
use clap::ValueEnum;

use archive::{Config, HostFile, Image, Layer};
pub(crate) use operator::Profile;

/// The user of every image; the number that distroless images call nonroot.
const USER: &str = "65532:65532";

/// The images' tag: the workspace's version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

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

/// An image that has been built.
#[derive(Debug)]
pub(crate) struct Built {
    /// Repository and tag, as a pod names it.
    pub(crate) name: String,
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
    let output = args.output.unwrap_or_else(|| workspace().join("target/images"));
    let profile = if args.debug { Profile::Dev } else { Profile::Release };
    let built = match args.image {
        Which::Operator => vec![build_operator(&output, profile)?],
        Which::Openarena => vec![build_openarena(&output)?],
        Which::Shell => vec![build_curl_game(&output)?],
        Which::All => {
            vec![build_operator(&output, profile)?, build_openarena(&output)?, build_curl_game(&output)?]
        }
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
pub(crate) fn build_operator(output: &Path, profile: Profile) -> Result<Built> {
    let target = operator::host_target()?;
    let program = operator::build_static(&workspace(), &target, profile)?;
    let file = HostFile { path: "/gamekeeper".into(), host: program, mode: 0o755 };
    let config = Config { entrypoint: strings(&["/gamekeeper"]), ..config("gamekeeper") };
    pack(
        "gamekeeper.dev/gamekeeper",
        "operator",
        target.architecture(),
        Layer::Files(vec![file]),
        config,
        output,
    )
}

/// `gamekeeper.dev/samples/openarena`: the game server of Debian's package `openarena-server`.
///
/// It writes under `/tmp` alone, so a pod with a read-only root file system mounts an emptyDir there.
pub(crate) fn build_openarena(output: &Path) -> Result<Built> {
    let layer = rootfs::build("openarena", &["openarena-server"], &cache_directory()?)?;
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
    pack(
        "gamekeeper.dev/samples/openarena",
        "openarena",
        host_architecture(),
        Layer::RootFs(layer),
        config,
        output,
    )
}

/// `gamekeeper.dev/samples/shell`: bash, curl and busybox, for a game that is a script and reports its own state.
pub(crate) fn build_curl_game(output: &Path) -> Result<Built> {
    let layer = rootfs::build("shell", &["busybox", "curl"], &cache_directory()?)?;
    let config = Config {
        cmd: strings(&["/bin/bash"]),
        env: strings(&["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"]),
        ..config("shell")
    };
    pack("gamekeeper.dev/samples/shell", "shell", host_architecture(), Layer::RootFs(layer), config, output)
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

fn pack(
    repository: &str,
    file: &str,
    architecture: &str,
    layer: Layer,
    config: Config,
    output: &Path,
) -> Result<Built> {
    let name = format!("{repository}:{VERSION}");
    let archive = output.join(format!("{file}.tar"));
    let started = Instant::now();
    archive::write(&Image { name: &name, architecture, layers: vec![layer], config }, &archive)?;
    let bytes = std::fs::metadata(&archive)?.len();
    eprintln!("packed {name}: {} MB in {:.1} s", bytes.div_ceil(1_000_000), started.elapsed().as_secs_f64());
    Ok(Built { name, archive })
}

fn strings(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|&part| part.to_owned()).collect()
}

/// The host's architecture in Go's words, which images use.
fn host_architecture() -> &'static str {
    go_architecture(std::env::consts::ARCH)
}

/// An architecture of Rust's in Go's words.
fn go_architecture(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64le" => "ppc64le",
        same => same,
    }
}

/// The directory that holds the workspace's manifest.
fn workspace() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// Where what is costly to make is kept between runs.
fn cache_directory() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("GAMEKEEPER_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("gamekeeper")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/gamekeeper")))
        .context("found no place for the cache: set GAMEKEEPER_CACHE to a directory")
}
