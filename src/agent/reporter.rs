//! Reads and writes the pod's own `GameServer`, with the pod's own token.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::known::{Known, Watched};
use super::session::Report;
use crate::api::GameServer;

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a report did not get through.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportError {
    /// The API server refuses it, and will again: the state does not go backward.
    #[error("the API server refuses it: {0}")]
    Refused(String),
    /// The `GameServer` is not there yet, or the API server is not.
    #[error("reach the GameServer")]
    Unreachable(#[from] kube::Error),
    /// No answer in time.
    #[error("no answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Silence,
}

/// Reads and writes one `GameServer`.
pub(super) struct Reporter {
    servers: Api<GameServer>,
    name: String,
    known: Watched,
}

impl Reporter {
    /// For the `GameServer` of this name.
    pub(super) fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self { servers: Api::namespaced(client, namespace), name: name.to_owned(), known: Watched::default() }
    }

    /// What is known of the resource, from readings and from the answers to reports.
    pub(super) fn known(&self) -> watch::Receiver<Option<Known>> {
        self.known.subscribe()
    }

    /// Reads the resource.
    pub(super) async fn read(&self) -> Result<(), ReportError> {
        let read = timeout(REQUEST_TIMEOUT, self.servers.get(&self.name));
        let server = read.await.map_err(|_| ReportError::Silence)??;
        self.known.take_up(&server);
        Ok(())
    }

    /// Writes what has changed.
    pub(super) async fn report(&self, report: &Report) -> Result<(), ReportError> {
        let mut status = Map::new();
        if let Some(state) = report.state {
            status.insert("state".to_owned(), json!(state));
        }
        if let Some(players) = report.players {
            status.insert("players".to_owned(), json!(players));
        }
        let patch = Patch::Merge(json!({"status": Value::Object(status)}));
        let params =
            PatchParams { field_manager: Some("gamekeeper-agent".to_owned()), ..PatchParams::default() };
        let write = timeout(REQUEST_TIMEOUT, self.servers.patch_status(&self.name, &params, &patch));
        match write.await.map_err(|_| ReportError::Silence)? {
            Ok(server) => {
                self.known.take_up(&server);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 422 || status.code == 403 => {
                Err(ReportError::Refused(status.message.clone()))
            }
            Err(error) => Err(error.into()),
        }
    }
}
