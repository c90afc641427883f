//! Root file systems of Debian packages, made by mmdebstrap and kept in the cache.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::archive::{self, EPOCH_SECONDS};
use crate::progress;
use crate::workspace::hex;

/// The suite where the host is not Debian.
const DEFAULT_SUITE: &str = "bookworm";

/// Raised when the options below change what a root file system holds, so that cached ones are built anew.
const RECIPE: u32 = 1;

/// What a container never reads; licences stay.
const TRIM: [&str; 5] = [
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
];

/// Of mmdebstrap's own hooks: it lays /usr out as the suite wants it before the packages come, and so spares the image
/// the package that would convert it, with the whole of Perl.
const MERGED_USR: &str = "/usr/share/mmdebstrap/hooks/maybe-merged-usr";

/// mmdebstrap copies these from the host for its own use; in an image they would only tell where it was built, and
/// runtimes bring their own.
const FORGET_HOST: &str = r#"rm -rf "$1"/etc/apt/sources.list* "$1"/etc/hostname "$1"/etc/resolv.conf"#;

/// The tar of a root file system with Debian's essential packages and `packages`, from the cache or built now.
///
/// `name` is for people: the file's name and the progress text carry it.
pub(crate) fn build(name: &str, packages: &[&str], cache: &Path) -> Result<PathBuf> {
    let os_release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let host_suite = debian_suite(&os_release);
    let suite = host_suite.unwrap_or(DEFAULT_SUITE);
    let directory = cache.join("rootfs");
    let stem = format!("{name}-{}", key(suite, packages));
    let target = directory.join(format!("{stem}.tar"));
    if target.exists() {
        return Ok(target);
    }
    std::fs::create_dir_all(&directory).with_context(|| {
        format!(
            "could not make the cache {}: set GAMEKEEPER_CACHE to a directory you can write",
            directory.display()
        )
    })?;
    let sources = match host_suite {
        Some(suite) => host_sources(suite),
        None => Vec::new(),
    };

    let unfinished = tempfile::Builder::new().prefix(".rootfs-").suffix(".tar").tempfile_in(&directory)?;
    let log = directory.join(format!("{stem}.log"));
    let status = bootstrap(name, suite, packages, &sources, unfinished.path(), &log)?;
    ensure!(
        status.success(),
        "mmdebstrap could not build the root file system of {name} from {suite} ({status}): see {}. On a host that is \
         not Debian it needs the package debian-archive-keyring; without root it needs user namespaces. Or build \
         deploy/images/{name}/Containerfile with Docker or Podman",
        log.display()
    );
    let file =
        unfinished.persist(&target).with_context(|| format!("could not write {}", target.display()))?;
    archive::make_readable(&file)?;
    Ok(target)
}

fn bootstrap(
    name: &str,
    suite: &str,
    packages: &[&str],
    sources: &[String],
    target: &Path,
    log: &Path,
) -> Result<ExitStatus> {
    let output = File::create(log).with_context(|| format!("could not write the log {}", log.display()))?;
    let mut child = Command::new("mmdebstrap")
        .args(["--variant=essential", "--format=tar", "--skip=output/dev"])
        .arg(format!("--include={}", packages.join(",")))
        .args(TRIM.map(|option| format!("--dpkgopt={option}")))
        .args(Path::new(MERGED_USR).exists().then(|| format!("--hook-dir={MERGED_USR}")))
        .arg(format!("--customize-hook={FORGET_HOST}"))
        .arg(suite)
        .arg(target)
        .args(sources)
        .env("SOURCE_DATE_EPOCH", EPOCH_SECONDS.to_string())
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .with_context(|| {
            format!(
                "could not run mmdebstrap, which builds the root file system of {name}: install the package \
                 mmdebstrap, or build deploy/images/{name}/Containerfile with Docker or Podman"
            )
        })?;
    progress::wait(format!("building the root file system of {name} ({suite})"), &mut child)
}

/// The suite of a Debian host, from the text of os-release(5); none for its derivatives, whose suites Debian has not.
fn debian_suite(os_release: &str) -> Option<&str> {
    let field = |name: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"'))
    };
    if field("ID") != Some("debian") {
        return None;
    }
    field("VERSION_CODENAME").filter(|suite| !suite.is_empty())
}

/// The host's own apt sources of `suite`, so that a mirror which is set there is used. Where apt tells of none,
/// mmdebstrap goes to Debian's.
fn host_sources(suite: &str) -> Vec<String> {
    let format = "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)";
    let output =
        Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]).output();
    match output {
        Ok(output) if output.status.success() => {
            source_lines(&String::from_utf8_lossy(&output.stdout), suite)
        }
        Ok(_) | Err(_) => Vec::new(),
    }
}

/// Lines for sources.list from apt's index targets, `origin|uri|suite|component` each.
///
/// Repositories of others that a host may have (`bookworm main` of some vendor) have no place in the image. apt knows
/// an origin only once it has fetched the lists; before that a source passes by its suite and component.
fn source_lines(targets: &str, suite: &str) -> Vec<String> {
    let suites = [suite.to_owned(), format!("{suite}-updates"), format!("{suite}-security")];
    let mut lines: Vec<_> = targets
        .lines()
        .filter_map(|line| {
            let mut fields = line.split('|');
            let (origin, uri, release, component) =
                (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            let is_debian = matches!(origin, "Debian" | "" | "$(ORIGIN)");
            let is_of_suite = suites.iter().any(|suite| suite == release) && component == "main";
            (is_debian && is_of_suite).then(|| format!("deb {uri} {release} main"))
        })
        .collect();
    // A host may list several architectures, each a target of the same source.
    lines.sort();
    lines.dedup();
    lines
}

/// Stands for everything that a root file system's content follows from, short enough for a file's name.
fn key(suite: &str, packages: &[&str]) -> String {
    let mut packages = packages.to_vec();
    packages.sort_unstable();
    let text = format!("{RECIPE}\n{suite}\n{}\n{}", std::env::consts::ARCH, packages.join("\n"));
    let mut key = hex(&Sha256::digest(text));
    key.truncate(16);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suite_is_that_of_a_debian_host_only() {
        assert_eq!(debian_suite("VERSION_CODENAME=bookworm\nID=debian\n"), Some("bookworm"));
        assert_eq!(debian_suite("ID=\"debian\"\nVERSION_CODENAME=\"trixie\"\n"), Some("trixie"));
        assert_eq!(debian_suite("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n"), None);
        assert_eq!(debian_suite("ID=debian\n"), None);
        assert_eq!(debian_suite(""), None);
    }

    #[test]
    fn sources_are_those_of_debian_and_the_suite() {
        let targets = "Debian|https://mirror.example/debian/|bookworm|main\n\
                       Debian|https://mirror.example/debian/|bookworm|main\n\
                       Debian|https://mirror.example/debian/|bookworm|contrib\n\
                       Debian|https://mirror.example/debian/|bookworm-backports|main\n\
                       Debian|https://mirror.example/debian-security/|bookworm-security|main\n\
                       Vendor|https://vendor.example/apt/|bookworm|main\n\
                       broken line\n";
        assert_eq!(
            source_lines(targets, "bookworm"),
            [
                "deb https://mirror.example/debian-security/ bookworm-security main",
                "deb https://mirror.example/debian/ bookworm main",
            ]
        );
    }

    #[test]
    fn sources_pass_before_their_lists_are_fetched() {
        let targets = "$(ORIGIN)|https://mirror.example/debian/|bookworm|main\n";
        assert_eq!(source_lines(targets, "bookworm"), ["deb https://mirror.example/debian/ bookworm main"]);
    }

    #[test]
    fn key_follows_suite_and_packages_but_not_their_order() {
        assert_eq!(key("bookworm", &["a", "b"]), key("bookworm", &["b", "a"]));
        assert_ne!(key("bookworm", &["a", "b"]), key("trixie", &["a", "b"]));
        assert_ne!(key("bookworm", &["a", "b"]), key("bookworm", &["a"]));
    }
}
