//! The agent hears of a claim by a poke, and tells the game: issue 5's "Poke".

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gamekeeper::api::names::POKE_PORT;
use gamekeeper::api::{ClaimStatus, GameServerGroupStatus, GameServerStatus, State, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{World, account, eventually, setting, silent_group};

/// A game that knows nothing of Kubernetes asks the agent, with curl, and says in its server's data what it heard, cut out
/// by this `sed` program: that it can be seen from outside.
fn listening_game(cut: &str) -> String {
    LISTENING_GAME.replace("CUT", cut)
}

/// The claim that it heard of.
const CLAIM: &str = r#"s/.*"claim":\{"id":"([^"]*)","data":"([^"]*)".*/claim \1, \2/p"#;
/// What becomes of its node.
const INSTANCE: &str = r#"s/.*"instance":\{"status":"([^"]*)","cause":"([^"]*)".*/\1, \2/p"#;

const LISTENING_GAME: &str = r#"
    trap 'exit 0' TERM
    account=/var/run/secrets/kubernetes.io/serviceaccount
    me=https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/apis/gamekeeper.dev/v1alpha1
    me=$me/namespaces/$GAMEKEEPER_NAMESPACE/gameservers/$GAMEKEEPER_GAME_SERVER/status
    say() {
      curl --silent --fail --output /dev/null --request PATCH "$me" \
        --cacert "$account/ca.crt" --header "Authorization: Bearer $(cat "$account/token")" \
        --header 'Content-Type: application/merge-patch+json' --data "{\"status\": {\"data\": \"$1\"}}"
    }
    while true; do
      told=$(curl --silent --fail "http://127.0.0.1:9356/v1/game-server?after=$version&wait=60") || sleep 0.2
      [ -n "$told" ] || continue
      version=$(sed -E 's/.*"resourceVersion":"([^"]*)".*/\1/' <<< "$told")
      heard=$(sed -nE 'CUT' <<< "$told")
      say "${heard:-nobody}"
    done
"#;

/// `yaml` with the agent.
fn with_agent(yaml: &str) -> String {
    yaml.replace("  ports:", "  agent: {protocol: IdTech3, port: game}\n          ports:")
}

/// A server whose game says what it hears, cut out by this program.
fn group_that_listens(cut: &str) -> String {
    let (silent, shell) = (setting("GAMEKEEPER_TEST_SILENT_IMAGE"), setting("GAMEKEEPER_TEST_SHELL_IMAGE"));
    let game = format!("image: '{shell}', command: {}", json!(["/bin/bash", "-c", listening_game(cut)]));
    with_agent(&silent_group("arena", 1)).replace(&format!("image: '{silent}'"), &game)
}

/// Row F20: a game hears within its pod that its node goes. This one is said to have started anew since.
#[tokio::test(flavor = "multi_thread")]
async fn a_game_hears_that_its_node_goes() {
    let world = World::new("poke-notice").await;
    world.apply(&group_that_listens(INSTANCE)).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    world.report(&server, State::Active).await;
    let earlier = json!({"instance": {"bootID": "an-earlier-one"}});
    world.try_patch_status(&server, earlier).await.unwrap();
    let heard = |status: &GameServerStatus| {
        status.data.as_deref() == Some("SpotTerminating, its node has started anew")
    };
    world.server_until(&server, "its game knows", heard).await;
    world.delete_group_at_once("arena").await;
    world.end().await;
}

/// A claimed server's game gets the claim's data within the pod, at once: no leader is there to poke a second time. It
/// hears of the claim's end as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_game_hears_of_its_claim_and_of_the_claims_end() {
    let mut world = World::new("poke-game").await;
    let rules = json!([
        {"apiGroups": ["gamekeeper.dev"], "resources": ["gameserverclaims"], "verbs": ["create", "delete"]},
    ]);
    let token = account(&world.client, &world.namespace, "lobby", rules).await;
    world.apply(&group_that_listens(CLAIM)).await;
    let server = world.ready_servers("arena", 1).await[0].name_any();
    world.kill_operators();
    world.take_lease("somebody-else").await;
    world.start_replica("follower").await;

    let body = json!({"id": "match-1", "groups": ["arena"], "data": "map=harbour"});
    let (code, answer) = world.ask(0, &token, body).await;
    assert_eq!(code, 200, "{answer}");
    let heard = |words: &'static str| move |status: &GameServerStatus| status.data.as_deref() == Some(words);
    world.server_until(&server, "its game has the claim", heard("claim match-1, map=harbour")).await;

    let url = format!("{}/match-1", world.claims_url(0));
    let released = world.callers().await.delete(url).bearer_auth(&token).send().await.unwrap();
    assert!(released.status().is_success(), "{}", released.status());
    world.server_until(&server, "its game knows that it is free", heard("nobody")).await;

    world.kill_operators();
    world.give_back_lease().await;
    world.end().await;
}

/// Row P3, confirmation Immediate: the agent did not make the game Active, and hears of it. So the session of players
/// who never come ends, as any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_game_that_its_claim_made_active_ends_when_nobody_comes() {
    let world = World::new("poke-immediate").await;
    let token = world.matchmaker_token().await;
    let sample = include_str!("../../deploy/samples/openarena.yaml");
    let group = sample
        .replace("replicas: 3", "replicas: 1")
        .replace("timeoutSeconds: 60", "timeoutSeconds: 1\n    confirmation: Immediate")
        .replace("emptySeconds: 30", "emptySeconds: 1");
    world.apply(&group).await;
    let on_offer = |status: &GameServerGroupStatus| status.servers.is_some_and(|counts| counts.on_offer == 1);
    world.group_until("openarena", "it is on offer", on_offer).await;

    let (code, answer) = world.claim(&token, "match-1", &["openarena"]).await;
    assert_eq!(code, 200, "{answer}");
    let server = answer["server"].as_str().unwrap();
    world.server_gone(server).await;
    let event = world.event(server, "Terminated").await;
    assert!(event.message.unwrap().contains("SessionEnded"));
    world.end().await;
}

/// Stands in for the agents of pods that nothing runs for.
struct FakeAgent {
    pokes: Arc<AtomicUsize>,
}

impl FakeAgent {
    /// Answers pokes at this address of the loopback, where the operators of the tests are too.
    async fn listen(ip: &str) -> Self {
        let address = SocketAddr::new(ip.parse().unwrap(), POKE_PORT);
        let listener = TcpListener::bind(address).await.unwrap();
        let pokes = Arc::new(AtomicUsize::new(0));
        let heard = Arc::clone(&pokes);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                if request[..length].starts_with(b"POST /poke ") {
                    heard.fetch_add(1, Ordering::SeqCst);
                }
                stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.unwrap();
            }
        });
        Self { pokes }
    }

    /// Waits until it has been poked so often in all.
    async fn poked(&self, times: usize) {
        let look = || async { self.pokes.load(Ordering::SeqCst) };
        eventually(&format!("it is poked {times} times"), look, |count| *count >= times).await;
    }
}

impl World {
    /// Gives a pod that nothing runs for this address.
    async fn move_pod(&self, pod: &str, ip: &str) {
        let patch = Patch::Merge(json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}}));
        self.pod_api().patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A group of servers with agents on a fake node, on offer, whose pods have this address; and the servers' names.
    async fn unreachable_group(&self, replicas: u32, ip: &str) -> Vec<String> {
        self.fake_node("node").await;
        let group = with_agent(&self.on_fake_nodes(&silent_group("arena", replicas)));
        self.apply(&group.replace("  ports:", "  claim: {timeoutSeconds: 600}\n          ports:")).await;
        let servers = self.ready_servers("arena", usize::try_from(replicas).unwrap()).await;
        let names: Vec<String> = servers.iter().map(ResourceExt::name_any).collect();
        for name in &names {
            self.move_pod(name, ip).await;
        }
        names
    }
}

/// A poke that got lost, as while the agent is started again, is not the last; the claim's confirmation is.
#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_server_is_poked_again_until_its_claim_is_confirmed() {
    let ip = "127.93.55.1";
    let world = World::new("poke-again").await;
    let token = world.matchmaker_token().await;
    let server = world.unreachable_group(1, ip).await.remove(0);
    assert_eq!(world.claim(&token, "match-1", &["arena"]).await.0, 200);
    let agent = FakeAgent::listen(ip).await;
    agent.poked(3).await;

    world.report(&server, State::Active).await;
    let active = |status: &GameServerGroupStatus| status.servers.is_some_and(|counts| counts.active == 1);
    world.group_until("arena", "it is Active", active).await;
    let before = agent.pokes.load(Ordering::SeqCst);
    for _ in 0..2 {
        world.lease_renewed().await;
    }
    // One may have been on its way.
    assert!(agent.pokes.load(Ordering::SeqCst) <= before + 1);
    world.end().await;
}

/// The end of a claim is poked as well: nothing else would tell its game that nobody comes. Its leader would poke an
/// unconfirmed claim a second time only after it has lapsed here.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_claim_lapses_is_poked() {
    let ip = "127.93.55.3";
    let world = World::new("poke-lapse").await;
    let token = world.matchmaker_token().await;
    let server = world.unreachable_group(1, ip).await.remove(0);
    let agent = FakeAgent::listen(ip).await;
    world.patch_group("arena", json!({"spec": {"claim": {"timeoutSeconds": 1}}})).await;
    assert_eq!(world.claim(&token, "match-1", &["arena"]).await.0, 200);
    let free = |status: &GameServerStatus| status.claim_status == ClaimStatus::Unclaimed;
    world.server_until(&server, "its claim has lapsed", free).await;
    agent.poked(2).await;
    world.end().await;
}

fn reachable(status: &GameServerGroupStatus) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == conditions::AGENTS_REACHABLE)
}

/// A group whose agents cannot be reached says so, once (invariant I4), whoever leads; and that they can be again.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_agents_cannot_be_reached_says_so_until_they_can() {
    let ip = "127.93.55.2";
    let mut world = World::new("poke-reach").await;
    let token = world.matchmaker_token().await;
    let names = world.unreachable_group(2, ip).await;
    world.silent_group("plain", 0).await;
    let fine = |status: &GameServerGroupStatus| reachable(status).is_some_and(|said| said.status == "True");
    world.group_until("arena", "nothing is wrong with its agents", fine).await;

    assert_eq!(world.claim(&token, "match-1", &["arena"]).await.0, 200);
    assert_eq!(world.claim(&token, "match-2", &["arena"]).await.0, 200);
    let both = |status: &GameServerGroupStatus| {
        reachable(status)
            .is_some_and(|said| said.status == "False" && said.message.contains("last, 2 do not"))
    };
    let unreached = world.group_until("arena", "both agents do not answer", both).await;
    let said = reachable(&unreached).unwrap();
    for words in
        [&format!("{} at {ip}:{POKE_PORT}", names.iter().min().unwrap()), "NetworkPolicies", "refused"]
    {
        assert!(said.message.contains(words), "{}\nlacks: {words}", said.message);
    }
    world.event("arena", &said.reason).await;
    assert_eq!(reachable(&world.group_status("plain").await), None);

    // It goes on, and nothing is written for it; another leader says nothing else before it knows.
    let writes = || {
        let mut writes = world.audited_writes();
        writes.retain(|write| write["verb"] != "get" && write["objectRef"]["resource"] == "gameservergroups");
        writes.len()
    };
    let before = writes();
    world.lease_renewed().await;
    assert_eq!(writes(), before);
    world.kill_operators();
    world.start_replica("successor").await;
    // The first of these is that it leads.
    for _ in 0..2 {
        world.lease_renewed().await;
    }
    let still = world.group_status("arena").await;
    assert_eq!(reachable(&still).map(|said| &said.last_transition_time), Some(&said.last_transition_time));

    let agent = FakeAgent::listen(ip).await;
    world.group_until("arena", "they answer again", fine).await;
    agent.poked(2).await;
    world.event("arena", "PokesAnswered").await;
    world.end().await;
}
