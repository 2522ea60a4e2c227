//! `gpulimit gc`: removes stale groups and the charges of dead processes.

use crate::contained::container::sweep;
use crate::groups::budget::{Budget, VERB};
use crate::groups::{self, Selection};
use crate::machine::nvml::Driver;
use crate::shown::output::{self, Answer};
use crate::suspension::abandoned::{groups_with, settle_abandoned};
use crate::suspension::{settle::finish_it, subjects::candidates};
use crate::words::{environment::env, failure::Failure, notes::Change};
use gpulimit_group::{Root, Survey};
use std::process::ExitCode;

/// Options of `gc`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    answer: Answer,
}

const HELP: &str = "\
Gives back the charges of dead processes, and removes the groups of ended jobs,
incomplete groups, and the groups and files of ended containers. Ends what a
killed `suspend` or `resume` has left half-done. Prints what it did. Leaves
alone groups of other users and files that gpulimit did not make, and names them
on standard error. `gpulimit run` also removes the groups of ended jobs.

Examples:
  gpulimit gc";

/// Removes stale groups and the charges of dead processes, and prints what was removed.
pub fn gc(args: &Args) -> Result<ExitCode, Failure> {
    let driver = Driver::load().ok();
    let mut done = Vec::new();
    let all = Selection::all()?;
    settle_abandoned(&all);
    name_stopped(&all);
    for root in Root::locate_all(&env)? {
        let survey = root.survey()?;
        done.extend(clean(&survey, driver.as_ref()));
        for name in root.collect_garbage()? {
            done.push((name, "removed, its job has ended".into()));
        }
        for name in sweep(&root)? {
            done.push((name, "removed, its container has ended".into()));
        }
        for path in root.remove_leftovers()? {
            let text = "removed, it was not a complete group";
            done.push((path.display().to_string(), text.into()));
        }
        for path in root.remove_drafts(&survey) {
            let text = "removed, because the process that made this draft was killed";
            done.push((path.display().to_string(), text.into()));
        }
        report(&root, &survey);
    }
    args.answer.tell(&done);
    Ok(ExitCode::SUCCESS)
}

/// Names the processes on which a dead command was at work and that are stopped: the driver answers
/// no question about them.
fn name_stopped(selection: &Selection) {
    for group in groups_with(selection, |ledger| !ledger.abandoned().is_empty()) {
        let subjects = candidates(&group, None).into_iter().flatten().flatten();
        subjects
            .filter(|subject| subject.is_abandoned() && subject.check_runs().is_err())
            .for_each(|subject| output::note(&finish_it(&subject)));
    }
}

/// Removes the charges of dead processes. Returns what to tell of the groups that had such charges.
fn clean(survey: &Survey, driver: Option<&Driver>) -> Vec<Change> {
    let mut lines = Vec::new();
    let mut budget = Budget::new(VERB);
    for group in &survey.groups {
        let clean = || group.clean(groups::witness(driver));
        let done = match budget.of(group).within(group, clean) {
            None => continue,
            Some(Ok(done)) => done,
            Some(Err(error)) => {
                // Skip a group that cannot be opened, for instance another user's. Its own members
                // remove the charges of dead processes.
                if error.is_leased() {
                    output::note(&error.to_string());
                }
                continue;
            }
        };
        let (name, cleaned, draining) = (group.name(), done.cleaned, done.draining);
        if cleaned > 0 {
            let text = format!("memory of dead processes given back to the group ({cleaned})");
            lines.push((name.to_owned(), text));
        }
        if draining > 0 {
            let text = format!("memory of dead processes still held by the driver ({draining})");
            lines.push((name.to_owned(), text));
        }
    }
    let cut = budget.cut();
    cut.iter().for_each(|(_, text)| output::note(text));
    lines
}

/// Prints on standard error which files gpulimit did not remove, and why.
fn report(root: &Root, survey: &Survey) {
    if !survey.foreign.is_empty() {
        output::note(&format!(
            "{} has files that gpulimit did not make and does not remove: {}; move them elsewhere \
             if this is the directory of your groups",
            root.path().display(),
            output::some_paths(&survey.foreign)
        ));
    }
    output::notes(&groups::too_many(&survey.cut_short));
}
