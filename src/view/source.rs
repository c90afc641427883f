//! Where what is seen comes from.

/// Where a piece of the picture comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Source {
    /// A change that a watch has brought.
    Watch,
    /// The list that a watch begins with, at first and whenever it is taken up anew.
    List,
    /// The answer to a write of ours.
    Write,
    /// The answer to a read that a write depends on.
    Read,
}
