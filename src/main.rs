//! The controller: runs programs in groups, shows groups and changes them.
//!
//! Its rooms from top to bottom: a room uses only rooms below it (`tests/tidy/controller.rs`).

mod cli;
#[cfg(test)]
mod manual;

mod verbs {
    //! A file or folder for each verb. No verb names another one.

    pub mod apply;
    pub mod cdi;
    pub mod create;
    pub mod doctor;
    pub mod events;
    pub mod gc;
    pub mod get;
    pub mod glance;
    pub mod history;
    pub mod install;
    pub mod kill;
    pub mod oci_hook;
    pub mod probe;
    pub mod ps;
    pub mod report;
    pub mod resume;
    pub mod rm;
    pub mod run;
    pub mod serve;
    pub mod set;
    pub mod show;
    pub mod suspend;
    pub mod top;
    pub mod why;
}

mod contained {
    //! Containers of OCI runtimes, and the group of each.

    pub mod container;
    mod mount;
    mod process;
    mod record;
    pub mod state;
}

mod suspension {
    //! Moves the GPU memory of processes to the host and back: which processes, what is checked
    //! before, and who does it.

    pub mod abandoned;
    pub mod bound;
    pub mod checkpoint;
    pub mod report;
    pub mod settle;
    pub mod subjects;
    pub mod world;
}

mod shown {
    //! What people and programs see: tables, curves, JSON, the screen. The only room that prints.

    pub mod csv;
    pub mod curve;
    pub mod output;
    pub mod screen;
    pub mod table;
    pub mod terminal;
    pub mod watch;
}

mod figures {
    //! What is known of groups, GPUs and processes, now and in the past.

    pub mod event;
    pub mod fields;
    pub mod group;
    pub mod kept;
    pub mod machines;
    pub mod outside;
    pub mod past;
    pub mod place;
    pub mod processes;
    pub mod shares;
    pub mod snapshot;
    pub mod spans;
    pub mod tree;
    pub mod trend;
    pub mod users;
    pub mod waiting;
    pub mod why;
    pub use group::*;
}

mod groups {
    //! Which groups there are, which limits hold in them, and what the caller may do to them.

    pub mod above;
    pub mod beliefs;
    pub mod budget;
    pub mod changes;
    pub mod drained;
    pub mod gpu;
    pub mod kill;
    pub mod plan;
    pub mod selection;
    pub mod sizes;
    pub mod warnings;
    pub use selection::*;
}

mod machine {
    //! This computer: GPUs, processes, users, libraries. Knows nothing of groups.

    pub mod accounts;
    pub mod child;
    pub mod dlsym;
    pub mod elf;
    pub mod file;
    pub mod files;
    pub mod inside;
    pub mod library;
    pub mod look;
    pub mod nvml;
    pub mod obstacles;
    pub mod pids;
    pub mod preload;
    pub mod program;
    pub mod signals;
    pub mod ssh;
    pub mod trial;
    pub mod trust;
}

mod words {
    //! Failures, notes, times and other words, without a machine.

    pub mod clock;
    pub mod environment;
    pub mod failure;
    pub mod notes;
    pub mod order;
    pub mod signal;
    pub mod since;
    pub mod text;
    pub mod written;
}

use clap::Parser;
use cli::Cli;
use machine::signals::{self, Inherited};
use machine::{child, library};
use shown::{output, terminal};
use std::iter;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use words::environment::env;
use words::failure::{self, Failure};

/// Runs the verb on the command line, and returns its exit status.
fn main() -> ExitCode {
    let before = Inherited::read();
    restart_without_library(&before);
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let words = match cli::words::own(arguments.collect()) {
        Ok(words) => words,
        Err(instead) => {
            output::note(&instead);
            return ExitCode::from(failure::USAGE);
        }
    };
    if words.is_empty() && terminal::takes_screen() {
        return ended(verbs::glance::glance());
    }
    let parsed = Cli::try_parse_from(iter::once(name).chain(words));
    let cli = match parsed.map_err(cli::without_misleading_tip) {
        Ok(cli) => cli,
        Err(error) => {
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
    ended(cli.run(&before))
}

/// Returns the exit status of a verb, and prints why it has failed.
fn ended(done: Result<ExitCode, Failure>) -> ExitCode {
    done.unwrap_or_else(|failure| {
        output::note(&failure.to_string());
        ExitCode::from(failure.status)
    })
}

/// Restarts this program without a preloaded libgpulimit.so. With the library, the controller would
/// be a member of the caller's group.
fn restart_without_library(inherited: &Inherited) {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let probe = arguments.peek().is_some_and(|verb| verb == child::VERB);
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
