//! The nodes that are rented and the servers on them, as a cluster's scheduler, node autoscaler and kubelets have them.

use super::demand::Session;
use super::market::{Market, POOLS, Seconds, Wave};

/// How many game servers a node holds.
pub(super) const HOLDS: usize = 8;
/// How long a spot node lives on after its notice: AWS gives 2 minutes.
pub(super) const NOTICE: Seconds = 120;
/// How long a node takes from the request until pods start there (an assumption; the cloud's, and the kubelet's).
const NODE_STARTS: Seconds = 60;
/// How long a server takes from then on until it is ready (an assumption).
const SERVER_STARTS: Seconds = 10;
/// How long a pod takes to leave.
const LEAVES: Seconds = 10;
/// How long a node may be empty: the cluster autoscaler's default.
const EMPTY: Seconds = 600;
/// How long a pod may be without a node: a group's `launchTimeoutSeconds`. No autoscaler says sooner that there is none.
const LAUNCH_TIMEOUT: Seconds = 300;

/// How its capacity is paid for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum Paid {
    Spot,
    OnDemand,
}

/// A pool by how it is paid for, and its number in the market.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Place {
    pub(super) paid: Paid,
    pub(super) pool: usize,
}

/// All places of this kind.
pub(super) fn places(paid: Paid) -> impl Iterator<Item = Place> {
    (0..POOLS).map(move |pool| Place { paid, pool })
}

/// What takes a node.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Blow {
    /// The first wave of a crunch.
    First,
    /// A later one, that began then.
    Later(Seconds),
    /// No wave.
    Alone,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) id: usize,
    pub(super) place: Place,
    starts: Seconds,
    /// When it will have its notice, and of what.
    doom: Option<(Seconds, Blow)>,
    /// When it had it.
    pub(super) notice: Option<(Seconds, Blow)>,
    empty_since: Option<Seconds>,
}

/// What a server is at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    /// Its pod waits for a node, since then.
    Pending(Seconds),
    /// It is ready then.
    Starting(Seconds),
    Ready,
    /// A session is on until then.
    Played(Seconds),
    /// Its pod is gone then.
    Leaving(Seconds),
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) id: usize,
    pub(super) place: Place,
    pub(super) node: Option<usize>,
    pub(super) stage: Stage,
}

/// What has happened to the fleet in a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Happened {
    /// A node had its notice.
    Noticed { node: usize, place: Place },
    /// A session was lost with its node.
    Lost { place: Place, blow: Blow },
    /// A server changed.
    Changed(usize),
    /// A server is no more.
    Gone(usize),
    /// A pod found no node in time, and is no more.
    Undelivered { server: usize, place: Place },
}

#[derive(Clone, Debug)]
pub(super) struct Fleet<'a> {
    market: &'a Market,
    pub(super) nodes: Vec<Node>,
    pub(super) servers: Vec<Server>,
    made: usize,
    rented: [usize; POOLS],
    /// What has been paid, in hours of a node on demand.
    pub(super) cost: f64,
    pub(super) finished: usize,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(market: &'a Market) -> Self {
        let (nodes, servers) = (Vec::new(), Vec::new());
        Self { market, nodes, servers, made: 0, rented: [0; POOLS], cost: 0.0, finished: 0 }
    }

    /// What the market, the kubelets and the games do until `now`.
    pub(super) fn pass(&mut self, now: Seconds, step: Seconds) -> Vec<Happened> {
        let mut happened = Vec::new();
        self.strike(now, step);
        self.notify(now, &mut happened);
        self.take_back(now, &mut happened);
        self.live(now, &mut happened);
        for node in &self.nodes {
            let price = match node.place.paid {
                Paid::Spot => self.market.pools.get(node.place.pool).map_or(1.0, |pool| pool.price),
                Paid::OnDemand => 1.0,
            };
            self.cost += price * f64::from(step) / 3600.0;
        }
        happened
    }

    /// Waves that come in this step doom the nodes that are there.
    fn strike(&mut self, now: Seconds, step: Seconds) {
        for (number, pool) in self.market.pools.iter().enumerate() {
            let comes = |wave: &&Wave| wave.at <= now && now < wave.at.saturating_add(step);
            for wave in pool.waves.iter().filter(comes) {
                let place = Place { paid: Paid::Spot, pool: number };
                let there: Vec<&mut Node> =
                    self.nodes.iter_mut().filter(|node| node.place == place).collect();
                let blow = if wave.first { Blow::First } else { Blow::Later(wave.at) };
                let hits = self.market.hits(wave, there.len());
                for (node, hit) in there.into_iter().zip(hits) {
                    if let Some(at) = hit.filter(|at| node.doom.is_none_or(|(doom, _)| *at < doom)) {
                        node.doom = Some((at, blow));
                    }
                }
            }
        }
    }

    fn notify(&mut self, now: Seconds, happened: &mut Vec<Happened>) {
        for node in &mut self.nodes {
            if let Some(doom) = node.doom.filter(|(at, _)| *at <= now && node.notice.is_none()) {
                node.notice = Some(doom);
                happened.push(Happened::Noticed { node: node.id, place: node.place });
                let there = self.servers.iter().filter(|server| server.node == Some(node.id));
                happened.extend(there.map(|server| Happened::Changed(server.id)));
            }
        }
    }

    fn take_back(&mut self, now: Seconds, happened: &mut Vec<Happened>) {
        let is_due = |node: &Node| node.notice.filter(|(at, _)| at.saturating_add(NOTICE) <= now);
        for node in self.nodes.iter().filter(|node| is_due(node).is_some()) {
            let Some((noticed_at, blow)) = node.notice else { continue };
            let end = noticed_at.saturating_add(NOTICE);
            for server in self.servers.iter().filter(|server| server.node == Some(node.id)) {
                match server.stage {
                    Stage::Played(ends) if ends > end => {
                        happened.push(Happened::Lost { place: node.place, blow });
                    }
                    Stage::Played(_) => self.finished += 1,
                    Stage::Pending(_) | Stage::Starting(_) | Stage::Ready | Stage::Leaving(_) => {}
                }
                happened.push(Happened::Gone(server.id));
            }
            self.servers.retain(|server| server.node != Some(node.id));
        }
        self.nodes.retain(|node| is_due(node).is_none());
    }

    fn live(&mut self, now: Seconds, happened: &mut Vec<Happened>) {
        for server in &mut self.servers {
            let next = match server.stage {
                Stage::Starting(ready) if ready <= now => Stage::Ready,
                Stage::Played(ends) if ends <= now => {
                    self.finished += 1;
                    Stage::Leaving(now.saturating_add(LEAVES))
                }
                Stage::Leaving(gone) if gone <= now => {
                    happened.push(Happened::Gone(server.id));
                    continue;
                }
                Stage::Pending(since) if since.saturating_add(LAUNCH_TIMEOUT) <= now => {
                    happened.push(Happened::Undelivered { server: server.id, place: server.place });
                    continue;
                }
                unchanged => unchanged,
            };
            if next != server.stage {
                server.stage = next;
                happened.push(Happened::Changed(server.id));
            }
        }
        let gone = |happened: &Happened, id: usize| match happened {
            Happened::Gone(server) | Happened::Undelivered { server, .. } => *server == id,
            Happened::Noticed { .. } | Happened::Lost { .. } | Happened::Changed(_) => false,
        };
        self.servers.retain(|server| !happened.iter().any(|happened| gone(happened, server.id)));
    }

    /// Binds pods to nodes, and rents and returns nodes. Gives the servers that have got one.
    pub(super) fn schedule(&mut self, now: Seconds) -> Vec<usize> {
        let mut bound = Vec::new();
        for index in 0..self.servers.len() {
            let Some(server) =
                self.servers.get(index).filter(|server| matches!(server.stage, Stage::Pending(_)))
            else {
                continue;
            };
            let Some(node) = self.free_node(server.place, now) else { continue };
            if let Some(server) = self.servers.get_mut(index) {
                (server.node, server.stage) =
                    (Some(node), Stage::Starting(now.saturating_add(SERVER_STARTS)));
                bound.push(server.id);
            }
        }
        for place in places(Paid::Spot).chain(places(Paid::OnDemand)) {
            self.rent(place, now);
        }
        self.give_back(now);
        bound
    }

    /// The fullest node of a place that has room.
    fn free_node(&self, place: Place, now: Seconds) -> Option<usize> {
        let fits = |node: &&Node| node.place == place && node.starts <= now && node.notice.is_none();
        let rooms = self.nodes.iter().filter(fits).map(|node| (self.used(node.id), node.id));
        rooms.filter(|(used, _)| *used < HOLDS).max().map(|(_, node)| node)
    }

    fn used(&self, node: usize) -> usize {
        self.servers.iter().filter(|server| server.node == Some(node)).count()
    }

    pub(super) fn can_be_had(&self, place: Place, now: Seconds) -> bool {
        match place.paid {
            Paid::Spot => self.market.pools.get(place.pool).is_some_and(|pool| !pool.is_out(now)),
            Paid::OnDemand => true,
        }
    }

    /// Whether a pod finds a place there now: on a node that is there, or on one that can be had.
    pub(super) fn has_room(&self, place: Place, now: Seconds) -> bool {
        self.can_be_had(place, now) || self.free_node(place, now).is_some()
    }

    fn rent(&mut self, place: Place, now: Seconds) {
        let waits = |server: &&Server| server.place == place && matches!(server.stage, Stage::Pending(_));
        let pending = self.servers.iter().filter(waits).count();
        let starting = self.nodes.iter().filter(|node| node.place == place && node.starts > now).count();
        let wanted = pending.div_ceil(HOLDS).saturating_sub(starting);
        if !self.can_be_had(place, now) {
            return;
        }
        for _ in 0..wanted {
            let doom = match place.paid {
                Paid::OnDemand => None,
                Paid::Spot => {
                    let number = self.rented.get_mut(place.pool).map_or(0, |rented| {
                        *rented += 1;
                        *rented
                    });
                    Some((now.saturating_add(self.market.life(place.pool, number)), Blow::Alone))
                }
            };
            let starts = now.saturating_add(NODE_STARTS);
            let id = self.next_id();
            self.nodes.push(Node { id, place, starts, doom, notice: None, empty_since: None });
        }
    }

    fn give_back(&mut self, now: Seconds) {
        let used: Vec<bool> = self.nodes.iter().map(|node| self.used(node.id) > 0).collect();
        for (node, used) in self.nodes.iter_mut().zip(used) {
            node.empty_since = if used { None } else { node.empty_since.or(Some(now.max(node.starts))) };
        }
        let stays = |node: &Node| node.empty_since.is_none_or(|since| since.saturating_add(EMPTY) > now);
        self.nodes.retain(stays);
    }

    fn next_id(&mut self) -> usize {
        self.made += 1;
        self.made
    }

    /// Makes a pod for a place.
    pub(super) fn make(&mut self, place: Place, now: Seconds) -> usize {
        let id = self.next_id();
        self.servers.push(Server { id, place, node: None, stage: Stage::Pending(now) });
        id
    }

    /// Ends a server on which nobody plays.
    pub(super) fn end(&mut self, id: usize, now: Seconds) {
        if let Some(server) = self.servers.iter_mut().find(|server| server.id == id) {
            server.stage = Stage::Leaving(now.saturating_add(LEAVES));
        }
    }

    /// Has a session played on a server.
    pub(super) fn play(&mut self, id: usize, session: Session, now: Seconds) {
        if let Some(server) = self.servers.iter_mut().find(|server| server.id == id) {
            server.stage = Stage::Played(now.saturating_add(session.lasts));
        }
    }

    /// Whether the node of a server has had its notice.
    pub(super) fn is_doomed(&self, server: &Server) -> bool {
        let on_it = |node: &&Node| server.node == Some(node.id);
        self.nodes.iter().find(on_it).is_some_and(|node| node.notice.is_some())
    }

    pub(super) fn played(&self) -> usize {
        self.servers.iter().filter(|server| matches!(server.stage, Stage::Played(_))).count()
    }
}
