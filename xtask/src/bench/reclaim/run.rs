//! One run: a group on twelve pools, and the loss of ten of them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use gamekeeper::api::{GameServer, State};
use jiff::Timestamp;
use kube::Api;
use tokio::time::sleep;

use super::Args;
use super::account::{self, Account, Creations, Span};
use super::games::Games;
use super::ground::Ground;
use super::loss::{Notice, lose};
use super::players::{self, Asked, Players};
use super::tally::{Tally, tally};
use crate::bench::audit::{self, Request};
use crate::bench::fleet::Fleet;
use crate::bench::load::number;
use crate::bench::rest;
use crate::bench::stage::NAMESPACE;
use crate::cluster::Cluster;

/// How long servers may take until they are what is waited for.
const PATIENCE: Duration = Duration::from_mins(10);
/// How long players come before the first notice.
const AHEAD: Duration = Duration::from_secs(5);
/// How long no server may have changed when all is over.
const QUIET: Duration = Duration::from_secs(5);
/// How long to wait for that.
const QUIET_PATIENCE: Duration = Duration::from_mins(1);

/// What a run came to.
pub(super) struct Outcome {
    pub(super) lost: usize,
    /// Writes that the loss cost.
    writes: usize,
    /// Claims that were asked for from the first notice on.
    pub(super) claims: usize,
    refused: usize,
    tally: Tally,
    last_notice: Timestamp,
    begin: Timestamp,
    pub(super) creations: Creations,
}

/// Runs the group of `ground` to its full number, and takes ten of its pools away within `over`.
pub(super) async fn run(
    fleet: &Fleet,
    cluster: &Cluster,
    ground: &Ground,
    args: &Args,
    over: Duration,
) -> Result<Outcome> {
    let servers = usize::from(args.servers);
    let games = Games::play(Api::<GameServer>::namespaced(fleet.client.clone(), NAMESPACE));
    ground.apply(args.servers).await?;
    games.until("stand by", servers, PATIENCE, |seen| seen.state == State::StandingBy).await?;
    let matchmaker = fleet.matchmaker_of(ground.name).await?;
    let active = servers * usize::from(args.active) / 100;
    let first = players::at_once(&matchmaker, ground.name, active).await?;
    ensure!(first.iter().all(|asked| asked.answer.is_ok()), "a claim before the loss was refused: {first:?}");
    games.until("are played", active, PATIENCE, |seen| seen.state == State::Active).await?;

    let players = Players::come(&matchmaker, ground.name, args.claims_per_second).await?;
    sleep(AHEAD).await;
    let begin = Timestamp::now();
    let loss = lose(&fleet.client, ground.doomed(), over, Duration::from_secs(args.notice)).await?;
    let notices = loss.notices.clone();
    let gone: BTreeSet<&str> = notices.iter().map(|notice| notice.node.as_str()).collect();
    let elsewhere = |node: &Option<String>| node.as_deref().is_some_and(|node| !gone.contains(node));
    games
        .until("are ready again", servers, PATIENCE, |seen| seen.is_ready() && elsewhere(&seen.node))
        .await?;
    let asked = players.stop().await?;
    loss.complete().await?;
    games.quiet(QUIET, QUIET_PATIENCE).await;
    let span = Span { begin, end: Timestamp::now() };
    let sights = games.end().await?;
    let requests = audit::read(&cluster.audit_log())?;
    print(&requests, span);
    Ok(Outcome::new(&requests, span, &notices, &asked, tally(&sights, &notices, &asked, servers)))
}

fn print(requests: &[Request], span: Span) {
    for (title, wanted) in
        [("What the loss cost:", Account::Loss), ("Claims, and games that began:", Account::Claim)]
    {
        println!("{title}");
        rest::table(span.of(requests).filter(|request| account::account(request) == wanted));
    }
}

impl Outcome {
    fn new(requests: &[Request], span: Span, notices: &[Notice], asked: &[Asked], tally: Tally) -> Self {
        let asked = || asked.iter().filter(|asked| asked.sent >= span.begin);
        let cost = |request: &&Request| account::account(request) == Account::Loss;
        Self {
            lost: tally.lost.len(),
            writes: span.of(requests).filter(cost).count(),
            claims: asked().count(),
            refused: asked().filter(|asked| asked.answer.is_err()).count(),
            tally,
            last_notice: notices.iter().map(|notice| notice.at).max().unwrap_or(span.begin),
            begin: span.begin,
            creations: account::creations(requests, span),
        }
    }

    /// Writes for each server that was lost.
    pub(super) fn writes_per_lost(&self) -> f64 {
        number(self.writes) / number(self.lost)
    }

    /// Claims that landed on a node that had its notice.
    pub(super) fn on_lost(&self) -> usize {
        self.tally.landings.len()
    }

    /// Those of them that could have gone elsewhere.
    pub(super) fn misplaced(&self) -> usize {
        self.tally.landings.iter().filter(|landing| landing.is_misplaced()).count()
    }

    /// From the last notice until all servers were ready.
    pub(super) fn ready_again_seconds(&self) -> f64 {
        let again = self.tally.ready_again;
        again.map_or(f64::NAN, |again| again.duration_since(self.last_notice).as_secs_f64())
    }

    /// Replacements a second, from the first to as many as were lost.
    pub(super) fn creation_rate(&self) -> f64 {
        self.creations.rate(self.lost)
    }

    pub(super) fn print(&self, name: &str) {
        let Tally { landings, least_ready, least_offered, .. } = &self.tally;
        println!(
            "{name}: {} servers lost, {} made ({:.1} a second until as many as were lost), {:.2} writes for each lost",
            self.lost,
            self.creations.count(),
            self.creation_rate(),
            self.writes_per_lost()
        );
        println!(
            "{name}: ready again {:.2} s after the last notice; at the least {least_ready} were ready and {least_offered} on \
             offer where no notice was",
            self.ready_again_seconds()
        );
        println!(
            "{name}: {} claims, {} refused, {} on nodes with their notice, {} of them misplaced",
            self.claims,
            self.refused,
            self.on_lost(),
            self.misplaced()
        );
        for landing in landings {
            println!(
                "  {} was sent {:.3} s after the notice, with {} servers on offer elsewhere",
                landing.id, landing.late_seconds, landing.elsewhere
            );
        }
        println!(
            "{name}: made by each half second after the first notice: {:?}",
            self.creations.progress(self.begin)
        );
    }
}
