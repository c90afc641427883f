//! Hears pokes: requests that say "read your object" and nothing else, so whoever sends one may. What it costs is
//! limited: so many connections at once, each for a moment, and however many pokes come, one reading each
//! [`super::LEAST_READ_INTERVAL`].

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::api::names::POKE_PATH;

/// How many connections there are at once: more than all replicas of an operator open.
const CONNECTIONS: usize = 16;
/// How long each may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The wait after a connection that could not be taken, as for want of memory.
const PAUSE: Duration = Duration::from_millis(100);
/// The smallest buffer that hyper has.
const HEAD: usize = 8 * 1024;

/// Passes on each poke that comes to this port, as long as it can listen there.
pub(super) async fn listen(port: u16, pokes: Arc<Notify>) -> std::io::Result<()> {
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => listener,
        // A node without IPv6.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?,
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    // The places are never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "take a connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        let pokes = Arc::clone(&pokes);
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(|request| std::future::ready(answer(&request, &pokes)));
            let mut server = http1::Builder::new();
            server.keep_alive(false).max_buf_size(HEAD);
            let _ = timeout(PATIENCE, server.serve_connection(TokioIo::new(stream), service)).await;
        });
    }
    Ok(())
}

fn answer(request: &Request<Incoming>, pokes: &Notify) -> Result<Response<Empty<Bytes>>, Infallible> {
    let status = match (request.method(), request.uri().path()) {
        (&Method::POST, POKE_PATH) => {
            pokes.notify_one();
            StatusCode::NO_CONTENT
        }
        (_, POKE_PATH) => StatusCode::METHOD_NOT_ALLOWED,
        _ => StatusCode::NOT_FOUND,
    };
    let mut answer = Response::new(Empty::new());
    *answer.status_mut() = status;
    Ok(answer)
}
