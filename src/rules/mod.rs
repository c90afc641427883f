//! The rules: pure functions from what is observed, and the time, to a plan.
//!
//! Nothing here names a client, a runtime or a clock (a test keeps it so), and a plan leaves no
//! choice to whoever carries it out.

pub mod attempts;
pub mod bounds;
pub mod claim;
pub mod delete;
pub mod hold;
pub mod lapse;
pub mod launch;
pub mod life;
pub mod names;
pub mod news;
pub mod observed;
pub mod offer;
pub mod patch;
pub mod pod;
pub mod ports;
pub mod retire;
pub mod slots;
pub mod status;
pub mod trouble;
pub mod validate;

#[cfg(test)]
pub(crate) mod fixtures;

#[cfg(test)]
mod tests {
    /// The rules stay pure: these are the names of the outside world.
    #[test]
    fn rules_name_no_client_no_runtime_and_no_clock() {
        let forbidden = ["tok".to_owned() + "io", "kube::Cli".to_owned() + "ent", "::no".to_owned() + "w()"];
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules")).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            for word in &forbidden {
                assert!(!text.contains(word.as_str()), "{} names {word}", path.display());
            }
        }
    }
}
