//! Pod names that two confused leaders arrive at alike (design: "two leaders make one pod, not two").

use sha2::{Digest, Sha256};

use crate::api::GameServerGroupSpec;

/// Letters and digits that are hard to mistake for one another and form no words.
const ALPHABET: &[u8; 32] = b"23456789bcdfghjkmnpqrstvwxzaeuyl";

/// How many of them tell the pods of a group apart: 50 bits.
const SUFFIX: usize = 10;

/// The name of the pod in `slot` of the group, after `predecessor` (the UID of the slot's last pod;
/// empty where none is known).
pub fn pod_name(group: &str, group_uid: &str, slot: u32, predecessor: &str) -> String {
    let digest = Sha256::digest(format!("{group_uid}/{slot}/{predecessor}"));
    format!("{group}-{}", letters(&digest))
}

/// The revision of a group: a hash of all that shapes its pods.
pub fn revision(spec: &GameServerGroupSpec) -> String {
    // Plain data with string keys always has a JSON form, and maps in it are sorted.
    let shape = (&spec.template, &spec.ports, &spec.agent, spec.registration);
    short_hash(&serde_json::to_string(&shape).unwrap_or_default())
}

/// A short hash of `text`, of letters and digits.
pub fn short_hash(text: &str) -> String {
    letters(&Sha256::digest(text))
}

fn letters(digest: &[u8]) -> String {
    let letter = |byte: &u8| ALPHABET.get(usize::from(byte % 32)).map(|letter| char::from(*letter));
    digest.iter().take(SUFFIX).filter_map(letter).collect()
}

/// A number that orders equal candidates differently for each seed, so that replicas which claim side by
/// side start at different places.
pub fn spread(seed: &str) -> u64 {
    Sha256::digest(seed).iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_depends_on_group_slot_and_predecessor() {
        let name = pod_name("arena", "uid", 3, "");
        assert_eq!(name, pod_name("arena", "uid", 3, ""));
        assert!(name.starts_with("arena-") && name.len() == "arena-".len() + SUFFIX);
        for other in [
            pod_name("arena", "other", 3, ""),
            pod_name("arena", "uid", 4, ""),
            pod_name("arena", "uid", 3, "pod"),
        ] {
            assert_ne!(name, other);
        }
    }
}
