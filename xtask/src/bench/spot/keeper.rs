//! A group of Gamekeeper's: its own rules decide, on what they would see of this fleet.

use anyhow::{Context as _, Result};
use gamekeeper::api::{
    Capacity, CapacityPoolStatus, CapacityType, Evidence, EvidenceKind, GameServerGroup, Viability,
};
use gamekeeper::rules::balance::Balance;
use gamekeeper::rules::evidence::is_delivered;
use gamekeeper::rules::hold::{self, Launch, Wanted};
use gamekeeper::rules::observed::Member;
use gamekeeper::rules::pool::{Fitness, Pool};
use gamekeeper::rules::viability::{Terms, Told};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::demand::SERVERS;
use super::fleet::{Fleet, HOLDS, Happened, Paid, Place, Server, places};
use super::market::{Market, POOLS, Seconds};
use super::member;
use super::policy::Policy;

/// How often verdicts are renewed: the operator's default.
const PERIOD: Seconds = 30;

/// Where verdicts come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdicts {
    /// From evidence, by the operator's rule.
    Learnt(Terms),
    /// From the market: a pool is not viable while it is in a crunch, and so long before one.
    Known { ahead: Seconds },
}

pub(super) struct Keeper<'a> {
    market: &'a Market,
    verdicts: Verdicts,
    group: GameServerGroup,
    pools: Vec<Standing>,
    members: Vec<(usize, Member)>,
    happened: Vec<(usize, Evidence)>,
    judged: Option<Seconds>,
    balance: Balance,
    /// Whether something has changed since the plan was made.
    stirred: bool,
}

/// How a pool stands.
struct Standing {
    place: Place,
    pool: Pool,
    status: CapacityPoolStatus,
    left: Option<Seconds>,
}

/// The time of the rules.
pub(super) fn at(now: Seconds) -> Timestamp {
    Timestamp::UNIX_EPOCH.checked_add(SignedDuration::from_secs(i64::from(now))).unwrap_or(Timestamp::MAX)
}

fn pool(place: Place) -> Pool {
    let capacity_type = match place.paid {
        Paid::Spot => CapacityType::Spot,
        Paid::OnDemand => CapacityType::OnDemand,
    };
    let (instance_type, zone) = (format!("type-{}", place.pool / 2), format!("zone-{}", place.pool % 2));
    let capacity = Capacity {
        instance_type: Some(instance_type.clone()),
        capacity_type: Some(capacity_type),
        zone: Some(zone.clone()),
    };
    Pool::of_node(&capacity).unwrap_or(Pool { capacity_type, instance_type, zone })
}

/// The group, as its user writes it.
fn group(strategy: &str) -> Result<GameServerGroup> {
    let types: Vec<String> = (0..POOLS / 2)
        .map(|number| format!("{{instanceType: type-{number}, weightedCapacity: {HOLDS}}}"))
        .collect();
    let yaml = format!(
        "apiVersion: gamekeeper.dev/v1alpha1
kind: GameServerGroup
metadata: {{name: arena, namespace: games, uid: arena}}
spec:
  replicas: {SERVERS}
  balancingStrategy: {strategy}
  instanceDefinitions: [{}]
  ports: [{{name: game, containerPort: 7777}}]
  template: {{spec: {{containers: [{{name: game, image: game}}]}}}}",
        types.join(", ")
    );
    serde_saphyr::from_str(&yaml).context("cannot read the group of the market")
}

impl<'a> Keeper<'a> {
    pub(super) fn new(market: &'a Market, strategy: &str, verdicts: Verdicts) -> Result<Self> {
        let group = group(strategy)?;
        let standing =
            |place| Standing { place, pool: pool(place), status: CapacityPoolStatus::default(), left: None };
        let pools: Vec<Standing> = places(Paid::Spot).chain(places(Paid::OnDemand)).map(standing).collect();
        let balance = balance(&group, &pools)?;
        let (members, happened) = (Vec::new(), Vec::new());
        Ok(Self { market, verdicts, group, pools, members, happened, judged: None, balance, stirred: true })
    }

    fn take_up(&mut self, fleet: &Fleet<'_>, happened: &[Happened], now: Seconds) {
        for happened in happened {
            self.stirred = true;
            match happened {
                Happened::Noticed { node, place } => {
                    self.tell(*place, EvidenceKind::Interrupted, format!("node {node}"), now);
                }
                Happened::Undelivered { server, place } => {
                    self.tell(*place, EvidenceKind::Undelivered, format!("pod {server}"), now);
                    self.members.retain(|(id, _)| id != server);
                }
                Happened::Gone(server) => self.members.retain(|(id, _)| id != server),
                Happened::Changed(server) => self.see(fleet, *server),
                Happened::Lost { .. } => {}
            }
        }
    }

    fn tell(&mut self, place: Place, kind: EvidenceKind, of: String, now: Seconds) {
        if let Some(number) = self.pools.iter().position(|standing| standing.place == place) {
            let evidence = Evidence { kind, of, message: String::new(), at: MicroTime(at(now)) };
            self.happened.push((number, evidence));
        }
    }

    fn see(&mut self, fleet: &Fleet<'_>, id: usize) {
        let Some(server) = fleet.servers.iter().find(|server| server.id == id) else { return };
        if let Some((_, member)) = self.members.iter_mut().find(|(there, _)| *there == id) {
            *member = member::changed(member, server, fleet.is_doomed(server));
        }
    }

    /// The verdicts as they are now; the plan changes with them.
    fn judge(&mut self, now: Seconds) -> Result<()> {
        let mut turned = false;
        for number in 0..self.pools.len() {
            let status = match self.verdicts {
                Verdicts::Learnt(terms) => self.learn(number, terms, now),
                Verdicts::Known { ahead } => self.know(number, ahead, now),
            };
            let Some(standing) = self.pools.get_mut(number) else { continue };
            if status.verdict != standing.status.verdict {
                turned = true;
                standing.left = (status.verdict == Viability::NotViable).then_some(now);
            }
            standing.status = status;
        }
        self.happened.clear();
        self.judged = Some(now);
        if turned {
            self.balance = balance(&self.group, &self.pools)?;
            self.stirred = true;
        }
        Ok(())
    }

    fn learn(&self, number: usize, terms: Terms, now: Seconds) -> CapacityPoolStatus {
        let Some(standing) = self.pools.get(number) else { return CapacityPoolStatus::default() };
        let new = self.happened.iter().filter(|(of, _)| *of == number).map(|(_, evidence)| evidence.clone());
        let beside = self
            .pools
            .iter()
            .filter(|other| other.pool != standing.pool && other.pool.is_beside(&standing.pool));
        let beside: Vec<Evidence> = beside.flat_map(|other| other.status.evidence.iter().cloned()).collect();
        let probed = standing.status.since.as_ref().filter(|_| standing.status.verdict == Viability::Probing);
        let delivered = probed.is_some_and(|since| {
            self.members.iter().any(|(_, member)| is_delivered(member, &standing.pool, since.0))
        });
        let told = Told { new: new.collect(), beside: &beside, delivered, ..Told::default() };
        terms.status(&standing.status, &told, at(now))
    }

    fn know(&self, number: usize, ahead: Seconds, now: Seconds) -> CapacityPoolStatus {
        let place = self.pools.get(number).map(|standing| standing.place);
        let crunched = place
            .filter(|place| place.paid == Paid::Spot)
            .and_then(|place| self.market.pools.get(place.pool));
        let out = crunched.is_some_and(|pool| pool.is_crunched(now, now.saturating_add(ahead)));
        let verdict = if out { Viability::NotViable } else { Viability::Viable };
        CapacityPoolStatus { verdict, ..CapacityPoolStatus::default() }
    }

    /// Does what the operator's rule says. Gives how many servers it has ended that were ready.
    fn hold(&mut self, fleet: &mut Fleet<'_>, now: Seconds) -> usize {
        let wanted = Wanted {
            group: &self.group,
            revision: member::REVISION,
            desired: SERVERS,
            balance: Some(&self.balance),
        };
        let members: Vec<Member> = self.members.iter().map(|(_, member)| member.clone()).collect();
        let plan = hold::plan(wanted, &members, at(now));
        self.stirred = !plan.create.is_empty() || !plan.retire.is_empty();
        let mut ended = 0;
        for retired in &plan.retire {
            let Some((id, member)) = self.members.iter().find(|(_, member)| member.name() == retired.name)
            else {
                continue;
            };
            ended += usize::from(member::is_ready(member));
            let id = *id;
            fleet.end(id, now);
            self.see(fleet, id);
        }
        for launch in plan.create {
            self.make(fleet, &launch, now);
        }
        ended
    }

    fn make(&mut self, fleet: &mut Fleet<'_>, launch: &Launch, now: Seconds) {
        let standing = self.pools.iter().find(|standing| Some(&standing.pool) == launch.pool.as_ref());
        if let Some(place) = standing.map(|standing| standing.place) {
            let id = fleet.make(place, now);
            self.members.push((id, member::made(launch, at(now))));
        }
    }
}

fn balance(group: &GameServerGroup, pools: &[Standing]) -> Result<Balance> {
    let zones = pools.iter().map(|standing| standing.pool.zone.clone()).collect();
    let fitness = |pool: &Pool| {
        let standing = pools.iter().find(|standing| standing.pool == *pool);
        Fitness { verdict: standing.map(|standing| standing.status.verdict).unwrap_or_default(), price: None }
    };
    Balance::of(&group.spec, &zones, fitness).context("the group names no instance types")
}

impl Policy for Keeper<'_> {
    fn act(&mut self, fleet: &mut Fleet<'_>, happened: &[Happened], now: Seconds) -> Result<usize> {
        self.take_up(fleet, happened, now);
        let due = self.judged.is_none_or(|judged| judged.saturating_add(PERIOD) <= now);
        if due || !self.happened.is_empty() || matches!(self.verdicts, Verdicts::Known { .. }) {
            self.judge(now)?;
        }
        let ended = if self.stirred { self.hold(fleet, now) } else { 0 };
        for id in fleet.schedule(now) {
            self.see(fleet, id);
            self.stirred = true;
        }
        Ok(ended)
    }

    fn rank(&self, server: &Server) -> u8 {
        let standing = self.pools.iter().find(|standing| standing.place == server.place);
        let status = standing.map(|standing| &standing.status);
        match status.map(|status| status.verdict) {
            Some(Viability::NotViable) => 2,
            _ => u8::from(status.is_some_and(|status| !status.evidence.is_empty())),
        }
    }

    fn had_left(&self, place: Place, at: Seconds) -> bool {
        self.left(place).is_some_and(|since| since < at)
    }
}

impl Keeper<'_> {
    fn left(&self, place: Place) -> Option<Seconds> {
        self.pools.iter().find(|standing| standing.place == place)?.left
    }
}
