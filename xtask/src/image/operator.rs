//! Builds the operator as one static program.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::elf;

/// Cargo's profile for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Optimised and stripped: what is shipped.
    Release,
    /// Built in less than half the time.
    Dev,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "dev",
        }
    }
}

/// A target triple of rustc's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target(String);

impl Target {
    /// Its architecture in Go's words.
    pub(crate) fn architecture(&self) -> &str {
        super::go_architecture(self.0.split('-').next().unwrap_or_default())
    }
}

/// The triple that rustc builds for by itself.
pub(crate) fn host_target() -> Result<Target> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(&rustc)
        .arg("-vV")
        .output()
        .with_context(|| format!("could not run {} -vV: install Rust with rustup", rustc.display()))?;
    ensure!(
        output.status.success(),
        "{} -vV failed: {}",
        rustc.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    target_of(&String::from_utf8_lossy(&output.stdout))
}

fn target_of(version: &str) -> Result<Target> {
    let target = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc -vV named no host: is it the Rust compiler?")?;
    ensure!(
        target.contains("-linux-"),
        "the image needs a Linux program and this host is {target}: build deploy/images/operator/Containerfile with \
         Docker or Podman"
    );
    Ok(Target(target.to_owned()))
}

/// Builds the program for `target` without a dynamic loader, and returns where it is.
///
/// The target is named, although it is the host's own, so that the flags do not reach build scripts and macros.
pub(crate) fn build_static(workspace: &Path, target: &Target, profile: Profile) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .current_dir(workspace)
        .args(["build", "--package", "gamekeeper", "--bin", "gamekeeper"])
        .args([
            "--profile",
            profile.name(),
            "--target",
            &target.0,
            "--message-format",
            "json-render-diagnostics",
        ])
        .env("RUSTFLAGS", static_flags(std::env::var_os("RUSTFLAGS")))
        // Cargo would take these and leave RUSTFLAGS aside.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not run {}: install Rust with rustup", cargo.display()))?;
    ensure!(
        output.status.success(),
        "cargo could not build the operator ({}): its errors stand above",
        output.status
    );
    let program = executable(&String::from_utf8_lossy(&output.stdout))?;
    let content = std::fs::read(&program).with_context(|| format!("could not read {}", program.display()))?;
    elf::require_static(&content).with_context(|| {
        format!(
            "{} would not run in an empty image: build with a toolchain whose target {} can link statically, or use \
             deploy/images/operator/Containerfile",
            program.display(),
            target.0
        )
    })?;
    Ok(program)
}

/// The caller's flags stay, with ours behind them.
fn static_flags(own: Option<OsString>) -> OsString {
    let mut flags = own.unwrap_or_default();
    if !flags.is_empty() {
        flags.push(" ");
    }
    flags.push("-C target-feature=+crt-static");
    flags
}

/// The program's path from cargo's messages, so that a target directory set anywhere is followed.
fn executable(messages: &str) -> Result<PathBuf> {
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let is_operator = message.pointer("/target/name").is_some_and(|name| name == "gamekeeper");
        if let Some(path) = message.get("executable").and_then(Value::as_str).filter(|_| is_operator) {
            return Ok(path.into());
        }
    }
    bail!("cargo named no program gamekeeper: does the package still have that binary?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_the_host_that_rustc_names() {
        let target =
            target_of("rustc 1.95.0\nbinary: rustc\nhost: aarch64-unknown-linux-gnu\nrelease: 1.95.0\n")
                .unwrap();
        assert_eq!(target, Target("aarch64-unknown-linux-gnu".into()));
        assert_eq!(target.architecture(), "arm64");
        assert_eq!(Target("x86_64-unknown-linux-gnu".into()).architecture(), "amd64");
    }

    #[test]
    fn host_that_is_not_linux_is_sent_to_the_containerfile() {
        let error = target_of("host: aarch64-apple-darwin\n").unwrap_err();
        assert!(error.to_string().contains("Containerfile"));
    }

    #[test]
    fn executable_is_the_operators_own() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"gamekeeper"},"executable":null}
            warning: not JSON
            {"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}
            {"reason":"compiler-artifact","target":{"name":"gamekeeper"},"executable":"/t/gamekeeper"}
            {"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages).unwrap(), Path::new("/t/gamekeeper"));
        assert!(executable("").is_err());
    }

    #[test]
    fn flags_of_the_caller_are_kept() {
        assert_eq!(static_flags(None), "-C target-feature=+crt-static");
        assert_eq!(static_flags(Some("-D warnings".into())), "-D warnings -C target-feature=+crt-static");
    }
}
