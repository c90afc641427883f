//! What has happened, and when.

use std::time::{Duration, Instant};

/// A list of steps, each with its end and the time since the step before.
#[derive(Debug)]
pub(crate) struct Timeline {
    start: Instant,
    last: Instant,
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    at: Duration,
    took: Duration,
    what: String,
}

impl Timeline {
    /// Begins now.
    pub(crate) fn start() -> Self {
        let start = Instant::now();
        Self { start, last: start, steps: Vec::new() }
    }

    /// Says that something has happened just now.
    pub(crate) fn tell(&mut self, what: impl Into<String>) {
        let (now, what) = (Instant::now(), what.into());
        let (at, took) = (now - self.start, now - self.last);
        self.last = now;
        eprintln!("[{:6.1} s] {what}", at.as_secs_f64());
        self.steps.push(Step { at, took, what });
    }

    /// All of it, as a table.
    pub(crate) fn print(&self) {
        println!("{:>9}  {:>8}  WHAT HAPPENED", "AT", "TOOK");
        for Step { at, took, what } in &self.steps {
            println!("{:>7.1} s  {:>6.1} s  {what}", at.as_secs_f64(), took.as_secs_f64());
        }
    }
}
