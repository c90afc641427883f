//! Calls of one id take turns at a replica: the second finds what the first has taken. Else each would take a server,
//! and all but one would have to give it back.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as Gate, OwnedMutexGuard};

type Id = (String, String);

/// By namespace and id, as long as somebody has the turn or waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    gates: Arc<Mutex<HashMap<Id, Arc<Gate<()>>>>>,
}

/// A call's turn; the next one's begins when it is dropped.
pub(super) struct Turn {
    turns: Turns,
    id: Id,
    gate: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for the turn of this id.
    pub(super) async fn wait(&self, namespace: &str, id: &str) -> Turn {
        let id = (namespace.to_owned(), id.to_owned());
        let gate = Arc::clone(self.gates.lock().entry(id.clone()).or_default());
        // Made before the wait, so that whoever gives up waiting leaves nothing behind.
        let mut turn = Turn { turns: self.clone(), id, gate: None };
        turn.gate = Some(gate.lock_owned().await);
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.gate = None;
        let mut gates = self.turns.gates.lock();
        // Nobody has it, and nobody waits for it.
        if gates.get(&self.id).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            gates.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn calls_of_one_id_take_turns_and_leave_nothing() {
        let turns = Turns::default();
        let first = turns.wait("games", "match-1").await;
        let mut second = Box::pin(turns.wait("games", "match-1"));
        assert!((&mut second).now_or_never().is_none());
        assert!(turns.wait("games", "match-2").now_or_never().is_some());
        drop(first);
        drop(second.await);
        assert!(turns.gates.lock().is_empty());
    }

    #[tokio::test]
    async fn who_gives_up_waiting_leaves_nothing() {
        let turns = Turns::default();
        let first = turns.wait("games", "match-1").await;
        assert!(turns.wait("games", "match-1").now_or_never().is_none());
        drop(first);
        assert!(turns.gates.lock().is_empty());
    }
}
