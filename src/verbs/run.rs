//! `gpulimit run`: runs a command under a limit.

mod explain;
mod place;
mod stat;
mod user;

use crate::groups::sizes::{self, Sizes};
use crate::machine::signals::{self, End, Inherited};
use crate::machine::{elf, library, nvml::Driver, program};
use crate::words::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, RUN};
use gpulimit_limits::parse_duration;
use gpulimit_policy as policy;
use place::Place;
use stat::Stat;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::mem;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use user::User;

/// Options of `run`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    sizes: Sizes,

    /// The settings that stand before the command, such as `max=4G`.
    #[arg(skip)]
    settings: Vec<String>,

    /// When the limit is reached, wait for memory up to this long (such as 30s or 10m) before the
    /// request is refused
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,

    /// The existing parent group of the command's group [default: the group in GPULIMIT_GROUP]
    #[arg(long, value_name = "PARENT")]
    group: Option<String>,

    /// Run in the group with this name, below the group of --group if given. The group stays after
    /// the command ends, and later runs with the same name share it
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Become this user (NAME, UID, NAME:GROUP or UID:GROUP) for the command; root only
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// When the command has ended, print on standard error how much GPU memory it used
    #[arg(long)]
    stat: bool,

    /// Let PyTorch note what it holds when it runs out of memory, for `gpulimit why`
    #[arg(long, conflicts_with = "user")]
    explain: bool,

    /// Let a program of the command that was refused memory and fails not say so at its end
    #[arg(long)]
    quiet: bool,

    /// The program that runs the command as its script: `python -m gpulimit` passes its own
    #[arg(long, value_name = "PROGRAM", hide = true)]
    interpreter: Option<OsString>,

    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "COMMAND",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

const HELP: &str = "\
Without --name the command gets its own group. When the command and all that it
has started have ended, the group is no longer shown, and the next
`gpulimit run` or `gpulimit gc` removes it. Its usage counts in all groups
above, whose limits apply as well; what happens when such a limit is reached
depends on the settings of that group.

`run` replaces itself with the command, which keeps the pid, as `nice` and `env`
do. With --stat, `run` stays as the parent and forwards signals; if it is
killed, so is the command, unless that has become another user by itself.

Examples:
  gpulimit run --max 4G -- python train.py
  gpulimit run --max 50% --device 0 --stat -- ./a.out
  gpulimit run --group lab --max 30% --high 20% -- python train.py
  gpulimit run --max 8G --explain -- python train.py    for `gpulimit why`
  gpulimit run --max 8G --user app -- ./server       as root, for services
  gpulimit run --max 8G --name lab -- jupyter lab    makes or joins the group
  gpulimit run --name lab -- python eval.py          joins it

Exit status: that of the command; 128+N when signal N ended it; 125 when
gpulimit failed, 126 when the command cannot be executed, 127 when it was not
found, 2 for a mistake in the options.";

impl Args {
    /// Moves settings such as `max=4G` from the beginning of the command to `settings`.
    fn take_settings(&mut self) -> Result<(), Failure> {
        let word = |word: &OsString| word.to_str().is_some_and(sizes::is_setting);
        let count = self.command.iter().take_while(|it| word(it)).count();
        let settings = self.command.drain(..count);
        self.settings = settings.filter_map(|it| it.into_string().ok()).collect();
        if count > 0 && self.command.first().is_some_and(|first| first == "--") {
            self.command.remove(0);
            return self.has_command();
        }
        let first = self.command.first().map(|first| first.to_string_lossy());
        if let (Some(option), 1..) = (first.filter(|first| first.starts_with('-')), count) {
            return Err(Failure::usage(format_args!(
                "the option {option} comes after {}: give options first, and -- before the command",
                self.settings.join(" ")
            )));
        }
        self.has_command()
    }

    fn has_command(&self) -> Result<(), Failure> {
        match self.command.is_empty() {
            true => Err(Failure::usage(
                "no command given: use `gpulimit run --max SIZE -- COMMAND`",
            )),
            false => Ok(()),
        }
    }
}

fn time(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).ok_or("expected a time such as 30s, 10m or 2h, at most 1000h")
}

/// Replaces this process with the command. With `--stat`, runs the command as a child process
/// instead, and ends with its exit status.
pub fn run(mut args: Args, inherited: &Inherited) -> Result<ExitCode, Failure> {
    args.take_settings()?;
    let user = args.user.as_deref().map(User::of).transpose()?;
    if let Some(user) = &user {
        user.begin().map_err(Failure::of_run)?;
    }
    let library = library::find().map_err(Failure::of_run)?;
    library::try_to_load(&library).map_err(Failure::of_run)?;
    let command = mem::take(&mut args.command);
    let mut words = args.interpreter.take().into_iter().chain(command);
    let program = words.next().unwrap_or_default();
    refuse_musl(&program)?;
    let explained = args.explain.then(explain::begin).transpose();
    let explained = explained.map_err(Failure::of_run)?;
    let place = Place::of(&args, user.as_ref()).map_err(Failure::of_run)?;
    let stat = args.stat.then(|| Stat::begin(&place.group));

    let mut command = Command::new(&program);
    command
        .args(words)
        .env(
            "LD_PRELOAD",
            library::preload(&library, env::var_os("LD_PRELOAD").as_deref()),
        )
        .env(
            "ASAN_OPTIONS",
            library::asan_options(env::var_os("ASAN_OPTIONS").as_deref()),
        )
        .env("GPULIMIT_ROOT", &place.programs_root)
        .env(policy::GROUP, place.group.name())
        .env_remove(policy::MAX)
        .env_remove(policy::LIMITS)
        .envs(policy::hand_down(&place.group).map(|limits| (policy::LIMITS, limits)))
        .envs(explained.into_iter().flatten())
        .envs(args.quiet.then_some(("GPULIMIT_QUIET", "1")));
    if let Some(user) = &user {
        user.apply(&mut command);
    }
    let Some(stat) = stat else {
        // Nothing remains to be done after the command, so this process becomes the command. The
        // next call returns only if it fails.
        let error = signals::become_command(&mut command, inherited);
        place.leave();
        return Err(cannot_run(&program, &error));
    };
    let end = signals::supervise(&mut command, inherited);
    if let Ok(end) = &end {
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

/// Refuses a program for musl, whose dynamic linker would only print what it does not find in the
/// library.
fn refuse_musl(name: &OsStr) -> Result<(), Failure> {
    let file = program::find(name).and_then(|path| program::loaded(&path).ok());
    let kind = file.and_then(|(_, file)| elf::kind(&file).ok());
    let kind = kind.filter(|kind| kind.is_musl());
    kind.and_then(|kind| program::unable(&kind))
        .map_or(Ok(()), |(why, remedy)| {
            let name = name.to_string_lossy();
            let failure = Failure::new(format_args!("cannot run '{name}': {why}: {remedy}"));
            Err(failure.with(NOT_EXECUTABLE))
        })
}

fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let name = program.to_string_lossy();
    let failure = |why: &str| Failure::new(format_args!("cannot run '{name}': {why}"));
    match error.kind() {
        ErrorKind::NotFound if name.contains('/') => {
            failure("either the file or the interpreter named in its first line does not exist")
                .with(NOT_FOUND)
        }
        ErrorKind::NotFound => {
            let hint = match (Path::new(program).is_file(), &*name) {
                (true, script) if script.ends_with(".py") => {
                    format!("it is a file here: run `python3 {script}`")
                }
                (true, file) => format!("it is a file here: run `./{file}`"),
                (false, "python") if program::find(OsStr::new("python3")).is_some() => {
                    "there is a python3".to_owned()
                }
                (false, _) => "check the spelling, or give a path".to_owned(),
            };
            failure(&format!("no such command in PATH: {hint}")).with(NOT_FOUND)
        }
        ErrorKind::PermissionDenied => {
            failure("the file is not executable: check `ls -l`, or run it with its interpreter")
                .with(NOT_EXECUTABLE)
        }
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => {
            failure("the file is not a program for this machine").with(NOT_EXECUTABLE)
        }
        _ => failure(&error.to_string()).with(RUN),
    }
}
