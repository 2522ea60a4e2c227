//! The words of the command line: its verbs, and what each calls.

mod later;
pub mod words;

use crate::machine::{child, signals::Inherited};
use crate::verbs::{
    apply, cdi, create, doctor, events, gc, get, history, install, kill, oci_hook, probe, ps,
    report, resume, rm, run, serve, set, show, suspend, top, why,
};
use crate::words::failure::Failure;
use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};
use later::Later;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "gpulimit",
    version,
    about = "Hard limits on GPU memory for groups of processes, without root and without a daemon.",
    after_help = EXAMPLES,
    term_width = 80,
    arg_required_else_help = true
)]
pub struct Cli {
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
    /// Say why a program got no memory, and what to do now
    Why(Later<why::Args>),
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
    /// Answers questions of other verbs, in a child process
    #[command(name = child::VERB, hide = true)]
    Probe(Later<probe::Args>),
}

impl Cli {
    /// Runs the verb. `before` is the signal state with which gpulimit started.
    pub fn run(self, before: &Inherited) -> Result<ExitCode, Failure> {
        match self.verb {
            Verb::Run(Later(args)) => run::run(args, before),
            Verb::Create(Later(args)) => create::create(&args),
            Verb::Set(Later(args)) => set::set(&args),
            Verb::Get(Later(args)) => get::get(&args),
            Verb::Rm(Later(args)) => rm::rm(&args),
            Verb::Show(Later(args)) => show::show(&args),
            Verb::Ps(Later(args)) => ps::ps(&args),
            Verb::Top(Later(args)) => top::top(&args),
            Verb::Events(Later(args)) => events::events(&args),
            Verb::Why(Later(args)) => why::why(&args),
            Verb::History(Later(args)) => history::history(&args),
            Verb::Serve(Later(args)) => serve::serve(args),
            Verb::Report(Later(args)) => report::report(&args),
            Verb::Kill(Later(args)) => kill::kill(&args),
            Verb::Suspend(Later(args)) => suspend::suspend(&args),
            Verb::Resume(Later(args)) => resume::resume(&args),
            Verb::Gc(Later(args)) => gc::gc(&args),
            Verb::Apply(Later(args)) => apply::apply(&args),
            Verb::Doctor(Later(args)) => doctor::doctor(&args),
            Verb::Install(Later(args)) => install::install(args),
            Verb::Uninstall(Later(args)) => install::uninstall(args),
            Verb::Cdi(Later(args)) => cdi::cdi(&args),
            Verb::OciHook(Later(args)) => oci_hook::oci_hook(&args),
            Verb::Probe(Later(args)) => probe::probe(&args, doctor::look_at, doctor::candidate),
        }
    }
}

/// Removes clap's tip to pass an unknown option after `--`. `run` would take the option for the
/// command.
pub fn without_misleading_tip(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    error
}
