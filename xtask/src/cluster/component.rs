//! A program of the cluster that runs until the cluster ends.

use std::ffi::OsString;
use std::path::PathBuf;

/// Where a component runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// As any process of this machine.
    Host,
    /// In the namespaces of the node.
    Node,
}

/// A program, its arguments and its place.
#[derive(Debug)]
pub(crate) struct Component {
    /// What it is called in messages and logs.
    pub(crate) name: &'static str,
    /// The program to run.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// Where it runs.
    pub(crate) place: Place,
}

impl Component {
    /// A component without arguments.
    pub(crate) fn new(name: &'static str, program: PathBuf, place: Place) -> Self {
        Self { name, program, arguments: Vec::new(), place }
    }

    /// Adds `--flag=value`.
    #[must_use]
    pub(crate) fn flag(mut self, flag: &str, value: impl Into<OsString>) -> Self {
        let mut argument = OsString::from(format!("--{flag}="));
        argument.push(value.into());
        self.arguments.push(argument);
        self
    }
}
