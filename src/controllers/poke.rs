//! Pokes the agents of claimed servers again until their claims are confirmed or over (rules/poke.rs).

use std::collections::HashMap;

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::debug;

use super::Context;
use super::server::its_group;
use super::until;
use super::work::{AGAIN, Next};
use crate::rules::observed::Member;
use crate::rules::poke;
use crate::rules::poked::Poked;
use crate::rules::reach::{self, Reach};
use crate::view::Key;
use crate::write::WriteError;

/// What this process remembers of pokes, by the name of the pod, with its UID.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<Key, (String, Poked)>>);

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Next, WriteError> {
    let member = context.view.member(&key);
    let group = its_group(context, &key, &member);
    let last = context.poked.of(&key, &member);
    let (address, about) = match poke::next(&member, group.as_deref(), last.as_ref(), Timestamp::now()) {
        poke::Next::Never => return Ok(Next::Rest),
        poke::Next::At(then) => return Ok(Next::After(until(then))),
        poke::Next::Now(address, about) => (address, about),
    };
    let outcome = context.writer.poke(address).await;
    if let Err(error) = &outcome {
        debug!(server = %key, %address, %error, "poke an agent again");
    }
    let missed = last.as_ref().is_some_and(reach::misses);
    let poked = Poked::after(last, about, outcome.map_err(|error| error.to_string()), Timestamp::now());
    let turned = reach::misses(&poked) != missed;
    context.poked.note(&key, &member, poked);
    if let Some(group) = group.filter(|group| turned || reach::is_in_doubt(group)) {
        context.view.look_again(&Key::new(&key.namespace, group.metadata.name.clone().unwrap_or_default()));
    }
    Ok(AGAIN)
}

impl Memory {
    /// What is remembered of the pod that is there; of one before it nothing is kept.
    fn of(&self, key: &Key, member: &Member) -> Option<Poked> {
        let mut memory = self.0.lock();
        let uid = member.pod.as_ref().map(|pod| &pod.uid);
        let same = memory.get(key).filter(|(known, _)| Some(known) == uid).map(|(_, poked)| poked.clone());
        if same.is_none() {
            memory.remove(key);
        }
        same
    }

    fn note(&self, key: &Key, member: &Member, poked: Poked) {
        if let Some(pod) = &member.pod {
            self.0.lock().insert(key.clone(), (pod.uid.clone(), poked));
        }
    }

    /// How the agents of a group with these members answer.
    pub(super) fn reach(&self, group: &Key, members: &[Member]) -> Reach {
        let memory = self.0.lock();
        reach::reach(members, |member| {
            if memory.is_empty() {
                return None;
            }
            let (uid, poked) = memory.get(&Key::new(&group.namespace, member.name()))?;
            (member.pod.as_ref().map(|pod| &pod.uid) == Some(uid)).then_some(poked)
        })
    }
}
