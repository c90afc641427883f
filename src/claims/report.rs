//! Row A3: a matchmaker sets the players and sessions of many servers in one call.

use std::collections::HashSet;

use futures::StreamExt;
use futures::stream;

use super::Claims;
use crate::rules::report::{self, Refusal, Report};
use crate::view::Key;
use crate::write::WriteError;

/// How many servers are written at once.
const CONCURRENCY: usize = 32;

/// Why a server's numbers were not set.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// They are not to be.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The same call has other numbers for it.
    #[error("it is named more than once; its first numbers count")]
    Repeated,
    /// The API server could not be reached, or refused.
    #[error("write its status")]
    Write(#[source] WriteError),
}

impl Claims {
    /// Sets what `reports` say, in any order, and says of each what came of it, in theirs.
    pub async fn report(
        &self,
        namespace: &str,
        reports: Vec<Report>,
    ) -> Vec<(String, Result<(), ReportError>)> {
        let mut names = HashSet::new();
        let set = |report: Report| {
            let is_first = names.insert(report.name.clone());
            async move {
                let key = Key::new(namespace, &report.name);
                let outcome =
                    if is_first { self.report_one(&key, &report).await } else { Err(ReportError::Repeated) };
                (report.name, outcome)
            }
        };
        stream::iter(reports).map(set).buffered(CONCURRENCY).collect().await
    }

    async fn report_one(&self, key: &Key, report: &Report) -> Result<(), ReportError> {
        let member = self.view.member(key);
        let patch = report::set(report, member.server.as_deref(), member.pod.as_deref())?;
        match self.writer.patch_status(key, patch).await {
            Ok(_) => Ok(()),
            Err(WriteError::Lost | WriteError::Gone) => Err(Refusal::NoSuchServer.into()),
            Err(error) => Err(ReportError::Write(error)),
        }
    }
}
