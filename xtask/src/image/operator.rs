//! Builds the operator as one static program.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::elf;
use crate::command::output;
use crate::workspace::Workspace;

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

/// Builds the operator, and returns where the program is.
pub(crate) fn build(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    let arguments = ["build", "--package", "gamekeeper", "--bin", "gamekeeper", "--profile", profile.name()];
    build_static(workspace, &arguments)
}

/// Builds all tests with the operator that they start, and returns where that program is: on its own it would be built
/// with other features of its dependencies, and so with almost all of them again.
pub(crate) fn build_for_tests(workspace: &Workspace) -> Result<PathBuf> {
    build_static(workspace, &["test", "--no-run", "--package", "gamekeeper"])
}

/// Cargo as it builds programs without a dynamic loader.
///
/// The target is named, although it is the host's own, so that the flags do not reach build scripts and macros.
pub(crate) fn static_cargo(workspace: &Workspace) -> Result<Command> {
    let mut cargo = workspace.cargo();
    cargo
        .env("CARGO_BUILD_TARGET", host_target()?)
        .env("RUSTFLAGS", static_flags(std::env::var_os("RUSTFLAGS")))
        // Cargo would take these and leave RUSTFLAGS aside.
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    Ok(cargo)
}

fn build_static(workspace: &Workspace, arguments: &[&str]) -> Result<PathBuf> {
    let mut cargo = static_cargo(workspace)?;
    let output = cargo
        .args(arguments)
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("could not run cargo: install Rust with rustup")?;
    ensure!(
        output.status.success(),
        "cargo could not build the operator ({}): its errors stand above",
        output.status
    );
    let program = executable(&String::from_utf8_lossy(&output.stdout))?;
    let content = std::fs::read(&program).with_context(|| format!("could not read {}", program.display()))?;
    elf::require_static(&content).with_context(|| {
        format!(
            "{} would not run in an empty image: build with a toolchain that can link statically, or use \
             deploy/images/operator/Containerfile",
            program.display()
        )
    })?;
    Ok(program)
}

/// The triple that rustc builds for by itself.
fn host_target() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(rustc).arg("-vV")).context("install Rust with rustup")?;
    target_of(&version)
}

fn target_of(version: &str) -> Result<String> {
    let target = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc -vV named no host: is it the Rust compiler?")?;
    ensure!(
        target.contains("-linux-"),
        "the image needs a Linux program and this host is {target}: build deploy/images/operator/Containerfile with \
         Docker or Podman"
    );
    Ok(target.to_owned())
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
        let is = |pointer: &str, value: Value| message.pointer(pointer) == Some(&value);
        // The tests of the same name are no operator.
        let is_operator = is("/target/name", "gamekeeper".into())
            && is("/target/kind/0", "bin".into())
            && is("/profile/test", false.into());
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
        let version = "rustc 1.95.0\nbinary: rustc\nhost: aarch64-unknown-linux-gnu\nrelease: 1.95.0\n";
        assert_eq!(target_of(version).unwrap(), "aarch64-unknown-linux-gnu");
    }

    #[test]
    fn host_that_is_not_linux_is_sent_to_the_containerfile() {
        let error = target_of("host: aarch64-apple-darwin\n").unwrap_err();
        assert!(error.to_string().contains("Containerfile"));
    }

    #[test]
    fn executable_is_the_operators_own() {
        let artifact = |name: &str, kind: &str, test: bool, path: &str| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "target": {"name": name, "kind": [kind]},
                "profile": {"test": test},
                "executable": path,
            })
            .to_string()
        };
        let messages = [
            "warning: not JSON".to_owned(),
            artifact("gamekeeper", "lib", true, "/t/lib-tests"),
            artifact("gamekeeper", "bin", true, "/t/bin-tests"),
            artifact("other", "bin", false, "/t/other"),
            artifact("gamekeeper", "bin", false, "/t/gamekeeper"),
        ];
        assert_eq!(executable(&messages.join("\n")).unwrap(), PathBuf::from("/t/gamekeeper"));
        assert!(executable("").is_err());
    }

    #[test]
    fn flags_of_the_caller_are_kept() {
        assert_eq!(static_flags(None), "-C target-feature=+crt-static");
        assert_eq!(static_flags(Some("-D warnings".into())), "-D warnings -C target-feature=+crt-static");
    }
}
