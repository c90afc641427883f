//! What the tests share: a namespace each, an operator each, and waits for conditions.

mod accounts;
mod callers;
mod claims;
pub(crate) mod market;
mod neighbour;
mod nodes;
mod operator;
mod proxy;
mod registration;
mod tools;
mod wait;
mod world;

pub(crate) use accounts::account;
pub(crate) use callers::{Caller, TLS_SECRET, caller};
pub(crate) use proxy::{Fault, Proxy, Watches, When};
pub(crate) use registration::{self_group, server_of};
pub(crate) use wait::eventually;
pub(crate) use world::{GIVEN_SECRET, World, setting, silent_group, status};
