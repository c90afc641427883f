//! What the claim API serves TLS with: read from a Secret now and then, and changed while connections go on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::rules::certificate::{self, Contents, Plan, Unusable};
use crate::write::{Certificates, MakeError, WriteError, begun, renewed};

/// How often the Secret is read. A certificate is renewed a month before its end, so nothing hangs on it.
const REFRESH: Duration = Duration::from_secs(15);
/// The wait after a failure while there is nothing to serve with.
const RETRY: Duration = Duration::from_secs(1);
/// How often a replica tries to be the first to write before it leaves that to the next turn.
const TRIES: u32 = 5;

/// Whose certificate the claim API has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum TlsMode {
    /// The operator's own: it makes and renews it, in the Secret.
    #[default]
    Own,
    /// Yours: in the Secret is what you, or a tool of yours, put there.
    Given,
    /// None: plain HTTP, for a mesh that does TLS itself.
    Off,
}

/// What to serve TLS with at the moment.
#[derive(Clone)]
pub(super) struct Served {
    now: Arc<RwLock<Option<Arc<ServerConfig>>>>,
}

/// Keeps what is served with in step with the Secret.
pub struct Tls {
    certificates: Certificates,
    names: Vec<String>,
    /// Whether the operator makes the certificate.
    own: bool,
    crypto: Arc<CryptoProvider>,
    served: Served,
}

/// Why the certificate is not what it should be.
#[derive(Debug, thiserror::Error)]
enum TlsError {
    #[error("read or write the Secret: {}", with_source(.0))]
    Write(#[from] WriteError),
    #[error("make a certificate: {0}")]
    Make(#[from] MakeError),
    #[error("{0}")]
    Unusable(#[from] Unusable),
    #[error("the Secret is not there; the chart makes it, empty")]
    Missing,
}

fn with_source(error: &WriteError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

impl Served {
    pub(super) fn now(&self) -> Option<Arc<ServerConfig>> {
        self.now.read().clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tls")
            .field("names", &self.names)
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// From the Secret that `certificates` names, for callers who know the operator by `names`; none where TLS is off.
    pub fn new(mode: TlsMode, certificates: Certificates, names: Vec<String>) -> Option<Self> {
        let own = match mode {
            TlsMode::Own => true,
            TlsMode::Given => false,
            TlsMode::Off => return None,
        };
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        Some(Self { certificates, names, own, crypto, served: Served { now: Arc::default() } })
    }

    pub(super) fn served(&self) -> Served {
        self.served.clone()
    }

    /// Keeps it so, for ever.
    pub(super) async fn keep(self) {
        let mut before = None;
        loop {
            let wait = match self.turn(&mut before).await {
                Ok(()) => REFRESH,
                Err(error) => {
                    warn!(%error, "the claim API's certificate is not as it should be");
                    if self.served.now().is_some() { REFRESH } else { RETRY }
                }
            };
            sleep(wait).await;
        }
    }

    /// Sees to it that the Secret is as it should be, and serves with it.
    async fn turn(&self, before: &mut Option<Contents>) -> Result<(), TlsError> {
        let contents = self.settled(before.as_ref()).await?;
        if before.as_ref() != Some(&contents) {
            let config = certificate::server(&contents, &self.crypto)?;
            *self.served.now.write() = Some(Arc::new(config));
            *before = Some(contents);
            info!("the claim API serves with the certificate as it is now");
        }
        Ok(())
    }

    /// What the Secret holds once nothing is to be done about it.
    async fn settled(&self, before: Option<&Contents>) -> Result<Contents, TlsError> {
        for _ in 0..TRIES {
            let kept = self.certificates.read().await?.ok_or(TlsError::Missing)?;
            let there = kept.contents.clone();
            let now = Timestamp::now();
            let plan = if self.own {
                certificate::plan(&there, before, &self.names, now, &self.crypto)
            } else {
                Plan::Keep
            };
            let wanted = match (plan, before) {
                (Plan::Keep, _) => return Ok(there),
                (Plan::PutBack, Some(before)) => before.clone(),
                (Plan::Renew, _) => match renewed(there.clone(), &self.names, now) {
                    Ok(made) if certificate::will_do(&made, &self.names, now, &self.crypto) => made,
                    // Its authority's key is not its authority's.
                    _ => begun(there, &self.names, now)?,
                },
                (Plan::Begin | Plan::PutBack, _) => begun(there, &self.names, now)?,
            };
            match self.certificates.replace(kept, wanted).await {
                Ok(()) => info!(?plan, "the claim API's certificate is written"),
                // Another replica was first: what it has written is read now.
                Err(WriteError::Lost) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(WriteError::Lost.into())
    }
}
