//! A server in the hands of one claim.

use std::sync::Arc;

use parking_lot::RwLock;

use super::Key;
use super::picture::Picture;
use crate::rules::observed::Server;

/// A server that is out of the offer while one claim tries to take it: no longer than its write is in flight.
pub struct Held {
    key: Key,
    server: Server,
    picture: Arc<RwLock<Picture>>,
}

impl Held {
    pub(super) fn new(key: Key, server: Server, picture: Arc<RwLock<Picture>>) -> Self {
        Self { key, server, picture }
    }

    /// Its key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The server as it was when it was taken out.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Keeps it out of the offer until it has changed: its write was lost, so what was seen of it is old.
    pub fn lost(self) {
        self.picture.write().distrust(&self.key, self.server.version);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.picture.write().release(&self.key);
    }
}
