//! One replica leads, by a Lease. This only avoids wasted work: what keeps a second leader harmless are the
//! conditions on every write.

use std::time::Duration;

use kube::Client;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::metrics::Metrics;

/// How long a lease lasts that its holder does not renew, in seconds. Another replica looks again when it would
/// have ended, also where its holder has given it up.
const DURATION_SECONDS: u64 = 15;
/// How long before its end it is renewed, in seconds.
const GRACE_SECONDS: u64 = 5;
/// The wait after an election that failed.
const RETRY: Duration = Duration::from_secs(2);

/// The election that a replica takes part in.
pub(super) struct Election {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) replica: String,
    /// Says whether this replica leads.
    pub(super) leads: watch::Sender<bool>,
    pub(super) metrics: Metrics,
}

impl Election {
    async fn manager(&self) -> Result<LeaseManager, LeaseManagerError> {
        LeaseManagerBuilder::new(self.client.clone(), &self.name)
            .with_namespace(&self.namespace)
            .with_identity(&self.replica)
            .with_duration(DURATION_SECONDS)
            .with_grace(GRACE_SECONDS)
            .build()
            .await
    }
}

/// Runs `work` while this replica leads, until `stop`; then gives the lease up. An election that fails, as while the
/// API server starts or after somebody has deleted the Lease, is held anew.
pub(super) async fn while_leading<F: Future<Output = ()>>(
    election: Election,
    stop: CancellationToken,
    work: impl Fn() -> F,
) {
    while !stop.is_cancelled() {
        let failed = match election.manager().await {
            Ok(manager) => take_part(&manager, &election, stop.clone(), &work).await,
            Err(error) => Err(error),
        };
        if let Err(error) = failed {
            warn!(lease = %format!("{}/{}", election.namespace, election.name), %error, "elect a leader again");
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(RETRY) => {}
            }
        }
    }
}

/// Leads whenever it is elected, until `stop` or a failure.
async fn take_part<F: Future<Output = ()>>(
    manager: &LeaseManager,
    election: &Election,
    stop: CancellationToken,
    work: impl Fn() -> F,
) -> Result<(), LeaseManagerError> {
    let mut leads = false;
    loop {
        let turn = async {
            if leads {
                info!("this replica leads");
                let _leads = Leads::begin(election);
                work().await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        let was_leading = leads;
        tokio::select! {
            () = stop.cancelled() => return manager.release().await,
            changed = manager.changed() => leads = changed?,
            () = turn => {}
        }
        if was_leading {
            info!("this replica leads no more");
        }
    }
}

/// Says that this replica leads, until dropped.
struct Leads<'a>(&'a Election);

impl<'a> Leads<'a> {
    fn begin(election: &'a Election) -> Self {
        election.metrics.leads();
        election.leads.send_replace(true);
        Self(election)
    }
}

impl Drop for Leads<'_> {
    fn drop(&mut self) {
        self.0.metrics.follows();
        self.0.leads.send_replace(false);
    }
}
