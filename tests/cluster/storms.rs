//! Invariants I1, I2 and I5, cases C1, C3, C4, C5, C11 and C17: claims from several replicas at once, while answers get
//! lost, writes are refused or slow, and watches are cut, late and repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use gamekeeper::api::{ClaimStatus, GameServerGroupStatus, Health, State};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;
use parking_lot::{Mutex, RwLock};
use serde_json::json;

use crate::harness::{Caller, Fault, Proxy, Watches, When, World, eventually, silent_group, status};

/// A world whose replicas each reach the API server through a proxy of their own, with so many servers ready.
async fn behind_proxies(name: &str, replicas: usize, servers: u32) -> (World, Vec<Proxy>) {
    let mut world = World::without_operator(name).await;
    let mut proxies = Vec::new();
    for replica in 0..replicas {
        let proxy = Proxy::start().await;
        world.go_through(&proxy);
        world.start_replica(&format!("operator-{replica}")).await;
        proxies.push(proxy);
    }
    world.fake_node("only").await;
    world.group_on_fake_nodes("arena", servers).await;
    world.patch_group("arena", json!({"spec": {"claim": {"timeoutSeconds": 3600}}})).await;
    world.ready_servers("arena", usize::try_from(servers).unwrap()).await;
    (world, proxies)
}

/// Waits until each replica sees so many servers on offer.
async fn all_see(world: &World, replicas: usize, servers: usize) {
    let line = format!(
        "gamekeeper_servers_on_offer{{namespace=\"{}\",group=\"arena\"}} {servers}\n",
        world.namespace
    );
    for replica in 0..replicas {
        let url = world.plain_url(replica, "/metrics");
        let look = || async { reqwest::get(&url).await.unwrap().text().await.unwrap() };
        eventually("the replica sees all servers", look, |text| text.contains(&line)).await;
    }
}

/// The servers that are claimed, by the ids of their claims.
async fn claimed(world: &World) -> BTreeMap<String, BTreeSet<String>> {
    let mut claims: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for server in world.servers().await {
        let held = status(&server);
        if held.claim_status == ClaimStatus::Claimed {
            claims.entry(held.claim.unwrap().id).or_default().insert(server.name_any());
        }
    }
    claims
}

/// As many claims at once as there are servers, each asked again until it is answered: each gets a server, none two.
async fn each_gets_one(world: &World, replicas: usize, claims: usize) {
    let token = world.matchmaker_token().await;
    let asked = (0..claims).map(|number| {
        let token = &token;
        async move {
            let id = format!("match-{number}");
            let ask = || world.claim_at(number % replicas, token, &id, &["arena"]);
            let (_, answer) = eventually("the claim is answered", ask, |(code, _)| *code == 200).await;
            (id, answer["server"].as_str().unwrap().to_owned())
        }
    });
    let given: BTreeMap<String, String> = join_all(asked).await.into_iter().collect();
    let servers: BTreeSet<&String> = given.values().collect();
    assert_eq!(servers.len(), claims, "{given:#?}");
    let held = eventually(
        "nothing else is held",
        || claimed(world),
        |held| held.len() == claims && held.values().all(|servers| servers.len() == 1),
    )
    .await;
    for (id, server) in &given {
        assert!(held[id].contains(server), "{id}: {server}, {held:#?}");
    }
}

/// Invariants I1 and I2: whatever every third write is answered after it has been done, or instead of it.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_lie_or_get_lost_double_no_claim_and_lose_none() {
    let (mut world, proxies) = behind_proxies("storm", 2, 12).await;
    let faults = [
        Fault::Answer(409, When::After),
        Fault::Answer(429, When::Before),
        Fault::Answer(500, When::After),
        Fault::Answer(504, When::After),
        Fault::Drop(When::After),
        Fault::Drop(When::Before),
        Fault::Delay(Duration::from_millis(300)),
    ];
    for proxy in &proxies {
        for (number, fault) in (0..300).step_by(3).zip(faults.iter().cycle()) {
            proxy.fault_at(number, *fault);
        }
    }
    each_gets_one(&world, 2, 12).await;
    assert!(proxies.iter().any(|proxy| proxy.happened() > 0));
    for proxy in &proxies {
        proxy.no_more_faults();
    }
    world.kill_operators();
    world.end().await;
}

/// Invariants I1, I2 and I5: watches that lag and repeat themselves, and are cut again and again.
#[tokio::test(flavor = "multi_thread")]
async fn watches_that_are_late_repeated_and_cut_double_no_claim() {
    let (mut world, proxies) = behind_proxies("lag", 2, 12).await;
    proxies[0].watches(Watches::Late(Duration::from_millis(300)));
    proxies[1].watches(Watches::Repeated);
    let cutting = async {
        let mut again = tokio::time::interval(Duration::from_millis(500));
        loop {
            again.tick().await;
            proxies.iter().for_each(Proxy::cut_watches);
        }
    };
    tokio::select! {
        () = each_gets_one(&world, 2, 12) => {}
        never = cutting => never,
    }
    world.kill_operators();
    world.end().await;
}

/// Case C1: three replicas, many callers, as many claims as servers: each gets one at the first try.
#[tokio::test(flavor = "multi_thread")]
async fn three_replicas_give_every_server_before_there_is_none() {
    let mut world = World::new("three").await;
    for name in ["operator-1", "operator-2"] {
        world.start_replica(name).await;
    }
    for node in ["a", "b", "c"] {
        world.fake_node(node).await;
    }
    world.group_on_fake_nodes("arena", 90).await;
    world.ready_servers("arena", 90).await;
    all_see(&world, 3, 90).await;
    let token = world.matchmaker_token().await;
    let asked = (0..90).map(|number| {
        let (world, token) = (&world, &token);
        async move { world.claim_at(number % 3, token, &format!("match-{number}"), &["arena"]).await }
    });
    let answers = join_all(asked).await;
    let refused: Vec<_> = answers.iter().filter(|(code, _)| *code != 200).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let servers: BTreeSet<&str> =
        answers.iter().map(|(_, answer)| answer["server"].as_str().unwrap()).collect();
    assert_eq!(servers.len(), 90);
    let (code, problem) = world.claim(&token, "one-more", &["arena"]).await;
    assert_eq!((code, problem["title"].as_str()), (503, Some("out of capacity")), "{problem}");
    world.end().await;
}

/// Cases C3 and C4: what callers gave up on takes no server, also where the API server is slow; asked again with the
/// same id, a caller gets one.
#[tokio::test(flavor = "multi_thread")]
async fn what_callers_gave_up_on_takes_no_server() {
    let (mut world, proxies) = behind_proxies("given-up", 1, 12).await;
    let token = world.matchmaker_token().await;
    // The account is known: what is slow from now on are the claims themselves.
    world.claim(&token, "first", &["arena"]).await;
    for number in 0..100 {
        proxies[0].fault_at(number, Fault::Delay(Duration::from_secs(2)));
    }
    let caller = world.matchmaker(0, &token).await;
    let impatient = (0..30).map(|number| {
        let body = json!({"id": format!("impatient-{number}"), "groups": ["arena"]});
        tokio::time::timeout(Duration::from_millis(100), caller.ask(body))
    });
    let answers = join_all(impatient).await;
    assert!(answers.iter().any(Result::is_err), "{answers:?}");
    let (_, again) = eventually(
        "one asks again",
        || world.claim(&token, "impatient-0", &["arena"]),
        |(code, _)| *code == 200,
    )
    .await;
    let mut kept: BTreeSet<String> = ["first", "impatient-0"].map(str::to_owned).into();
    // On a busy machine one or the other may have been answered before he was asked whether he still waits.
    let heard = answers.into_iter().flatten().filter(|(code, _)| *code == 200);
    kept.extend(heard.map(|(_, answer)| answer["id"].as_str().unwrap().to_owned()));
    let held = eventually(
        "no other holds a server",
        || claimed(&world),
        |held| held.keys().cloned().collect::<BTreeSet<_>>() == kept,
    )
    .await;
    assert_eq!(held["impatient-0"], BTreeSet::from([again["server"].as_str().unwrap().to_owned()]));
    proxies[0].no_more_faults();
    world.kill_operators();
    world.end().await;
}

/// Case C5: one id at three replicas at once is one server, and nothing else stays held.
#[tokio::test(flavor = "multi_thread")]
async fn one_id_at_three_replicas_is_one_server() {
    let mut world = World::new("one-id").await;
    for name in ["operator-1", "operator-2"] {
        world.start_replica(name).await;
    }
    world.silent_group("arena", 6).await;
    world.ready_servers("arena", 6).await;
    all_see(&world, 3, 6).await;
    let token = world.matchmaker_token().await;
    for round in 0..3 {
        let id = format!("match-{round}");
        let asked = (0..6).map(|number| {
            let (world, token, id) = (&world, &token, &id);
            let ask = move || world.claim_at(number % 3, token, id, &["arena"]);
            // On a busy machine one may be told to ask again.
            async move { eventually("the claim is answered", ask, |(code, _)| *code == 200).await }
        });
        let answers = join_all(asked).await;
        let servers: BTreeSet<&str> =
            answers.iter().map(|(_, answer)| answer["server"].as_str().unwrap()).collect();
        assert_eq!(servers.len(), 1, "{answers:#?}");
        let held =
            || async { claimed(&world).await.into_values().map(|servers| servers.len()).sum::<usize>() };
        eventually("one server is held for each id", held, |held| *held == round + 1).await;
    }
    world.end().await;
}

/// Case C5: a caller who asks again before he is answered has one server taken for him.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_id_at_a_replica_take_one_server() {
    let (mut world, proxies) = behind_proxies("turns", 1, 6).await;
    all_see(&world, 1, 6).await;
    let token = world.matchmaker_token().await;
    let before = proxies[0].writes();
    let asked = (0..6).map(|_| world.claim(&token, "match-1", &["arena"]));
    let answers = join_all(asked).await;
    assert!(answers.iter().all(|(code, _)| *code == 200), "{answers:#?}");
    let story = proxies[0].story();
    let patched = story.lines().skip(before).filter_map(|line| line.split(' ').nth(2));
    let patched: BTreeSet<&str> = patched.filter(|path| path.contains("/gameservers/")).collect();
    assert_eq!(patched.len(), 1, "{story}");
    world.kill_operators();
    world.end().await;
}

/// A replica whose pod has been deleted has a token that is good for nothing any more: another replica's is. What a quota or
/// a policy refuses, it refuses all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_token_is_over_sends_callers_to_another() {
    let (mut world, proxies) = behind_proxies("token-over", 2, 2).await;
    all_see(&world, 2, 2).await;
    let token = world.matchmaker_token().await;
    for (code, answered, title) in [(401, 502, "api server unavailable"), (403, 403, "refused")] {
        proxies[0].fault_at(0, Fault::Answer(code, When::Before));
        let (code, problem) = world.claim_at(0, &token, "match-1", &["arena"]).await;
        assert_eq!((code, problem["title"].as_str()), (answered, Some(title)), "{problem}");
    }
    let (code, answer) = world.claim_at(1, &token, "match-1", &["arena"]).await;
    assert_eq!(code, 200, "{answer}");
    world.kill_operators();
    world.end().await;
}

/// Case C11: a server that was unhealthy, recovers and is claimed is left alone.
/// Case C17: so is one that is claimed while its group is scaled in.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_lands_on_an_old_verdict_or_a_scale_in_stands() {
    let world = World::new("verdict").await;
    world.apply(&silent_group("arena", 1)).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    let token = world.matchmaker_token().await;
    world.try_patch_status(&server, json!({"health": Health::Unhealthy})).await.unwrap();
    let ask = |id: &'static str| world.claim(&token, id, &["arena"]);
    eventually("an unhealthy server is not given", || ask("never"), |(code, _)| *code == 503).await;
    world.try_patch_status(&server, json!({"health": Health::Healthy})).await.unwrap();
    let (_, answer) = eventually("a healthy one is", || ask("match-1"), |(code, _)| *code == 200).await;
    assert_eq!(answer["server"], server.as_str());
    world.scale("arena", 0).await;
    world.group_until("arena", "none is wanted", |status| status.desired_replicas == Some(0)).await;
    world.report(&server, State::Active).await;
    world
        .group_until("arena", "its game is on", |status| {
            status.servers.is_some_and(|counts| counts.active == 1)
        })
        .await;
    let held = status(&world.server(&server).await.unwrap());
    assert_eq!((held.state, held.claim_status), (State::Active, ClaimStatus::Claimed));
    world.end().await;
}

/// Case C17, invariant I3: a server that is claimed while the write that retires it is on its way stays, and plays.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_outruns_a_scale_in_that_is_on_its_way() {
    let (world, proxies) = behind_proxies("outrun", 1, 1).await;
    let name = world.servers().await[0].name_any();
    let written = || async {
        let of_it = format!("gameservers/{name}/status");
        let story = proxies[0].story();
        story.lines().filter(|line| line.contains(&of_it)).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = written().await.len();
    for number in 0..20 {
        proxies[0].fault_at(number, Fault::Delay(Duration::from_secs(2)));
    }
    world.scale("arena", 0).await;
    eventually("its end is on its way", written, |lines| lines.len() > before).await;
    let now = jiff::Timestamp::now();
    let claim = json!({
        "id": "match-1", "by": "another replica", "claimedAt": MicroTime(now),
        "expiresAt": MicroTime(now + jiff::SignedDuration::from_mins(10)),
    });
    world.try_patch_status(&name, json!({"claimStatus": "Claimed", "claim": claim})).await.unwrap();
    let is_refused = |lines: &Vec<String>| lines.get(before).is_some_and(|line| line.ends_with(" 422"));
    eventually("its end comes too late", written, is_refused).await;

    proxies[0].no_more_faults();
    world.report(&name, State::Active).await;
    let plays = |status: &GameServerGroupStatus| status.servers.is_some_and(|counts| counts.active == 1);
    world.group_until("arena", "its game is on", plays).await;
    world.end().await;
}

/// Matchmakers that claim on and on from replicas that come and go, each claim by an id of its own.
struct Crowd {
    /// In the order in which they came. A replica that has gone stays among them until somebody has noticed.
    replicas: RwLock<Vec<Arc<Caller>>>,
    /// The server of each id.
    given: Mutex<BTreeMap<String, String>>,
    enough: AtomicBool,
}

impl Crowd {
    const CALLERS: usize = 4;
    const CLAIMS_EACH: usize = 80;

    async fn claims(&self, caller: usize) {
        let mut pace = tokio::time::interval(Duration::from_millis(250));
        for number in 0..Self::CLAIMS_EACH {
            pace.tick().await;
            if self.enough.load(Ordering::SeqCst) {
                return;
            }
            let id = format!("match-{caller}-{number}");
            let server = self.claim(&id, caller + number).await;
            self.given.lock().insert(id, server);
        }
    }

    /// Claims from one replica; without a server, once more from the next.
    async fn claim(&self, id: &str, first: usize) -> String {
        let replicas = self.replicas.read().clone();
        let mut tried = Vec::new();
        for replica in replicas.iter().cycle().skip(first % replicas.len()).take(2) {
            match replica.try_ask(json!({"id": id, "groups": ["arena"]})).await {
                Ok((200, answer)) => return answer["server"].as_str().unwrap().to_owned(),
                other => tried.push(other),
            }
        }
        panic!("{id} was refused for longer than a retry: {tried:#?}");
    }

    /// Waits until they have claimed so many more.
    async fn goes_on(&self) {
        let (before, many) = (self.given.lock().len(), 2 * Self::CALLERS);
        let look = || async { self.given.lock().len() };
        eventually("they claim on", look, |count| *count >= before + many).await;
    }
}

/// A rolling restart of the operator and a replica that is killed outright lose no claim, and refuse none for longer than
/// a retry at another replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_and_a_kill_cost_a_retry_and_no_claim() {
    let mut world = World::new("rolling").await;
    world.start_replica("operator-1").await;
    for node in ["a", "b"] {
        world.fake_node(node).await;
    }
    let servers = Crowd::CALLERS * Crowd::CLAIMS_EACH;
    world.group_on_fake_nodes("arena", u32::try_from(servers).unwrap()).await;
    world.patch_group("arena", json!({"spec": {"claim": {"timeoutSeconds": 3600}}})).await;
    world.ready_servers("arena", servers).await;
    all_see(&world, 2, servers).await;
    let token = world.matchmaker_token().await;
    let there = vec![world.matchmaker(0, &token).await, world.matchmaker(1, &token).await];
    let crowd = Crowd {
        replicas: RwLock::new(there.into_iter().map(Arc::new).collect()),
        given: Mutex::default(),
        enough: AtomicBool::new(false),
    };

    let claims = join_all((0..Crowd::CALLERS).map(|caller| crowd.claims(caller)));
    let restarts = async {
        for (number, is_killed) in [(2, false), (3, false), (4, true)] {
            world.start_replica(&format!("operator-{number}")).await;
            let newcomer = Arc::new(world.matchmaker(2, &token).await);
            crowd.replicas.write().push(newcomer);
            if !is_killed {
                world.terminate_operator(0);
                assert!(world.operator_ended(0).await);
            }
            world.kill_operator(0);
            crowd.goes_on().await;
            crowd.replicas.write().remove(0);
        }
        crowd.enough.store(true, Ordering::SeqCst);
    };
    tokio::join!(claims, restarts);

    let given: BTreeMap<String, BTreeSet<String>> =
        crowd.given.into_inner().into_iter().map(|(id, server)| (id, BTreeSet::from([server]))).collect();
    assert_eq!(claimed(&world).await, given);
    world.end().await;
}
