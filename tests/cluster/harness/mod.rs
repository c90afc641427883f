//! What the tests share: a namespace each, an operator each, and waits for conditions.

mod nodes;
mod operator;
mod proxy;
mod tools;
mod wait;
mod world;

pub(crate) use proxy::{Fault, Proxy, Watches, When};
pub(crate) use wait::eventually;
pub(crate) use world::{World, account, setting, silent_group, status};
