//! Counts how long instances run, by how their nodes are paid for: what is on the bill.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Context;
use crate::api::CapacityType;
use crate::metrics::OfGroup;

/// How often it is counted who runs.
const PERIOD: Duration = Duration::from_secs(10);

pub(super) async fn run(context: &Context) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        ticks.tick().await;
        let ran = std::mem::replace(&mut last, Instant::now()).elapsed();
        for (key, counts) in context.view.census() {
            let group = OfGroup { namespace: key.namespace, group: key.name };
            for (capacity_type, count) in counts.instances {
                let capacity_type = capacity_type.map_or("unknown", CapacityType::name);
                context.metrics.instances(&group, capacity_type, count, ran);
            }
        }
    }
}
