//! `gpulimit run`: a command under a limit.

mod place;
mod stat;

use super::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, RUN};
use super::library;
use super::nvml::Driver;
use super::signals::{self, End, Inherited};
use gpulimit::limits::parse_duration;
use gpulimit::policy;
use gpulimit::units::Size;
use place::Place;
use stat::Stat;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Options of `run`.
#[derive(clap::Args)]
#[command(after_help = HELP, group = clap::ArgGroup::new("sizes").multiple(true))]
pub struct Args {
    /// What the command and its children may use together of each GPU: 4G, 512M, 50%, or max
    #[arg(long, value_name = "SIZE", group = "sizes")]
    max: Option<Size>,

    /// Above this they give back what they hold unused before they grow
    #[arg(long, value_name = "SIZE", group = "sizes")]
    high: Option<Size>,

    /// Limit this GPU or MIG instance only: index, UUID or its beginning, PCI bus id, or all. Repeat for more
    #[arg(long = "device", value_name = "GPU", requires = "sizes")]
    devices: Vec<String>,

    /// At this limit wait until memory is given back, for this long at most, such as 30s or 10m, before
    /// a request is refused
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,

    /// Run below this group, which must exist; without it below the one that GPULIMIT_GROUP names
    #[arg(long, value_name = "PARENT")]
    group: Option<String>,

    /// Run in the group of this name, below --group if that is given. It stays; runs of the same name share it
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Say at the end on standard error what the command took
    #[arg(long)]
    stat: bool,

    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

const HELP: &str = "\
Without --name the command gets a group of its own, which goes away with it. What it uses counts in
all groups above, whose limits hold as well; what happens at such a limit is theirs to say.

Examples:
  gpulimit run --max 4G -- python train.py
  gpulimit run --max 50% --device 0 --stat -- ./a.out
  gpulimit run --group lab --max 30% --high 20% -- python train.py
  gpulimit run --max 8G --name lab -- jupyter lab    makes the group lab, or joins it
  gpulimit run --name lab -- python eval.py          joins it

Exit status: that of the command; 128+N when signal N ended it; 125 when gpulimit failed, 126
when the command cannot be executed, 127 when it was not found, 2 for a mistake in the options.";

fn time(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).ok_or("expected a time such as 30s, 10m or 2h, at most 1000h")
}

/// Runs the command and ends as it ended.
pub fn run(args: Args, inherited: &Inherited) -> Result<ExitCode, Failure> {
    let library = library::find().map_err(Failure::of_run)?;
    let place = Place::of(&args).map_err(Failure::of_run)?;
    let stat = args.stat.then(|| Stat::begin(&place.group));

    let mut words = args.command.into_iter();
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(&program);
    command
        .args(words)
        .env(
            "LD_PRELOAD",
            library::preload(&library, env::var_os("LD_PRELOAD").as_deref()),
        )
        .env("GPULIMIT_ROOT", place.group.root())
        .env(policy::GROUP, place.group.name())
        .env_remove(policy::MAX);
    let end = signals::supervise(&mut command, inherited);
    if let (Some(stat), Ok(end)) = (&stat, &end) {
        stat.report(*end, Driver::load().ok().as_ref());
    }
    place.leave();

    match end.map_err(|error| cannot_run(&program, &error))? {
        End::Exit(status) => Ok(ExitCode::from(status)),
        End::Signal(signal) => {
            signals::die_by(signal);
            Ok(ExitCode::from(
                u8::try_from(128 + signal).unwrap_or(u8::MAX),
            ))
        }
    }
}

fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let name = program.to_string_lossy();
    let failure = |why: &str| Failure::new(format_args!("cannot run '{name}': {why}"));
    match error.kind() {
        ErrorKind::NotFound if name.contains('/') => {
            failure("there is no such file, or not the interpreter that its first line names")
                .with(NOT_FOUND)
        }
        ErrorKind::NotFound => {
            failure("there is no such command in PATH: check the spelling, or give its path")
                .with(NOT_FOUND)
        }
        ErrorKind::PermissionDenied => {
            failure("it is not executable: check `ls -l`, or run it with its interpreter")
                .with(NOT_EXECUTABLE)
        }
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => {
            failure("it is not a program of this machine").with(NOT_EXECUTABLE)
        }
        _ => failure(&error.to_string()).with(RUN),
    }
}
