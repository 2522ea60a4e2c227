//! `gpulimit run`: a command under a limit.

use super::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, RUN};
use super::nvml::Driver;
use super::signals::{self, End, Inherited};
use super::{gpu, library};
use gpulimit::group::{Garbage, Group, GroupError, Hold, Kind, Root};
use gpulimit::ledger::{Identity, Ledger, LedgerError};
use gpulimit::limits::{Key, LimitSet, Selector};
use gpulimit::policy;
use gpulimit::units::Size;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::process::{Command, ExitCode};

/// Options of `run`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// What the command and its children may use together of each GPU: 4G, 512M, 50%, or max
    #[arg(long, value_name = "SIZE")]
    max: Option<Size>,

    /// Limit this GPU or MIG instance only; index, UUID or its beginning, or PCI bus id. Repeat for more
    #[arg(long = "device", value_name = "GPU", requires = "max")]
    devices: Vec<String>,

    /// Run in the group of this name, which stays; runs of the same name share its limit
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

const HELP: &str = "\
Without --name the command gets a group of its own, which goes away with it.

Examples:
  gpulimit run --max 4G -- python train.py
  gpulimit run --max 50% --device 0 -- ./a.out
  gpulimit run --max 8G --name lab -- jupyter lab    makes the group lab, or joins it
  gpulimit run --name lab -- python eval.py          joins it

Exit status: that of the command; 128+N when signal N ended it; 125 when gpulimit failed, 126
when the command cannot be executed, 127 when it was not found, 2 for a mistake in the options.";

/// The group that the command runs in.
struct Place {
    name: String,
    /// Set for a group of the command's own, which goes away with it.
    own: Option<Hold>,
}

/// Runs the command and ends as it ended.
pub fn run(args: Args, inherited: &Inherited) -> Result<ExitCode, Failure> {
    let library = library::find().map_err(Failure::of_run)?;
    let root = super::root().map_err(Failure::of_run)?;
    // What cannot be collected is in nobody's way.
    let _ = root.collect_garbage(Garbage::Everywhere);
    let place = place(&args, &root).map_err(Failure::of_run)?;

    let mut words = args.command.into_iter();
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(&program);
    command
        .args(words)
        .env(
            "LD_PRELOAD",
            library::preload(&library, env::var_os("LD_PRELOAD").as_deref()),
        )
        .env("GPULIMIT_ROOT", root.path())
        .env(policy::GROUP, &place.name)
        .env_remove(policy::MAX);
    let end = signals::supervise(&mut command, inherited);
    leave(&root, place);

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

fn place(args: &Args, root: &Root) -> Result<Place, Failure> {
    let limits = args.max.map(|max| limits(max, &args.devices)).transpose()?;
    match (&args.name, limits) {
        (None, None) => Err(Failure::usage(
            "no limit given: use `gpulimit run --max SIZE -- COMMAND`, or --name with the name of a group that exists",
        )),
        (None, Some(limits)) => {
            let me = Identity::of_self();
            let name = format!("run-{}-{}", me.pid, me.start_time);
            let created = root.create(&name, &limits)?;
            Ok(Place {
                name,
                own: Some(created.hold),
            })
        }
        (Some(name), None) => {
            may_join(&root.group(name)?)?;
            Ok(Place {
                name: name.clone(),
                own: None,
            })
        }
        (Some(name), Some(_)) if Kind::of(name) == Kind::Job => Err(Failure::usage(format_args!(
            "the name '{name}' is kept for groups of single jobs, which go away by themselves: choose another one"
        ))),
        (Some(name), Some(limits)) => {
            let created = root.create(name, &limits)?;
            if !created.new {
                agree(name, &limits, &created.group.limits()?.rules()?)?;
                may_join(&created.group)?;
            }
            Ok(Place {
                name: name.clone(),
                own: None,
            })
        }
    }
}

/// What `--max` and `--device` ask for.
fn limits(max: Size, devices: &[String]) -> Result<LimitSet, Failure> {
    if devices.is_empty() {
        return Ok(LimitSet::all(max));
    }
    let driver = Driver::load().ok();
    let mut limits = LimitSet::default();
    for device in devices {
        let id = gpu::resolve(device, driver.as_ref())?;
        limits.set(Selector::Device(id), Key::Max, max);
    }
    Ok(limits)
}

/// Finds out before the command starts what it would only tell when it uses a GPU.
fn may_join(group: &Group) -> Result<(), Failure> {
    let denied = |error: &LedgerError| match error {
        LedgerError::Io { error, .. } => error.kind() == ErrorKind::PermissionDenied,
        _ => false,
    };
    match Ledger::open(&group.ledger_path()) {
        Err(error) if denied(&error) => Err(Failure::new(format_args!(
            "you may not run in group '{}': {} is not yours to write; ask who administers the group, or use one of your own",
            group.name(),
            group.ledger_path().display()
        ))),
        Err(error) => Err(GroupError::from(error).into()),
        Ok(_) => Ok(()),
    }
}

/// A group that exists is joined only under the limits that it has.
fn agree(name: &str, asked: &LimitSet, there: &LimitSet) -> Result<(), Failure> {
    if asked.same_as(there) {
        return Ok(());
    }
    let set = match asked.get(Selector::All, Key::Max) {
        Some(max) => format!("gpulimit set {name} max={max}"),
        None => format!("gpulimit set {name} max=SIZE --device GPU"),
    };
    Err(Failure::new(format_args!(
        "group '{name}' exists and has {there}, not {asked}: leave --max out to join it, or change it with `{set}`"
    )))
}

/// Removes a group of the command's own. One in which children of the command go on stays until they are gone.
fn leave(root: &Root, place: Place) {
    if place.own.is_some() {
        drop(place.own);
        let _ = root.remove(&place.name);
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
