//! Who waits for a server, in which order, and how many servers that makes a group want (row A9).

use std::sync::Arc;

use jiff::Timestamp;

use super::observed::Asked;
use crate::api::{ClaimPhase, GameServerGroup, Sharing};

/// Whether `asked` waits for a server now. `served` says whether one bears its id already.
pub fn waits(asked: &Asked, served: bool, now: Timestamp) -> bool {
    asked.status.phase == ClaimPhase::Pending && !asked.deleting && !served && asked.deadline() > now
}

/// Those who waited before somebody who has just come: each is owed what it asks for of what is on offer.
#[derive(Debug)]
pub struct Owed<'a>(Vec<&'a Asked>);

impl<'a> Owed<'a> {
    /// All of them.
    pub fn to(ahead: impl Iterator<Item = &'a Arc<Asked>>) -> Self {
        Self(ahead.map(|asked| &**asked).collect())
    }

    /// What a newcomer may have of a server with so much room, once those that it fits have theirs. `wants` says how
    /// much of it each would take. Who has theirs here is owed nothing of the next server.
    pub fn left(&mut self, room: i32, wants: impl Fn(&Asked) -> Option<i32>) -> i32 {
        let mut left = room;
        self.0.retain(|asked| match wants(asked).filter(|wanted| *wanted <= left) {
            Some(wanted) => {
                left -= wanted;
                false
            }
            None => true,
        });
        left
    }
}

/// A group as whoever waits sees it.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// The group.
    pub group: &'a GameServerGroup,
    /// How many of its servers are in use.
    pub in_use: usize,
}

impl Room<'_> {
    /// Whether it may have one server more than are in use.
    fn is_left(&self) -> bool {
        let going = self.group.metadata.deletion_timestamp.is_some();
        let max = self.group.spec.max_size.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(0));
        !going && self.in_use < max
    }
}

/// The group that is to have a server for `asked`: the first that it names and that has room, or else the first that is
/// there. Whoever waits for one server by its name wants no other.
pub fn wakes<'a, 'r>(asked: &'a Asked, room: impl Fn(&str) -> Option<Room<'r>>) -> Option<&'a str> {
    if asked.request.server.is_some() {
        return None;
    }
    let groups = || asked.request.groups.iter().map(String::as_str);
    let with_room = groups().find(|group| room(group).is_some_and(|room| room.is_left()));
    with_room.or_else(|| groups().find(|group| room(group).is_some()))
}

/// How many servers these claims take, which a group shares or not.
pub fn servers_for<'a>(waiting: impl Iterator<Item = &'a Arc<Asked>>, sharing: Option<&Sharing>) -> usize {
    let Some(sharing) = sharing else { return waiting.count() };
    let capacity = i64::from(sharing.capacity.max(1));
    // Who asks for more than a server has is served by none.
    let seats = waiting.map(|asked| i64::from(asked.request.seats)).filter(|seats| *seats <= capacity);
    let seats: i64 = seats.sum();
    usize::try_from((seats + capacity - 1) / capacity).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixtures::{asked, at, group};

    #[test]
    fn it_waits_until_it_is_served_or_its_time_is_over() {
        let mut asked = asked("match-1", 0, 30);
        assert!(waits(&asked, false, at(29)));
        assert!(!waits(&asked, true, at(29)));
        assert!(!waits(&asked, false, at(30)));
        asked.deleting = true;
        assert!(!waits(&asked, false, at(29)));
    }

    #[test]
    fn a_newcomer_has_what_is_left_by_those_who_wait() {
        let waiting: Vec<_> = ["a", "b"].map(|id| Arc::new(asked(id, 0, 30))).to_vec();
        let mut owed = Owed::to(waiting.iter());
        let left: Vec<i32> = (0..3).map(|_| owed.left(1, |_| Some(1))).collect();
        assert_eq!(left, [0, 0, 1]);
        assert_eq!(Owed::to(waiting.iter()).left(1, |_| None), 1, "it fits none of them");
        assert_eq!(Owed::to(waiting.iter()).left(8, |_| Some(3)), 2, "seats");
        assert_eq!(Owed::to(waiting.iter()).left(4, |_| Some(3)), 1);
    }

    #[test]
    fn who_shares_servers_needs_fewer() {
        let waiting: Vec<_> = ["a", "b", "c"].map(|id| Arc::new(asked(id, 0, 30))).to_vec();
        let sharing = Sharing { capacity: 2, prefer: crate::api::Prefer::Fullest };
        assert_eq!(servers_for(waiting.iter(), None), 3);
        assert_eq!(servers_for(waiting.iter(), Some(&sharing)), 2);
        assert_eq!(servers_for([].iter(), Some(&sharing)), 0);
    }

    #[test]
    fn the_first_group_with_room_is_woken() {
        let (mut full, free) = (group(), group());
        full.spec.max_size = Some(2);
        let mut waiting = asked("match-1", 0, 30);
        waiting.request.groups = ["nowhere", "canary", "arena"].map(str::to_owned).to_vec();
        let room = |name: &str| match name {
            "canary" => Some(Room { group: &full, in_use: 2 }),
            "arena" => Some(Room { group: &free, in_use: 2 }),
            _ => None,
        };
        assert_eq!(wakes(&waiting, room), Some("arena"));
        waiting.request.groups.pop();
        assert_eq!(wakes(&waiting, room), Some("canary"));
        waiting.request.server = Some("arena-a".to_owned());
        assert_eq!(wakes(&waiting, room), None);
    }
}
