//! The `gamekeeper` program: the operator, the agent, and the definitions of its resources.

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gamekeeper::run::telemetry::{self, LogFormat};
use gamekeeper::{agent, api, run};

/// Keeps session-based game servers on interruptible capacity without ending anyone's game.
#[derive(Debug, Parser)]
#[command(name = "gamekeeper", version)]
struct Cli {
    /// How logs are written.
    #[arg(long, global = true, env = "GAMEKEEPER_LOG_FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator.
    Operator(Box<run::Args>),
    /// Run beside a game and report its state.
    Agent(agent::Args),
    /// Print the definitions of the resources, for kubectl apply.
    Crds,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    telemetry::start(cli.log_format);
    let outcome: Result<(), Box<dyn Error>> = match cli.command {
        Command::Operator(args) => run::run(*args).await.map_err(Into::into),
        Command::Agent(args) => run_agent(args).await,
        Command::Crds => print_crds().map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gamekeeper: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

async fn run_agent(args: agent::Args) -> Result<(), Box<dyn Error>> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        ended = agent::run(args) => ended.map_err(Into::into),
        // The pod ends: there is nothing to finish.
        _ = terminate.recv() => Ok(()),
    }
}

fn print_crds() -> Result<(), api::crd::CrdError> {
    for (_, document) in api::crd::documents()? {
        println!("---\n{document}");
    }
    Ok(())
}

/// An error with all its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
