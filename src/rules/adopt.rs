//! Row F10, Retain: what a group leaves running when it goes, and how one applied again under its name takes it over.

use k8s_openapi::api::core::v1::Pod as KubePod;
use serde_json::{Value, json};

use super::observed::{Member, Server};
use super::patch::ServerPatch;
use crate::api::names::{LABEL_GROUP_UID, LABEL_RETAINED};

/// The patch that marks a server as one that its group has left running.
pub fn retain(server: &Server) -> ServerPatch {
    ServerPatch::of(&server.uid).set(&["metadata", "labels", LABEL_RETAINED], "true")
}

/// Whether the group of this name and UID is to take `member` over. Groups of other namespaces never are asked
/// (invariant I7).
pub fn is_adopted(member: &Member, group: &str, group_uid: &str) -> bool {
    let left = member.server.as_ref().is_some_and(|server| server.retained && server.group == group);
    let new = member.server.as_ref().is_some_and(|server| server.group_uid != group_uid);
    left && new
}

/// The patch that makes a server the group's.
pub fn adopt_server(server: &Server, group_uid: &str) -> ServerPatch {
    ServerPatch::of(&server.uid)
        .test(&["metadata", "labels", LABEL_RETAINED], "true")
        .set(&["metadata", "labels", LABEL_GROUP_UID], group_uid)
        .set(&["metadata", "labels", LABEL_RETAINED], "false")
}

/// The change that makes a pod the group's.
pub fn adopt_pod(uid: &str, group_uid: &str) -> Value {
    json!({"metadata": {"uid": uid, "labels": {LABEL_GROUP_UID: group_uid}}})
}

/// The UID of the group that a pod belongs to.
pub fn owner(pod: &KubePod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(LABEL_GROUP_UID).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{active, server_json};

    #[test]
    fn what_was_left_is_adopted_once_by_a_group_of_that_name() {
        let mut member = active("a");
        assert!(!is_adopted(&member, "arena", "new"));
        member.server.as_mut().unwrap().retained = true;
        assert!(is_adopted(&member, "arena", "new"));
        assert!(!is_adopted(&member, "harbour", "new"));
        assert!(!is_adopted(&member, "arena", "group-uid"));

        let server = member.server.unwrap();
        let mut json = server_json(&server);
        json["metadata"]["labels"] =
            serde_json::json!({LABEL_RETAINED: "true", LABEL_GROUP_UID: "group-uid"});
        json_patch::patch(&mut json, &adopt_server(&server, "new").into_json()).unwrap();
        assert_eq!(json["metadata"]["labels"][LABEL_GROUP_UID], "new");
        assert!(json_patch::patch(&mut json, &adopt_server(&server, "other").into_json()).is_err());
    }
}
