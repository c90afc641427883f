//! The rows, cases and invariants on a real API server: `cargo xtask test` starts one and sets what these need.
//!
//! Each test has a namespace and an operator process of its own, with the rights that the chart gives it.

// All of it is a test; the lints see that by this alone.
#[cfg(test)]
mod activation;
#[cfg(test)]
mod balancing;
#[cfg(test)]
mod chart;
#[cfg(test)]
mod claiming;
#[cfg(test)]
mod crashes;
#[cfg(test)]
mod deletion;
#[cfg(test)]
mod evidence;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod life;
#[cfg(test)]
mod listening;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod notice;
#[cfg(test)]
mod openapi;
#[cfg(test)]
mod picking;
#[cfg(test)]
mod poke;
#[cfg(test)]
mod ports;
#[cfg(test)]
mod queueing;
#[cfg(test)]
mod registration;
#[cfg(test)]
mod reviews;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod rivals;
#[cfg(test)]
mod scaling;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod storms;
#[cfg(test)]
mod tls;
