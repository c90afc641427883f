//! One replica leads, by a Lease. This only avoids wasted work: what keeps a second leader harmless are the
//! conditions on every write.

use kube::Client;
use kube_lease_manager::{LeaseManagerBuilder, LeaseManagerError};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// How long a lease lasts that its holder does not renew, in seconds.
const DURATION_SECONDS: u64 = 15;
/// How long before its end it is renewed, in seconds.
const GRACE_SECONDS: u64 = 5;

/// The election is impossible.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The lease cannot be read or made.
    #[error("get the lease {namespace}/{name}")]
    Lease {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        source: Box<LeaseManagerError>,
    },
}

/// The election that a replica takes part in.
pub(super) struct Election {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) replica: String,
}

/// Runs `work` while this replica leads, until `stop`; then gives the lease up, so that another takes over at
/// once.
pub(super) async fn while_leading<F: Future<Output = ()>>(
    election: Election,
    stop: CancellationToken,
    work: impl Fn() -> F,
) -> Result<(), LeaseError> {
    let Election { client, namespace, name, replica } = election;
    let failed = |source: LeaseManagerError| LeaseError::Lease {
        namespace: namespace.clone(),
        name: name.clone(),
        source: Box::new(source),
    };
    let manager = LeaseManagerBuilder::new(client, &name)
        .with_namespace(&namespace)
        .with_identity(&replica)
        .with_duration(DURATION_SECONDS)
        .with_grace(GRACE_SECONDS)
        .build()
        .await
        .map_err(failed)?;
    let (mut leading, manager) = manager.watch().await;
    loop {
        let leads = *leading.borrow_and_update();
        let turn = async {
            if leads {
                info!("this replica leads");
                work().await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            changed = leading.changed() => if changed.is_err() { break },
            () = turn => break,
        }
        if leads {
            info!("this replica leads no more");
        }
    }
    drop(leading);
    match manager.await {
        Ok(released) => released.map(drop).map_err(failed),
        Err(_) => Ok(()),
    }
}
