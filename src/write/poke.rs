//! Pokes: an HTTP request to a pod's agent that says nothing but "read your object".

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::debug;

use super::Writer;
use crate::api::names::POKE_PATH;
use crate::rules::poked;
use crate::view::Key;

/// How long a poke may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How many pokes after claims are under way at once.
const CONCURRENCY: usize = 128;

/// Why an agent has not heard a poke.
#[derive(Debug, thiserror::Error)]
pub enum PokeError {
    /// No connection, or no answer, in time.
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Silence,
    /// No connection, or one that broke.
    #[error("{0}")]
    Broken(String),
    /// Something that is no agent.
    #[error("something answers {0} there")]
    Answer(StatusCode),
}

/// What pokes are sent with.
#[derive(Clone)]
pub(super) struct Poker {
    client: Client<HttpConnector, Empty<Bytes>>,
    places: Arc<Semaphore>,
}

impl Default for Poker {
    fn default() -> Self {
        // Each goes to another pod: no connection is kept, and none is used a second time.
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_max_idle_per_host(0).retry_canceled_requests(false);
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(TIMEOUT));
        Self { client: builder.build(connector), places: Arc::new(Semaphore::new(CONCURRENCY)) }
    }
}

impl Writer {
    /// Pokes the agent of this server, if it has one, and waits for nothing: should that get lost, the leader pokes
    /// again.
    pub fn poke_soon(&self, server: &Key) {
        let Some(address) = poked::address(&self.view.member(server)) else { return };
        let (poker, server) = (self.poker.clone(), server.clone());
        tokio::spawn(async move {
            // Where so many do not answer that the wait is long, this one is left to the leader too.
            let Ok(Ok(_place)) = timeout(TIMEOUT, poker.places.acquire()).await else { return };
            if let Err(error) = poker.poke(address).await {
                debug!(%server, %address, %error, "poke an agent");
            }
        });
    }

    /// Pokes the agent at this address.
    ///
    /// # Errors
    /// It has not answered.
    pub async fn poke(&self, address: SocketAddr) -> Result<(), PokeError> {
        self.poker.poke(address).await
    }
}

impl Poker {
    async fn poke(&self, address: SocketAddr) -> Result<(), PokeError> {
        let uri = Uri::builder().scheme("http").authority(address.to_string()).path_and_query(POKE_PATH);
        let uri = uri.build().map_err(|error| broken(&error))?;
        let request = Request::builder().method(Method::POST).uri(uri).body(Empty::new());
        let request = request.map_err(|error| broken(&error))?;
        match timeout(TIMEOUT, self.client.request(request)).await {
            Ok(Ok(answer)) if answer.status() == StatusCode::NO_CONTENT => Ok(()),
            Ok(Ok(answer)) => Err(PokeError::Answer(answer.status())),
            Ok(Err(error)) => Err(broken(&error)),
            Err(_) => Err(PokeError::Silence),
        }
    }
}

/// What the error goes back to says it in the fewest words.
fn broken(error: &(dyn Error + 'static)) -> PokeError {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    PokeError::Broken(root.to_string())
}
