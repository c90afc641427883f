//! The rules: pure functions from what is observed, and the time, to a plan.
//!
//! Nothing here names a client, a runtime or a clock (a test keeps it so), and a plan leaves no
//! choice to whoever carries it out.

pub mod adopt;
pub mod attempts;
pub mod balance;
pub mod bounds;
pub mod capacity;
pub mod certificate;
mod choice;
pub mod claim;
pub mod delete;
pub mod drain;
pub mod eviction;
pub mod evidence;
pub mod hold;
pub mod idle;
pub mod lapse;
pub mod launch;
pub mod life;
pub mod moving;
pub mod names;
pub mod news;
pub mod notice;
pub mod observed;
pub mod offer;
pub mod patch;
pub mod place;
pub mod pod;
pub mod poke;
pub mod poked;
pub mod pool;
pub mod ports;
pub mod queue;
pub mod reach;
pub mod report;
pub mod request;
pub mod retire;
pub mod rivals;
pub mod seats;
pub mod settle;
pub mod slots;
pub mod status;
pub mod trouble;
pub mod validate;
pub mod viability;

#[cfg(test)]
pub(crate) mod fixtures;
