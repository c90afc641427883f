//! Running other programs so that a failure says what was run and what it answered.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

/// Runs a command to its end and returns what it printed; its input is empty unless it was given one.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let result = command.output().with_context(|| format!("cannot start `{shown}`"))?;
    if !result.status.success() {
        let said = String::from_utf8_lossy(&result.stderr);
        bail!("`{shown}` failed with {}: {}", result.status, said.trim());
    }
    String::from_utf8(result.stdout).with_context(|| format!("`{shown}` printed something that is not UTF-8"))
}

/// Runs a command that writes to this terminal itself, as one named part of a longer run.
pub(crate) fn step(what: &str, command: &mut Command) -> Result<()> {
    eprintln!("== {what}");
    let start = Instant::now();
    let status = command.status().with_context(|| format!("cannot start `{}`", show(command)))?;
    if !status.success() {
        bail!("could not {what}: `{}` ended with {status}; what it found stands above", show(command));
    }
    eprintln!("== {what}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The last lines of a log, indented, for the end of an error.
pub(crate) fn tail(log: &Path) -> String {
    const LINES: usize = 15;
    let Ok(bytes) = fs::read(log) else {
        return format!("  (no log at {})", log.display());
    };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(LINES);
    lines.iter().skip(skipped).fold(String::new(), |mut tail, line| {
        // Writing into a String cannot fail.
        let _ = writeln!(tail, "  {line}");
        tail
    })
}

fn show(command: &Command) -> String {
    let mut shown = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        shown.push(' ');
        shown.push_str(&argument.to_string_lossy());
    }
    shown
}
