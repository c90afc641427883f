//! What keeps node autoscalers from ending a server to tidy up: an interruption, and a node's own end, are no matter of theirs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::observed::Member;
use crate::api::Eviction;
use crate::api::names::{ANNOTATION_EVICTION, WHEN_IDLE};

/// The cluster autoscaler's word for it.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// Karpenter's.
const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// Puts the annotations on a pod that is yet to be made, but for what its template says itself: where that has a word, the
/// rest does not follow the pod's use.
pub fn annotate(annotations: &mut BTreeMap<String, String>, eviction: Eviction) {
    let own = annotations.contains_key(SAFE_TO_EVICT) || annotations.contains_key(DO_NOT_DISRUPT);
    let words = match eviction {
        Eviction::WhenIdle if !own => [(ANNOTATION_EVICTION, WHEN_IDLE), (SAFE_TO_EVICT, "true")],
        Eviction::Never | Eviction::WhenIdle => [(SAFE_TO_EVICT, "false"), (DO_NOT_DISRUPT, "true")],
    };
    for (name, value) in words {
        annotations.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
}

/// Whether the annotations of a pod let it be evicted for now; nothing where that does not change with its use.
pub fn read(annotations: &BTreeMap<String, String>) -> Option<bool> {
    let changes = annotations.get(ANNOTATION_EVICTION).is_some_and(|when| when == WHEN_IDLE);
    changes.then(|| annotations.get(SAFE_TO_EVICT).is_none_or(|safe| safe != "false"))
}

/// The change of a pod's annotations that follows its use.
pub fn turn(member: &Member) -> Option<Value> {
    let (pod, server) = (member.pod.as_ref()?, member.server.as_ref()?);
    let evictable = pod.evictable.filter(|_| !pod.deleting && !server.is_ending())?;
    let in_use = server.is_in_use();
    if evictable != in_use {
        return None;
    }
    let annotations = if in_use {
        json!({SAFE_TO_EVICT: "false", DO_NOT_DISRUPT: "true"})
    } else {
        json!({SAFE_TO_EVICT: "true", DO_NOT_DISRUPT: null})
    };
    Some(json!({"metadata": {"uid": pod.uid, "annotations": annotations}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{active, claimed, standing_by};

    fn annotated(eviction: Eviction, template: &[(&str, &str)]) -> BTreeMap<String, String> {
        let mut annotations: BTreeMap<String, String> =
            template.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        annotate(&mut annotations, eviction);
        annotations
    }

    #[test]
    fn nothing_evicts_a_server_unless_its_group_or_its_template_says_so() {
        let never = annotated(Eviction::Never, &[]);
        assert_eq!((never[SAFE_TO_EVICT].as_str(), never[DO_NOT_DISRUPT].as_str()), ("false", "true"));
        assert_eq!(read(&never), None);
        let own = annotated(Eviction::WhenIdle, &[(SAFE_TO_EVICT, "true")]);
        assert_eq!((own[SAFE_TO_EVICT].as_str(), own[DO_NOT_DISRUPT].as_str()), ("true", "true"));
        assert_eq!(read(&own), None);
        assert_eq!(read(&annotated(Eviction::WhenIdle, &[])), Some(true));
    }

    #[test]
    fn a_server_is_kept_while_it_is_in_use_and_let_go_after() {
        let with = |mut member: Member, evictable| {
            member.pod.as_mut().unwrap().evictable = evictable;
            turn(&member).map(|change| change["metadata"]["annotations"].clone())
        };
        let kept = json!({SAFE_TO_EVICT: "false", DO_NOT_DISRUPT: "true"});
        assert_eq!(with(active("a"), Some(true)), Some(kept.clone()));
        assert_eq!(with(claimed("a", "match", 60), Some(true)), Some(kept));
        let let_go = json!({SAFE_TO_EVICT: "true", DO_NOT_DISRUPT: null});
        assert_eq!(with(standing_by("a"), Some(false)), Some(let_go));
        for (member, evictable) in
            [(active("a"), Some(false)), (standing_by("a"), Some(true)), (active("a"), None)]
        {
            assert_eq!(with(member, evictable), None);
        }
    }
}
