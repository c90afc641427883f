//! The agent: a sidecar that asks the game how it is, in the game's own protocol, and writes what has changed to
//! the status of the pod's own `GameServer`. What others change there, as a claim does, it reads when it is poked, and
//! tells the game. At rest it reads, writes and watches nothing.

mod idtech3;
mod known;
mod poke;
mod reporter;
mod session;
mod tell;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use jiff::Timestamp;
use kube::{Client, Config};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use reporter::{ReportError, Reporter};
use session::Session;

/// How often the game is asked until it answers first.
const STARTING_INTERVAL: Duration = Duration::from_millis(250);
/// How often it is asked from then on: idTech 3 servers answer one address about once a second.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The wait after a report that did not get through; it doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// The longest such wait.
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// The least time in which pokes get two readings more: a claim that follows a release does not wait.
const LEAST_TIME_OF_TWO: Duration = Duration::from_millis(100);

/// What the agent is told.
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// The protocol that the game speaks.
    #[arg(long, value_enum)]
    protocol: Protocol,
    /// The port where it does, in this pod.
    #[arg(long)]
    port: u16,
    /// How long a game that had players may be without any before its session is over, in seconds.
    #[arg(long, default_value_t = 30)]
    empty_seconds: u64,
    /// Where to listen for pokes; nowhere if left out.
    #[arg(long)]
    poke_port: Option<u16>,
    /// Where to tell the game of its server, on the loopback; nowhere if left out.
    #[arg(long)]
    tell_port: Option<u16>,
    /// The `GameServer` of this pod.
    #[arg(long, env = "GAMEKEEPER_GAME_SERVER")]
    game_server: String,
    /// Its namespace.
    #[arg(long, env = "GAMEKEEPER_NAMESPACE")]
    namespace: String,
}

/// A game's protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Protocol {
    /// `getstatus` of idTech 3 games.
    IdTech3,
}

/// What stops the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No configuration for the API server.
    #[error("find the API server and the pod's token")]
    Config(#[source] kube::config::InferConfigError),
    /// No client for the API server.
    #[error("make a client for the API server")]
    Client(#[source] kube::Error),
    /// No socket to ask the game with.
    #[error("open a socket to ask the game on port {port}")]
    Socket {
        /// The game's port.
        port: u16,
        /// Why.
        source: std::io::Error,
    },
}

/// Runs until the session is over.
///
/// # Errors
/// It cannot start. What goes wrong later is tried again.
pub async fn run(args: Args) -> Result<(), AgentError> {
    let client = client().await?;
    let reporter = Arc::new(Reporter::new(client, &args.namespace, &args.game_server));
    let socket = |source| AgentError::Socket { port: args.port, source };
    let mut game = match args.protocol {
        Protocol::IdTech3 => {
            idtech3::Game::new((Ipv4Addr::LOCALHOST, args.port).into()).await.map_err(socket)?
        }
    };
    listen(&args, &reporter);
    // After a restart of the agent the resource says how far the game was.
    until_read(&reporter).await;
    let mut known = reporter.known();
    let mut wait = FIRST_RETRY;
    let mut session = Session::new(Duration::from_secs(args.empty_seconds), Instant::now());
    info!("the agent watches the game");
    loop {
        if let Some(known) = known.borrow_and_update().as_ref() {
            session.told(known.state(), known.time_to_come(Timestamp::now()), Instant::now());
        }
        if session.is_over() {
            break;
        }
        let seen = game.ask(ANSWER_TIMEOUT).await;
        if let Some(report) = session.next(seen, Instant::now()) {
            match reporter.report(&report).await {
                Ok(()) => {
                    info!(?report, "reported");
                    session.reported(&report, Instant::now());
                    wait = FIRST_RETRY;
                    continue;
                }
                Err(ReportError::Refused(message)) => {
                    warn!(message, "the report is refused; the resource is read again");
                    until_read(&reporter).await;
                }
                Err(error) => debug!(%error, "report again"),
            }
            // A thousand agents must not hammer an API server that ails.
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_RETRY);
        }
        let interval = if session.has_answered() { INTERVAL } else { STARTING_INTERVAL };
        tokio::select! {
            () = sleep(interval) => {}
            // The reporter, which sends it, is in our hands.
            _ = known.changed() => {}
        }
    }
    info!("the session is over");
    // A sidecar that ended would be started again: it stays until the pod goes.
    std::future::pending().await
}

/// Opens the ports that the agent is to have. It goes on without one that it cannot have: the game is reported all the
/// same.
fn listen(args: &Args, reporter: &Arc<Reporter>) {
    let pokes = Arc::new(Notify::new());
    if let Some(port) = args.poke_port {
        let (heard, reporter) = (Arc::clone(&pokes), Arc::clone(reporter));
        tokio::spawn(async move {
            match poke::bind(port).await {
                Ok(listener) => poke::listen(listener, heard).await,
                Err(error) => warn!(port, %error, "listen for pokes: the game does not hear of claims"),
            }
        });
        tokio::spawn(async move {
            let mut last_two = (Instant::now(), Instant::now());
            loop {
                pokes.notified().await;
                // What comes meanwhile is one more reading, however much it is.
                sleep_until(last_two.0 + LEAST_TIME_OF_TWO).await;
                last_two = (last_two.1, Instant::now());
                until_read(&reporter).await;
            }
        });
    }
    if let Some(port) = args.tell_port {
        let known = reporter.known();
        tokio::spawn(async move {
            if let Err(error) = tell::serve(port, known).await {
                warn!(port, %error, "tell the game of its server");
            }
        });
    }
}

/// A client whose own retries are off: the agent has its own.
async fn client() -> Result<Client, AgentError> {
    let mut config = Config::infer().await.map_err(AgentError::Config)?;
    config.default_retry = false;
    Client::try_from(config).map_err(AgentError::Client)
}

/// Reads the resource until there is an answer, more and more slowly.
async fn until_read(reporter: &Reporter) {
    let mut wait = FIRST_RETRY;
    while let Err(error) = reporter.read().await {
        debug!(%error, "read the GameServer again");
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_RETRY);
    }
}
