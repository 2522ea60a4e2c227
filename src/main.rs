//! The controller: runs programs in groups, shows groups and changes them. Each verb has a file;
//! the other files are shared.

mod above;
mod accounts;
mod apply;
mod beliefs;
mod budget;
mod cdi;
mod changes;
mod checkpoint;
mod clock;
mod create;
mod csv;
mod dlsym;
mod doctor;
mod drained;
mod elf;
mod events;
mod failure;
mod figures;
mod gc;
mod get;
mod gpu;
mod groups;
mod history;
mod install;
mod k8s_device_plugin;
mod kill;
mod later;
mod library;
mod look;
mod nvml;
mod obstacles;
mod oci_hook;
mod order;
mod output;
#[cfg(test)]
mod pages;
mod pids;
mod probe;
mod processes;
mod program;
mod ps;
mod replace;
mod report;
mod resume;
mod rm;
mod run;
mod serve;
mod set;
mod show;
mod signal;
mod signals;
mod since;
mod sizes;
mod snapshot;
mod suspend;
mod table;
mod terminal;
mod top;
mod trend;
mod trust;
mod waiting;
mod warnings;
mod watch;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};
use failure::Failure;
use later::Later;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

#[derive(Parser)]
#[command(
    name = "gpulimit",
    version,
    about = "Hard limits on GPU memory for groups of processes, without root and without a daemon.",
    after_help = EXAMPLES,
    term_width = 80,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  gpulimit run --max 4G -- python train.py      a program that sees 4 GiB
  gpulimit run --max 50% --name lab -- ./a.out  runs of one name share a limit
  gpulimit create lab/alice --max 8G            a group below lab
  gpulimit show                                 limits and usage of groups
  gpulimit set lab --max 8G                     change it while programs run
  gpulimit doctor                               find and fix problems

Sizes: bytes, or a number with K, M, G or T (base 1024); 50% (of the GPU); -2G
(all but 2 GiB); or max (no limit). --max 4G and max=4G are the same.

Groups are in $GPULIMIT_ROOT if it is set. Else they are in /run/gpulimit, for
root and where an administrator lets you make groups, or in
/dev/shm/gpulimit-<uid>.";

#[derive(Subcommand)]
enum Verb {
    /// Run a command under a limit
    Run(Later<run::Args>),
    /// Make a group
    Create(Later<create::Args>),
    /// Change a group's limits while its programs run
    Set(Later<set::Args>),
    /// Print a group's settings, for scripts
    Get(Later<get::Args>),
    /// Remove groups
    Rm(Later<rm::Args>),
    /// Show groups: limits, usage, peak, free memory and refusals on each GPU
    Show(Later<show::Args>),
    /// Show the processes in groups and their memory
    Ps(Later<ps::Args>),
    /// Watch GPUs, groups and processes on the terminal
    Top(Later<top::Args>),
    /// Show events: refusals, waits, kills, changes of limits
    Events(Later<events::Args>),
    /// Show the usage of groups over time, as a curve
    History(Later<history::Args>),
    /// Serve a page, JSON and metrics for Prometheus over HTTP
    Serve(Later<serve::Args>),
    /// Show or save what groups and users have used over time
    Report(Later<report::Args>),
    /// Send a signal to the processes of a group
    Kill(Later<kill::Args>),
    /// Move the GPU memory of idle processes to the host
    Suspend(Later<suspend::Args>),
    /// Bring the GPU memory of suspended processes back
    Resume(Later<resume::Args>),
    /// Remove stale groups and the charges of dead processes
    Gc(Later<gc::Args>),
    /// Apply a policy file: make, change and remove groups and rules
    Apply(Later<apply::Args>),
    /// Check this machine, and say how to fix what does not work
    Doctor(Later<doctor::Args>),
    /// Load the library into every program of the machine (/etc/ld.so.preload)
    Install(Later<install::Install>),
    /// Remove the library from /etc/ld.so.preload again
    Uninstall(Later<install::Uninstall>),
    /// Describe limits and groups as devices for container engines (CDI)
    Cdi(Later<cdi::Args>),
    /// Make and remove the group of a container (called by OCI runtimes)
    OciHook(Later<oci_hook::Args>),
    /// Hand out GPU memory to the pods of a Kubernetes node
    K8sDevicePlugin(Later<k8s_device_plugin::Args>),
    /// Answers questions of other verbs, in a child process
    #[command(name = probe::VERB, hide = true)]
    Probe(Later<probe::Args>),
}

/// Runs the verb on the command line, and returns its exit status.
fn main() -> ExitCode {
    let before = signals::Inherited::read();
    restart_without_library(&before);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            if let Some(now) = replaced(&error) {
                return Failure::usage(now).report();
            }
            drop_misleading_tip(&mut error);
            // Help goes to standard output, with status 0. Mistakes in the arguments go to standard
            // error, with status 2.
            output::parsing(&error);
            return ExitCode::from(if error.use_stderr() {
                failure::USAGE
            } else {
                0
            });
        }
    };
    let done = match cli.verb {
        Verb::Run(Later(args)) => run::run(args, &before),
        Verb::Create(Later(args)) => create::create(&args),
        Verb::Set(Later(args)) => set::set(&args),
        Verb::Get(Later(args)) => get::get(&args),
        Verb::Rm(Later(args)) => rm::rm(&args),
        Verb::Show(Later(args)) => show::show(&args),
        Verb::Ps(Later(args)) => ps::ps(&args),
        Verb::Top(Later(args)) => top::top(&args),
        Verb::Events(Later(args)) => events::events(&args),
        Verb::History(Later(args)) => history::history(&args),
        Verb::Serve(Later(args)) => serve::serve(args),
        Verb::Report(Later(args)) => report::report(&args),
        Verb::Kill(Later(args)) => kill::kill(&args),
        Verb::Suspend(Later(args)) => suspend::suspend(&args),
        Verb::Resume(Later(args)) => resume::resume(&args),
        Verb::Gc(Later(args)) => gc::gc(&args),
        Verb::Apply(Later(args)) => apply::apply(&args),
        Verb::Doctor(Later(args)) => doctor::doctor(&args),
        Verb::Install(Later(args)) => install::install(&args),
        Verb::Uninstall(Later(args)) => install::uninstall(&args),
        Verb::Cdi(Later(args)) => cdi::cdi(&args),
        Verb::OciHook(Later(args)) => oci_hook::oci_hook(&args),
        Verb::K8sDevicePlugin(Later(args)) => k8s_device_plugin::k8s_device_plugin(args, &before),
        Verb::Probe(Later(args)) => probe::probe(&args),
    };
    done.unwrap_or_else(|failure| failure.report())
}

/// The verbs of earlier versions, with what replaces them.
const REPLACED: [(&str, &str); 5] = [
    ("tree", "`gpulimit tree` is now `gpulimit show --tree`"),
    ("ls", "`gpulimit ls` is now `gpulimit show --names`"),
    ("check", "`gpulimit check` is now `gpulimit apply --check`"),
    (
        "man",
        "packages contain the manual pages: `man gpulimit-run`, or `gpulimit run --help`",
    ),
    (
        "completions",
        "packages contain the completions of shells: `scripts/package tar` makes the files",
    ),
];

/// Returns what to use instead, if the command line has a verb of an earlier version.
fn replaced(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let mut all = REPLACED.into_iter();
    all.find_map(|(old, now)| (old == verb).then_some(now))
}

/// Restarts this program without a preloaded libgpulimit.so. With the library, the controller would
/// be a member of the caller's group.
fn restart_without_library(inherited: &signals::Inherited) {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let probe = arguments.peek().is_some_and(|verb| verb == probe::VERB);
    let doctor = arguments.peek().is_some_and(|verb| verb == "doctor");
    let existing = env("LD_PRELOAD");
    if let Some(others) = library::without(existing.as_deref())
        && !probe
    {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("gpulimit").args(arguments);
        if doctor && library::is_loaded() {
            command.arg("--preloaded");
        }
        if others.is_empty() {
            command.env_remove("LD_PRELOAD");
        } else {
            command.env("LD_PRELOAD", others);
        }
        // If the restart fails, for instance without /proc, continue with the library loaded.
        let _ = signals::become_command(&mut command, inherited);
    }
}

/// Removes clap's tip to pass an unknown option after `--`. `run` would take the option for the
/// command.
fn drop_misleading_tip(error: &mut clap::Error) {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
}

/// Reads an environment variable of this process.
fn env(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}
