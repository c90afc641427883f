//! A matchmaker that costs little: connections that stay open, one request at a time on each.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::http::request;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use kube::Client;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::demo::claim::{HOST, tls};

/// Who claims, and from which group.
#[derive(Clone)]
pub(super) struct Matchmaker {
    tls: TlsConnector,
    address: SocketAddr,
    path: String,
    bearer: String,
    group: String,
}

/// A connection of its own.
pub(super) struct Line {
    matchmaker: Matchmaker,
    sender: SendRequest<Full<Bytes>>,
}

/// What an answer is read for.
#[derive(Debug, Deserialize)]
pub(super) struct Granted {
    /// The server.
    pub(super) uid: String,
}

impl Matchmaker {
    /// One who claims from `group` at this address of an operator, and knows it by its authority.
    pub(super) async fn new(
        client: &Client,
        address: SocketAddr,
        token: &str,
        namespace: &str,
        group: &str,
    ) -> Result<Self> {
        Ok(Self {
            tls: TlsConnector::from(Arc::new(tls(client).await?)),
            address,
            path: format!("/v1/namespaces/{namespace}/claims"),
            bearer: format!("Bearer {token}"),
            group: group.to_owned(),
        })
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<Line> {
        let stream = TcpStream::connect(self.address).await.context("cannot connect to the claim API")?;
        stream.set_nodelay(true).context("cannot set up a connection")?;
        let name = ServerName::try_from(HOST).context("the claim API has no name")?;
        let stream = self.tls.connect(name, stream).await.context("cannot speak TLS with the claim API")?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.context("cannot speak HTTP")?;
        // Ends with the sender; what breaks it shows in the requests.
        tokio::spawn(connection);
        Ok(Line { matchmaker: self.clone(), sender })
    }

    /// Opens so many connections.
    pub(super) async fn connect_all(&self, count: usize) -> Result<Vec<Line>> {
        let mut lines = Vec::with_capacity(count);
        for _ in 0..count {
            lines.push(self.connect().await?);
        }
        Ok(lines)
    }
}

impl Line {
    /// Asks for a claim that is not there, so that the connection has been used and the token is known.
    pub(super) async fn warm(&mut self) -> Result<()> {
        let path = format!("{}/none", self.matchmaker.path);
        let request = self.request(Request::get(path), String::new())?;
        self.ask(request).await.map(drop)
    }

    /// Claims a server under this id, or gives the status and the words of the refusal.
    pub(super) async fn claim(&mut self, id: &str) -> Result<Result<Granted, String>> {
        let body = json!({"id": id, "groups": [self.matchmaker.group]}).to_string();
        let request = self.request(Request::post(&self.matchmaker.path), body)?;
        let (status, body) = self.ask(request).await?;
        if status.is_success() {
            return serde_json::from_slice(&body).context("the claim's answer lacks a field").map(Ok);
        }
        Ok(Err(format!("{status}: {}", String::from_utf8_lossy(&body))))
    }

    fn request(&self, request: request::Builder, body: String) -> Result<Request<Full<Bytes>>> {
        request
            .header(header::HOST, HOST)
            .header(header::AUTHORIZATION, &self.matchmaker.bearer)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .context("cannot make a request")
    }

    async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes)> {
        self.sender.ready().await.context("the claim API has closed the connection")?;
        let answer = self.sender.send_request(request).await.context("the claim API does not answer")?;
        let status = answer.status();
        let body = answer.into_body().collect().await.context("the answer breaks off")?.to_bytes();
        Ok((status, body))
    }
}
