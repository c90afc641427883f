//! The connections of a listener: no more than a limit, and room for a newcomer as long as any of them is idle.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// A limit of connections. When it is reached, a newcomer takes the place of one that has no request under way:
/// of one that never had any before one that had, and of the one that has waited longest. So connections that are
/// opened and left alone keep nobody out, however many they are.
#[derive(Clone)]
pub(super) struct Connections {
    limit: usize,
    seats: Arc<Mutex<Seats>>,
}

#[derive(Default)]
struct Seats {
    busy: usize,
    idle: BTreeMap<Rank, CancellationToken>,
    /// Counts how often a connection became idle.
    turns: u64,
}

/// Who gives way first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Rank {
    had_a_request: bool,
    turn: u64,
}

/// The place of one connection, free again when dropped.
pub(super) struct Seat {
    seats: Arc<Mutex<Seats>>,
    given_up: CancellationToken,
    place: Mutex<Place>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    Idle(Rank),
    Busy,
    GivenUp,
}

/// A request under way, until dropped.
pub(super) struct Busy(Arc<Seat>);

impl Connections {
    /// Room for this many.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, seats: Arc::default() }
    }

    /// A seat for a new connection; none while each one has a request under way.
    pub(super) fn admit(&self) -> Option<Arc<Seat>> {
        let mut seats = self.seats.lock();
        if seats.busy + seats.idle.len() >= self.limit {
            let (_, longest) = seats.idle.pop_first()?;
            longest.cancel();
        }
        let given_up = CancellationToken::new();
        let rank = seats.sit(false, given_up.clone());
        let seats = Arc::clone(&self.seats);
        Some(Arc::new(Seat { seats, given_up, place: Mutex::new(Place::Idle(rank)) }))
    }
}

impl Seats {
    fn sit(&mut self, had_a_request: bool, given_up: CancellationToken) -> Rank {
        self.turns += 1;
        let rank = Rank { had_a_request, turn: self.turns };
        self.idle.insert(rank, given_up);
        rank
    }

    fn leave(&mut self, place: Place) -> bool {
        match place {
            Place::Idle(rank) => self.idle.remove(&rank).is_some(),
            Place::Busy => {
                self.busy -= 1;
                true
            }
            Place::GivenUp => false,
        }
    }
}

impl Seat {
    /// Waits until the seat is given to another.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// A request begins: until its end, the seat is not given up.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        let mut place = self.place.lock();
        let mut seats = self.seats.lock();
        *place = if seats.leave(*place) {
            seats.busy += 1;
            Place::Busy
        } else {
            Place::GivenUp
        };
        Busy(Arc::clone(self))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut place = self.0.place.lock();
        let mut seats = self.0.seats.lock();
        if seats.leave(*place) {
            *place = Place::Idle(seats.sit(true, self.0.given_up.clone()));
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().leave(*self.place.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_given_up(seat: &Seat) -> bool {
        seat.given_up.is_cancelled()
    }

    #[test]
    fn a_newcomer_takes_the_place_of_who_has_waited_longest_without_a_request() {
        let connections = Connections::new(3);
        let served = connections.admit().unwrap();
        drop(served.busy());
        let (older, newer) = (connections.admit().unwrap(), connections.admit().unwrap());
        let _fourth = connections.admit().unwrap();
        assert!(is_given_up(&older) && !is_given_up(&newer) && !is_given_up(&served));
        let _fifth = connections.admit().unwrap();
        assert!(is_given_up(&newer) && !is_given_up(&served));
    }

    #[test]
    fn a_request_under_way_keeps_its_connection() {
        let connections = Connections::new(2);
        let seats = [connections.admit().unwrap(), connections.admit().unwrap()];
        let mut requests: Vec<Busy> = seats.iter().map(Seat::busy).collect();
        assert!(connections.admit().is_none());
        assert!(!seats.iter().any(|seat| is_given_up(seat)));
        requests.pop();
        assert!(connections.admit().is_some());
        assert!(is_given_up(&seats[1]) && !is_given_up(&seats[0]));
    }

    #[test]
    fn what_ends_makes_room() {
        let connections = Connections::new(1);
        drop(connections.admit().unwrap().busy());
        let last = connections.admit().unwrap();
        let late = {
            let _next = connections.admit().unwrap();
            // Its request came when its seat was another's already.
            last.busy()
        };
        drop((late, last));
        let seats = connections.seats.lock();
        assert_eq!((seats.busy, seats.idle.len()), (0, 0));
    }
}
