//! What is worth an event: transitions only, told from the status before and after.

use super::life::Change;
use super::observed::Server;
use crate::api::{
    CapacityPoolStatus, Claim, ClaimPhase, GameServerClaimStatus, GameServerGroupStatus, Instance,
    InstanceStatus, Phase, Viability, conditions,
};

/// An event to be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct News {
    /// Whether somebody should look.
    pub tone: Tone,
    /// One CamelCase word.
    pub reason: String,
    /// The words.
    pub message: String,
}

/// An event's type.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tone {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

fn normal(reason: &str, message: String) -> News {
    News { tone: Tone::Normal, reason: reason.to_owned(), message }
}

/// The news of a group whose status goes from `before` to `after`.
pub fn of_group(before: &GameServerGroupStatus, after: &GameServerGroupStatus) -> Vec<News> {
    let mut news = Vec::new();
    if before.phase != after.phase && after.phase != Phase::Error {
        news.push(normal(
            &format!("{:?}", after.phase),
            format!("the group went from {:?} to {:?}", before.phase, after.phase),
        ));
    }
    match (before.desired_replicas, after.desired_replicas) {
        (Some(old), Some(new)) if old != new => {
            news.push(normal("Scaled", format!("the number of servers in force went from {old} to {new}")));
        }
        _ => {}
    }
    let stopped = |status: &GameServerGroupStatus| {
        let condition = status.conditions.iter().find(|condition| condition.type_ == conditions::PROGRESSING);
        condition.filter(|condition| condition.status == "False").cloned()
    };
    match (stopped(before), stopped(after)) {
        (None, Some(now)) => {
            news.push(News { tone: Tone::Warning, reason: now.reason, message: now.message });
        }
        (Some(then), Some(now)) if then.reason != now.reason => {
            news.push(News { tone: Tone::Warning, reason: now.reason, message: now.message });
        }
        (Some(then), None) => {
            let message = format!("new servers come up again after {}", then.reason);
            news.push(normal("Recovered", message));
        }
        (None, None) | (Some(_), Some(_)) => {}
    }
    news.extend(of_agents(before, after));
    news
}

/// The agents of a group cannot be reached, or can again.
fn of_agents(before: &GameServerGroupStatus, after: &GameServerGroupStatus) -> Option<News> {
    let unreached = |status: &GameServerGroupStatus| {
        let mut conditions = status.conditions.iter();
        conditions
            .find(|condition| condition.type_ == conditions::AGENTS_REACHABLE && condition.status == "False")
            .cloned()
    };
    match (unreached(before), unreached(after)) {
        (None, Some(now)) => Some(News { tone: Tone::Warning, reason: now.reason, message: now.message }),
        (Some(_), None) => Some(normal("PokesAnswered", "the agents answer pokes again".to_owned())),
        (None, None) | (Some(_), Some(_)) => None,
    }
}

/// The news of claims that lapsed on `server`.
pub fn of_lapses(server: &Server, lapsed: &[Claim]) -> Vec<News> {
    let news = |claim: &Claim| {
        let Claim { id, by, claimed_at, expires_at, .. } = claim;
        let waited = expires_at.0.duration_since(claimed_at.0).as_secs();
        let why = if server.goes_with_its_node() {
            server.cause().to_owned()
        } else {
            format!("the game was not Active within {waited} s; on offer again")
        };
        normal("ClaimLapsed", format!("claim {id} of {by} lapsed: {why}"))
    };
    lapsed.iter().map(news).collect()
}

/// The news of a change of one server; none for those that happen all the time, or are told otherwise.
pub fn of_server(change: &Change) -> Option<News> {
    match change {
        Change::Running | Change::Settled => None,
        Change::GivenBack(id) => {
            Some(normal("GivenBack", format!("claim {id} holds another server; on offer again")))
        }
        Change::Turned(instance) => Some(of_instance(instance)),
        Change::Retired(reason, message) => Some(normal("Retired", format!("{reason:?}: {message}"))),
        Change::Ended(reason, message) => {
            let tone = if reason.is_failure() { Tone::Warning } else { Tone::Normal };
            Some(News { tone, reason: "Terminated".to_owned(), message: format!("{reason:?}: {message}") })
        }
    }
}

fn of_instance(instance: &Instance) -> News {
    let cause = instance.cause.as_deref().unwrap_or_default();
    match instance.status {
        InstanceStatus::Active => normal("DrainingEnded", "its node is to be left no more".to_owned()),
        InstanceStatus::Draining => {
            let message = format!("{cause}: its game goes on, and it is claimed only when no other is left");
            normal("Draining", message)
        }
        InstanceStatus::SpotTerminating => {
            let until = instance.retire_at.as_ref();
            let until = until.map(|until| format!("; its game has until {}", until.0)).unwrap_or_default();
            let message = format!("{cause}: nobody is sent there any more{until}");
            News { tone: Tone::Warning, reason: "SpotTerminating".to_owned(), message }
        }
    }
}

/// The news of a claim whose status goes from `before` to `after`.
pub fn of_claim(before: &GameServerClaimStatus, after: &GameServerClaimStatus) -> Option<News> {
    if before.phase == after.phase {
        return None;
    }
    let server = after.server.clone().unwrap_or_default();
    let words = after.message.clone().unwrap_or_default();
    Some(match after.phase {
        ClaimPhase::Pending => return None,
        ClaimPhase::Bound => normal("Bound", format!("GameServer {server} is reserved for it")),
        ClaimPhase::Confirmed => normal("Confirmed", format!("the game of GameServer {server} is Active")),
        ClaimPhase::Released => normal("Released", words),
        ClaimPhase::Expired => News { tone: Tone::Warning, reason: "Expired".to_owned(), message: words },
        ClaimPhase::Failed => News { tone: Tone::Warning, reason: "Failed".to_owned(), message: words },
    })
}

/// The news of a capacity pool whose status goes from `before` to `after`.
pub fn of_pool(before: &CapacityPoolStatus, after: &CapacityPoolStatus) -> Option<News> {
    if before.verdict == after.verdict {
        return None;
    }
    let message = after.message.clone().unwrap_or_default();
    Some(match after.verdict {
        Viability::Viable => normal("Viable", message),
        Viability::Probing => normal("Probing", message),
        Viability::NotViable => News { tone: Tone::Warning, reason: "NotViable".to_owned(), message },
    })
}

/// The news of a server that somebody deleted.
pub fn marked() -> News {
    let message = "deleted by hand: it is offered to nobody, and goes when no game and no claim is on it; set \
        spec.shutdown to Now to end it at once";
    normal("Marked", message.to_owned())
}

/// The news of a group that cannot be read.
pub fn unreadable(why: &str) -> News {
    let message = format!("the group cannot be read, and nothing is done for it until it is mended: {why}");
    News { tone: Tone::Warning, reason: "Unreadable".to_owned(), message }
}

/// The last news of a group.
pub fn gone() -> News {
    normal("Deleted", "the group is gone, and what it had to take with it".to_owned())
}

/// What is said of a pod whose server the API server refuses to make.
pub fn server_refused(pod: &str, message: &str) -> String {
    format!("the GameServer of pod {pod} is refused: {message}")
}

/// The news of a server that nobody's pod backs.
pub fn without_pod() -> News {
    let message = "no pod owns this GameServer, so it is never on offer; the operator makes them: change the \
        replicas of a GameServerGroup instead";
    News { tone: Tone::Warning, reason: "NoPod".to_owned(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::{AGENTS_REACHABLE, Finding, Holds, PROGRESSING, apply};

    fn status(phase: Phase, stopped_by: Option<&str>) -> GameServerGroupStatus {
        let finding = stopped_by.map(|reason| Finding {
            type_: PROGRESSING,
            holds: Holds::False,
            reason: reason.to_owned(),
            message: "words".to_owned(),
        });
        GameServerGroupStatus {
            phase,
            conditions: apply(&[], finding.into_iter().collect(), 1, jiff::Timestamp::UNIX_EPOCH),
            ..GameServerGroupStatus::default()
        }
    }

    fn reasons(news: &[News]) -> Vec<&str> {
        news.iter().map(|news| news.reason.as_str()).collect()
    }

    #[test]
    fn transitions_are_news_and_nothing_else_is() {
        let (fine, stopped) = (status(Phase::Active, None), status(Phase::Active, Some("QuotaExceeded")));
        assert_eq!(reasons(&of_group(&fine, &stopped)), ["QuotaExceeded"]);
        assert!(of_group(&stopped, &stopped).is_empty());
        assert_eq!(reasons(&of_group(&stopped, &fine)), ["Recovered"]);
        assert_eq!(reasons(&of_group(&status(Phase::New, None), &fine)), ["Active"]);
    }

    #[test]
    fn agents_that_cannot_be_reached_are_told_of_once_and_so_is_their_return() {
        let said = |holds| {
            let finding = Finding {
                type_: AGENTS_REACHABLE,
                holds,
                reason: "R".to_owned(),
                message: "words".to_owned(),
            };
            let conditions = apply(&[], vec![finding], 1, jiff::Timestamp::UNIX_EPOCH);
            GameServerGroupStatus { conditions, ..GameServerGroupStatus::default() }
        };
        let (fine, unreached) = (said(Holds::True), said(Holds::False));
        assert_eq!(of_group(&fine, &unreached)[0].tone, Tone::Warning);
        assert_eq!(of_group(&unreached, &unreached), []);
        assert_eq!(of_group(&unreached, &fine)[0].reason, "PokesAnswered");
    }
}
