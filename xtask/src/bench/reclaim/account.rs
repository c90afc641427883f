//! What was written, as the audit log has it.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::bench::audit::{Request, Writer};
use crate::bench::load::number;

/// A part of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) begin: Timestamp,
    pub(super) end: Timestamp,
}

impl Span {
    pub(super) fn of(self, requests: &[Request]) -> impl Iterator<Item = &Request> {
        requests.iter().filter(move |request| (self.begin..self.end).contains(&request.received))
    }
}

/// Where a write belongs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Account {
    /// It is what the loss costs: of the operator, or of a game that is ready.
    Loss,
    /// A claim, or its game that begins.
    Claim,
    /// Somebody else's, or nothing to do with pods and game servers.
    Other,
}

/// Where a request belongs.
pub(super) fn account(request: &Request) -> Account {
    let ours = matches!(request.resource(), "pods" | "gameservers");
    if !ours || !request.is_write() || !request.is_done() {
        return Account::Other;
    }
    let changes = request.changes();
    let says = |what: &str| changes.iter().any(|change| change == what);
    match request.writer() {
        Writer::Operator if says("claimStatus Claimed") => Account::Claim,
        Writer::Operator => Account::Loss,
        // This command, as the games.
        Writer::Agent | Writer::Another(_) if request.target() == "gameservers/status" => {
            if says("state StandingBy") {
                Account::Loss
            } else if says("state Active") {
                Account::Claim
            } else {
                Account::Other
            }
        }
        Writer::Agent
        | Writer::Another(_)
        | Writer::Kubelet
        | Writer::Scheduler
        | Writer::GarbageCollector
        | Writer::NamespaceController => Account::Other,
    }
}

/// When the operator's account made a pod, and when that had its game server.
#[derive(Debug, Default)]
pub(super) struct Creations(Vec<Span>);

/// The pods that were made in this time and got a game server.
pub(super) fn creations(requests: &[Request], span: Span) -> Creations {
    let mut pods = BTreeMap::new();
    let mut whole = Vec::new();
    let made = |request: &&Request| {
        request.verb == "create"
            && request.is_write()
            && request.is_done()
            && request.writer() == Writer::Operator
    };
    for request in span.of(requests).filter(made) {
        match request.target().as_str() {
            "pods" => {
                pods.insert(request.name(), request.received);
            }
            "gameservers" => {
                if let Some(begin) = pods.get(request.name()) {
                    whole.push(Span { begin: *begin, end: request.answered });
                }
            }
            _ => {}
        }
    }
    whole.sort_by_key(|creation| creation.end);
    Creations(whole)
}

impl Creations {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// How many a second, from the first one's beginning until the end of as many as these.
    pub(super) fn rate(&self, most: usize) -> f64 {
        let counted: Vec<Span> = self.0.iter().copied().take(most).collect();
        let begin = counted.iter().map(|creation| creation.begin).min();
        let end = counted.iter().map(|creation| creation.end).max();
        let seconds = begin.zip(end).map(|(begin, end)| end.duration_since(begin).as_secs_f64());
        seconds.map_or(f64::NAN, |seconds| number(counted.len()) / seconds)
    }

    /// How many had been made each half second after `begin`, for as long as there are some.
    pub(super) fn progress(&self, begin: Timestamp) -> Vec<usize> {
        let after = |creation: &Span| creation.end.duration_since(begin).as_millis() / 500;
        let mut counts = Vec::new();
        for half in 0..SHOWN {
            counts.push(self.0.iter().filter(|creation| after(creation) <= half).count());
            if counts.last() == Some(&self.0.len()) {
                break;
            }
        }
        counts
    }
}

/// How many half seconds are shown.
const SHOWN: i128 = 40;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::OPERATOR;

    fn request(
        user: &str,
        verb: &str,
        target: (&str, &str),
        name: &str,
        millis: i64,
        body: &Value,
    ) -> Request {
        let at = |millis: i64| Timestamp::from_millisecond(1_767_225_600_000 + millis).unwrap().to_string();
        serde_json::from_value(json!({
            "auditID": format!("{name}-{millis}"),
            "verb": verb,
            "user": {"username": user},
            "requestURI": "/",
            "objectRef": {"resource": target.0, "subresource": target.1, "name": name},
            "responseStatus": {"code": 200},
            "requestObject": body,
            "requestReceivedTimestamp": at(millis),
            "stageTimestamp": at(millis + 10),
        }))
        .unwrap()
    }

    fn status(user: &str, body: &Value) -> Request {
        request(user, "patch", ("gameservers", "status"), "a", 0, body)
    }

    #[test]
    fn claims_and_their_games_are_no_cost_of_a_loss() {
        let patch = |path: &str, value: &str| json!([{"op": "add", "path": path, "value": value}]);
        let of = |user: &str, body: &Value| account(&status(user, body));
        assert_eq!(of(OPERATOR, &patch("/status/claimStatus", "Claimed")), Account::Claim);
        assert_eq!(of(OPERATOR, &patch("/status/state", "Terminating")), Account::Loss);
        assert_eq!(of("admin", &json!({"status": {"state": "StandingBy"}})), Account::Loss);
        assert_eq!(of("admin", &json!({"status": {"state": "Active"}})), Account::Claim);
        let bound = request("system:kube-scheduler", "create", ("pods", "binding"), "a", 0, &Value::Null);
        assert_eq!(account(&bound), Account::Other);
        let deleted = request("admin", "delete", ("pods", ""), "a", 0, &Value::Null);
        assert_eq!(account(&deleted), Account::Other);
        let group = request(OPERATOR, "patch", ("gameservergroups", "status"), "a", 0, &Value::Null);
        assert_eq!(account(&group), Account::Other);
    }

    #[test]
    fn a_rate_is_that_of_pods_that_have_their_servers() {
        let create =
            |target, name, millis| request(OPERATOR, "create", (target, ""), name, millis, &Value::Null);
        let requests = [
            create("pods", "a", 0),
            create("pods", "b", 0),
            create("gameservers", "a", 490),
            create("gameservers", "b", 990),
            create("pods", "late", 5000),
            create("gameservers", "late", 5100),
            create("pods", "without", 6000),
        ];
        let span = Span { begin: requests[0].received, end: requests[6].received };
        let made = creations(&requests, span);
        assert_eq!(made.count(), 3);
        assert!((made.rate(2) - 2.0).abs() < 1e-9, "{}", made.rate(2));
        assert_eq!(made.progress(requests[0].received)[..4], [0, 1, 2, 2]);
    }
}
