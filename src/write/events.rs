//! Events, through a bounded queue: a burst of news never holds up a write that matters.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::api::names::OPERATOR;
use crate::rules::news::{News, Tone};
use crate::view::Key;

/// How many events may wait. Past that they are dropped: the status says the same.
const QUEUE: usize = 1024;

/// The API server takes notes of at most 1,024 bytes; a character has at most four.
const NOTE_LIMIT: usize = 256;

/// What an event is about.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A `GameServerGroup`, with its UID.
    Group(Key, String),
    /// A `GameServer`, with its UID.
    Server(Key, String),
}

impl Subject {
    fn reference(self) -> ObjectReference {
        let (kind, key, uid) = match self {
            Self::Group(key, uid) => ("GameServerGroup", key, uid),
            Self::Server(key, uid) => ("GameServer", key, uid),
        };
        ObjectReference {
            api_version: Some("gamekeeper.dev/v1alpha1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(key.namespace),
            name: Some(key.name),
            uid: Some(uid),
            ..ObjectReference::default()
        }
    }
}

/// Takes events and sends them in its own time.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(Subject, News)>,
}

impl Events {
    /// The queue, and the work of emptying it, which ends when the queue is dropped.
    pub fn new(client: Client, instance: String) -> (Self, impl Future<Output = ()>) {
        let (queue, mut waiting) = mpsc::channel::<(Subject, News)>(QUEUE);
        let reporter = Reporter { controller: OPERATOR.to_owned(), instance: Some(instance) };
        let recorder = Recorder::new(client, reporter);
        let work = async move {
            while let Some((subject, news)) = waiting.recv().await {
                let type_ = match news.tone {
                    Tone::Normal => EventType::Normal,
                    Tone::Warning => EventType::Warning,
                };
                let event = Event {
                    type_,
                    action: news.reason.clone(),
                    reason: news.reason,
                    note: Some(news.message.chars().take(NOTE_LIMIT).collect()),
                    secondary: None,
                };
                if let Err(error) = recorder.publish(&event, &subject.reference()).await {
                    debug!(%error, "send an event");
                }
            }
        };
        (Self { queue }, work)
    }

    /// Sends `news` about `subject`, if there is room for it.
    pub fn send(&self, subject: Subject, news: News) {
        if self.queue.try_send((subject, news)).is_err() {
            warn!("too many events at once; one is dropped");
        }
    }
}
