//! What the operator counts, for Prometheus. Labels are bounded: a group stands in them only while it exists when it is
//! counted, a server never.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The media type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What every metric's name starts with.
const PREFIX: &str = "gamekeeper";

/// A group that exists; both empty where there is none.
#[derive(Clone, Debug, Default, EncodeLabelSet, Eq, Hash, PartialEq)]
pub struct OfGroup {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub group: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfClaim {
    namespace: String,
    group: String,
    result: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfInstances {
    namespace: String,
    group: String,
    capacity_type: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfRequest {
    code: u16,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfWrite {
    category: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfController {
    controller: &'static str,
}

/// The counters: cheap to clone, shared by all parts of the operator.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    claims: Family<OfClaim, Counter>,
    claim_seconds: Family<OfGroup, Histogram, fn() -> Histogram>,
    conflicts: Family<OfGroup, Counter>,
    lapses: Family<OfGroup, Counter>,
    instance_seconds: Family<OfInstances, Counter<f64, AtomicU64>>,
    waiters: Family<OfGroup, Gauge>,
    requests: Family<OfRequest, Counter>,
    write_errors: Family<OfWrite, Counter>,
    reconcile_failures: Family<OfController, Counter>,
    leader: Gauge,
}

/// Someone who waits, until dropped.
pub struct Waiter(Gauge);

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Arc::new(Mutex::new(Registry::with_prefix(PREFIX))),
            claims: Family::default(),
            claim_seconds: Family::new_with_constructor(seconds),
            conflicts: Family::default(),
            lapses: Family::default(),
            instance_seconds: Family::default(),
            waiters: Family::default(),
            requests: Family::default(),
            write_errors: Family::default(),
            reconcile_failures: Family::default(),
            leader: Gauge::default(),
        };
        metrics.register();
        metrics
    }
}

/// From 1 ms to 8 s, and above.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 14))
}

impl Metrics {
    fn register(&self) {
        let mut registry = self.registry.lock();
        let registry = &mut *registry;
        registry.register(
            "claims",
            "Claims by what came of them: claimed, or the type of the problem",
            self.claims.clone(),
        );
        let help = "How long claims took, from the request to its answer";
        registry.register_with_unit("claim_duration", help, Unit::Seconds, self.claim_seconds.clone());
        let help = "Tries to take a server that lost it to somebody else";
        registry.register("claim_conflicts", help, self.conflicts.clone());
        registry.register(
            "claim_lapses",
            "Claims that were not Active by their deadline",
            self.lapses.clone(),
        );
        let help =
            "How long instances have run, by how their nodes are paid for, counted by the replica that leads";
        registry.register_with_unit("instance", help, Unit::Seconds, self.instance_seconds.clone());
        registry.register(
            "claim_waiters",
            "Claims that wait for capacity on this replica",
            self.waiters.clone(),
        );
        registry.register(
            "http_requests",
            "Requests of the claim API by their answer",
            self.requests.clone(),
        );
        let help = "Writes to the API server that did not do what they were to do; lost is everyday";
        registry.register("write_errors", help, self.write_errors.clone());
        let help = "Reconciliations that failed and are tried again";
        registry.register("reconcile_failures", help, self.reconcile_failures.clone());
        registry.register("leader", "1 on the replica that runs the controllers", self.leader.clone());
    }

    /// Has what `collector` finds in every answer too.
    pub fn collect(&self, collector: impl Collector) {
        self.registry.lock().register_collector(Box::new(collector));
    }

    /// Counts a claim.
    pub fn claim(&self, group: &OfGroup, result: &'static str, took: Duration) {
        let OfGroup { namespace, group: name } = group.clone();
        self.claims.get_or_create(&OfClaim { namespace, group: name, result }).inc();
        self.claim_seconds.get_or_create(group).observe(took.as_secs_f64());
    }

    /// Counts a try to take a server that somebody else has won.
    pub fn conflict(&self, group: &OfGroup) {
        self.conflicts.get_or_create(group).inc();
    }

    /// Counts claims that have lapsed.
    pub fn lapses(&self, group: &OfGroup, count: usize) {
        if count > 0 {
            self.lapses.get_or_create(group).inc_by(count.try_into().unwrap_or(u64::MAX));
        }
    }

    /// Counts so many instances that have run for so long.
    pub fn instances(&self, group: &OfGroup, capacity_type: &'static str, count: u32, ran: Duration) {
        let OfGroup { namespace, group } = group.clone();
        let of = OfInstances { namespace, group, capacity_type };
        self.instance_seconds.get_or_create(&of).inc_by(f64::from(count) * ran.as_secs_f64());
    }

    /// Counts somebody who waits, for as long as what this returns is kept.
    pub fn waiter(&self, group: &OfGroup) -> Waiter {
        let waiters = self.waiters.get_or_create_owned(group);
        waiters.inc();
        Waiter(waiters)
    }

    /// Counts a request of the claim API.
    pub fn request(&self, code: u16) {
        self.requests.get_or_create(&OfRequest { code }).inc();
    }

    /// Counts a write that did not do what it was to do.
    pub fn write_error(&self, category: &'static str) {
        self.write_errors.get_or_create(&OfWrite { category }).inc();
    }

    /// Counts a reconciliation that has failed.
    pub fn reconcile_failure(&self, controller: &'static str) {
        self.reconcile_failures.get_or_create(&OfController { controller }).inc();
    }

    /// Says that this replica leads now.
    pub fn leads(&self) {
        self.leader.set(1);
    }

    /// Says that this replica leads no more.
    pub fn follows(&self) {
        self.leader.set(0);
    }

    /// All of it, as [`MEDIA_TYPE`] has it.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock())?;
        Ok(text)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> OfGroup {
        OfGroup { namespace: "games".to_owned(), group: "arena".to_owned() }
    }

    #[test]
    fn what_is_counted_is_told() {
        let metrics = Metrics::default();
        metrics.claim(&arena(), "claimed", Duration::from_millis(3));
        metrics.instances(&arena(), "Spot", 3, Duration::from_secs(2));
        metrics.leads();
        let waiters = (metrics.waiter(&arena()), metrics.waiter(&arena()));
        drop(waiters.0);
        let text = metrics.text().unwrap();
        for line in [
            r#"gamekeeper_claims_total{namespace="games",group="arena",result="claimed"} 1"#,
            r#"gamekeeper_claim_duration_seconds_bucket{le="0.004",namespace="games",group="arena"} 1"#,
            r#"gamekeeper_instance_seconds_total{namespace="games",group="arena",capacity_type="Spot"} 6.0"#,
            r#"gamekeeper_claim_waiters{namespace="games",group="arena"} 1"#,
            "gamekeeper_leader 1",
        ] {
            assert!(text.contains(line), "{text}\nlacks {line}");
        }
        metrics.follows();
        assert!(metrics.text().unwrap().contains("gamekeeper_leader 0"));
    }

    /// The alerts ask for metrics that are there.
    #[test]
    fn alerts_name_what_is_counted() {
        let metrics = Metrics::default();
        metrics.claim(&arena(), "claimed", Duration::ZERO);
        metrics.conflict(&arena());
        metrics.lapses(&arena(), 1);
        let _waiter = metrics.waiter(&arena());
        metrics.request(429);
        metrics.write_error("busy");
        metrics.reconcile_failure("group");
        let text = metrics.text().unwrap();
        let alerts = include_str!("../../deploy/alerts.yaml");
        let end = |character: char| !(character.is_ascii_alphanumeric() || character == '_');
        let named: Vec<_> =
            alerts.split("gamekeeper_").skip(1).filter_map(|rest| rest.split(end).next()).collect();
        assert!(named.len() > 8);
        for name in named {
            let gauges_of_servers = ["servers", "servers_on_offer"];
            let there = text.contains(&format!("gamekeeper_{name}")) || gauges_of_servers.contains(&name);
            assert!(there, "{name} is not there:\n{text}");
        }
    }
}
