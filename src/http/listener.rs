//! Accepts connections and serves them, within limits, until told to stop.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::connections::{Connections, Seat};
use super::tls::Served;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the head of a request may take to arrive, the wait for its first byte on an open connection included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest head of a request, in bytes.
const HEAD_LIMIT: usize = 32 * 1024;
/// The wait after connections cannot be accepted, as when there are no file descriptors left.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);

/// What answers on one address.
pub(super) struct Door {
    pub(super) listener: TcpListener,
    pub(super) router: Router,
    /// What TLS is served with; none for plain HTTP.
    pub(super) tls: Option<Served>,
    pub(super) connections: Connections,
}

impl Door {
    /// Serves until `close`; then accepts nobody any more, and ends once the requests under way have.
    pub(super) async fn serve(self, close: CancellationToken) {
        let tasks = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = close.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    if let Some(seat) = self.connections.admit() {
                        tasks.spawn(connection(
                            stream,
                            self.tls.clone(),
                            self.router.clone(),
                            seat,
                            close.clone(),
                        ));
                    } else {
                        debug!("a connection is turned away: each one that is open has a request");
                    }
                }
                Err(error) if is_the_callers(&error) => {}
                Err(error) => {
                    warn!(%error, "accept connections");
                    sleep(ACCEPT_WAIT).await;
                }
            }
        }
        drop(self.listener);
        tasks.close();
        tasks.wait().await;
    }
}

/// Whether a connection has failed before it was accepted, which says nothing about the next one.
fn is_the_callers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(
    stream: TcpStream,
    tls: Option<Served>,
    router: Router,
    seat: Arc<Seat>,
    close: CancellationToken,
) {
    // Answers are small, and wait for nothing.
    let _ = stream.set_nodelay(true);
    tokio::select! {
        () = seat.given_up() => debug!("a connection without a request makes room for another"),
        () = speak(stream, tls, router, &seat, close) => {}
    }
}

async fn speak(
    stream: TcpStream,
    tls: Option<Served>,
    router: Router,
    seat: &Arc<Seat>,
    close: CancellationToken,
) {
    let Some(tls) = tls else { return requests(stream, router, seat, close).await };
    let Some(config) = tls.now() else {
        return debug!("a connection is turned away: there is no certificate yet");
    };
    match timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => requests(stream, router, seat, close).await,
        Ok(Err(error)) => debug!(%error, "a TLS handshake failed"),
        Err(_) => debug!("a TLS handshake took too long"),
    }
}

async fn requests<S>(stream: S, router: Router, seat: &Arc<Seat>, close: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let busy = seat.busy();
        let answer = router.call(request);
        async move {
            let answer = answer.await;
            drop(busy);
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_LIMIT);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = close.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection broke");
    }
}
