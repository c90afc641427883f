//! A namespace with an operator, and what a test does there: as the cluster's administrator, unless it says
//! otherwise.

use std::collections::BTreeSet;
use std::path::PathBuf;

use gamekeeper::api::{
    DeletionPolicy, GameServer, GameServerGroup, GameServerGroupStatus, GameServerStatus, ServerCounts, State,
};
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};

use tokio::sync::OnceCell;

use super::accounts::{NODE_EVENTS, account, operator_account};
use super::operator::{Operator, Ports, Setup};
use super::proxy::Proxy;
use super::wait::eventually;

pub(crate) type Group = GameServerGroup;
pub(crate) type Server = GameServer;

/// The name of the first operator in each world.
const REPLICA: &str = "operator-0";

/// The lease by which one of them leads.
pub(super) const LEASE: &str = "gamekeeper";

/// A Secret that a test may give the operator a certificate in.
pub(crate) const GIVEN_SECRET: &str = "given";

/// What a test lives in.
pub(crate) struct World {
    pub(crate) namespace: String,
    pub(crate) client: Client,
    pub(super) setup: Setup,
    pub(super) operators: Vec<Operator>,
    /// Knows the claim API; made once its authority is there.
    pub(super) callers: OnceCell<reqwest::Client>,
}

impl World {
    /// A namespace named after the test, and an operator that looks after it.
    pub(crate) async fn new(name: &str) -> Self {
        let mut world = Self::without_operator(name).await;
        world.start_operator().await;
        world
    }

    /// A namespace that nobody looks after yet.
    pub(crate) async fn without_operator(name: &str) -> Self {
        let admin = admin_kubeconfig();
        let client = client_of(admin.clone()).await;
        let namespace = new_namespace(&client, name).await;
        let token = operator_account(&client, &namespace).await;
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("worlds");
        let kubeconfig = folder.join(format!("{namespace}.kubeconfig"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&kubeconfig, serde_saphyr::to_string(&as_user(admin, &token)).unwrap()).unwrap();
        let setup = Setup {
            namespace: namespace.clone(),
            neighbours: Vec::new(),
            kubeconfig,
            agent_image: setting("GAMEKEEPER_TEST_AGENT_IMAGE"),
            logs: folder,
            arguments: Vec::new(),
        };
        Self { namespace, client, setup, operators: Vec::new(), callers: OnceCell::new() }
    }

    /// Starts the operator, and waits until it is ready.
    pub(crate) async fn start_operator(&mut self) {
        self.start_replica(REPLICA).await;
    }

    /// Starts one more replica, and waits until it is ready.
    pub(crate) async fn start_replica(&mut self, name: &str) {
        self.start_leader(name, LEASE).await;
    }

    /// Starts a replica that leads by a lease of its own, whoever else leads.
    pub(crate) async fn start_leader(&mut self, name: &str, lease: &str) {
        let mut operator = Operator::start(&self.setup, name, lease);
        let over = |ready: &Result<Ports, _>| ready.is_ok() || operator.ended().is_some();
        let ready = eventually("the operator is ready", || operator.ready(), over).await;
        operator.ports = ready.expect("an operator that does not end at its start");
        self.operators.push(operator);
    }

    /// Gives the operators that are started from now on these arguments too.
    pub(crate) fn with_arguments(&mut self, arguments: &[&str]) {
        self.setup.arguments.extend(arguments.iter().map(ToString::to_string));
    }

    /// Makes the operators that are started from now on reach the API server through a proxy.
    pub(crate) fn go_through(&mut self, proxy: &Proxy) {
        let mut kubeconfig = Kubeconfig::read_from(&self.setup.kubeconfig).unwrap();
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(proxy.url());
            cluster.certificate_authority_data = None;
        }
        let name = format!("{}-{}.kubeconfig", self.namespace, proxy.port());
        self.setup.kubeconfig = self.setup.logs.join(name);
        std::fs::write(&self.setup.kubeconfig, serde_saphyr::to_string(&kubeconfig).unwrap()).unwrap();
    }

    /// Kills one operator as a crash would; those started after it move up.
    pub(crate) fn kill_operator(&mut self, replica: usize) {
        self.operators.remove(replica).kill();
    }

    /// Asks an operator to stop, as the kubelet does.
    pub(crate) fn terminate_operator(&self, replica: usize) {
        self.operators[replica].terminate();
    }

    /// Waits until an operator has ended, and says whether it ended well.
    pub(crate) async fn operator_ended(&mut self, replica: usize) -> bool {
        let operator = &self.operators[replica];
        let look = || async { operator.ended() };
        eventually("the operator has ended", look, Option::is_some).await.unwrap().success()
    }

    /// Kills all operators as a crash would.
    pub(crate) fn kill_operators(&mut self) {
        for operator in self.operators.drain(..) {
            operator.kill();
        }
    }

    /// Ends the world in good order: what a test leaves must still be removable.
    pub(crate) async fn end(mut self) {
        if self.operators.is_empty() {
            self.start_operator().await;
        }
        for group in self.groups().await {
            let name = group.name_any();
            self.patch_group(&name, json!({"spec": {"deletionPolicy": DeletionPolicy::Force}})).await;
            self.delete_group(&name).await;
        }
        self.no_groups().await;
        self.kill_operators();
        self.remove_nodes().await;
        let params = DeleteParams::default();
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.delete(&self.namespace, &params).await.unwrap();
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        bindings.delete(&self.namespace, &params).await.unwrap();
        let of_nodes: Api<RoleBinding> = Api::namespaced(self.client.clone(), NODE_EVENTS);
        of_nodes.delete(&self.namespace, &params).await.unwrap();
    }

    /// A namespace that the operator in the cluster looks after.
    pub(crate) async fn installed(namespace: &str) -> Self {
        let client = client_of(admin_kubeconfig()).await;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let wanted: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        namespaces.patch(namespace, &PatchParams::apply("test"), &Patch::Apply(&wanted)).await.unwrap();
        let setup = Setup {
            namespace: namespace.to_owned(),
            neighbours: Vec::new(),
            kubeconfig: PathBuf::new(),
            agent_image: String::new(),
            logs: PathBuf::new(),
            arguments: Vec::new(),
        };
        let namespace = namespace.to_owned();
        Self { namespace, client, setup, operators: Vec::new(), callers: OnceCell::new() }
    }

    /// Where the claim API of a replica answers.
    pub(crate) fn claims_url(&self, replica: usize) -> String {
        let (namespace, port) = (&self.namespace, self.operators[replica].ports.api);
        format!("https://gamekeeper.{namespace}.svc:{port}/v1/namespaces/{namespace}/claims")
    }

    /// Where a replica answers in plain HTTP.
    pub(crate) fn plain_url(&self, replica: usize, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.operators[replica].ports.plain)
    }

    /// The ports of a replica: of the claim API, and the plain one.
    pub(crate) fn ports(&self, replica: usize) -> [u16; 2] {
        let Ports { api, plain } = self.operators[replica].ports;
        [api, plain]
    }

    // Groups.

    pub(crate) fn group_api(&self) -> Api<Group> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Applies a group from YAML as a user would write it.
    pub(crate) async fn apply(&self, yaml: &str) -> Group {
        self.try_apply(yaml).await.unwrap()
    }

    pub(crate) async fn try_apply(&self, yaml: &str) -> Result<Group, kube::Error> {
        let manifest: Value = serde_saphyr::from_str(yaml).unwrap();
        let name = manifest["metadata"]["name"].as_str().unwrap().to_owned();
        let params = PatchParams::apply("test").force().validation_strict();
        self.group_api().patch(&name, &params, &Patch::Apply(&manifest)).await
    }

    /// A group of silent servers: each runs a container that does nothing, and the test plays the game.
    pub(crate) async fn silent_group(&self, name: &str, replicas: u32) -> Group {
        self.apply(&silent_group(name, replicas)).await
    }

    pub(crate) async fn groups(&self) -> Vec<Group> {
        self.group_api().list(&ListParams::default()).await.unwrap().items
    }

    pub(crate) async fn group_status(&self, name: &str) -> GameServerGroupStatus {
        self.group_api().get(name).await.unwrap().status.unwrap_or_default()
    }

    pub(crate) async fn patch_group(&self, name: &str, patch: Value) -> Group {
        self.group_api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    /// As `kubectl scale` does.
    pub(crate) async fn scale(&self, name: &str, replicas: u32) {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.group_api().patch_scale(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn delete_group(&self, name: &str) {
        self.group_api().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Deletes a group whoever plays, and waits until it is gone.
    pub(crate) async fn delete_group_at_once(&self, name: &str) {
        self.patch_group(name, json!({"spec": {"deletionPolicy": DeletionPolicy::Force}})).await;
        self.delete_group(name).await;
        let group = || async { self.group_api().get_opt(name).await.unwrap() };
        eventually("the group is gone", group, Option::is_none).await;
    }

    pub(crate) async fn no_groups(&self) {
        eventually("all groups are gone", || self.groups(), Vec::is_empty).await;
    }

    /// Waits until `good` holds of the group's status.
    pub(crate) async fn group_until(
        &self,
        name: &str,
        what: &str,
        good: impl Fn(&GameServerGroupStatus) -> bool,
    ) -> GameServerGroupStatus {
        eventually(what, || self.group_status(name), good).await
    }

    // Servers.

    pub(crate) fn server_api(&self) -> Api<Server> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn servers(&self) -> Vec<Server> {
        self.server_api().list(&ListParams::default()).await.unwrap().items
    }

    pub(crate) async fn server(&self, name: &str) -> Option<Server> {
        self.server_api().get_opt(name).await.unwrap()
    }

    /// Waits until `good` holds of all servers together.
    pub(crate) async fn servers_until(&self, what: &str, good: impl Fn(&Vec<Server>) -> bool) -> Vec<Server> {
        eventually(what, || self.servers(), good).await
    }

    /// Waits until `good` holds of a server's status.
    pub(crate) async fn server_until(
        &self,
        name: &str,
        what: &str,
        good: impl Fn(&GameServerStatus) -> bool,
    ) -> Server {
        let there = |server: &Option<Server>| server.as_ref().is_some_and(|server| good(&status(server)));
        eventually(what, || self.server(name), there).await.unwrap()
    }

    /// Waits until a server is gone.
    pub(crate) async fn server_gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), || self.server(name), Option::is_none).await;
    }

    /// Reports a state as the game would.
    pub(crate) async fn report(&self, name: &str, state: State) {
        self.try_patch_status(name, json!({"state": state})).await.unwrap();
    }

    pub(crate) async fn try_patch_status(&self, name: &str, status: Value) -> Result<Server, kube::Error> {
        let patch = Patch::Merge(json!({"status": status}));
        self.server_api().patch_status(name, &PatchParams::default(), &patch).await
    }

    pub(crate) async fn patch_server(&self, name: &str, patch: Value) -> Server {
        self.server_api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    /// Reports each server ready once it runs, until this many are on offer.
    pub(crate) async fn ready_servers(&self, group: &str, count: usize) -> Vec<Server> {
        let on_offer = i32::try_from(count).unwrap();
        let of_group = |server: &Server, state| server.spec.group == group && status(server).state == state;
        let look = || async {
            let mut servers = self.servers().await;
            for server in servers.iter().filter(|server| of_group(server, State::Initializing)) {
                // It may have ended since.
                let _ = self.try_patch_status(&server.name_any(), json!({"state": State::StandingBy})).await;
            }
            servers.retain(|server| of_group(server, State::StandingBy));
            (self.group_status(group).await.servers, servers)
        };
        // What the group says may be of a moment ago.
        let all = |(counts, servers): &(Option<ServerCounts>, Vec<Server>)| {
            counts.is_some_and(|counts| counts.on_offer == on_offer) && servers.len() >= count
        };
        eventually("all servers are on offer", look, all).await.1
    }

    /// Reports the next server that runs as ready, and gives its name.
    pub(crate) async fn next_server_stands_by(&self) -> String {
        let initializing = |server: &&Server| status(server).state == State::Initializing;
        let servers = self
            .servers_until("a server is Initializing", |servers| {
                servers.iter().any(|server| initializing(&server))
            })
            .await;
        let name = servers.iter().find(initializing).unwrap().name_any();
        self.report(&name, State::StandingBy).await;
        name
    }

    // Pods and events.

    pub(crate) fn pod_api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn pods(&self) -> Vec<Pod> {
        self.pod_api().list(&ListParams::default()).await.unwrap().items
    }

    pub(crate) async fn pod_uids(&self) -> BTreeSet<String> {
        self.pods().await.iter().filter_map(ResourceExt::uid).collect()
    }

    /// Waits for an event with this reason about the object of this name.
    pub(crate) async fn event(&self, about: &str, reason: &str) -> Event {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = ListParams::default().fields(&format!("involvedObject.name={about},reason={reason}"));
        let look = || async { events.list(&params).await.unwrap().items.into_iter().next() };
        let what = format!("an event {reason} about {about}");
        eventually(&what, look, Option::is_some).await.unwrap()
    }

    // Claims.

    /// A token of an account that may claim here, and nothing else.
    pub(crate) async fn matchmaker_token(&self) -> String {
        let rules = json!([{"apiGroups": ["gamekeeper.dev"], "resources": ["gameserverclaims"], "verbs": ["create"]}]);
        account(&self.client, &self.namespace, "matchmaker", rules).await
    }

    /// A client that knows the claim API.
    pub(crate) async fn callers(&self) -> &reqwest::Client {
        self.callers.get_or_init(|| self.caller()).await
    }

    /// Claims through a replica.
    pub(crate) async fn claim_at(
        &self,
        replica: usize,
        token: &str,
        id: &str,
        groups: &[&str],
    ) -> (u16, Value) {
        self.ask(replica, token, json!({"id": id, "groups": groups})).await
    }

    /// A token of an account that may do this to that resource here, and patch its part.
    pub(crate) async fn account_with(&self, verbs: &[&str], resource: &str, patched: Option<&str>) -> String {
        let mut rules =
            vec![json!({"apiGroups": ["gamekeeper.dev"], "resources": [resource], "verbs": verbs})];
        rules.extend(
            patched.map(
                |part| json!({"apiGroups": ["gamekeeper.dev"], "resources": [part], "verbs": ["patch"]}),
            ),
        );
        account(&self.client, &self.namespace, "caller", json!(rules)).await
    }

    /// A token of an account that may do all that the claim API offers.
    pub(crate) async fn all_rights_token(&self) -> String {
        let of = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": ["gamekeeper.dev"], "resources": resources, "verbs": verbs});
        let rules = [
            of(&["gameserverclaims"], &["create", "get", "list", "delete"]),
            of(&["gameservers"], &["get", "list"]),
            of(&["gameservers/players"], &["patch"]),
        ];
        account(&self.client, &self.namespace, "everything", json!(rules)).await
    }

    /// Claims through a replica, in so many words.
    pub(crate) async fn ask(&self, replica: usize, token: &str, body: Value) -> (u16, Value) {
        self.matchmaker(replica, token).await.ask(body).await
    }

    /// Claims through the first replica.
    pub(crate) async fn claim(&self, token: &str, id: &str, groups: &[&str]) -> (u16, Value) {
        self.claim_at(0, token, id, groups).await
    }

    /// A client that uses this token.
    pub(crate) async fn client_with(&self, token: &str) -> Client {
        client_of(as_user(admin_kubeconfig(), token)).await
    }
}

pub(crate) fn status(server: &Server) -> GameServerStatus {
    server.status.clone().unwrap_or_default()
}

/// The YAML of a group of silent servers.
pub(crate) fn silent_group(name: &str, replicas: u32) -> String {
    let image = setting("GAMEKEEPER_TEST_SILENT_IMAGE");
    format!(
        "
        apiVersion: gamekeeper.dev/v1alpha1
        kind: GameServerGroup
        metadata: {{name: {name}}}
        spec:
          replicas: {replicas}
          ports:
          - {{name: game, containerPort: 7777, policy: PodIP}}
          template:
            spec:
              terminationGracePeriodSeconds: 1
              containers:
              - {{name: game, image: '{image}'}}
        "
    )
}

/// What `cargo xtask test` sets.
pub(crate) fn setting(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run these tests with `cargo xtask test`"))
}

fn admin_kubeconfig() -> Kubeconfig {
    Kubeconfig::read_from(setting("GAMEKEEPER_TEST_KUBECONFIG")).unwrap()
}

/// A way to the API server for whoever brings a token of his own.
pub(super) async fn client_of_nobody() -> Client {
    let mut kubeconfig = admin_kubeconfig();
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = None;
    }
    client_of(kubeconfig).await
}

async fn client_of(kubeconfig: Kubeconfig) -> Client {
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// The same cluster with another user.
fn as_user(mut kubeconfig: Kubeconfig, token: &str) -> Kubeconfig {
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = serde_json::from_value(json!({"token": token})).unwrap();
    }
    kubeconfig
}

pub(super) async fn new_namespace(client: &Client, name: &str) -> String {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let wanted = json!({"metadata": {"generateName": format!("{name}-")}});
    let wanted = serde_json::from_value(wanted).unwrap();
    namespaces.create(&PostParams::default(), &wanted).await.unwrap().name_any()
}
