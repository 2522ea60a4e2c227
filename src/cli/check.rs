//! `gpulimit check`: whether a policy file is right.

use super::accounts::Database;
use super::failure::Failure;
use super::output;
use gpulimit::policy::compile::{self, Plan};
use gpulimit::policy::file::{self, Mistake, Policy};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `check`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The policy file
    file: PathBuf,
}

const HELP: &str = "\
Says everything that is wrong with the file, each with its line, and changes nothing. Users and unix
groups that this machine does not have are said, but are no mistake here: `gpulimit apply` refuses them.

Examples:
  gpulimit check /etc/gpulimit/gpulimit.toml

Exit status: 0 when the file is right, 1 when it is not.";

/// Checks a policy file.
pub fn check(args: &Args) -> Result<ExitCode, Failure> {
    let found = read(&args.file)?;
    for mistake in &found.absent {
        output::note(&format!("{mistake} (right on another machine)"));
    }
    output::print(&format!(
        "{}: ok, groups: {}, rules: {}\n",
        args.file.display(),
        found.policy.groups.len(),
        found.policy.rules.len()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A policy file without mistakes.
pub struct Found {
    /// As it is written.
    policy: Policy,
    /// What it asks for on this machine.
    pub plan: Plan,
    /// What this machine does not have.
    pub absent: Vec<Mistake>,
}

/// Reads a policy file.
pub fn read(path: &Path) -> Result<Found, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::new(format_args!("cannot read {}: {error}", path.display())))?;
    let policy = file::parse(path, &text).map_err(|mistakes| refused(path, &mistakes))?;
    let (plan, mistakes) = compile::compile(&policy, &Database);
    let (absent, wrong): (Vec<_>, Vec<_>) = mistakes.into_iter().partition(|one| one.absent);
    if wrong.is_empty() {
        Ok(Found {
            policy,
            plan,
            absent,
        })
    } else {
        Err(refused(path, &wrong))
    }
}

/// Says all mistakes, and that they are in the way.
pub fn refused(path: &Path, mistakes: &[Mistake]) -> Failure {
    for mistake in mistakes {
        output::note(&mistake.to_string());
    }
    Failure::new(format_args!(
        "{} has {}: nothing was changed",
        path.display(),
        match mistakes.len() {
            1 => "1 mistake".to_owned(),
            count => format!("{count} mistakes"),
        }
    ))
}
