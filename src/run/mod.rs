//! Puts the operator together: configuration, telemetry, leadership, and a stop that leaves nothing half done.

mod descriptors;
mod leadership;
pub mod telemetry;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use jiff::SignedDuration;
use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::api::names::OPERATOR;
use crate::claims::Claims;
use crate::controllers::{self, Config, Context};
use crate::http::{self, Limits, Listeners, Services, Tls, TlsMode};
use crate::metrics::Metrics;
use crate::rules::place::CapacityLabels;
use crate::rules::viability::Terms;
use crate::view::{Scope, View, feed};
use crate::write::{Access, Certificates, Events, Reviewer, Writer};

/// How long the lease may take to be given up once a stop is asked for.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// What the operator is told.
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// The namespaces to look after; all of them if left out. May be given several times, or separated by commas.
    #[arg(long = "namespace", env = "GAMEKEEPER_NAMESPACES", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// The image of the agent that groups can ask for: the operator's own.
    #[arg(long, env = "GAMEKEEPER_AGENT_IMAGE")]
    agent_image: String,
    /// The host ports that pods are given, as FROM-TO.
    #[arg(long, env = "GAMEKEEPER_HOST_PORTS", default_value = "7000-8000", value_parser = port_range)]
    host_ports: RangeInclusive<u16>,
    /// Whose labels tell spot nodes from others.
    #[arg(long, env = "GAMEKEEPER_CAPACITY_LABELS", value_enum, default_value_t)]
    capacity_labels: CapacityLabels,
    /// A zone of capacity pools; the nodes' zones if left out. May be given several times, or separated by commas.
    #[arg(long = "zone", env = "GAMEKEEPER_ZONES", value_delimiter = ',')]
    zones: Vec<String>,
    /// How long it takes until evidence against a capacity pool counts half.
    #[arg(long, env = "GAMEKEEPER_EVIDENCE_HALF_LIFE", default_value = "1h", value_parser = span)]
    evidence_half_life: SignedDuration,
    /// How long at least a capacity pool stays not viable.
    #[arg(long, env = "GAMEKEEPER_NOT_VIABLE_LEAST", default_value = "3m", value_parser = span)]
    not_viable_least: SignedDuration,
    /// How often the verdicts on capacity pools are renewed.
    #[arg(long, env = "GAMEKEEPER_POOLS_PERIOD", default_value = "30s", value_parser = span)]
    pools_period: SignedDuration,
    /// Where the claim API listens.
    #[arg(long, env = "GAMEKEEPER_LISTEN", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Where the probes of Kubernetes are answered, in plain HTTP.
    #[arg(long, env = "GAMEKEEPER_LISTEN_PLAIN", default_value = "0.0.0.0:8080")]
    listen_plain: SocketAddr,
    #[command(flatten)]
    limits: Limits,
    /// Whose certificate the claim API has: the operator's own, one given in a Secret, or none.
    #[arg(long, env = "GAMEKEEPER_TLS", value_enum, default_value_t)]
    tls: TlsMode,
    /// The Secret with the certificate, in the namespace of the lease. With a `client-ca.crt` in it, callers must have
    /// certificates that these authorities have signed.
    #[arg(long, env = "GAMEKEEPER_TLS_SECRET", default_value = "gamekeeper-tls")]
    tls_secret: String,
    /// A further name, or an address, that callers know the claim API by. May be given several times, or separated by
    /// commas.
    #[arg(long = "tls-extra-name", env = "GAMEKEEPER_TLS_EXTRA_NAMES", value_delimiter = ',')]
    tls_extra_names: Vec<String>,
    /// The name of this replica, unique among them: its pod's name.
    #[arg(long, env = "GAMEKEEPER_REPLICA")]
    replica: String,
    /// The namespace of the lease by which one replica leads.
    #[arg(long, env = "GAMEKEEPER_LEASE_NAMESPACE")]
    lease_namespace: String,
    /// The name of that lease.
    #[arg(long, env = "GAMEKEEPER_LEASE", default_value = "gamekeeper")]
    lease: String,
}

/// What stops the operator.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No configuration for the API server.
    #[error("find the API server: neither a kubeconfig nor a pod's service account is there")]
    Config(#[from] kube::config::InferConfigError),
    /// No client.
    #[error("make a client for the API server")]
    Client(#[source] kube::Error),
    /// The port is taken, or may not be had.
    #[error("listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A part that must not end has ended.
    #[error("keep the {part} going: {cause}")]
    Part {
        /// Which part.
        part: &'static str,
        /// How it ended.
        cause: String,
    },
    /// Signals cannot be heard.
    #[error("listen for signals")]
    Signal(#[source] std::io::Error),
}

/// Runs the operator until it is told to stop.
///
/// # Errors
/// It cannot start, or a part of it failed that it cannot go on without.
pub async fn run(args: Args) -> Result<(), RunError> {
    let stop = stop_on_signal()?;
    let client = client().await?;
    let view = View::of_replica(&args.replica);
    let metrics = Metrics::default();
    let writer = Writer::new(client.clone(), view.clone(), metrics.clone());
    let (events, send_events) = Events::new(client.clone(), args.replica.clone());

    let ((api_listener, api), (plain_listener, plain)) =
        (bind(args.listen).await?, bind(args.listen_plain).await?);
    let listeners = Listeners { api: api_listener, plain: plain_listener };
    let claims = Claims::new(view.clone(), writer.clone(), events.clone(), metrics.clone(), stop.clone());
    let services = Services {
        claims: claims.clone(),
        reviewer: Reviewer::new(client.clone()),
        view: view.clone(),
        metrics: metrics.clone(),
    };
    let limits = descriptors::within(args.limits);
    let names = names(&args.lease_namespace, args.tls_extra_names);
    let secret = Certificates::new(client.clone(), &args.lease_namespace, args.tls_secret);
    let tls = Tls::new(args.tls, secret, names);
    let mut serve = tokio::spawn(http::serve(listeners, services, tls, limits, stop.clone()));
    info!(address = %api, plain_address = %plain, replica = args.replica, "the operator listens");

    let scope =
        if args.namespaces.is_empty() { Scope::Cluster } else { Scope::Namespaces(args.namespaces.clone()) };
    let owner = args.lease_namespace.clone();
    let watches = tokio::spawn(feed(client.clone(), scope, owner.clone(), view.clone()));
    let news = tokio::spawn(send_events);
    let (leads, leading) = tokio::sync::watch::channel(false);
    let queue = tokio::spawn(async move { claims.serve_waiting(leading).await });
    let access = Access::new(client.clone());
    let config = Config {
        agent_image: args.agent_image.clone(),
        host_ports: args.host_ports.clone(),
        capacity_labels: args.capacity_labels,
        zones: args.zones.iter().filter(|zone| !zone.is_empty()).cloned().collect(),
        owner,
        terms: Terms { half_life: args.evidence_half_life, least: args.not_viable_least },
        pools_period: args.pools_period.unsigned_abs(),
    };
    let context = Arc::new(Context::new(view, writer, events, access, config, metrics.clone()));
    let leadership = leadership::while_leading(
        leadership::Election {
            client,
            namespace: args.lease_namespace,
            name: args.lease,
            replica: args.replica,
            leads,
            metrics,
        },
        stop.clone(),
        move || {
            let context = Arc::clone(&context);
            async move { controllers::run(&context).await }
        },
    );
    let mut leader = tokio::spawn(leadership);

    // Whatever of these ends before a stop is asked for, the operator ends with it and is started anew: a replica
    // that serves without seeing, or that could never lead, would look healthy for ever.
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        ended = &mut serve => Err(RunError::Part { part: "HTTP API", cause: cause(ended) }),
        ended = watches => Err(RunError::Part { part: "watches", cause: cause(ended) }),
        ended = queue => Err(RunError::Part { part: "queue of claims", cause: cause(ended) }),
        ended = news => Err(RunError::Part { part: "events", cause: cause(ended) }),
        ended = &mut leader => Err(RunError::Part { part: "controllers", cause: cause(ended) }),
    };
    stop.cancel();
    if ended.is_ok() {
        // The lease is given up, so that another need not wait for its end; and who asks here meanwhile is answered.
        let _ = tokio::join!(tokio::time::timeout(STOP_TIMEOUT, leader), serve);
    }
    info!("the operator has stopped");
    ended
}

/// Listens, and says where: port 0 is whichever is free.
async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), RunError> {
    let failed = |source| RunError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// What callers know the claim API by: its Service's names, and whatever else is configured.
fn names(namespace: &str, extra: Vec<String>) -> Vec<String> {
    let service = format!("{OPERATOR}.{namespace}");
    let names = [
        OPERATOR.to_owned(),
        service.clone(),
        format!("{service}.svc"),
        format!("{service}.svc.cluster.local"),
    ];
    names.into_iter().chain(extra).collect()
}

fn cause(ended: Result<(), tokio::task::JoinError>) -> String {
    ended.map_or_else(|error| error.to_string(), |()| "it came to an end".to_owned())
}

/// A client whose own retries are off: what to do after a lost answer is decided where the write is made, and a
/// claim has its own deadline.
async fn client() -> Result<Client, RunError> {
    let mut config = kube::Config::infer().await?;
    config.default_retry = false;
    Client::try_from(config).map_err(RunError::Client)
}

/// A range of ports, such as `7000-8000`.
fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let bounds = text.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let sound = bounds.filter(|(from, to): &(u16, u16)| *from > 0 && from <= to);
    sound.map(|(from, to)| from..=to).ok_or_else(|| format!("{text} is no range of ports such as 7000-8000"))
}

/// A time such as `10m` or `90s`, of a second at least.
fn span(text: &str) -> Result<SignedDuration, String> {
    let span = text.parse().ok().filter(|span: &SignedDuration| *span >= SignedDuration::from_secs(1));
    span.ok_or_else(|| format!("{text} is no time such as 10m or 90s, of a second at least"))
}

fn stop_on_signal() -> Result<CancellationToken, RunError> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signal)?;
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("told to stop");
        told.cancel();
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::{port_range, span};
    use jiff::SignedDuration;

    #[test]
    fn a_range_of_ports_is_read_or_refused_with_words() {
        assert_eq!(port_range("7000-8000"), Ok(7000..=8000));
        for wrong in ["", "7000", "8000-7000", "0-10", "7000-70000", "a-b"] {
            assert!(port_range(wrong).unwrap_err().contains("7000-8000"), "{wrong}");
        }
    }

    #[test]
    fn a_time_is_read_or_refused_with_words() {
        assert_eq!(span("10m"), Ok(SignedDuration::from_mins(10)));
        for wrong in ["", "10", "-5m", "0s", "100ms", "soon"] {
            assert!(span(wrong).unwrap_err().contains("90s"), "{wrong}");
        }
    }
}
