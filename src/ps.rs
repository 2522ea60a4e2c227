//! `gpulimit ps`: shows the processes in groups, and the memory of each.

use super::failure::Failure;
use super::groups::{self, Selection, View};
use super::look::{self, PATIENCE, Question};
use super::nvml::Driver;
use super::pids::Pids;
use super::table::{Column, Table, figure};
use super::waiting::{Waiter, Waiters};
use super::{accounts, output};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use gpulimit_group::{Group, is_within};
use gpulimit_ledger::{Category, DeviceUsage, ProcessUsage};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

/// Options of `ps`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only the processes of this group and of the groups below it
    group: Option<String>,

    /// Print JSON: sizes are in bytes, and unknown figures are null
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
TOTAL counts against the limit: allocations, pools, managed memory, and the
driver's memory for contexts and code. nvidia-smi shows the same without managed
memory. A `draining` process has ended, but the driver has not freed its memory
yet; `waits for 2.0 GiB, 40 s` is a request that waits for room, and how long it
has waited. ALLOCATIONS are plain and virtual memory, arrays and graphs; --json shows
each. PID is the pid in the caller's pid namespace, and `-` for a process that
is not visible there; `own_pid` in JSON is the pid in the process's own
namespace. COMMAND shows arguments only if the caller may read them in /proc,
and `-` if reading them takes too long. A narrow terminal shows fewer columns.

Examples:
  gpulimit ps
  gpulimit ps lab
  gpulimit ps lab --json | jq '.processes[].total'";

/// Shows the processes.
pub fn ps(args: &Args) -> Result<ExitCode, Failure> {
    let selection = Selection::of(args.group.as_deref())?;
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let (views, status) = selection.views(driver);
    if selection.named
        && let [
            View {
                ledger: None,
                group,
                ..
            },
            ..,
        ] = &views[..]
    {
        return Err(groups::unreadable(group.ledger_path()));
    }
    let commands = Commands::of(&views);
    let waiters = Waiters::of(&views, driver);
    let mut lines: Vec<Line<'_>> = outermost(&views)
        .into_iter()
        .flat_map(|view| {
            let lines = view.processes.iter();
            lines.flat_map(|process| of(&selection, view, process, &commands, &waiters))
        })
        .collect();
    lines.sort_by(Line::by_group_and_pid);
    if args.json {
        let processes: Vec<Value> = lines.iter().map(|line| line.json(driver)).collect();
        selection.print_json("processes", processes)?;
    } else if !lines.is_empty() {
        output::table(&table(&lines, driver).render_without(&[
            Column::Right("MANAGED"),
            Column::Right("ALLOCATIONS"),
            Column::Right("POOLS"),
            Column::Right("DRIVER"),
            Column::Left("USER"),
            Column::Left("COMMAND"),
            Column::Left("STATE"),
        ]))?;
    } else if status == ExitCode::SUCCESS {
        output::note(
            "no process uses a GPU in a group: `gpulimit run --max 4G -- COMMAND` starts such a \
             process",
        );
    }
    Ok(status)
}

/// Keeps only the outermost readable groups. A ledger also lists the processes of groups below, so
/// each process appears once.
fn outermost(views: &[View]) -> Vec<&View> {
    let mut found: Vec<&View> = Vec::new();
    for view in views.iter().filter(|view| view.ledger.is_some()) {
        let covers = |above: &&View| {
            above.group.root() == view.group.root()
                && is_within(view.group.name(), above.group.name())
        };
        if !found.iter().any(covers) {
            found.push(view);
        }
    }
    found
}

/// The present command lines of processes, read from `/proc`.
#[derive(Default)]
struct Commands {
    pids: Pids,
    /// The command lines by pid, without processes that could not be read in time. `None` if the
    /// child process failed.
    lines: Option<BTreeMap<u32, String>>,
}

impl Commands {
    fn of(views: &[View]) -> Self {
        let pids = Pids::default();
        let processes = outermost(views)
            .into_iter()
            .flat_map(|view| &view.processes);
        let alive = processes.filter(|process| process.alive);
        let alive: BTreeSet<u32> = alive
            .filter_map(|process| pids.here(&process.identity))
            .collect();
        let alive: Vec<u32> = alive.into_iter().collect();
        let lines = look::ask(Question::Command, &alive, PATIENCE).ok();
        Self { pids, lines }
    }

    /// Returns the command line of a process; `None` if it could not be read in time.
    fn command(&self, process: &ProcessUsage, pid: Option<u32>) -> Option<String> {
        let identity = process.identity;
        let named = match (pid, &self.lines) {
            // Read the command line only for a live process. The pid of a dead one may belong to
            // another process now.
            (Some(pid), Some(lines)) if process.alive => match digits(lines.get(&pid)?) {
                Some(line) => identity.with_command(pid, line),
                None => identity,
            },
            _ => identity,
        };
        Some(named.command().to_string())
    }
}

/// Decodes exactly 64 bytes from hexadecimal digits; `None` for any other length.
fn digits(text: &str) -> Option<[u8; 64]> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
    bytes?.try_into().ok()
}

/// A row of the table: a process on one GPU, or a process that has not used a GPU yet.
struct Line<'a> {
    group: String,
    /// The group's name for printing.
    title: String,
    /// The pid in the caller's pid namespace; `None` if the process has no pid there.
    pid: Option<u32>,
    own_pid: u32,
    uid: u32,
    /// The command line; `None` if it could not be read in time.
    command: Option<String>,
    alive: bool,
    gpu: Option<(DeviceId, Parts)>,
    /// The request with which the process waits for memory of the GPU.
    waits: Option<&'a Waiter>,
}

/// The bytes that a process uses on a GPU: the total, and the part for each purpose.
struct Parts {
    total: u64,
    /// The bytes for each purpose; `None` if the process has not recorded the purposes.
    split: Option<Split>,
}

/// Bytes by category.
type Split = [u64; Category::COUNT];

/// Returns the bytes of linear memory, arrays, graphs and memory that the program maps itself.
fn allocations(split: &Split) -> u64 {
    use Category::{Arrays, Graphs, Linear, Vmm};
    let parts = [Linear, Vmm, Arrays, Graphs].map(|category| split[category as usize]);
    parts.into_iter().fold(0, u64::saturating_add)
}

impl Parts {
    fn of(usage: &DeviceUsage) -> Self {
        let total = usage.charged.saturating_sub(usage.idle);
        let said = total == 0 || usage.by.iter().any(|bytes| *bytes != 0);
        let split = said.then_some(usage.by);
        Self { total, split }
    }
}

fn of<'a>(
    selection: &Selection,
    view: &View,
    process: &ProcessUsage,
    commands: &Commands,
    waiters: &'a Waiters,
) -> Vec<Line<'a>> {
    let group = groups::of_process(&view.group, process);
    let is_it = |known: &&Group| known.root() == view.group.root() && known.name() == group;
    let title = match selection.groups.iter().find(is_it) {
        _ if process.below.is_empty() => view.title.clone(),
        Some(known) => selection.title(known),
        None => group.clone(),
    };
    let pid = commands.pids.here(&process.identity);
    let command = commands.command(process, pid);
    let line = |gpu: Option<(DeviceId, Parts)>| Line {
        group: group.clone(),
        title: title.clone(),
        pid,
        own_pid: process.identity.pid,
        uid: process.identity.uid,
        command: command.clone(),
        alive: process.alive,
        waits: (gpu.as_ref()).and_then(|(id, _)| waiters.find(&view.group, &process.identity, *id)),
        gpu,
    };
    // A process may wait for memory of a GPU that it has not used yet.
    let waits = waiters.gpus(&view.group, &process.identity);
    let mut lines: Vec<Line<'_>> = (view.devices.iter())
        .filter_map(|entry| {
            let usage = process.on(entry.index);
            let is_there = process.devices.contains(&usage) || waits.contains(&entry.id);
            is_there.then(|| line(Some((entry.id, Parts::of(&usage)))))
        })
        .collect();
    if lines.is_empty() {
        lines.push(line(None));
    }
    lines
}

impl Line<'_> {
    /// Sorts rows by group and then by pid. A group comes before the groups below it. Rows of the
    /// same process are equal here, so a stable sort keeps the order of the process's GPUs.
    fn by_group_and_pid(&self, other: &Self) -> Ordering {
        let groups = self.group.split('/').cmp(other.group.split('/'));
        let process = |line: &Self| (line.pid, line.own_pid);
        groups
            .then_with(|| self.title.cmp(&other.title))
            .then_with(|| process(self).cmp(&process(other)))
    }

    /// Returns the state of the process: `running` or `draining`.
    fn state(&self) -> &'static str {
        if self.alive { "running" } else { "draining" }
    }

    fn json(&self, driver: Option<&Driver>) -> Value {
        let split = self
            .gpu
            .as_ref()
            .and_then(|(_, parts)| parts.split.as_ref());
        let part = |category| split.map(|split| split[category as usize]);
        json!({
            "pid": self.pid,
            "own_pid": self.own_pid,
            "uid": self.uid,
            "user": accounts::user_name(self.uid),
            "group": self.group,
            "gpu": self.gpu.as_ref().map(|(id, _)| json!({
                "uuid": id.to_string(),
                "index": groups::index(*id, driver),
            })),
            "command": self.command,
            "allocations": split.map(allocations),
            "linear": part(Category::Linear),
            "vmm": part(Category::Vmm),
            "arrays": part(Category::Arrays),
            "graphs": part(Category::Graphs),
            "pools": part(Category::Pools),
            "managed": part(Category::Managed),
            "driver": part(Category::Driver),
            "total": self.gpu.as_ref().map(|(_, parts)| parts.total),
            "state": self.state(),
            "waits_for": self.waits.map(Waiter::json),
        })
    }
}

fn table(lines: &[Line<'_>], driver: Option<&Driver>) -> Table {
    let mut table = Table::new(&[
        Column::Right("PID"),
        Column::Left("USER"),
        Column::Left("GROUP"),
        Column::Left("GPU"),
        Column::Right("ALLOCATIONS"),
        Column::Right("POOLS"),
        Column::Right("MANAGED"),
        Column::Right("DRIVER"),
        Column::Right("TOTAL"),
        Column::Left("STATE"),
        Column::Left("COMMAND"),
    ]);
    let bytes = |bytes: Option<u64>| figure(bytes.map(gib));
    for line in lines {
        let parts = line.gpu.as_ref().map(|(_, parts)| parts);
        let split = parts.and_then(|parts| parts.split.as_ref());
        let part = |category| bytes(split.map(|split| split[category as usize]));
        table.row(vec![
            figure(line.pid),
            accounts::user_name(line.uid),
            line.title.clone(),
            figure(line.gpu.as_ref().map(|(id, _)| groups::label(*id, driver))),
            bytes(split.map(allocations)),
            part(Category::Pools),
            part(Category::Managed),
            part(Category::Driver),
            bytes(parts.map(|parts| parts.total)),
            line.waits
                .map_or_else(|| line.state().to_owned(), Waiter::to_string),
            figure(line.command.as_deref()),
        ]);
    }
    table
}
