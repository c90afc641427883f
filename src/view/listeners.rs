//! Who is told of changes.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};

use super::{Changed, Key};

/// Those who hear of every change, and those who wait for one claim's.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    all: Vec<mpsc::UnboundedSender<Changed>>,
    of_claims: HashMap<Key, Arc<Notify>>,
}

impl Listeners {
    /// Who hears of all that changes from now on, and of these at once.
    pub(super) fn add(&mut self, there: impl Iterator<Item = Changed>) -> mpsc::UnboundedReceiver<Changed> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for change in there {
            // The receiver is in our hands.
            let _ = sender.send(change);
        }
        self.all.push(sender);
        receiver
    }

    /// What tells of each change of a claim, or of the server that bears its id.
    pub(super) fn of_claim(&mut self, claim: &Key) -> Arc<Notify> {
        self.of_claims.retain(|_, ear| Arc::strong_count(ear) > 1);
        Arc::clone(self.of_claims.entry(claim.clone()).or_default())
    }

    pub(super) fn tell(&mut self, change: &Changed) {
        if let Changed::Claim(key) = change
            && let Some(ear) = self.of_claims.get(key)
        {
            ear.notify_waiters();
        }
        self.all.retain(|listener| listener.send(change.clone()).is_ok());
    }
}
