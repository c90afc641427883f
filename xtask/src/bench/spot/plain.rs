//! A Deployment over the same spot pools, spread with a topology constraint that gives way (`ScheduleAnyway`).
//!
//! It is made better than one is: a pod is made for the emptiest pool in which a node can be had at that moment, without
//! anybody's having tried; and the pods of a node that had its notice are not evicted, but play on until it goes.

use anyhow::Result;

use super::demand::SERVERS;
use super::fleet::{Fleet, Happened, Paid, Place, Server, Stage, places};
use super::market::Seconds;
use super::policy::Policy;

#[derive(Debug)]
pub(super) struct Plain;

impl Policy for Plain {
    fn act(&mut self, fleet: &mut Fleet<'_>, _: &[Happened], now: Seconds) -> Result<usize> {
        let counts = |server: &&Server| !matches!(server.stage, Stage::Leaving(_));
        let there = fleet.servers.iter().filter(counts).count();
        let missing = usize::try_from(SERVERS).unwrap_or_default().saturating_sub(there);
        for _ in 0..missing {
            let on = |place: Place| {
                fleet.servers.iter().filter(counts).filter(|server| server.place == place).count()
            };
            let open = places(Paid::Spot).filter(|place| fleet.has_room(*place, now));
            let Some(place) = open.min_by_key(|place| on(*place)) else { break };
            fleet.make(place, now);
        }
        fleet.schedule(now);
        Ok(0)
    }

    fn rank(&self, _: &Server) -> u8 {
        0
    }

    fn had_left(&self, _: Place, _: Seconds) -> bool {
        false
    }
}
