//! Everything that the server shows of groups, read in one round.

use super::access::Scope;
use super::counters::{Counters, Events};
use super::pressure::{WINDOWS, Waits};
use crate::figures::outside::{Finder, Outside};
use crate::figures::processes::{Commands, Process, processes};
use crate::figures::shares::Shares;
use crate::figures::snapshot::{self, GpuMemory};
use crate::figures::{Figures, Gpu, kept::Kept, waiting::Waiters};
use crate::groups::budget::{LINE, SCRAPE};
use crate::groups::{Seen, Selection, View, beliefs};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output;
use crate::words::{clock::Moment, environment::env, failure::Failure};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::{Identity, SeenProcess};
use gpulimit_group::pod::Pod;
use gpulimit_group::{Kind, Root};
use gpulimit_ledger::{EventKind, Ledger, Resolution};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// The GPUs and the groups at one moment.
pub struct Reading {
    /// When the round was read.
    pub time: jiff::Timestamp,
    /// The memory of the GPUs.
    pub gpus: Vec<GpuMemory>,
    /// The version of the NVIDIA driver, if NVML tells it.
    pub driver: Option<String>,
    /// The groups. Each group comes before the groups below it.
    pub groups: Vec<Group>,
    selection: Selection,
    seen: Vec<Seen>,
    waiters: Waiters,
    processes: OnceLock<Vec<Process>>,
}

/// A group with the figures that `show` prints, and with more for metrics.
pub struct Group {
    pub figures: Figures,
    pub ledger: OfLedger,
    /// GPUs without figures, on which all counters of the group are 0.
    pub unused: Vec<DeviceId>,
}

/// What only the open ledger of a group tells.
pub struct OfLedger {
    /// The device and inode number of the ledger; `None` if it cannot be read.
    id: Option<(u64, u64)>,
    /// The more of each GPU of the figures, in the same order.
    more: Vec<More>,
    /// The number of events of each kind since the group was created; `None` if the ledger cannot
    /// be read.
    pub events: Option<Events>,
    /// The container that the group was made for.
    pub pod: Option<Pod>,
}

/// Figures of a group on a GPU that no table shows. All are zero if the group has not used the GPU.
#[derive(Default)]
pub struct More {
    /// The bytes times seconds that all users have used.
    pub byte_seconds: f64,
    /// The bytes times seconds that each user has used. The name is `(others)` for all users that
    /// did not fit into the ledger's table.
    pub users: Vec<(String, f64)>,
    /// Milliseconds in which at least one request waited.
    pub waited: u64,
    /// The share of [`WINDOWS`] in which at least one request waited.
    pub pressure: [f64; WINDOWS.len()],
    waits: Waits,
    /// The byte-seconds of each user in the ledger.
    bills: Vec<(Option<u32>, f64)>,
}

/// What is kept between rounds.
pub struct Memory {
    commands: Commands,
    shares: Shares,
    outside: Finder,
    /// The processes outside in the last round, by pid, start time and GPU: each has an event.
    recorded: BTreeSet<(u32, u64, DeviceId)>,
    trends: Kept,
    counters: Counters,
    /// The messages about groups that cannot be read. Each is printed once.
    told: BTreeSet<String>,
    /// The users of whom groups were left out.
    cut: BTreeSet<u32>,
}

/// The most messages that are remembered.
const MOST_TOLD: usize = 1_024;

impl Default for Memory {
    fn default() -> Self {
        // A process whose command line cannot be read must not delay all answers.
        const PATIENCE: Duration = Duration::from_secs(1);
        Self {
            commands: Commands::new(PATIENCE),
            shares: Shares::default(),
            outside: Finder::new(PATIENCE),
            recorded: BTreeSet::new(),
            trends: Kept::default(),
            counters: Counters::default(),
            told: BTreeSet::new(),
            cut: BTreeSet::new(),
        }
    }
}

impl Memory {
    /// Prints a message, unless it has been printed.
    pub fn tell(&mut self, text: String) {
        if self.told.len() < MOST_TOLD && !self.told.contains(&text) {
            output::note(&text);
            self.told.insert(text);
        }
    }

    /// Records an event for each process that was not outside in the last round.
    fn record_outside(&mut self, found: &[Outside]) {
        let roots = Root::locate_all(&env).unwrap_or_default();
        let mut now = BTreeSet::new();
        for it in found {
            let process = Identity {
                start_time: SeenProcess::by_pid(it.pid).start_time().unwrap_or(0),
                ..Identity::of_other(it.pid)
            };
            let key = (it.pid, process.start_time, it.gpu);
            if !self.recorded.contains(&key) {
                let bytes = it.bytes.unwrap_or(u64::MAX);
                (roots.iter()).for_each(|root| root.record_outside(process, it.gpu, bytes));
            }
            now.insert(key);
        }
        self.recorded = now;
    }

    /// Prints the lines about users whose groups were left out, once for each user.
    pub fn tell_cut(&mut self, cut: Vec<(u32, String)>) {
        for (uid, text) in cut {
            if self.cut.len() < MOST_TOLD && self.cut.insert(uid) {
                output::note(&text);
            }
        }
    }
}

impl Group {
    /// Returns the figures of each GPU.
    pub fn gpus(&self) -> impl Iterator<Item = (&Gpu, &More)> {
        self.figures.gpus.iter().zip(&self.ledger.more)
    }
}

impl Reading {
    /// Reads all groups that the scope shows.
    pub fn take(
        scope: Scope,
        driver: Option<&Driver>,
        memory: &mut Memory,
    ) -> Result<Self, Failure> {
        let time = jiff::Timestamp::now();
        let mut selection = Selection::all()?;
        for text in std::mem::take(&mut selection.notes) {
            memory.tell(text);
        }
        let (mut ledgers, trends) = (BTreeMap::new(), &mut memory.trends);
        let figures = |at, view: &View| {
            let mut trend = |view: &_, device: &_, usage| trends.trend(view, device, usage);
            let figures = Figures::read(view, driver, &mut trend);
            let ledger = OfLedger::of(view, &figures);
            let bills = ledger.more.iter().map(|more| more.bills.len());
            let bills = bills.sum::<usize>();
            // Each listed GPU gets counters, also one without figures.
            let lines = bills + driver.map_or(0, |driver| driver.gpus().len());
            view.purse.spend(lines * (LINE + view.title.len()));
            ledgers.insert(at, ledger);
            figures
        };
        let visit = |see: &mut dyn FnMut(_, _)| selection.visit_once(SCRAPE, driver, see);
        let (round, (failed, cut)) =
            snapshot::Round::read(driver, &mut memory.outside, visit, figures);
        for (at, error) in failed {
            let group = &selection.groups[at];
            memory.counters.keep(group.root(), group.name());
            memory.tell(error.to_string());
        }
        memory.tell_cut(cut);
        memory.record_outside(&round.outside);
        let now = Moment::from(time).unix_ms;
        let listed: Vec<DeviceId> = (round.gpus.iter())
            .filter(|gpu| gpu.total.is_some() && gpu.used.is_some())
            .map(|gpu| gpu.id)
            .collect();
        let (mut groups, mut public) = (Vec::new(), Public::default());
        for (mut figures, mut ledger) in round.groups.into_iter().zip(ledgers.into_values()) {
            ledger.complete(&mut figures, memory, now);
            if scope.public {
                if !public.has(&figures.root, &figures.name) {
                    continue;
                }
                figures.gpus.iter_mut().for_each(Gpu::forget_process);
            }
            let counts = ledger.events.is_some() && Kind::of(&figures.name) == Kind::Named;
            let is_used = |id: &DeviceId| figures.gpus.iter().any(|gpu| gpu.id == *id);
            let unused = listed.iter().filter(|id| counts && !is_used(id)).copied();
            groups.push(Group {
                unused: unused.collect(),
                figures,
                ledger,
            });
        }
        memory.trends.end_round();
        memory.counters.end_round();
        Ok(Self {
            time,
            gpus: round.gpus,
            driver: driver.and_then(Driver::version),
            groups,
            selection,
            seen: match scope.public {
                true => Vec::new(),
                false => round.seen,
            },
            waiters: round.waiters,
            processes: OnceLock::new(),
        })
    }

    /// Finds out about the processes in the groups.
    pub fn read_processes(&self, driver: Option<&Driver>, memory: &mut Memory) {
        self.processes.get_or_init(|| {
            let commands = &mut memory.commands;
            let mut found = processes(&self.selection, &self.seen, &self.waiters, commands);
            memory.shares.note(&mut found, driver);
            found
        });
    }

    /// Returns the processes in the groups; none before [`Self::read_processes`].
    pub fn processes(&self) -> &[Process] {
        self.processes.get().map_or(&[], Vec::as_slice)
    }
}

/// The roots that every user may read, as one round finds them. The next round asks again, because
/// a root can become private at any time.
#[derive(Default)]
pub struct Public(BTreeMap<PathBuf, bool>);

impl Public {
    /// Returns whether a group is shown to everybody: a group with a name of its own in a root that
    /// every user may read. The name of a job can have a pid in it.
    pub fn has(&mut self, root: &Path, group: &str) -> bool {
        let known = self.0.entry(root.to_owned());
        let is_public = || Root::at(root).is_ok_and(|root| root.is_public());
        Kind::of(group) == Kind::Named && *known.or_insert_with(is_public)
    }
}

impl OfLedger {
    fn of(view: &View, figures: &Figures) -> Self {
        let ledger = view.ledger.as_ref();
        let all_bills = ledger.map(beliefs::bills).unwrap_or_default();
        let more = |gpu: &Gpu| {
            let ledger = ledger?;
            let entry = view.device(gpu.id)?;
            let its = all_bills.iter().filter(|bill| bill.device == entry.index);
            Some(More {
                bills: its
                    .map(|bill| (bill.uid, bill.byte_seconds as f64))
                    .collect(),
                waits: match gpu.waits {
                    Some(1..) => Waits::ended(&ledger.history(entry.index, Resolution::Seconds)),
                    _ => Waits::default(),
                },
                ..More::default()
            })
        };
        let gpus = figures.gpus.iter();
        Self {
            more: gpus.map(|gpu| more(gpu).unwrap_or_default()).collect(),
            events: ledger.map(|ledger| EventKind::ALL.map(|(kind, _)| ledger.event_count(kind))),
            id: ledger.map(Ledger::file_id),
            pod: Pod::of(&view.group),
        }
    }

    /// Adds what the rest of the round and the rounds before tell.
    fn complete(&mut self, figures: &mut Figures, memory: &mut Memory, now: u64) {
        for (gpu, more) in figures.gpus.iter().zip(&mut self.more) {
            if let Some(waiter) = &gpu.longest_wait {
                more.waits.add_present(waiter.waited(), now);
            }
            more.pressure = more.waits.ratios(now);
        }
        match self.id {
            Some(id) => self.count(figures, id, memory, now),
            None => memory.counters.keep(&figures.root, &figures.name),
        }
    }

    /// Raises the counters to the highest ones so far.
    fn count(&mut self, figures: &mut Figures, id: (u64, u64), memory: &mut Memory, now: u64) {
        let kept = memory.counters.of(&figures.root, &figures.name, id);
        if let Some(events) = &mut self.events {
            kept.raise_events(events);
        }
        let shown: Vec<DeviceId> = figures.gpus.iter().map(|gpu| gpu.id).collect();
        kept.keep_gpus(&shown);
        let of_gpus = figures.gpus.iter_mut().zip(&mut self.more);
        for (gpu, more) in of_gpus {
            let kept = kept.gpu(gpu.id, now);
            if let (Some(refusals), Some(waits), Some(waited_ms)) =
                (&mut gpu.refusals, &mut gpu.waits, &mut gpu.waited_ms)
            {
                kept.raise([refusals, waits, waited_ms]);
            }
            more.waited = kept.add_waits(&mut more.waits, now);
            more.byte_seconds = kept.raise_users(&mut more.bills);
            for (uid, used) in &more.bills {
                let name = match uid {
                    Some(uid) => accounts::user_name(*uid),
                    None => "(others)".into(),
                };
                match more.users.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => *sum += used,
                    None => more.users.push((name, *used)),
                }
            }
        }
    }
}
