//! Invariant I5, cases C3 and C13: the operator is killed before and after each of its writes, its writes are refused
//! or lost, its watches break, lag and repeat themselves, and all ends as it would have without.
//!
//! A *point* is one such fault at one write; a *walk* is a scenario with one or several of them, in a namespace of its
//! own.

use std::time::Duration;

use futures::future::join_all;
use gamekeeper::api::{ClaimStatus, GameServerGroupStatus, State};
use kube::ResourceExt;
use kube::api::PostParams;
use tokio::sync::Semaphore;

use crate::harness::{Fault, Proxy, Watches, When, World, eventually, self_group, server_of, status};

/// How many walks are under way at once, of all tests here together: each has an operator and up to three pods.
static AT_ONCE: Semaphore = Semaphore::const_new(6);

/// How late a late event is.
const LATE: Duration = Duration::from_millis(400);

/// More writes than any scenario takes, also where half of them fail.
const MOST_WRITES: usize = 60;

/// What is under way when the fault comes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Scenario {
    /// A group is applied and comes up: three servers.
    ScaleUp,
    /// One of two servers is claimed.
    Claim,
    /// A group of three, with one game, is scaled to one.
    Retirement,
    /// A group of two, with one game, is deleted; the game goes on and then ends.
    Deletion,
    /// One of two games ends.
    Replacement,
    /// A group of two is applied whose processes register themselves (row F11).
    Registration,
}

use Scenario::{Claim, Deletion, Registration, Replacement, Retirement, ScaleUp};

const ALL: [Scenario; 6] = [ScaleUp, Claim, Retirement, Deletion, Replacement, Registration];

impl Scenario {
    fn name(self) -> String {
        format!("crash-{self:?}").to_lowercase()
    }

    /// How many servers there are before.
    fn before(self) -> usize {
        match self {
            ScaleUp | Registration => 0,
            Claim | Deletion | Replacement => 2,
            Retirement => 3,
        }
    }

    /// How many are Active before.
    fn active(self) -> usize {
        match self {
            ScaleUp | Claim | Registration => 0,
            Retirement | Deletion => 1,
            Replacement => 2,
        }
    }

    /// How many servers there are after it.
    fn after(self) -> usize {
        match self {
            ScaleUp => 3,
            Claim | Replacement | Registration => 2,
            Retirement => 1,
            Deletion => 0,
        }
    }

    /// How many pods are made in all.
    fn pods_made(self) -> usize {
        match self {
            ScaleUp | Retirement | Replacement => 3,
            Claim | Deletion | Registration => 2,
        }
    }
}

/// How many operators lead at once, each by a lease of its own.
#[derive(Clone, Copy, Debug)]
enum Leaders {
    One,
    Two,
}

/// A scenario in its world, its operators each behind a proxy of its own.
struct Stage {
    scenario: Scenario,
    world: World,
    proxies: Vec<Proxy>,
    token: String,
    /// A game with its pod's UID, which nothing may touch.
    game: Option<(String, String)>,
    /// Another server, which is to go.
    other: Option<String>,
}

impl Stage {
    /// All that comes before the scenario.
    async fn set(scenario: Scenario, leaders: Leaders, watches: Watches) -> Self {
        let world = World::without_operator(&scenario.name()).await;
        let token = world.matchmaker_token().await;
        let mut stage = Self { scenario, world, proxies: Vec::new(), token, game: None, other: None };
        let leaders = match leaders {
            Leaders::One => 1,
            Leaders::Two => 2,
        };
        for number in 0..leaders {
            let proxy = Proxy::start().await;
            proxy.watches(watches);
            stage.proxies.push(proxy);
            stage.start(number).await;
        }
        if scenario.before() > 0 {
            stage.fill().await;
        }
        stage
    }

    async fn start(&mut self, number: usize) {
        self.world.go_through(&self.proxies[number]);
        self.world.start_leader(&format!("leader-{number}"), &format!("lease-{number}")).await;
    }

    async fn fill(&mut self) {
        let (before, active) = (self.scenario.before(), self.scenario.active());
        self.world.silent_group("arena", u32::try_from(before).unwrap()).await;
        let servers = self.world.ready_servers("arena", before).await;
        for server in &servers[..active] {
            self.world.report(&server.name_any(), State::Active).await;
        }
        self.counts(before, active).await;
        let name = servers[0].name_any();
        let uid = self.world.pod_api().get(&name).await.unwrap().uid().unwrap();
        self.game = (active > 0).then_some((name, uid));
        self.other = Some(servers[1].name_any());
    }

    /// Waits until the group says so.
    async fn counts(&self, servers: usize, active: usize) {
        let said = |status: &GameServerGroupStatus| {
            let replicas = status.replicas.is_some_and(|replicas| usize::try_from(replicas) == Ok(servers));
            let of = |count: i32| usize::try_from(count).ok();
            replicas
                && status
                    .servers
                    .is_some_and(|counts| of(counts.active) == Some(active) && counts.ending == 0)
        };
        self.world.group_until("arena", "the group says how many there are", said).await;
    }

    /// What sets the scenario off.
    async fn begin(&self) {
        match self.scenario {
            ScaleUp => drop(self.world.silent_group("arena", 3).await),
            Claim => {}
            Retirement => self.world.scale("arena", 1).await,
            Deletion => self.world.delete_group("arena").await,
            Replacement => self.world.report(self.other(), State::Terminating).await,
            Registration => drop(self.world.apply(&self_group("arena", 2)).await),
        }
    }

    fn other(&self) -> &str {
        self.other.as_deref().unwrap()
    }

    /// What games and callers do until it is over. It can be begun anew at any time.
    async fn play(&self) {
        match self.scenario {
            ScaleUp => {
                self.world.ready_servers("arena", 3).await;
                self.counts(3, 0).await;
            }
            Claim => {
                self.claimed().await;
                let one = |status: &GameServerGroupStatus| {
                    status.servers.is_some_and(|counts| (counts.claimed, counts.on_offer) == (1, 1))
                };
                self.world.group_until("arena", "one is claimed", one).await;
            }
            Retirement => {
                self.world.servers_until("one server is left", |servers| servers.len() == 1).await;
                self.counts(1, 1).await;
            }
            Deletion => {
                self.world.server_gone(self.other()).await;
                self.end_game().await;
                self.world.no_groups().await;
            }
            Replacement => {
                self.world.ready_servers("arena", 1).await;
                self.world.server_gone(self.other()).await;
                self.counts(2, 1).await;
            }
            Registration => {
                self.register().await;
                self.world.ready_servers("arena", 2).await;
                self.counts(2, 0).await;
            }
        }
    }

    /// The process in each pod registers itself, if it has not yet.
    async fn register(&self) {
        let register = || async {
            for pod in self.world.pods().await {
                let server = serde_json::from_value(server_of(&pod, "arena")).unwrap();
                // It may have.
                let _ = self.world.server_api().create(&PostParams::default(), &server).await;
            }
            self.world.servers().await.len()
        };
        eventually("both have registered themselves", register, |servers| *servers == 2).await;
    }

    /// Claims until it is answered.
    async fn claimed(&self) -> String {
        let ask = || self.world.claim(&self.token, "match-1", &["arena"]);
        let (_, answer) = eventually("the claim is answered", ask, |(code, _)| *code == 200).await;
        answer["server"].as_str().unwrap().to_owned()
    }

    /// The game that the deletion waits for ends, if it has not yet.
    async fn end_game(&self) {
        let (name, _) = self.game.as_ref().unwrap();
        let server = self.world.server(name).await;
        if server.is_some_and(|server| status(&server).state == State::Active) {
            self.untouched().await;
            self.world.report(name, State::Terminating).await;
        }
    }

    /// Invariant I3: the game plays on in its pod, which nobody has deleted.
    async fn untouched(&self) {
        let Some((name, uid)) = &self.game else { return };
        let server = self.world.server(name).await.unwrap();
        let pod = self.world.pod_api().get(name).await.unwrap();
        assert_eq!(status(&server).state, State::Active);
        assert_eq!((pod.metadata.uid.as_ref(), pod.metadata.deletion_timestamp), (Some(uid), None));
    }

    /// How it must have ended.
    async fn check(&self) {
        let after = self.scenario.after();
        let (servers, pods) = (self.world.servers().await, self.world.pods().await);
        assert_eq!((servers.len(), pods.len()), (after, after));
        let made: usize = self.proxies.iter().map(Proxy::pods_made).sum();
        let story: Vec<String> = self.proxies.iter().map(Proxy::story).collect();
        assert_eq!(made, self.scenario.pods_made(), "pods made, by these writes:\n{}", story.join("\n"));
        match self.scenario {
            ScaleUp | Deletion | Registration => {}
            Retirement | Replacement => self.untouched().await,
            Claim => {
                let name = self.claimed().await;
                let held = |server: &&gamekeeper::api::GameServer| {
                    status(server).claim_status == ClaimStatus::Claimed
                };
                let held = || async {
                    let servers = self.world.servers().await;
                    servers.iter().filter(held).map(ResourceExt::name_any).collect::<Vec<_>>()
                };
                // A call that was not answered in time gives back what it has taken.
                eventually("it alone is held", held, |held| *held == [name.clone()]).await;
            }
        }
    }

    /// Kills the first operator where its fault has stopped it, and starts it again.
    async fn restart(&mut self) {
        self.world.kill_operator(0);
        self.proxies[0].open();
        self.start(0).await;
    }

    /// Everything goes: nothing is left behind a finalizer.
    async fn end(self) {
        self.world.end().await;
    }
}

/// Faults at writes, each with its number.
type Plan = Vec<(usize, Fault)>;

/// Walks a scenario with these faults, and returns how many have happened: fewer where the operator got by with fewer
/// writes. A kill must be the only one.
async fn walk(scenario: Scenario, leaders: Leaders, plan: Plan) -> usize {
    let one = AT_ONCE.acquire().await.unwrap();
    let mut stage = Stage::set(scenario, leaders, Watches::Whole).await;
    for (number, fault) in plan {
        stage.proxies[0].fault_at(number, fault);
    }
    stage.begin().await;
    let killed = tokio::select! {
        () = stage.proxies[0].killing() => true,
        () = stage.play() => false,
    };
    if killed {
        stage.restart().await;
        stage.play().await;
    }
    stage.proxies[0].no_more_faults();
    stage.check().await;
    let happened = stage.proxies[0].happened();
    drop(one);
    stage.end().await;
    happened
}

/// How many writes a scenario takes by itself.
async fn learn(scenario: Scenario) -> usize {
    let one = AT_ONCE.acquire().await.unwrap();
    let stage = Stage::set(scenario, Leaders::One, Watches::Whole).await;
    let before = stage.proxies[0].writes();
    stage.begin().await;
    stage.play().await;
    stage.check().await;
    let writes = stage.proxies[0].writes() - before;
    eprintln!("{scenario:?} takes {writes} writes");
    drop(one);
    stage.end().await;
    writes
}

/// Walks all of these, and says how many points that were.
async fn walk_all(what: &str, leaders: Leaders, plans: Vec<(Scenario, Plan)>) {
    let walks = plans.into_iter().map(|(scenario, plan)| async move {
        let outcome = tokio::spawn(walk(scenario, leaders, plan.clone())).await;
        (scenario, plan, outcome)
    });
    let (mut walked, mut failed) = (0, Vec::new());
    for (scenario, plan, outcome) in join_all(walks).await {
        match outcome {
            Ok(happened) => walked += happened,
            Err(error) => failed.push(format!("{scenario:?} {plan:?}: {error}")),
        }
    }
    eprintln!("{what}: {walked} points walked, {} walks failed", failed.len());
    assert!(failed.is_empty(), "{walked} points held, these not:\n{}", failed.join("\n"));
}

/// A kill before and after each write of these scenarios, one a walk.
async fn kills(scenarios: &[Scenario]) -> Vec<(Scenario, Plan)> {
    let learned = join_all(scenarios.iter().map(|scenario| learn(*scenario))).await;
    let mut plans = Vec::new();
    for (scenario, writes) in scenarios.iter().zip(learned) {
        for number in 0..writes {
            for when in [When::Before, When::After] {
                plans.push((*scenario, vec![(number, Fault::Kill(when))]));
            }
        }
    }
    plans
}

/// Each fault at each write, at every second one in a walk: what is tried again may succeed.
fn refusals() -> Vec<(Scenario, Plan)> {
    let mut faults = vec![Fault::Delay(LATE)];
    for when in [When::Before, When::After] {
        faults.extend([409, 429, 500, 504].map(|code| Fault::Answer(code, when)));
        faults.push(Fault::Drop(when));
    }
    let mut plans = Vec::new();
    for scenario in ALL {
        for fault in &faults {
            for first in [0, 1] {
                plans.push((
                    scenario,
                    (first..MOST_WRITES).step_by(2).map(|number| (number, *fault)).collect(),
                ));
            }
        }
    }
    plans
}

/// Invariant I5: killed before and after each write, and started again.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_write_it_comes_to_the_same_end() {
    walk_all("killed", Leaders::One, kills(&ALL).await).await;
}

/// Invariant I5, case C3: each write refused, late, or its answer lost, whether it was done or not.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_answered_to_any_write_it_comes_to_the_same_end() {
    walk_all("answered otherwise", Leaders::One, refusals()).await;
}

/// Invariant I5, case C13: of two that both believe that they lead, one is killed.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_confused_leaders_is_killed_at_any_write() {
    walk_all("one of two killed", Leaders::Two, kills(&[ScaleUp, Replacement]).await).await;
}

/// Invariant I5: watches that end after each event, that lag, that repeat old events, and that all break at once.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_its_watches_do_it_comes_to_the_same_end() {
    let ways = [Watches::Cut, Watches::Late(LATE), Watches::Repeated];
    let runs = ALL.iter().flat_map(|scenario| ways.map(|watches| (*scenario, watches)));
    let watched = join_all(runs.map(|(scenario, watches)| async move {
        let run = async move {
            let _one = AT_ONCE.acquire().await.unwrap();
            let stage = Stage::set(scenario, Leaders::One, watches).await;
            stage.begin().await;
            stage.proxies[0].cut_watches();
            stage.play().await;
            stage.check().await;
            stage.end().await;
        };
        (scenario, watches, tokio::spawn(run).await)
    }))
    .await;
    let failed: Vec<_> = watched.iter().filter(|(_, _, outcome)| outcome.is_err()).collect();
    eprintln!("watches: {} runs, {} failed", watched.len(), failed.len());
    assert!(failed.is_empty(), "{failed:#?}");
}
