//! Pages of a list: so many items, and where the next page begins.

use super::problem::Problem;
use crate::rules::observed::Server;

/// How many items a page has at most.
const LIMIT: u16 = 1000;
/// How many it has unless the caller says.
const DEFAULT: u16 = 500;

/// A page.
pub(super) struct Page {
    pub(super) items: Vec<Server>,
    /// The name that it ended with, if there is more.
    pub(super) next: Option<String>,
}

/// How many items a caller gets who asked for so many.
pub(super) fn limit(asked: Option<u16>) -> Result<usize, Problem> {
    let limit = asked.unwrap_or(DEFAULT);
    if !(1..=LIMIT).contains(&limit) {
        let detail = format!("limit is {limit}; it needs 1 to {LIMIT}");
        return Err(Problem::new(400, "malformed-request", detail));
    }
    Ok(limit.into())
}

/// The page of at most `limit` that begins `found`, which has one more if there is more.
pub(super) fn page(mut found: Vec<Server>, limit: usize) -> Page {
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|server| server.name.clone());
    Page { items: found, next }
}
