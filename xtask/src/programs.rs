//! The Go programs pinned under `tools/`, built once and kept in the cache.
//!
//! Every folder in the cache is named by a hash of its module and of the Go
//! that built it, so a changed pin is a new folder and nothing goes stale.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::command::{output, tail};
use crate::progress;
use crate::workspace::{Workspace, hex};

/// Helm refuses charts that state a kubeVersion unless the API server knows its own version.
const LDFLAGS: &str = "-s -w -X k8s.io/component-base/version.gitVersion=";

/// The built programs, one folder a module.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Programs {
    etcd: PathBuf,
    kubernetes: PathBuf,
    kwok: PathBuf,
    helm: PathBuf,
    pause: PathBuf,
}

impl Programs {
    /// Builds what the cache lacks, and returns where everything is.
    pub(crate) fn ensure(workspace: &Workspace) -> Result<Self> {
        let builder = Builder::new(workspace)?;
        Ok(Self {
            etcd: builder.module("etcd")?,
            kubernetes: builder.module("kubernetes")?,
            kwok: builder.module("kwok")?,
            helm: builder.module("helm")?,
            pause: builder.module("pause")?,
        })
    }

    /// Builds Helm alone, for what needs no cluster, and returns where it is.
    pub(crate) fn ensure_helm(workspace: &Workspace) -> Result<PathBuf> {
        Ok(Builder::new(workspace)?.module("helm")?.join("helm"))
    }

    /// kubectl, if it was built before: it takes too long to be built for itself.
    pub(crate) fn built_kubectl(workspace: &Workspace) -> Option<PathBuf> {
        let folder = Builder::new(workspace).ok()?.folder("kubernetes").ok()?;
        Some(folder.join("kubectl")).filter(|program| program.is_file())
    }

    /// etcd, the API server's store.
    pub(crate) fn etcd(&self) -> PathBuf {
        self.etcd.join("etcd")
    }

    /// One of Kubernetes' own programs, such as `kubelet`.
    pub(crate) fn kubernetes(&self, program: &str) -> PathBuf {
        self.kubernetes.join(program)
    }

    /// The command line of Kubernetes.
    pub(crate) fn kubectl(&self) -> PathBuf {
        self.kubernetes("kubectl")
    }

    /// The package manager of Kubernetes.
    pub(crate) fn helm(&self) -> PathBuf {
        self.helm.join("helm")
    }

    /// kwok, which answers for nodes and pods that do not exist.
    pub(crate) fn kwok(&self) -> PathBuf {
        self.kwok.join("kwok")
    }

    /// The steps by which kwok's nodes and pods come and go.
    pub(crate) fn kwok_stages(&self) -> PathBuf {
        self.kwok.join(STAGES)
    }

    /// What runs in every pod's sandbox: a static program that waits for SIGTERM.
    pub(crate) fn pause(&self) -> PathBuf {
        self.pause.join("pause")
    }
}

const STAGES: &str = "stages.yaml";

/// Nodes that keep their lease, and pods that are Running as soon as they are bound.
const STAGE_FILES: [&str; 5] = [
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
];

struct Builder {
    tools: PathBuf,
    cache: PathBuf,
    ldflags: String,
}

impl Builder {
    fn new(workspace: &Workspace) -> Result<Self> {
        let tools = workspace.tools();
        let version = kubernetes_version(&tools.join("kubernetes/go.mod"))?;
        Ok(Self { tools, cache: workspace.cache().join("programs"), ldflags: format!("{LDFLAGS}{version}") })
    }

    /// Where one module's programs are, once they are built.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        Ok(self.cache.join(format!("{name}-{}", self.key(&self.tools.join(name))?)))
    }

    /// The cache's folder of one module, built if it is not there.
    fn module(&self, name: &str) -> Result<PathBuf> {
        let source = self.tools.join(name);
        let built = self.folder(name)?;
        if built.is_dir() {
            return Ok(built);
        }
        fs::create_dir_all(&self.cache)
            .with_context(|| format!("cannot create the cache {}", self.cache.display()))?;
        let _lock = lock(&self.cache.join(format!("{name}.lock")))?;
        // Another build may have finished while this one waited for the lock.
        if built.is_dir() {
            return Ok(built);
        }
        let unfinished = tempfile::Builder::new()
            .prefix(&format!("{name}-unfinished-"))
            .tempdir_in(&self.cache)
            .with_context(|| format!("cannot create a folder in {}", self.cache.display()))?;
        self.build(name, &source, unfinished.path())?;
        if name == "kwok" {
            write_stages(&source, &unfinished.path().join(STAGES))?;
        }
        let unfinished = unfinished.keep();
        fs::rename(&unfinished, &built)
            .with_context(|| format!("cannot move {} to {}", unfinished.display(), built.display()))?;
        Ok(built)
    }

    fn key(&self, source: &Path) -> Result<String> {
        let go = go(source, &["env", "GOVERSION"])?;
        let mut digest = Sha256::new();
        digest.update(go.as_bytes());
        digest.update(self.ldflags.as_bytes());
        for file in ["go.mod", "go.sum", "main.go"] {
            // A tool of our own has a main.go and needs no go.sum; a pinned one the other way round.
            if let Ok(content) = fs::read(source.join(file)) {
                digest.update(file.as_bytes());
                digest.update(content);
            }
        }
        let mut key = hex(digest.finalize().as_slice());
        key.truncate(12);
        Ok(key)
    }

    fn build(&self, module: &str, source: &Path, target: &Path) -> Result<()> {
        let listed = go(source, &["list", "tool"])?;
        let mut packages: Vec<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
        if packages.is_empty() {
            packages.push(".");
        }
        let log = self.cache.join(format!("{module}.log"));
        let output =
            File::create(&log).with_context(|| format!("cannot create the build log {}", log.display()))?;
        let count = packages.len();
        for (index, package) in packages.into_iter().enumerate() {
            let program = program_name(module, package);
            let title = format!("building {program} ({module}: {} of {count})", index + 1);
            let errors = output.try_clone().context("cannot share the build log")?;
            let mut child = Command::new("go")
                .args(["build", "-trimpath", "-ldflags", &self.ldflags, "-o"])
                .arg(target.join(program))
                .arg(package)
                .current_dir(source)
                .env("CGO_ENABLED", "0")
                .stdin(Stdio::null())
                .stdout(output.try_clone().context("cannot share the build log")?)
                .stderr(errors)
                .spawn()
                .context("cannot start `go build`")?;
            let status = progress::wait(title, &mut child)?;
            if !status.success() {
                bail!(
                    "`go build {package}` in {} failed with {status}; its log is {}, and ends:\n{}",
                    source.display(),
                    log.display(),
                    tail(&log)
                );
            }
        }
        Ok(())
    }
}

/// The name of a package's program; etcd's would be `server`.
fn program_name<'a>(module: &'a str, package: &'a str) -> &'a str {
    match module {
        "etcd" | "pause" => module,
        _ => package.rsplit('/').next().unwrap_or(package),
    }
}

fn write_stages(source: &Path, target: &Path) -> Result<()> {
    let kwok = go(source, &["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"])?;
    let folder = Path::new(kwok.trim()).join("kustomize/stage");
    let mut stages = String::new();
    for file in STAGE_FILES {
        let path = folder.join(file);
        let stage =
            fs::read_to_string(&path).with_context(|| format!("kwok's module lacks {}", path.display()))?;
        stages.push_str("---\n");
        stages.push_str(&stage);
    }
    fs::write(target, stages).with_context(|| format!("cannot write {}", target.display()))
}

fn kubernetes_version(go_mod: &Path) -> Result<String> {
    let text = fs::read_to_string(go_mod).with_context(|| format!("cannot read {}", go_mod.display()))?;
    text.lines()
        .map(|line| line.trim().trim_start_matches("require "))
        .find_map(|line| line.strip_prefix("k8s.io/kubernetes "))
        .and_then(|rest| rest.split_whitespace().next())
        .map(str::to_owned)
        .with_context(|| format!("{} does not require k8s.io/kubernetes", go_mod.display()))
}

fn go(folder: &Path, arguments: &[&str]) -> Result<String> {
    output(Command::new("go").args(arguments).current_dir(folder)).context(
        "the programs of the embedded cluster are built with Go; \
         install Go 1.26 or newer (https://go.dev/doc/install) and have `go` on the PATH",
    )
}

/// Holds a lock file until it is dropped.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}
