//! The processes in groups that `ps` shows, each with its memory on each GPU.

use super::Word;
use super::fields::{self, Cell, fields, left, path, right, some};
use super::shares::Share;
use super::waiting::{Waiter, Waiters};
use crate::groups::{self, Seen, Selection};
use crate::machine::{accounts, child::What, look, nvml::Driver, pids::Pids};
use crate::words::clock::{self, Moment};
use crate::words::order::Natural;
use crate::words::written;
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::proc;
use gpulimit_base::units::gib;
use gpulimit_group::{Group, is_within};
use gpulimit_ledger::{Category, DeviceEntry, DeviceUsage, Errand, ProcessUsage};
use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Returns the processes in these groups, sorted by group and then by pid. A process on several
/// GPUs has an entry for each. Some command lines may be known already.
pub fn processes(
    selection: &Selection,
    seen: &[Seen],
    waiters: &Waiters,
    commands: &mut Commands,
) -> Vec<Process> {
    let outermost: Vec<&Seen> = outermost(seen).collect();
    let pids = Pids::default();
    commands.read(&outermost, &pids);
    let abandoned: Vec<&Identity> = seen.iter().flat_map(|seen| &seen.abandoned).collect();
    let mut found: Vec<Process> = outermost
        .into_iter()
        .flat_map(|seen| {
            let processes = seen.processes.iter();
            processes.flat_map(|process| {
                let is_abandoned = abandoned.iter().any(|one| one.is_same(&process.identity));
                let state = state(process, is_abandoned, pids.here(&process.identity));
                of(selection, seen, process, (&pids, commands), waiters, state)
            })
        })
        .collect();
    // The sort keeps the order of a process's GPUs.
    found.sort_by_cached_key(|it| (Natural::of(&it.group), it.title.clone(), it.pid, it.own_pid));
    found
}

/// Keeps only the outermost of these groups. A ledger also lists the processes of groups below, so
/// each process appears once.
pub fn outermost(seen: &[Seen]) -> impl Iterator<Item = &Seen> {
    let mut last: Option<&Group> = None;
    seen.iter().filter(move |seen| {
        // Each group comes right after the group above it and that group's other groups.
        let covers = |above: &Group| {
            above.root() == seen.group.root() && is_within(seen.group.name(), above.name())
        };
        let is_outermost = !last.is_some_and(covers);
        if is_outermost {
            last = Some(&seen.group);
        }
        is_outermost
    })
}

/// The command lines of live processes, read from `/proc` and kept for some seconds.
pub struct Commands {
    /// How long one reading may take.
    patience: Duration,
    known: BTreeMap<Key, (Instant, Line)>,
}

/// Identifies a program: the pid, the start time and the command that its ledger names. The last
/// one changes when the process executes another program.
type Key = (u32, u64, [u8; 64]);

/// The command line of a process.
enum Line {
    Read([u8; 64]),
    /// The caller may not read it, so the ledger's command is shown.
    Denied,
    /// It could not be read in time.
    Late,
}

impl Commands {
    /// How long a command line is kept. A process can change its own.
    const AGE: Duration = Duration::from_secs(10);
    /// How long a process is left alone whose command line could not be read in time.
    const LATE: Duration = Duration::from_secs(60);

    /// Returns no command lines. Each later reading takes at most `patience`.
    pub fn new(patience: Duration) -> Self {
        Self {
            patience,
            known: BTreeMap::new(),
        }
    }

    /// Reads the command lines that are not known, and forgets those of processes that are gone.
    fn read(&mut self, outermost: &[&Seen], pids: &Pids) {
        let processes = outermost.iter().flat_map(|seen| &seen.processes);
        let alive = processes.filter(|process| process.alive);
        let keys: BTreeMap<Key, Identity> = alive
            .map(|process| process.identity)
            .filter_map(|identity| Some((key(pids.here(&identity)?, &identity), identity)))
            .collect();
        self.known.retain(|key, (since, line)| {
            let age = match line {
                Line::Late => Self::LATE,
                _ => Self::AGE,
            };
            keys.contains_key(key) && since.elapsed() < age
        });
        let asked: Vec<(Key, Identity)> = keys
            .into_iter()
            .filter(|(key, _)| !self.known.contains_key(key))
            .collect();
        let numbers: Vec<u32> = asked.iter().map(|((pid, ..), _)| *pid).collect();
        let lines = look::ask((What::Command, None), &numbers, self.patience);
        let now = Instant::now();
        for (key, identity) in asked {
            let line = match &lines {
                Ok(lines) => match lines.get(&key.0).map(|line| digits(line)) {
                    // The pid can belong to another process since the ledger was read.
                    Some(Some(line)) => Line::Read(identity.with_command(key.0, line).command),
                    Some(None) => Line::Denied,
                    None => Line::Late,
                },
                Err(_) => Line::Denied,
            };
            self.known.insert(key, (now, line));
        }
    }

    /// Returns the command line of a process; `None` if it could not be read in time.
    fn command(&self, process: &ProcessUsage, pid: Option<u32>) -> Option<String> {
        let identity = process.identity;
        // The pid of a dead process may belong to another process now.
        let pid = pid.filter(|_| process.alive);
        let known = pid.and_then(|pid| self.known.get(&key(pid, &identity)));
        let named = match known {
            Some((_, Line::Late)) => return None,
            Some((_, Line::Read(command))) => Identity {
                command: *command,
                ..identity
            },
            _ => identity,
        };
        Some(named.command().to_string())
    }
}

fn key(pid: u32, identity: &Identity) -> Key {
    (pid, identity.start_time, identity.command)
}

/// Decodes exactly 64 bytes from hexadecimal digits; `None` for any other length.
fn digits(text: &str) -> Option<[u8; 64]> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
    bytes?.try_into().ok()
}

/// A process on one GPU, or a process that has not used a GPU yet: a row of `ps`.
#[derive(Clone, Deserialize, Serialize)]
pub struct Process {
    /// The machine, where several are shown; else empty.
    #[serde(skip)]
    pub machine: String,
    /// The path of the root that the group is in.
    pub root: PathBuf,
    pub group: String,
    /// The group's name for printing.
    pub title: String,
    /// The pid in the caller's pid namespace; `None` if the process has no pid there.
    pub pid: Option<u32>,
    pub own_pid: u32,
    /// The start time in the process's slot, in clock ticks since boot; 0 if unknown.
    pub start_time: u64,
    pub uid: u32,
    /// The user's name, or number.
    pub user: String,
    /// The container or the job of the process, if somebody has looked for it.
    pub place: String,
    /// The command line; `None` if it could not be read in time.
    pub command: Option<String>,
    pub alive: bool,
    /// Whether the process has ended and children that it has forked keep its memory.
    #[serde(skip)]
    pub is_kept: bool,
    /// `running`, `suspending`, `suspended`, `frozen` (suspended and stopped), `resuming`,
    /// `abandoned` (a command that suspended or resumed it has died), `lost` or `draining`.
    #[serde(deserialize_with = "known")]
    pub state: Word,
    /// Whether the driver has confirmed the state; otherwise it is what the ledger says.
    is_confirmed: bool,
    pub on: Option<Parts>,
    /// The request with which the process waits for memory of the GPU.
    pub waits: Option<Waiter>,
    /// How long ago a request was refused, if somebody has looked at the last minute.
    pub refused: Option<Duration>,
    /// What the process does on the GPU, if somebody has asked NVML and NVML tells it.
    pub share: Option<Share>,
    /// When the process started, and when its charge on the GPU last changed, by its ledger, in
    /// milliseconds since 1970.
    pub started_ms: Option<u64>,
    pub charged_ms: Option<u64>,
    /// The bytes that the process has in the host's memory.
    pub host: Option<u64>,
}

/// The bytes that a process uses on a GPU: the total, and the part for each purpose.
#[derive(Clone, Deserialize, Serialize)]
pub struct Parts {
    #[serde(with = "written")]
    pub gpu: DeviceId,
    pub total: u64,
    /// The bytes for each purpose; `None` if the process has not recorded the purposes.
    pub split: Option<Split>,
    /// The bytes that are on the host while the process is suspended.
    pub suspended: u64,
}

/// Reads one of the states.
fn known<'de, D: Deserializer<'de>>(from: D) -> Result<Word, D::Error> {
    const STATES: &str = "running suspending suspended frozen resuming abandoned lost draining";
    let text = String::deserialize(from)?;
    let state = STATES.split(' ').find(|state| *state == text);
    state.ok_or_else(|| D::Error::custom(text))
}

/// Bytes by category.
pub type Split = [u64; Category::COUNT];

/// Returns the bytes of linear memory, arrays, graphs and memory that the program maps itself.
pub fn allocations(split: &Split) -> u64 {
    use Category::{Arrays, Graphs, Linear, Vmm};
    let parts = [Linear, Vmm, Arrays, Graphs].map(|category| split[category as usize]);
    parts.into_iter().fold(0, u64::saturating_add)
}

impl Parts {
    fn of(gpu: DeviceId, usage: &DeviceUsage) -> Self {
        let total = usage.in_use();
        let said = total == 0 || usage.by.iter().any(|bytes| *bytes != 0);
        let split = said.then_some(usage.by);
        Self {
            gpu,
            total,
            split,
            suspended: usage.suspended,
        }
    }
}

fn of(
    selection: &Selection,
    seen: &Seen,
    process: &ProcessUsage,
    (pids, commands): (&Pids, &Commands),
    waiters: &Waiters,
    state: &'static str,
) -> Vec<Process> {
    let group = groups::of_process(&seen.group, process);
    let is_it = |known: &&Group| known.root() == seen.group.root() && known.name() == group;
    let known = || selection.groups.iter().find(is_it);
    let title = match process.below.is_empty() {
        true => seen.title.clone(),
        false => known().map_or_else(|| group.clone(), |known| selection.title(known)),
    };
    let pid = pids.here(&process.identity);
    let status = pid
        .filter(|_| process.alive)
        .and_then(|pid| proc::status(pid).ok());
    let status = status.unwrap_or_default();
    let uid = user(&status).unwrap_or(process.identity.uid);
    let whole = Process {
        machine: String::new(),
        root: seen.group.root().into(),
        group,
        title,
        pid,
        own_pid: process.identity.pid,
        start_time: process.identity.start_time,
        uid,
        user: accounts::user_name(uid),
        place: String::new(),
        command: commands.command(process, pid),
        alive: process.alive,
        is_kept: !(process.alive || process.drains),
        state,
        is_confirmed: false,
        on: None,
        waits: None,
        refused: None,
        share: None,
        started_ms: (pid.filter(|_| process.alive)).and_then(|_| started(&process.identity)),
        charged_ms: None,
        host: proc::kibibytes(&status, "VmRSS"),
    };
    // A process may wait for memory of a GPU that it has not used yet.
    let waits = waiters.of_process(&seen.group, &process.identity);
    let row = |entry: &DeviceEntry| {
        let usage = process.on(entry.index);
        let waits = waits.iter().filter(|one| one.gpu == entry.id);
        let longest = waits.max_by_key(|one| one.waited());
        let is_there = process.devices.contains(&usage) || longest.is_some();
        let charged = seen.charges.get(&(process.slot, entry.index));
        is_there.then(|| Process {
            on: Some(Parts::of(entry.id, &usage)),
            waits: longest.map(|one| Waiter::clone(one)),
            charged_ms: charged.map(|second| second * 1_000),
            ..whole.clone()
        })
    };
    let rows: Vec<Process> = seen.devices.iter().filter_map(row).collect();
    match rows.is_empty() {
        true => vec![whole],
        false => rows,
    }
}

/// Returns the user of a process as the caller sees it, by `/proc/PID/status`. The ledger has the
/// number that the process has in its own user namespace, where users number themselves as they
/// like.
pub(super) fn user(status: &str) -> Option<u32> {
    let users = proc::field(status, "Uid")?;
    users.split_whitespace().next()?.parse().ok()
}

/// Returns when a process of the caller's time namespace started, in milliseconds since 1970.
fn started(identity: &Identity) -> Option<u64> {
    /// When the machine started, in seconds since 1970. `/proc/stat` takes long on large machines.
    static BOOT: LazyLock<Option<u64>> = LazyLock::new(|| {
        let text = proc::read("/proc/stat").ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("btime "))?
            .parse()
            .ok()
    });
    /// The clock ticks per second in `/proc`. This number is the same on every machine.
    const TICKS_PER_SECOND: u64 = 100;
    let ticks = Some(identity.start_time).filter(|ticks| *ticks > 0)?;
    (*BOOT)?
        .saturating_mul(1_000)
        .checked_add(ticks.checked_mul(1_000 / TICKS_PER_SECOND)?)
}

/// Returns a time, and for people how long ago another one was, which is less if it is not sure.
fn ago(time: Option<u64>, shown: Option<u64>, is_sure: bool) -> Cell {
    let ago = |shown| {
        let now = Moment::from(Timestamp::now()).unix_ms;
        let time = clock::brief(Duration::from_millis(now.saturating_sub(shown)));
        if is_sure { time } else { format!("<{time}") }
    };
    let time = time.map(|unix_ms| Moment { unix_ms }.to_string());
    Cell::Said(time.into(), shown.map(ago))
}

fn state(process: &ProcessUsage, is_abandoned: bool, pid: Option<u32>) -> &'static str {
    // Somebody may have continued a process that `suspend --freeze` has stopped.
    let is_stopped = || pid.and_then(proc::is_stopped).unwrap_or(true);
    match process.errand {
        _ if !process.alive => "draining",
        Errand::Suspend | Errand::Resume if is_abandoned => "abandoned",
        Errand::Suspend => "suspending",
        Errand::Resume => "resuming",
        Errand::Lost => "lost",
        Errand::None if process.is_suspended() && process.frozen && is_stopped() => "frozen",
        Errand::None if process.is_suspended() => "suspended",
        Errand::None => "running",
    }
}

impl Process {
    /// Returns a process for tests, which has used no GPU.
    #[cfg(test)]
    pub fn example(group: &str, pid: u32, user: &str, command: &str) -> Self {
        Self {
            machine: String::new(),
            root: "/run/gpulimit".into(),
            group: group.into(),
            title: group.into(),
            pid: Some(pid),
            own_pid: pid,
            start_time: u64::from(pid) * 100,
            uid: 1_000,
            user: user.into(),
            place: String::new(),
            command: Some(command.into()),
            alive: true,
            is_kept: false,
            state: "running",
            is_confirmed: false,
            on: None,
            waits: None,
            refused: None,
            share: None,
            started_ms: None,
            charged_ms: None,
            host: None,
        }
    }

    /// Notes which processes are suspended, as the driver says; also by another tool.
    pub fn confirm(&mut self, away: &[u32]) {
        self.is_confirmed = self.pid.is_some_and(|pid| away.contains(&pid));
        if self.is_confirmed && self.state == "running" {
            self.state = "suspended";
        }
    }

    /// Returns when the process last used the GPU's processors or changed its charge, in
    /// milliseconds since 1970, as far as NVML's samples and the ledger tell. `None` if NVML has no
    /// sample of the process: the ledger alone knows nothing of kernels.
    pub fn last_use(&self) -> Option<u64> {
        self.share?.used_ms.max(self.charged_ms)
    }

    /// Returns the last use, and for people the longest time since then: the ledger notes five
    /// minutes.
    fn idle(&self) -> Cell {
        let used = self.share.and_then(|share| share.used_ms);
        let charged = self.share.and(self.charged_ms);
        let charged = charged.map(|end| end.saturating_sub(300_000));
        ago(self.last_use(), used.max(charged), used >= charged)
    }

    /// Returns the bytes of memory that count against the limit.
    pub fn gpu(&self) -> Option<DeviceId> {
        self.on.as_ref().map(|parts| parts.gpu)
    }

    pub fn total(&self) -> Option<u64> {
        self.bytes(|parts| parts.total)
    }

    /// Returns the bytes for which a command that resumes the process waits: charges come back
    /// before the memory.
    pub fn returning(&self) -> Option<u64> {
        let bytes = self.bytes(|parts| parts.suspended);
        bytes.filter(|bytes| *bytes > 0 && self.state == "resuming")
    }

    /// Returns the state for printing: one with a question mark has only been read in the ledger.
    fn state_text(&self) -> String {
        let is_doubtful = matches!(self.state, "suspended" | "frozen") && !self.is_confirmed;
        match (&self.waits, self.returning()) {
            (Some(waits), _) => waits.to_string(),
            (None, Some(bytes)) => format!("waits for {}", gib(bytes)),
            (None, None) => self.state.to_owned() + if is_doubtful { "?" } else { "" },
        }
    }

    fn state_by(&self) -> &'static str {
        if self.is_confirmed {
            "driver"
        } else {
            "ledger"
        }
    }

    fn bytes(&self, of: impl Fn(&Parts) -> u64) -> Option<u64> {
        self.on.as_ref().map(of)
    }

    fn split(&self, of: impl Fn(&Split) -> u64) -> Option<u64> {
        self.on.as_ref()?.split.as_ref().map(of)
    }

    fn part(&self, category: Category) -> Option<u64> {
        self.split(|split| split[category as usize])
    }

    /// Returns the process as JSON. Bytes are integers; unknown figures are null.
    pub fn json(&self, driver: Option<&Driver>) -> Value {
        fields::json(FIELDS, self, driver)
    }
}

fields! { pub FIELDS(it: Process):
    /// The machine, where several are shown.
    "machine": Machine, path("MACHINE").sparse().top(1) => some(&it.machine);
    /// The pid in the caller's pid namespace; null if the process is not visible there.
    "pid": Count, right("PID").top(1) => it.pid;
    /// The pid in the process's own pid namespace.
    "own_pid": Count => it.own_pid;
    /// The number of the user.
    "uid": Count => it.uid;
    /// The name of the user, or the number.
    "user": Text, left("USER").narrow(5).top(3) => &*it.user;
    /// The full name of the group.
    "group": Text, path("GROUP").top(5) => Cell::said(&*it.group, &*it.title);
    /// The GPU; null for a process that has not used one yet.
    "gpu": Device, left("GPU") => Cell::Gpu(it.gpu());
    /// The command line, of at most 64 bytes.
    "command": Text, left("COMMAND").narrow(6).last() => it.command.as_deref();
    /// The mean part of the GPU's processors that the process used in the last seconds, by NVML.
    "busy": Percent, right("BUSY").live().narrow(1).top(7) => it.share.map(|share| share.percent);
    /// When NVML last saw the process use the processors, or the ledger its charge change: a hint,
    /// no proof. Null if neither is known.
    "last_use": Time, right("IDLE").live().narrow(1).top(7) => it.idle();
    /// The process's memory on the host.
    "host": Bytes, right("HOST").live().narrow(1).top(22).short("RAM") => it.host;
    /// The start of the process.
    "started": Time, right("AGE").live().narrow(1).top(23)
        => ago(it.started_ms, it.started_ms, true);
    /// Plain and virtual memory, arrays and graphs.
    "allocations": Bytes, right("ALLOCATIONS").narrow(2).top(20).short("ALLOC")
        => it.split(allocations);
    /// Plain memory.
    "linear": Bytes => it.part(Category::Linear);
    /// Virtual memory that the program maps itself.
    "vmm": Bytes => it.part(Category::Vmm);
    /// Arrays of 2 MiB and more.
    "arrays": Bytes => it.part(Category::Arrays);
    /// Memory of graphs.
    "graphs": Bytes => it.part(Category::Graphs);
    /// Memory that pools have reserved.
    "pools": Bytes, right("POOLS").narrow(3).top(20) => it.part(Category::Pools);
    /// Managed memory, which nvidia-smi does not show.
    "managed": Bytes, right("MANAGED").narrow(1).top(21) => it.part(Category::Managed);
    /// The driver's memory of contexts and code.
    "driver": Bytes, right("DRIVER").narrow(4).top(21) => it.part(Category::Driver);
    /// The memory that counts against the limit.
    "total": Bytes, right("TOTAL").top(2) => it.total();
    /// The memory that is on the host while the process is suspended; no part of the total.
    "suspended": Bytes, right("SUSPENDED").sparse() => it.bytes(|parts| parts.suspended);
    /// `running`, `suspending`, `suspended`, `frozen`, `resuming`, `abandoned`, `lost` or
    /// `draining`.
    "state": Text, left("STATE").narrow(7) => Cell::said(it.state, it.state_text());
    /// `driver` if the driver has said that the process is suspended, otherwise `ledger`.
    "state_by": Text => it.state_by();
    /// The request that waits for memory of the GPU; null if none waits.
    "waits_for": One("wait") => it.waits.as_ref().map(Waiter::json);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::fields::Unit;

    #[test]
    fn a_last_use_by_the_ledger_is_known_to_five_minutes() {
        let ago = |minutes: u64| Moment::from(Timestamp::now()).unix_ms - minutes * 60_000 - 5_000;
        let mut process = Process::example("lab", 1, "alice", "python");
        for (used, charged, expected) in [
            (Some(40), None, Some("40 min")),
            (Some(40), Some(3), Some("<8 min")),
            (None, Some(0), Some("<5 min")),
            // What NVML saw after the charge is sure.
            (Some(2), Some(3), Some("2 min")),
            (Some(2), Some(0), Some("2 min")),
            (None, None, None),
        ] {
            process.share = Some(Share {
                percent: 0,
                used_ms: used.map(ago),
            });
            process.charged_ms = charged.map(ago);
            let shown = process.idle().text(Unit::Time, None);
            assert_eq!(shown.as_deref(), expected, "{used:?} {charged:?}");
        }
        process.charged_ms = Some(ago(0));
        process.share = None;
        assert!(process.idle().is_dull(), "without samples");
    }
}
