//! `flux launch`: starts the ranks of a group on this machine, where no other launcher is at hand.

mod output;
mod ranks;
mod signals;

use crate::args::parse_ranks;
use crate::error::Error;
use clap::Args;
use output::Pumps;
use ranks::{Ending, Ranks};
pub(crate) use signals::is_ignored;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

#[derive(Args)]
pub(crate) struct LaunchArguments {
    /// Ranks: how many processes to start.
    #[arg(short = 'n', long, value_name = "W", value_parser = parse_ranks)]
    ranks: usize,
    /// How long the others have to end when one has failed, before they are killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=86_400))]
    grace: u64,
    /// What to run. Each process finds its rank in RANK, and the rest of torchrun's variables; its input is empty.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What the launcher waits for.
enum Event {
    Ended(usize, Ending),
    Signal(i32),
}

/// Runs the command on every rank; the exit code is that of the first rank that failed.
pub(crate) fn run(arguments: &LaunchArguments) -> Result<ExitCode, Error> {
    let (events, coming) = channel();
    // Before there are ranks to pass signals on to: none may get lost.
    signals::watch(events.clone())?;
    let mut pumps = Pumps::default();
    let ranks = Ranks::start(&arguments.command, arguments.ranks, &mut pumps, &events)?;

    let grace = Duration::from_secs(arguments.grace);
    let mut running: Vec<bool> = vec![true; arguments.ranks];
    let mut failed: Option<Ending> = None;
    let mut signalled = false;
    let mut kill_at: Option<Instant> = None;
    while running.contains(&true) {
        let event = match kill_at {
            Some(at) => coming.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => coming.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Signal(signal)) => {
                signalled = true;
                ranks.signal(&running, signal);
            }
            Ok(Event::Ended(rank, ending)) => {
                running[rank] = false;
                if ending.code() != 0 && failed.is_none() {
                    let others = if running.contains(&true) { "; ending the others" } else { "" };
                    say(&format!("rank {rank} {ending}{others}"));
                    failed = Some(ending);
                    // Who was signalled is ending, and another signal could disturb that.
                    if !signalled {
                        ranks.signal(&running, signal_hook::consts::SIGTERM);
                    }
                    kill_at = Some(Instant::now() + grace);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let late: Vec<_> = (0..running.len()).filter(|&rank| running[rank]).collect();
                say(&format!("killing ranks {late:?}, which have not ended within {} s", grace.as_secs()));
                ranks.signal(&running, signal_hook::consts::SIGKILL);
                kill_at = None;
            }
            // This function holds a sender itself.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if failed.is_some() {
        // What ranks have left running would hold their output open.
        ranks.kill_groups();
    }
    let written = pumps.finish();
    drop(ranks);
    if !written {
        say("what the ranks have printed could not all be written");
    }
    let unwritten = if written { 0 } else { 2 };
    Ok(ExitCode::from(failed.map_or(unwritten, |ending| ending.code())))
}

fn say(line: &str) {
    // Nobody may be listening; the exit code says it too.
    let _ = writeln!(std::io::stderr(), "flux launch: {line}");
}
