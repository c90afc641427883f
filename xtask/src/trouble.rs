//! What to tell when something does not come: the group's conditions, its pods' problems and the last events.

use std::fmt::{self, Write as _};

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

use gamekeeper::api::{GameServerGroup, Phase};

/// How many events are told.
const EVENTS: usize = 10;

/// How many pods are told.
const PODS: usize = 5;

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

/// The phase and the conditions of a group that reports an error.
pub(crate) fn error_of_group(group: &GameServerGroup) -> Option<String> {
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
