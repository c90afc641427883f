//! `/metrics`: what was counted, and the servers as they are at that moment.

use std::fmt;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tracing::warn;

use crate::api::CapacityType;
use crate::metrics::{MEDIA_TYPE, Metrics};
use crate::view::View;

pub(super) async fn serve(State(metrics): State<Metrics>) -> Response {
    match metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, MEDIA_TYPE)], text).into_response(),
        Err(error) => {
            warn!(%error, "write the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Counts the servers of each group when it is asked.
pub(super) struct Servers(pub(super) View);

impl fmt::Debug for Servers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Servers")
    }
}

impl Collector for Servers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let census = self.0.census();
        let help = "Servers by their state";
        let mut states = encoder.encode_descriptor("servers", help, None, MetricType::Gauge)?;
        for (group, counts) in &census {
            for (state, count) in &counts.states {
                let labels = [
                    ("namespace", group.namespace.clone()),
                    ("group", group.name.clone()),
                    ("state", format!("{state:?}")),
                ];
                ConstGauge::new(i64::from(*count)).encode(states.encode_family(&labels)?)?;
            }
        }
        let help = "Instances by how their nodes are paid for; summed over time, what is on the bill";
        let mut instances = encoder.encode_descriptor("instances", help, None, MetricType::Gauge)?;
        for (group, counts) in &census {
            for (capacity_type, count) in &counts.instances {
                let labels = [
                    ("namespace", group.namespace.clone()),
                    ("group", group.name.clone()),
                    ("capacity_type", capacity_type.map_or("unknown", CapacityType::name).to_owned()),
                ];
                ConstGauge::new(i64::from(*count)).encode(instances.encode_family(&labels)?)?;
            }
        }
        let help = "1 for the verdict that a capacity pool has";
        let mut pools = encoder.encode_descriptor("capacity_pools", help, None, MetricType::Gauge)?;
        for seen in self.0.pools() {
            let labels = [("pool", seen.pool.to_string()), ("verdict", format!("{:?}", seen.status.verdict))];
            ConstGauge::new(1_i64).encode(pools.encode_family(&labels)?)?;
        }
        let help = "Servers that a claim may be given";
        let mut offers = encoder.encode_descriptor("servers_on_offer", help, None, MetricType::Gauge)?;
        for (group, counts) in &census {
            let labels = [("namespace", group.namespace.clone()), ("group", group.name.clone())];
            ConstGauge::new(i64::from(counts.on_offer)).encode(offers.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
