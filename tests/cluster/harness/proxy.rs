//! A proxy between an operator and the API server, which counts the operator's writes and does to any one of them,
//! or to its watches, what a network and an API server can do.
//!
//! Towards the operator it is plain HTTP on 127.0.0.1; the operator's token is passed on.

mod watches;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::sleep;

use super::world::client_of_nobody;
pub(crate) use watches::Watches;
use watches::{Stream, through};

/// Whether a write is done before its fault, or not at all.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum When {
    /// The API server never hears of the write.
    Before,
    /// The write is done, and its answer is lost.
    After,
}

/// What happens to a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// The operator is to be killed: nothing passes any more, until [`Proxy::open`].
    Kill(When),
    /// It is answered with this code.
    Answer(u16, When),
    /// It takes this much longer.
    Delay(Duration),
    /// The connection is closed instead of an answer.
    Drop(When),
}

/// A write as it came by.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    method: Method,
    path: String,
    /// What the API server answered, if it was asked and has answered.
    code: Option<StatusCode>,
}

/// A running proxy. Ended when dropped.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    client: Client,
    state: Mutex<State>,
    /// Whether a write has met its [`Fault::Kill`].
    killing: watch::Sender<bool>,
    /// How often all watches were cut.
    cuts: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    writes: Vec<Write>,
    /// By the number of the write among all.
    faults: BTreeMap<usize, Fault>,
    watches: Watches,
    /// How many faults have happened.
    happened: usize,
}

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
enum Closed {
    #[error("as the plan wants it")]
    Planned,
    #[error("the operator's request broke")]
    Request(#[from] hyper::Error),
    #[error("the API server was not reached")]
    Forward(#[from] kube::Error),
    #[error("the request's own task has ended early")]
    Task(#[from] JoinError),
}

impl Proxy {
    /// A proxy without faults.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            client: client_of_nobody().await,
            state: Mutex::default(),
            killing: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { port, shared, accepting }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The writes so far: all but leases, events, reviews, certificates and dry runs.
    pub(crate) fn writes(&self) -> usize {
        self.shared.state.lock().writes.len()
    }

    /// How many pods were made.
    pub(crate) fn pods_made(&self) -> usize {
        let made = |write: &&Write| {
            let of_pods = write.method == Method::POST && write.path.ends_with("/pods");
            of_pods && write.code == Some(StatusCode::CREATED)
        };
        self.shared.state.lock().writes.iter().filter(made).count()
    }

    /// All writes in words, a line each.
    pub(crate) fn story(&self) -> String {
        let state = self.shared.state.lock();
        let line = |(number, write): (usize, &Write)| {
            let code = write.code.map_or("-".to_owned(), |code| code.as_u16().to_string());
            format!("{number}. {} {} {code}\n", write.method, write.path)
        };
        state.writes.iter().enumerate().map(line).collect()
    }

    /// Plans a fault for a write: 0 is the next one.
    pub(crate) fn fault_at(&self, number: usize, fault: Fault) {
        let mut state = self.shared.state.lock();
        let number = state.writes.len() + number;
        state.faults.insert(number, fault);
    }

    /// Gives up the faults that have not happened.
    pub(crate) fn no_more_faults(&self) {
        self.shared.state.lock().faults.clear();
    }

    /// How many of the planned faults have happened.
    pub(crate) fn happened(&self) -> usize {
        self.shared.state.lock().happened
    }

    /// What happens to the watches that are opened from now on.
    pub(crate) fn watches(&self, watches: Watches) {
        self.shared.state.lock().watches = watches;
    }

    /// Breaks all watches that are open.
    pub(crate) fn cut_watches(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Waits until a write has met its [`Fault::Kill`].
    pub(crate) async fn killing(&self) {
        let _ = self.shared.killing.subscribe().wait_for(|killing| *killing).await;
    }

    /// Lets requests pass again, once the operator has been killed.
    pub(crate) fn open(&self) {
        self.shared.killing.send_replace(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(stream, Arc::clone(&shared)));
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(|request| serve(Arc::clone(&shared), request));
    // Its end is the operator's, or planned.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn serve(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Stream>, Closed> {
    let (mut parts, body) = request.into_parts();
    parts.headers.remove(HOST);
    let request = Request::from_parts(parts, Body::from(body.collect().await?.to_bytes()));
    if *shared.killing.borrow() {
        return pending().await;
    }
    if counts(&request) {
        return write(&shared, request).await;
    }
    let watching = query(&request).contains("watch=true");
    let answer = shared.client.send(request).await?;
    if !watching {
        return Ok(answer.map(whole));
    }
    let watches = shared.state.lock().watches;
    Ok(answer.map(|body| through(body, watches, shared.cuts.subscribe())))
}

fn whole(body: Body) -> Stream {
    body.map_err(Into::into).boxed_unsync()
}

fn query<B>(request: &Request<B>) -> &str {
    request.uri().query().unwrap_or_default()
}

/// Whether it is a write that changes what the operator looks after.
fn counts<B>(request: &Request<B>) -> bool {
    let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(request.method());
    let aside = ["leases", "events", "secrets", "tokenreviews", "subjectaccessreviews"];
    writes
        && !query(request).contains("dryRun")
        && !request.uri().path().split('/').any(|part| aside.contains(&part))
}

async fn write(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response<Stream>, Closed> {
    let (number, fault) = shared.note(&request);
    match fault {
        None => shared.forward(number, request).await,
        Some(Fault::Delay(time)) => {
            sleep(time).await;
            shared.forward(number, request).await
        }
        Some(Fault::Drop(when)) => {
            shared.forward_if(when, number, request).await?;
            Err(Closed::Planned)
        }
        Some(Fault::Answer(code, when)) => {
            shared.forward_if(when, number, request).await?;
            Ok(refusal(code))
        }
        Some(Fault::Kill(when)) => {
            shared.forward_if(when, number, request).await?;
            shared.killing.send_replace(true);
            pending().await
        }
    }
}

impl Shared {
    /// The write's number, and its fault.
    fn note(&self, request: &Request<Body>) -> (usize, Option<Fault>) {
        let mut state = self.state.lock();
        let number = state.writes.len();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        state.writes.push(Write { method, path, code: None });
        let fault = state.faults.remove(&number);
        state.happened += usize::from(fault.is_some());
        (number, fault)
    }

    /// Sends the write on its way, and notes the answer also where the operator does not live to hear it.
    async fn forward(
        self: &Arc<Self>,
        number: usize,
        request: Request<Body>,
    ) -> Result<Response<Stream>, Closed> {
        let shared = Arc::clone(self);
        let sent = tokio::spawn(async move {
            let answer = shared.client.send(request).await?;
            if let Some(write) = shared.state.lock().writes.get_mut(number) {
                write.code = Some(answer.status());
            }
            Ok(answer.map(whole))
        });
        sent.await?
    }

    async fn forward_if(
        self: &Arc<Self>,
        when: When,
        number: usize,
        request: Request<Body>,
    ) -> Result<(), Closed> {
        match when {
            When::Before => Ok(()),
            When::After => self.forward(number, request).await.map(drop),
        }
    }
}

/// As the API server refuses.
fn refusal(code: u16) -> Response<Stream> {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the crash harness answers", "reason": reason, "code": code,
    });
    let body = Full::new(Bytes::from(status.to_string()));
    Response::builder()
        .status(code)
        .header(CONTENT_TYPE, "application/json")
        .body(body.map_err(|never| match never {}).boxed_unsync())
        .unwrap()
}
