//! `gpulimit kill`: sends a signal to the processes of a group.

use crate::groups::{self, Purpose, kill};
use crate::shown::output::Answer;
use crate::words::{failure::Failure, signal};
use std::process::ExitCode;

/// Options of `kill`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The group
    group: String,

    /// Send the signal only to these processes of the group
    #[arg(value_name = "PID", value_parser = process)]
    pids: Vec<u32>,

    /// The signal, by name or number
    #[arg(long, short, default_value = "TERM", value_parser = signal::parse)]
    signal: i32,

    #[command(flatten)]
    answer: Answer,
}

const HELP: &str = "\
Signals the processes of the group and of the groups below it that have used a
GPU. PID is the number that `gpulimit ps` shows. Only processes that are proven
to be members get the signal; others are named, and the exit status is 1. A
process that `suspend --freeze` has stopped ends at once by KILL, and by TERM
when `resume` continues it.

Examples:
  gpulimit kill lab
  gpulimit kill --signal KILL lab/alice
  gpulimit kill lab 4711";

fn process(text: &str) -> Result<u32, &'static str> {
    text.parse()
        .map_err(|_| "expected a pid as `gpulimit ps` shows it")
}

/// Sends the signal.
pub fn kill(args: &Args) -> Result<ExitCode, Failure> {
    let group = groups::find(&args.group, Purpose::Use)?;
    let done = kill::kill(&group, &args.pids, None, args.signal)?;
    Ok(args.answer.done(&done))
}
