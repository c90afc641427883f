//! Load on the claim path: through the HTTP API, or by the bare patch that a claim comes down to; and what came of it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use gamekeeper::api::GameServer;
use gamekeeper::rules::claim;
use gamekeeper::rules::observed::Server;
use gamekeeper::rules::request::Request;
use gamekeeper::view::View;
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};

use super::fleet::{Fleet, GROUP, LONG_SECONDS};
use super::matchmaker::Line;

/// What one request came to.
#[derive(Debug)]
pub(super) struct Done {
    /// From when it was meant to be sent to its answer.
    pub(super) took: Duration,
    /// The claim's id, with the UID of the server that it was given, or why it was given none.
    pub(super) id: String,
    pub(super) server: Result<String, String>,
}

/// What came of a number of requests.
#[derive(Debug)]
pub(super) struct Round {
    /// From the first request to the last answer.
    pub(super) seconds: f64,
    pub(super) done: Vec<Done>,
    /// The CPU time that each part used for it, in seconds.
    cpu: BTreeMap<&'static str, f64>,
}

/// One who makes requests, one after the other.
trait Client: Send + 'static {
    /// Makes request `number`, under this id, for a server.
    fn request(
        &mut self,
        number: usize,
        id: &str,
    ) -> impl Future<Output = Result<Result<String, String>>> + Send;
}

impl Client for Line {
    async fn request(&mut self, _: usize, id: &str) -> Result<Result<String, String>> {
        Ok(self.claim(id).await?.map(|granted| granted.uid))
    }
}

/// One who patches servers as a claim does, without an operator.
struct Patcher {
    api: Api<GameServer>,
    servers: Arc<[Server]>,
}

impl Client for Patcher {
    async fn request(&mut self, number: usize, id: &str) -> Result<Result<String, String>> {
        let server = self.servers.get(number).context("there is no server left")?;
        let request = Request { id: id.to_owned(), groups: vec![GROUP.to_owned()], ..Request::default() };
        let timeout = SignedDuration::from_secs(i64::from(LONG_SECONDS));
        let claim = claim::made(&request, "bench", timeout, Timestamp::now());
        let patch = Patch::Json::<()>(claim::take(server, &claim, claim.claimed_at.0).into_json());
        let params = PatchParams { field_manager: Some("gamekeeper".to_owned()), ..PatchParams::default() };
        let taken = self.api.patch_status(&server.name, &params, &patch).await;
        Ok(taken.map(|taken| taken.uid().unwrap_or_default()).map_err(|error| error.to_string()))
    }
}

/// So many claims over the HTTP API, by so many matchmakers.
pub(super) async fn claims(fleet: &Fleet, concurrency: usize, count: usize, name: &str) -> Result<Round> {
    let mut lines = fleet.matchmaker().await?.connect_all(concurrency).await?;
    // Who asks and whether they may is known from here on, as it is while a matchmaker works.
    try_join_all(lines.iter_mut().map(Line::warm)).await?;
    drive(fleet, lines, count, name).await
}

/// The bare patches of so many servers, by so many at once on one client.
pub(super) async fn patches(fleet: &Fleet, concurrency: usize, count: usize, name: &str) -> Result<Round> {
    let view = View::of_replica("bench");
    let servers: Arc<[Server]> =
        fleet.list().await?.iter().filter_map(|server| view.wrote_server(server)).collect();
    let api = fleet.operators_api().await?;
    // Its connections are open from here on.
    try_join_all((0..concurrency).map(|_| api.get_opt("none")))
        .await
        .context("cannot reach the API server")?;
    let clients = (0..concurrency).map(|_| Patcher { api: api.clone(), servers: Arc::clone(&servers) });
    drive(fleet, clients.collect(), count, name).await
}

/// Each client makes the next request as soon as it has its answer.
async fn drive<C: Client>(fleet: &Fleet, clients: Vec<C>, count: usize, name: &str) -> Result<Round> {
    let processes = fleet.processes()?;
    let before = processes.seconds()?;
    let next = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let tasks = clients.into_iter().map(|client| {
        let (next, name) = (Arc::clone(&next), name.to_owned());
        tokio::spawn(work(client, next, count, name))
    });
    let mut done = Vec::with_capacity(count);
    for part in try_join_all(tasks).await.context("a client has ended early")? {
        done.extend(part?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let mut cpu = processes.seconds()?;
    for (part, used) in &mut cpu {
        *used -= before.get(part).copied().unwrap_or_default();
    }
    Ok(Round { seconds, done, cpu })
}

async fn work<C: Client>(
    mut client: C,
    next: Arc<AtomicUsize>,
    count: usize,
    name: String,
) -> Result<Vec<Done>> {
    let mut all = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return Ok(all);
        }
        let id = format!("{name}-{number}");
        let sent = Instant::now();
        let server = client.request(number, &id).await?;
        all.push(Done { took: sent.elapsed(), id, server });
    }
}

impl Round {
    /// Requests that got a server, a second.
    pub(super) fn rate(&self) -> f64 {
        let got = self.done.iter().filter(|done| done.server.is_ok()).count();
        number(got) / self.seconds
    }

    /// The time within which so many of a hundred requests were answered, in milliseconds.
    pub(super) fn percentile_ms(&self, percent: usize) -> f64 {
        percentile_ms(&self.done, percent)
    }

    /// The CPU time of a request by part, in milliseconds.
    pub(super) fn cpu_ms(&self) -> BTreeMap<&'static str, f64> {
        let each = |used: &f64| used * 1000.0 / number(self.done.len());
        self.cpu.iter().map(|(part, used)| (*part, each(used))).collect()
    }
}

/// The time within which so many of a hundred requests were answered, in milliseconds.
pub(super) fn percentile_ms(done: &[Done], percent: usize) -> f64 {
    percentile(done.iter().map(|done| done.took.as_secs_f64() * 1000.0), percent)
}

/// The value below which so many of a hundred lie.
pub(super) fn percentile(values: impl Iterator<Item = f64>, percent: usize) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let place = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(place).copied().unwrap_or(f64::NAN)
}

/// The one in the middle.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    percentile(values, 50)
}

/// A count as a quantity.
pub(super) fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// To so many decimals.
pub(super) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}

/// How many answers gave a server that another answer had given, and how many requests came to nothing or to something
/// that the cluster does not show.
pub(super) async fn faults(fleet: &Fleet, done: &[Done]) -> Result<(usize, usize)> {
    let there: BTreeMap<String, String> = fleet
        .list()
        .await?
        .into_iter()
        .filter_map(|server| Some((server.uid()?, server.status?.claim?.id)))
        .collect();
    let (mut given, mut duplicates, mut errors) = (HashSet::new(), 0, 0);
    for Done { id, server, .. } in done {
        match server {
            Ok(uid) => {
                duplicates += usize::from(!given.insert(uid));
                errors += usize::from(there.get(uid) != Some(id));
            }
            Err(why) => {
                if errors == 0 {
                    eprintln!("{id}: {why}");
                }
                errors += 1;
            }
        }
    }
    Ok((duplicates, errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values = || (1..=200).map(f64::from);
        assert_eq!((percentile(values(), 50), percentile(values(), 99)), (100.0, 198.0));
        assert!((median([3.0, 1.0, 2.0].into_iter()) - 2.0).abs() < f64::EPSILON);
        assert!(percentile(std::iter::empty(), 50).is_nan());
    }
}
