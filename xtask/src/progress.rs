//! What takes long shows that it goes on.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// How often a note is written where it cannot replace the one before.
const NOTE_INTERVAL: Duration = Duration::from_secs(2);

/// One line on the terminal that counts the time; a line at each step where there is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    title: String,
    start: Instant,
    terminal: bool,
    note: String,
    noted: Instant,
    width: usize,
}

impl Progress {
    /// Begins to count.
    pub(crate) fn start(title: impl Into<String>) -> Self {
        let title = title.into();
        let terminal = stderr().is_terminal();
        if !terminal {
            eprintln!("{title}");
        }
        let start = Instant::now();
        Self { title, start, terminal, note: String::new(), noted: start, width: 0 }
    }

    /// Shows the time.
    pub(crate) fn tick(&mut self) {
        if !self.terminal {
            return;
        }
        let line = format!("{} {} {}", self.title, self.elapsed(), self.note);
        // Blanks cover what a longer line left.
        eprint!("\r{line:<width$}", width = self.width);
        self.width = line.chars().count();
        // Only a line of progress: nothing is lost if it cannot be shown.
        let _ = stderr().flush();
    }

    /// Shows how far it is.
    pub(crate) fn note(&mut self, note: String) {
        let is_due = self.noted.elapsed() >= NOTE_INTERVAL;
        if !self.terminal && is_due && self.note != note {
            eprintln!("  {} {note}", self.elapsed());
            self.noted = Instant::now();
            self.note = note;
        } else if self.terminal {
            self.note = note;
        }
        self.tick();
    }

    /// Says that it is done, and how long it took.
    pub(crate) fn finish(self) {
        let start = if self.terminal { "\r" } else { "" };
        let line = format!("{}: {:.1} s", self.title, self.start.elapsed().as_secs_f64());
        eprintln!("{start}{line:<width$}", width = self.width);
    }

    fn elapsed(&self) -> String {
        let seconds = self.start.elapsed().as_secs();
        format!("{}:{:02}", seconds / 60, seconds % 60)
    }
}

/// Waits for a child to end, and shows the time meanwhile.
pub(crate) fn wait(title: impl Into<String>, child: &mut Child) -> Result<ExitStatus> {
    let mut progress = Progress::start(title);
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a program that was started")? {
            progress.finish();
            return Ok(status);
        }
        progress.tick();
        thread::sleep(Duration::from_millis(200));
    }
}
