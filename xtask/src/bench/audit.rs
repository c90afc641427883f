//! The API server's audit log: who asked for what, and what was answered.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::{Context as _, Result};
use gamekeeper::api::names::GAME_ACCOUNT;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::OPERATOR;

/// One request, as audit.k8s.io/v1 has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    #[serde(rename = "auditID")]
    id: String,
    pub(super) verb: String,
    user: User,
    #[serde(rename = "requestURI", default)]
    uri: String,
    #[serde(default)]
    object_ref: Object,
    #[serde(default)]
    response_status: Response,
    /// The body, of those requests that the policy logs with it.
    #[serde(rename = "requestObject")]
    body: Option<Value>,
    /// When the API server got it.
    #[serde(rename = "requestReceivedTimestamp")]
    pub(super) received: Timestamp,
    /// When it was done with it.
    #[serde(rename = "stageTimestamp")]
    pub(super) answered: Timestamp,
}

#[derive(Clone, Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Object {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    name: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Response {
    #[serde(default)]
    code: u16,
}

/// Who asks.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Writer {
    /// Any replica; claims are its writes too.
    Operator,
    /// A game's pod: its agent, or the game itself.
    Agent,
    /// A node's kubelet.
    Kubelet,
    Scheduler,
    GarbageCollector,
    NamespaceController,
    /// Whoever else, by the user's name.
    Another(String),
}

impl fmt::Display for Writer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Operator => "operator",
            Self::Agent => "agent",
            Self::Kubelet => "kubelet",
            Self::Scheduler => "scheduler",
            Self::GarbageCollector => "garbage_collector",
            Self::NamespaceController => "namespace_controller",
            Self::Another(user) => user,
        })
    }
}

impl Request {
    /// Who asked.
    pub(super) fn writer(&self) -> Writer {
        let user = self.user.username.as_str();
        let controller = user.strip_prefix("system:serviceaccount:kube-system:");
        match (user, controller) {
            (OPERATOR, _) => Writer::Operator,
            ("system:kube-scheduler", _) => Writer::Scheduler,
            (_, Some("generic-garbage-collector")) => Writer::GarbageCollector,
            (_, Some("namespace-controller")) => Writer::NamespaceController,
            _ if user.starts_with("system:node:") => Writer::Kubelet,
            _ if user.starts_with("system:serviceaccount:")
                && user.ends_with(&format!(":{GAME_ACCOUNT}")) =>
            {
                Writer::Agent
            }
            _ => Writer::Another(user.to_owned()),
        }
    }

    /// Whether it was to change something, and not to be tried only.
    pub(super) fn is_write(&self) -> bool {
        let changes =
            matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection");
        changes && !self.uri.contains("dryRun=All")
    }

    /// Whether the answer was that it is done.
    pub(super) fn is_done(&self) -> bool {
        (200..300).contains(&self.response_status.code)
    }

    /// The HTTP status code of the answer.
    pub(super) fn code(&self) -> u16 {
        self.response_status.code
    }

    /// The resource, without its subresource; empty for what is none, such as `/version`.
    pub(super) fn resource(&self) -> &str {
        &self.object_ref.resource
    }

    /// The object's name, where the request or its body has one.
    pub(super) fn name(&self) -> &str {
        &self.object_ref.name
    }

    /// What was asked, in a few words.
    pub(super) fn target(&self) -> String {
        let Object { resource, subresource, .. } = &self.object_ref;
        match (resource.as_str(), subresource.as_str()) {
            ("", _) => self.uri.split('?').next().unwrap_or_default().to_owned(),
            (resource, "") => resource.to_owned(),
            (resource, subresource) => format!("{resource}/{subresource}"),
        }
    }

    /// The fields that a patch of a game server changes, and the value of those that are short.
    pub(super) fn changes(&self) -> Vec<String> {
        let Some(body) = &self.body else { return Vec::new() };
        let named = |(path, value): (&str, &Value)| match value {
            Value::String(text) => format!("{path} {text}"),
            _ => path.to_owned(),
        };
        if let Some(operations) = body.as_array() {
            let changing = operations.iter().filter(|operation| operation["op"] != "test");
            return changing
                .map(|operation| {
                    let path = operation["path"].as_str().unwrap_or_default();
                    let removed = if operation["op"] == "remove" { "without " } else { "" };
                    format!("{removed}{}", named((short(path), &operation["value"])))
                })
                .collect();
        }
        // A merge patch, which the agent sends of its status.
        let status = body["status"].as_object().into_iter().flatten();
        status.map(|(field, value)| named((field, value))).collect()
    }

    /// Whether an agent reports nothing but who plays.
    pub(super) fn is_count_of_players(&self) -> bool {
        self.writer() == Writer::Agent && self.changes() == ["players"]
    }
}

/// The last parts of a pointer into a game server.
fn short(path: &str) -> &str {
    let path = path.trim_start_matches('/');
    ["status/", "metadata/", "spec/"].iter().find_map(|parent| path.strip_prefix(parent)).unwrap_or(path)
}

/// Every request of the log, in the order in which they were answered; a watch counts when it begins.
pub(super) fn read(log: &Path) -> Result<Vec<Request>> {
    let cannot = || format!("cannot read the audit log {}", log.display());
    let mut lines = BufReader::new(File::open(log).with_context(cannot)?);
    let mut requests = Vec::new();
    let mut seen = BTreeSet::new();
    let mut line = String::new();
    loop {
        line.clear();
        lines.read_line(&mut line).with_context(cannot)?;
        // The end, or a line that is being written.
        if !line.ends_with('\n') {
            return Ok(requests);
        }
        let request: Request =
            serde_json::from_str(&line).with_context(|| format!("the audit log has a line {line:?}"))?;
        if seen.insert(request.id.clone()) {
            requests.push(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(user: &str, verb: &str, body: &Value) -> Request {
        serde_json::from_value(json!({
            "auditID": "1",
            "verb": verb,
            "user": {"username": user},
            "requestURI": "/apis/gamekeeper.dev/v1alpha1/namespaces/a/gameservers/b/status?fieldManager=c",
            "objectRef": {"resource": "gameservers", "subresource": "status", "name": "b"},
            "responseStatus": {"code": 200},
            "requestObject": body,
            "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
            "stageTimestamp": "2026-01-01T00:00:00.004000Z",
        }))
        .unwrap()
    }

    #[test]
    fn writers_are_told_by_their_users() {
        let writer = |user| request(user, "patch", &Value::Null).writer();
        assert_eq!(writer(OPERATOR), Writer::Operator);
        assert_eq!(writer("system:serviceaccount:arena:gamekeeper-game"), Writer::Agent);
        assert_eq!(writer("system:node:node-a"), Writer::Kubelet);
        assert_eq!(writer("admin"), Writer::Another("admin".to_owned()));
    }

    #[test]
    fn a_count_of_players_is_no_change_of_state() {
        let agent = "system:serviceaccount:arena:gamekeeper-game";
        let players = json!({"count": 1, "capacity": 12});
        let count = request(agent, "patch", &json!({"status": {"players": players}}));
        assert!(count.is_count_of_players());
        let both = json!({"status": {"state": "Active", "players": players}});
        assert!(!request(agent, "patch", &both).is_count_of_players());
        assert!(!request(OPERATOR, "patch", &json!({"status": {"players": players}})).is_count_of_players());
    }

    #[test]
    fn changes_of_a_json_patch_leave_its_tests_out() {
        let patch = json!([
            {"op": "test", "path": "/status/state", "value": "Creating"},
            {"op": "add", "path": "/status/state", "value": "Initializing"},
            {"op": "add", "path": "/status/ports", "value": []},
            {"op": "remove", "path": "/metadata/finalizers/0"},
        ]);
        let changes = request(OPERATOR, "patch", &patch).changes();
        assert_eq!(changes, ["state Initializing", "ports", "without finalizers/0"]);
    }

    #[test]
    fn what_is_only_tried_is_no_write() {
        let mut request = request(OPERATOR, "create", &Value::Null);
        assert!(request.is_write());
        request.uri += "&dryRun=All";
        assert!(!request.is_write());
    }
}
