//! Events, through a bounded queue: a burst of news never holds up a write that matters.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{post, within};
use crate::api::names::OPERATOR;
use crate::rules::news::{News, Tone};
use crate::view::Key;

/// How many events may wait. Past that they are dropped: the status says the same.
const QUEUE: usize = 1024;

/// The same news of the same object is sent once in this time. Other words are other news: an event that counts them
/// under the first one's words would tell what is not so.
const ONCE_IN: Duration = Duration::from_mins(10);

/// How often what was sent longer ago is forgotten.
const SWEEP: Duration = Duration::from_mins(1);

/// The API server takes notes of at most 1,024 bytes; a character has at most four.
const NOTE_LIMIT: usize = 256;

/// What an event is about.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A `GameServerGroup`, with its UID.
    Group(Key, String),
    /// A `GameServer`, with its UID.
    Server(Key, String),
    /// A `GameServerClaim`, with its UID.
    Claim(Key, String),
    /// A `CapacityPool`, by its name, with its UID.
    Pool(String, String),
}

impl Subject {
    fn reference(self) -> ObjectReference {
        let (kind, namespace, name, uid) = match self {
            Self::Group(Key { namespace, name }, uid) => ("GameServerGroup", Some(namespace), name, uid),
            Self::Server(Key { namespace, name }, uid) => ("GameServer", Some(namespace), name, uid),
            Self::Claim(Key { namespace, name }, uid) => ("GameServerClaim", Some(namespace), name, uid),
            Self::Pool(name, uid) => ("CapacityPool", None, name, uid),
        };
        ObjectReference {
            api_version: Some("gamekeeper.dev/v1alpha1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace,
            name: Some(name),
            uid: Some(uid),
            ..ObjectReference::default()
        }
    }
}

/// Takes events and sends them in its own time.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(Subject, News)>,
    /// How many there was no room for since that was last said.
    dropped: Arc<AtomicU64>,
}

impl Events {
    /// The queue, and the work of emptying it, which ends when the queue is dropped.
    pub fn new(client: Client, instance: String) -> (Self, impl Future<Output = ()>) {
        let (queue, mut waiting) = mpsc::channel::<(Subject, News)>(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        let unsaid = Arc::clone(&dropped);
        let work = async move {
            let mut sent = Sent::default();
            while let Some((subject, news)) = waiting.recv().await {
                let event = event(subject.reference(), news, &instance, Timestamp::now());
                if sent.is_new(&event, Instant::now()) {
                    let namespace = event.metadata.namespace.clone().unwrap_or_default();
                    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
                    if let Err(error) = within(events.create(&post(), &event)).await {
                        debug!(%error, "send an event");
                    }
                }
                if waiting.is_empty() {
                    let count = unsaid.swap(0, Ordering::Relaxed);
                    if count > 0 {
                        warn!(count, "there were too many events at once; these were dropped");
                    }
                }
            }
        };
        (Self { queue, dropped }, work)
    }

    /// Sends `news` about `subject`, if there is room for it.
    pub fn send(&self, subject: Subject, news: News) {
        if self.queue.try_send((subject, news)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn event(regarding: ObjectReference, news: News, instance: &str, now: Timestamp) -> Event {
    let type_ = match news.tone {
        Tone::Normal => "Normal",
        Tone::Warning => "Warning",
    };
    let name = regarding.name.clone().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            // Where the API server wants those about what has no namespace.
            namespace: Some(regarding.namespace.clone().unwrap_or_else(|| "default".to_owned())),
            ..ObjectMeta::default()
        },
        type_: Some(type_.to_owned()),
        action: Some(news.reason.clone()),
        reason: Some(news.reason),
        note: Some(news.message.chars().take(NOTE_LIMIT).collect()),
        regarding: Some(regarding),
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(OPERATOR.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..Event::default()
    }
}

/// What was sent of late, so that a step tried again and again does not tell the same each time.
#[derive(Default)]
struct Sent {
    /// By the object's UID, the reason and the words.
    at: HashMap<[Option<String>; 3], Instant>,
    /// When what is old was forgotten last: not at each event, as there are thousands in a busy hour.
    swept: Option<Instant>,
}

impl Sent {
    fn is_new(&mut self, event: &Event, now: Instant) -> bool {
        let is_recent = |then: Instant| now.duration_since(then) < ONCE_IN;
        if self.swept.is_none_or(|then| now.duration_since(then) >= SWEEP) {
            self.at.retain(|_, then| is_recent(*then));
            self.swept = Some(now);
        }
        let uid = event.regarding.as_ref().and_then(|regarding| regarding.uid.clone());
        let news = [uid, event.reason.clone(), event.note.clone()];
        if self.at.get(&news).is_some_and(|then| is_recent(*then)) {
            return false;
        }
        self.at.insert(news, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(message: &str) -> Event {
        let news = News { tone: Tone::Normal, reason: "Scaled".to_owned(), message: message.to_owned() };
        let group = Subject::Group(Key::new("games", "arena"), "uid".to_owned());
        event(group.reference(), news, "replica", Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn the_same_news_is_told_once_and_other_words_are_other_news() {
        let (mut sent, now) = (Sent::default(), Instant::now());
        assert!(sent.is_new(&news("from 2 to 3"), now));
        assert!(!sent.is_new(&news("from 2 to 3"), now));
        assert!(sent.is_new(&news("from 3 to 2"), now));
        assert!(sent.is_new(&news("from 2 to 3"), now + ONCE_IN));
    }

    #[test]
    fn a_long_note_is_cut_to_what_the_api_server_takes() {
        let long = news(&"ä".repeat(5000));
        assert!(long.note.unwrap().len() <= 1024);
    }
}
