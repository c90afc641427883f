//! Gamekeeper: a Kubernetes operator that keeps session-based game servers on cheap, interruptible
//! capacity without ending anyone's game.
//!
//! The modules form floors, and each uses only those below it:
//! [`api`] → [`rules`] → [`metrics`] → [`view`] → [`write`] → [`claims`] → [`controllers`] → [`http`] → [`run`],
//! with [`agent`] beside them on [`api`] alone. `docs/architecture.md` is the map.

pub mod agent;
pub mod api;
pub mod claims;
pub mod controllers;
pub mod http;
pub mod metrics;
pub mod rules;
pub mod run;
pub mod view;
pub mod write;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// The floors, the lowest first; `agent` stands beside them on `api`.
    const FLOORS: [&str; 9] =
        ["api", "rules", "metrics", "view", "write", "claims", "controllers", "http", "run"];

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    fn of_module(module: &str) -> Vec<(PathBuf, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(module);
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(&path).unwrap();
            (path, text)
        };
        sources(&folder).into_iter().map(read).collect()
    }

    #[test]
    fn each_module_uses_only_those_below_it() {
        let allowed = |module: &str, used: &str| match FLOORS.iter().position(|floor| *floor == module) {
            Some(floor) => FLOORS[..=floor].contains(&used),
            None => used == "api" || used == module,
        };
        for module in FLOORS.iter().chain(&["agent"]) {
            for (path, text) in of_module(module) {
                for used in text.split("crate::").skip(1).filter_map(|rest| rest.split("::").next()) {
                    let is_module = FLOORS.contains(&used) || used == "agent";
                    let fine = !is_module || allowed(module, used);
                    assert!(fine, "{} uses {used}, which is not below it", path.display());
                }
            }
        }
    }

    /// The rules are pure: these are the names of the outside world.
    #[test]
    fn rules_name_no_client_no_runtime_no_clock_and_no_chance() {
        for (path, text) in of_module("rules") {
            for word in
                ["tokio", "kube::", "::now(", "SystemTime", "Instant", "rand::", "std::fs", "std::env"]
            {
                assert!(!text.contains(word), "{} names {word}", path.display());
            }
        }
    }
}
