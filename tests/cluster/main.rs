//! The rows, cases and invariants on a real API server: `cargo xtask test` starts one and sets what these need.
//!
//! Each test has a namespace and an operator process of its own, with the rights that the chart gives it.

mod harness;

mod activation;
mod claiming;
mod deletion;
mod life;
mod rights;
mod scaling;
