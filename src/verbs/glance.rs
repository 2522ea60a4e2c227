//! `gpulimit` without a verb, on a terminal: the GPUs, the caller's groups, who waits, the last
//! refusals, and what to type next.

use crate::figures::event::watch::Watch;
use crate::figures::event::{Line, who};
use crate::figures::fields::{left, right};
use crate::figures::processes::{Commands, Process, processes};
use crate::figures::snapshot::{GpuMemory, Round};
use crate::figures::{Figures, Gpu, of_max, outside::Finder};
use crate::groups::{Selection, short_label};
use crate::machine::nvml::Driver;
use crate::shown::output::{self, Escaped};
use crate::shown::table::{Table, figure};
use crate::words::{failure::Failure, order::Natural};
use gpulimit_base::units::gib;
use gpulimit_group::{Kind, effective_user, upwards};
use gpulimit_ledger::EventKind;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// The most lines of a part of the screen.
const LINES: usize = 6;

/// How long reading command lines and memory maps of processes may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Prints the screen.
pub fn glance() -> Result<ExitCode, Failure> {
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let selection = Selection::of(None)?;
    let visit = |see: &mut dyn FnMut(_, _)| selection.visit(driver, see);
    let figures = |_, view: &_| Figures::read(view, driver, &mut |_, _, _| None);
    let (mut read, notes) = Round::read(driver, &mut Finder::new(PATIENCE), visit, figures);
    let mut commands = Commands::new(PATIENCE);
    let processes = processes(&selection, &read.seen, &read.waiters, &mut commands);
    let user = effective_user();
    let is_mine = |uid: u32| user == 0 || uid == user;
    let mine = processes.iter().filter(|it| is_mine(it.uid));
    let mine = mine.flat_map(|it| upwards(&it.group).map(|name| (&*it.root, name)));
    let mine: BTreeSet<(&Path, &str)> = mine.collect();
    let has_mine = |group: &Figures| mine.contains(&(&*group.root, &*group.name));
    read.groups
        .retain(|group| !group.is_idle() && has_mine(group));
    let waits = processes.iter().filter_map(waits).collect();
    let mut watch = Watch::new(None, false);
    let (mut refused, _) = watch.round(&selection)?;
    refused.retain(|line| {
        let what = &line.event.what;
        what.kind == EventKind::Refusal && is_mine(what.process.uid)
    });
    let newest = refused.iter().rev().map(brief);
    let mut text = table_of_gpus(&read.gpus).render();
    let unsure = read.gpus.iter().map(|gpu| gpu.unsure);
    let unsure = unsure.fold(0, u64::saturating_add);
    if unsure > 0 {
        let unsure = gib(unsure);
        text += &format!("outside or in groups that you may not read: {unsure}\n");
    }
    text += &table_of_groups(&read.groups);
    text += &part("Waiting", waits);
    text += &part("Refused, the last first", newest.collect());
    let next = match (refused.is_empty(), read.groups.is_empty()) {
        (false, _) => [NEXT[1], NEXT[2], NEXT[3]],
        (true, false) => [NEXT[2], NEXT[3], NEXT[0]],
        (true, true) => [NEXT[0], NEXT[4], NEXT[2]],
    };
    output::table(&format!("{text}\n{}\n", next.join("\n")))?;
    output::notes(&notes.lines);
    Ok(notes.status())
}

/// Commands that `gpulimit` without a verb suggests, each with its purpose.
const NEXT: [&str; 5] = [
    "gpulimit run --max 4G -- COMMAND  run a command under a limit",
    "gpulimit why                      explain the last refusal, with what to do now",
    "gpulimit top                      watch GPUs, groups and processes",
    "gpulimit ps                       see each process and its memory",
    "gpulimit doctor                   check this machine",
];

fn table_of_gpus(gpus: &[GpuMemory]) -> Table {
    let [used, free, outside, busy] = ["USED", "FREE", "OUTSIDE", "BUSY"].map(right);
    let columns = [left("GPU"), used, free, outside, busy, left("GROUPS")];
    let mut table = Table::new(&columns.map(|column| column.sparse()));
    for gpu in gpus {
        let groups = gpu.parts.iter();
        let groups = groups.map(|(title, bytes)| format!("{title} {}", gib(*bytes)));
        let outside = gpu.outside.filter(|(count, _)| *count > 0);
        table.row(vec![
            short_label(gpu.index, gpu.id),
            figure(gpu.used.map(gib)),
            figure(gpu.free().map(gib)),
            figure(outside.map(|(_, bytes)| gib(bytes))),
            figure(gpu.activity.busy.map(|percent| format!("{percent}%"))),
            groups.collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}

/// Returns the table of groups, those that use the most first. Leaves out jobs without a limit of
/// their own.
fn table_of_groups(groups: &[Figures]) -> String {
    let has_limit =
        |group: &&Figures| Kind::of(&group.name) == Kind::Named || !group.rules.rules.is_empty();
    let mut groups: Vec<&Figures> = groups.iter().filter(has_limit).collect();
    let usage = |group: &Figures| Reverse(group.sum_of_known(|gpu| gpu.usage));
    groups.sort_by_cached_key(|group| (usage(group), Natural::of(&group.title)));
    let mut table = Table::new(&[left("GROUP"), left("GPU: USAGE")]);
    for group in groups.iter().take(LINES) {
        let on = |gpu: &Gpu| {
            let used = of_max(gpu.usage.unwrap_or(0), gpu.limit());
            format!("{}: {used}", short_label(gpu.index, gpu.id))
        };
        let on = group.gpus.iter().map(on).collect::<Vec<_>>().join(", ");
        table.row(vec![group.title.clone(), on]);
    }
    match groups.len() {
        0 => "\nNo group limits a program of yours now.\n".into(),
        1..=LINES => format!("\n{}", table.render()),
        all => format!(
            "\n{}and {} more: gpulimit show\n",
            table.render(),
            all - LINES
        ),
    }
}

/// Returns who was refused what, in one line.
fn brief(line: &Line) -> String {
    let what = &line.event.what;
    let times = (line.count() > 1).then(|| format!(", {} times", line.count()));
    let times = times.unwrap_or_default();
    let (time, bytes) = (line.time().local(), gib(what.bytes));
    let (who, group) = (who(&what.process), &line.title);
    format!("{time} {who} in {group}: {bytes}{times}")
}

/// Returns who waits for what, if the process waits.
fn waits(process: &Process) -> Option<String> {
    let waits = process.waits.as_ref()?;
    let (pid, command) = (figure(process.pid), figure(process.command.as_deref()));
    let (user, group) = (&process.user, &process.title);
    Some(format!(
        "pid {pid} ({command}) of {user} in {group} {waits}"
    ))
}

/// Returns a part of the screen with its title; nothing without lines.
fn part(title: &str, lines: Vec<String>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let more = lines.len().saturating_sub(LINES);
    let more = (more > 0).then(|| format!("and {more} more\n"));
    let lines = lines.into_iter().take(LINES);
    let lines = lines.map(|line| output::fit(&Escaped(&line).to_string(), 2) + "\n");
    let lines: String = lines.chain(more).collect();
    format!("\n{title}:\n{lines}")
}
