//! Gamekeeper: a Kubernetes operator that keeps session-based game servers on cheap, interruptible
//! capacity without ending anyone's game.
//!
//! The modules form floors, and each uses only those below it:
//! [`api`] → [`rules`] → [`view`] → [`write`] → [`claims`] → [`controllers`] → [`http`] → [`run`],
//! with [`agent`] beside them on [`api`] alone. `docs/architecture.md` is the map.

pub mod agent;
pub mod api;
pub mod claims;
pub mod controllers;
pub mod http;
pub mod rules;
pub mod run;
pub mod view;
pub mod write;
