//! Gives servers back: for their holders, and where nobody has heard of them.

use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::{BUSY_WAIT, ClaimError, Claims, DEADLINE, Granted};
use crate::rules::claim;
use crate::rules::observed::{Fate, Server};
use crate::view::Key;
use crate::write::WriteError;

impl Claims {
    /// Its holder gives back what claim `id` holds, and gets what that was; nothing if it still waited for a server.
    ///
    /// # Errors
    /// Its game is on or over, or it is not held any more.
    pub async fn release(&self, namespace: &str, id: &str) -> Result<Option<Granted>, ClaimError> {
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            if self.withdrawn(&Key::new(namespace, id)).await? {
                return Ok(None);
            }
            let Granted { server, claim } =
                self.remembered(namespace, id, self.holder(namespace, id)).await?;
            let patch = match server.fate(&claim) {
                Fate::Held => claim::release(&server, &claim, Timestamp::now()),
                Fate::Confirmed | Fate::Lapsed | Fate::Released => None,
            };
            // Seats that are due and have not been swept yet.
            if patch.is_none() && server.fate(&claim) == Fate::Held && claim.expires_at.0 <= Timestamp::now()
            {
                return Err(ClaimError::Expired { id: id.to_owned() });
            }
            let Some(patch) = patch else {
                return Err(ClaimError::Playing { id: id.to_owned(), server: server.name });
            };
            let key = Key::new(namespace, &server.name);
            match self.writer.patch_status(&key, patch).await {
                Ok(released) => {
                    self.writer.poke_soon(&key);
                    self.release_surplus(namespace, id, &released.uid).await;
                    let over = || ClaimError::Over { id: id.to_owned() };
                    return Granted::of(released, id).map(Some).ok_or_else(over);
                }
                // The game went Active, or the claim lapsed: the API server's own word says which.
                Err(WriteError::Lost | WriteError::Gone) => {
                    sleep(BUSY_WAIT).await;
                    self.writer.find_server(&key).await.map_err(ClaimError::Write)?;
                }
                Err(error) => return Err(ClaimError::Write(error)),
            }
        }
        Err(ClaimError::Slow)
    }

    /// Gives back what else is held by claim `id`: a replica that was killed may have taken a server for it that nobody
    /// heard of.
    async fn release_surplus(&self, namespace: &str, id: &str, released: &str) {
        let mut bearers = self.view.claimed_with(namespace, id);
        bearers.retain(|server| server.uid != released && server.is_held_by(id));
        self.give_back(namespace, id, bearers).await;
    }

    /// Gives back what `servers` hold for claim `id`, where nobody plays yet.
    pub(super) async fn give_back(&self, namespace: &str, id: &str, servers: Vec<Server>) {
        let surplus = servers.into_iter().filter_map(|server| Granted::of(server, id));
        for surplus in surplus.filter(|surplus| surplus.fate() == Fate::Held) {
            self.give_up(namespace, &surplus).await;
        }
    }

    /// Gives back, until that is done or cannot be any more, what was taken and nobody hears of.
    pub(super) async fn give_up(&self, namespace: &str, taken: &Granted) {
        let Granted { server, claim } = taken;
        let key = Key::new(namespace, &server.name);
        let until = Instant::now() + DEADLINE;
        // Should the API server ail for longer than that, the claim lapses.
        while Instant::now() < until {
            // Seats are given back of the server as it is now, whoever has come to it since.
            let now = self.view.server(&key).filter(|now| now.uid == server.uid);
            let Some(patch) = now.and_then(|now| claim::forget(&now, claim, Timestamp::now())) else {
                return;
            };
            match self.writer.patch_status(&key, patch).await {
                Err(WriteError::Busy { .. } | WriteError::Silence | WriteError::Unreachable(_)) => {
                    sleep(BUSY_WAIT).await;
                }
                Err(WriteError::Lost) if claim.seats.is_some() => {
                    sleep(BUSY_WAIT).await;
                    let _ = self.writer.find_server(&key).await;
                }
                Ok(_) => return self.writer.poke_soon(&key),
                Err(
                    WriteError::Lost | WriteError::Gone | WriteError::Exists | WriteError::Refused { .. },
                ) => {
                    return;
                }
            }
        }
    }
}
