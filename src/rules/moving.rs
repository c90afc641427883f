//! How servers leave their capacity pools, once it is known which are to (rules/balance.rs).

use jiff::Timestamp;

use super::balance::Balance;
use super::idle::{Ends, Retire, idle};
use super::observed::{Member, Server};
use super::retire;
use super::slots::is_ready;
use crate::api::{EndReason, State};

/// Rows F6 and F7, invariant I6: what moves goes as its replacements become ready, idle servers first; games only where
/// they are not protected. What is not ready holds nothing, and goes at once.
pub(super) fn move_out(
    ends: &mut Ends,
    balance: &Balance,
    moving: &[&Member],
    staying: &[&Member],
    desired: usize,
    now: Timestamp,
) {
    let ready = staying.iter().filter(|member| is_ready(member)).count();
    let hold = moving.iter().filter(|member| is_ready(member)).count();
    let mut spare = ready.saturating_add(hold).saturating_sub(desired);
    let message = |member: &Member| {
        let pool = member.pool().map(ToString::to_string).unwrap_or_default();
        format!("it was to leave capacity pool {pool}, and its replacement was ready")
    };
    let (waits, gone): (Vec<&Member>, Vec<&Member>) = moving.iter().partition(|member| is_ready(member));
    for idle in gone.into_iter().filter_map(idle) {
        ends.end(
            idle,
            EndReason::Balanced,
            "it was to leave its capacity pool, and was not ready".to_owned(),
            now,
        );
    }
    let (idle_ones, used): (Vec<&Member>, Vec<&Member>) =
        waits.into_iter().partition(|member| idle(member).is_some());
    for member in idle_ones {
        if let Some(idle) = idle(member).filter(|_| spare > 0) {
            ends.end(idle, EndReason::Balanced, message(member), now);
            spare -= 1;
        }
    }
    if balance.protects {
        return;
    }
    let plays = |server: &&Server| server.state == State::Active;
    for member in used {
        if let Some(server) = member.server.as_deref().filter(|server| spare > 0 && plays(server)) {
            let message = message(member);
            let patch = retire::at_once(server, EndReason::Balanced, &message, now);
            ends.retire.push(Retire {
                name: server.name.clone(),
                patch,
                reason: EndReason::Balanced,
                message,
            });
            spare -= 1;
        }
    }
}
