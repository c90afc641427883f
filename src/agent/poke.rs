//! Hears pokes: requests that say "read your object" and nothing else, so whoever sends one may. What it costs is
//! limited: so many connections at once, each for a moment, and however many pokes come, two readings in
//! [`super::LEAST_TIME_OF_TWO`].

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

/// Listens at this port, on each of the pod's addresses.
pub(super) async fn bind(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        // A node without IPv6.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
    }
}

/// Passes on each poke that comes.
pub(super) async fn listen(listener: TcpListener, pokes: Arc<Notify>) {
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
            let service = service_fn(async |request| Ok::<_, Infallible>(answer(&request, &pokes)));
            let mut server = http1::Builder::new();
            server.keep_alive(false).max_buf_size(HEAD);
            let _ = timeout(PATIENCE, server.serve_connection(TokioIo::new(stream), service)).await;
        });
    }
}

fn answer(request: &Request<Incoming>, pokes: &Notify) -> Response<Empty<Bytes>> {
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
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// What is answered to these words.
    async fn say(port: u16, words: &str) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        stream.write_all(format!("{words} HTTP/1.1\r\nhost: agent\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn pokes_are_heard_however_many_come_as_one_and_nothing_else_is() {
        let listener = bind(0).await.unwrap();
        let (port, pokes) = (listener.local_addr().unwrap().port(), Arc::new(Notify::new()));
        tokio::spawn(listen(listener, Arc::clone(&pokes)));
        let heard = async || timeout(Duration::ZERO, pokes.notified()).await.is_ok();

        // These occupy some places, and only for a moment.
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS {
            silent.push(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap());
        }
        assert_eq!(say(port, "GET /poke").await, "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(say(port, "POST /").await, "HTTP/1.1 404 Not Found");
        assert!(!heard().await);
        for _ in 0..3 {
            assert_eq!(say(port, "POST /poke").await, "HTTP/1.1 204 No Content");
        }
        assert!(heard().await);
        assert!(!heard().await);
    }
}
