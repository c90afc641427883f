//! File descriptors: each connection is one, and so is each request to the API server.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use crate::http::Limits;

/// How many are kept from callers' connections, for the operator's own: as many as it has requests to the API server
/// under way at most, and some.
const OWN: usize = 512;

/// Raises this process's limit as far as it may go, and fits the connections into it.
pub(super) fn within(limits: Limits) -> Limits {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        warn!(%error, "raise the limit of open files");
    }
    let open = getrlimit(Resource::Nofile).current;
    let open = open.map_or(usize::MAX, |open| usize::try_from(open).unwrap_or(usize::MAX));
    let max_connections = fit(limits.max_connections, open);
    if max_connections < limits.max_connections {
        warn!(
            open_files = open,
            max_connections, "fewer connections than configured: raise the limit of open files"
        );
    }
    Limits { max_connections, ..limits }
}

/// As many of `wanted` as `open` files allow, half of them for ourselves where they are few.
fn fit(wanted: usize, open: usize) -> usize {
    wanted.min(open.saturating_sub(OWN).max(open / 2))
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn connections_leave_files_for_the_operator() {
        assert_eq!(fit(2048, 1_000_000), 2048);
        assert_eq!(fit(2048, 1024), 512);
        assert_eq!(fit(2048, 256), 128);
    }
}
