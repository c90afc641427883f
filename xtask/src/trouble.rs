//! What to tell when something does not come: the group's conditions, its pods' problems and the last events.

use std::fmt::{self, Write as _};
use std::time::Duration;

use gamekeeper::api::{GameServerGroup, Phase};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::sleep;

/// How many events are told.
const EVENTS: usize = 10;

/// How many pods are told.
const PODS: usize = 5;

/// How often a group that others wait for is looked at.
const INTERVAL: Duration = Duration::from_secs(3);

/// How many looks in a row must find an image refused until that is taken as final.
const PULL_TRIES: u32 = 10;

/// What keeps a pod from running.
#[derive(Clone, Debug)]
pub(crate) struct PodProblem {
    pod: String,
    reason: String,
    message: String,
}

impl PodProblem {
    /// Whether its image cannot be had.
    pub(crate) fn is_about_image(&self) -> bool {
        matches!(
            self.reason.as_str(),
            "ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName"
        )
    }
}

impl fmt::Display for PodProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "pod {}: {}: {}", self.pod, self.reason, self.message)
    }
}

/// What keeps this pod from running, if it is more than that it takes its time.
pub(crate) fn of_pod(pod: &Pod) -> Option<PodProblem> {
    let status = pod.status.as_ref()?;
    let told = |reason: &str, message: &str| PodProblem {
        pod: pod.name_any(),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let waiting = containers
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref())
        .filter_map(|waiting| Some((waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or(""))))
        .find(|(reason, _)| !matches!(*reason, "ContainerCreating" | "PodInitializing"));
    if let Some((reason, message)) = waiting {
        return Some(told(reason, message));
    }
    let unscheduled = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled" && condition.status == "False" && condition.message.is_some()
    })?;
    Some(told(
        unscheduled.reason.as_deref().unwrap_or("Unscheduled"),
        unscheduled.message.as_deref().unwrap_or(""),
    ))
}

/// Everything that helps to see why a group is not as it should be. What cannot be read is left out: the error that
/// this is added to matters more.
pub(crate) async fn of_group(client: &Client, namespace: &str, name: &str) -> String {
    let mut text = String::new();
    if let Ok(group) = Api::<GameServerGroup>::namespaced(client.clone(), namespace).get(name).await {
        text += &conditions(&group);
    }
    if let Ok(pods) = Api::<Pod>::namespaced(client.clone(), namespace).list(&ListParams::default()).await {
        for problem in pods.iter().filter_map(of_pod).take(PODS) {
            line(&mut text, &problem.to_string());
        }
    }
    if let Ok(events) = Api::<Event>::namespaced(client.clone(), namespace).list(&ListParams::default()).await
    {
        text += &last(events.items);
    }
    text
}

/// A pod's image cannot be had, and waiting does not help.
#[derive(Debug)]
pub(crate) struct NoImage(PodProblem);

impl fmt::Display for NoImage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an image cannot be pulled: {}", self.0)
    }
}

impl std::error::Error for NoImage {}

/// Looks at a group while others wait for it: tells of its errors, which may pass, and returns what will not.
pub(crate) async fn watch(client: &Client, namespace: &str, name: &str) -> anyhow::Error {
    let groups: Api<GameServerGroup> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut told = None;
    let mut refused = 0;
    loop {
        sleep(INTERVAL).await;
        // What cannot be read now can be read the next time.
        if let Ok(group) = groups.get(name).await {
            let error = error_of_group(&group);
            if let (Some(error), None) = (&error, &told) {
                eprint!("\nthe group {namespace}/{name}:\n{error}");
            }
            told = error;
        }
        let listed = pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        match listed.iter().filter_map(of_pod).find(PodProblem::is_about_image) {
            Some(problem) if refused >= PULL_TRIES => return NoImage(problem).into(),
            Some(_) => refused += 1,
            None => refused = 0,
        }
    }
}

/// The phase and the conditions of a group that reports an error.
fn error_of_group(group: &GameServerGroup) -> Option<String> {
    let status = group.status.as_ref()?;
    (status.phase == Phase::Error).then(|| conditions(group))
}

fn conditions(group: &GameServerGroup) -> String {
    let mut text = String::new();
    let Some(status) = &group.status else {
        line(&mut text, "the operator has not looked at the group: is it running?");
        return text;
    };
    line(&mut text, &format!("phase {:?}", status.phase));
    for condition in &status.conditions {
        line(
            &mut text,
            &format!("{}={} {}: {}", condition.type_, condition.status, condition.reason, condition.message),
        );
    }
    text
}

fn last(mut events: Vec<Event>) -> String {
    let time = |event: &Event| {
        let series = event.series.as_ref().and_then(|series| series.last_observed_time.clone());
        let last = event.last_timestamp.clone().map(|time| time.0);
        series.or_else(|| event.event_time.clone()).map(|time| time.0).or(last)
    };
    events.sort_by_key(time);
    let skipped = events.len().saturating_sub(EVENTS);
    let mut text = String::new();
    for event in events.into_iter().skip(skipped) {
        let object = &event.involved_object;
        let told = format!(
            "event {} about {} {}: {}",
            event.reason.unwrap_or_default(),
            object.kind.as_deref().unwrap_or_default(),
            object.name.as_deref().unwrap_or_default(),
            event.message.unwrap_or_default()
        );
        line(&mut text, &told);
    }
    text
}

fn line(text: &mut String, told: &str) {
    // Writing into a String cannot fail.
    let _ = writeln!(text, "  {told}");
}
