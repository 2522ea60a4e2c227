//! What a round of `top` shows: plain figures and texts, without open files.
//!
//! All texts of other users are already escaped.

use super::place;
use super::reader::{Known, Read};
use crate::figures::processes::{self, Split};
use crate::figures::snapshot::GpuMemory;
use crate::figures::{self, Figures, past::Recent};
use crate::groups;
use crate::machine::{accounts, nvml::Driver};
use crate::shown::{output::Escaped, table::figure};
use crate::words::failure::Failure;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use gpulimit_group::{parent, upwards};
use gpulimit_ledger::Category;
use gpulimit_limits::{Key, Selector};
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A round. Groups come before the groups below them.
#[derive(Clone, Debug, Default)]
pub struct Round {
    pub time: Timestamp,
    pub gpus: Vec<Gpu>,
    pub groups: Vec<Group>,
    pub processes: Vec<Process>,
    /// What could not be read, and why; empty if all could be read.
    pub problem: String,
}

/// A GPU's memory, for its bar.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub memory: GpuMemory,
    /// NVML's index, or else the beginning of the UUID.
    pub label: String,
    /// The top groups that use memory, with their bytes.
    pub parts: Vec<(String, u64)>,
}

/// A group's root and full name.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Name {
    pub root: PathBuf,
    pub name: String,
}

impl Name {
    fn new(root: &Path, name: &str) -> Self {
        Self {
            root: root.into(),
            name: name.into(),
        }
    }

    /// Returns the group above; `None` for a top group.
    pub fn above(&self) -> Option<Self> {
        parent(&self.name).map(|above| Self::new(&self.root, above))
    }
}

/// A group, and its figures on each GPU.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: Name,
    /// The name as it is shown without the tree.
    pub title: String,
    /// The group's settings as text.
    pub settings: String,
    /// One entry for each GPU, and one for all others; never empty.
    pub usages: Vec<Usage>,
    /// The figures of GPUs that have no entry of their own in `usages`.
    pub unlisted: Usage,
}

/// A group's figures on one GPU, in bytes.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// `None` for all GPUs that the group has not used.
    pub gpu: Option<DeviceId>,
    pub label: String,
    /// Whether the group has a limit for this GPU alone.
    pub own_limit: bool,
    /// The group's own `max`; `None` without one, and for a part of a GPU of unknown size.
    pub max: Option<u64>,
    /// The group's own `max` as text; `-` without one.
    pub max_text: String,
    /// The limit that applies, which can be that of a group above.
    pub limit: Option<u64>,
    /// The group that has the limit that applies, if it is a group above.
    pub limited_by: String,
    pub high: Option<u64>,
    pub usage: Option<u64>,
    pub peak: Option<u64>,
    pub free: Option<u64>,
    pub refusals: Option<u64>,
    pub processes: Option<u64>,
    pub recent: Recent,
    /// The unusual states: requests that wait, usage above a limit, suspended, uncovered and
    /// draining memory, a leak.
    pub states: Vec<String>,
}

/// What tells processes apart, also if a pid is used again.
#[derive(Copy, Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Who {
    /// The pid in the caller's namespace; `None` if the process is not visible there.
    pub pid: Option<u32>,
    pub own_pid: u32,
    /// The start time in the process's slot.
    pub start_time: u64,
}

/// A process on one GPU.
#[derive(Clone, Debug)]
pub struct Process {
    pub group: Name,
    pub title: String,
    pub who: Who,
    pub user: String,
    /// The container or the job of the process; empty if it is in none.
    pub place: String,
    pub gpu: Option<DeviceId>,
    pub label: String,
    pub total: Option<u64>,
    pub split: Option<Split>,
    /// `suspended`, `draining`, or the request that waits; empty for a process that runs.
    pub state: String,
    /// The command line; `-` if it could not be read.
    pub command: String,
}

impl Usage {
    /// Returns the used part of the limit in percent.
    pub fn percent(&self) -> Option<u64> {
        percent(self.usage?, self.limit?)
    }
}

/// Returns a part in percent of a whole, rounded to the nearest; `None` if the whole is 0.
pub fn percent(part: u64, whole: u64) -> Option<u64> {
    let (part, whole) = (u128::from(part) * 100, u128::from(whole));
    (whole > 0).then(|| u64::try_from((part + whole / 2) / whole).unwrap_or(u64::MAX))
}

impl Process {
    /// Returns the bytes of one purpose.
    pub fn part(&self, category: Category) -> Option<u64> {
        Some(self.split?[category as usize])
    }

    /// Returns the bytes of linear memory, arrays, graphs and memory that the program maps.
    pub fn allocations(&self) -> Option<u64> {
        self.split.as_ref().map(processes::allocations)
    }
}

/// The roots and names of groups in which a process has ended whose memory of the GPU is not free
/// yet, in the group or below it.
type Draining<'a> = BTreeSet<(&'a Path, &'a str, DeviceId)>;

impl Round {
    /// Makes the round that shows what was read. `recents` has the recent usage of each group and
    /// GPU, in the order of the groups.
    pub fn of(
        read: &Read,
        recents: Vec<Vec<Recent>>,
        known: &mut Known,
        driver: Option<&Driver>,
    ) -> Self {
        let draining = draining(&read.processes);
        let groups = read.groups.iter().zip(recents);
        let groups = groups.map(|(it, recents)| Group::of(it, recents, &draining));
        let groups: Vec<Group> = groups.collect();
        let processes = read.processes.iter();
        Self {
            time: read.time,
            gpus: read.gpus.iter().map(|it| Gpu::of(it, &groups)).collect(),
            processes: processes.map(|it| Process::of(it, known, driver)).collect(),
            groups,
            problem: String::new(),
        }
    }

    /// Returns the round after a failure, which shows only its message.
    pub fn failed(failure: &Failure) -> Self {
        Self::without(Escaped(&failure.to_string()).to_string())
    }

    /// Returns a round that shows only why there is nothing to show.
    pub fn without(why: String) -> Self {
        Self {
            time: Timestamp::now(),
            problem: why,
            ..Self::default()
        }
    }
}

fn draining(processes: &[processes::Process]) -> Draining<'_> {
    let dead = processes.iter().filter(|process| !process.alive);
    let of_groups = dead.flat_map(|process| {
        let gpu = process.gpu.as_ref().filter(|(_, parts)| parts.total > 0);
        let groups = move |id| upwards(&process.group).map(move |name| (&*process.root, name, id));
        gpu.map(|(id, _)| groups(*id)).into_iter().flatten()
    });
    of_groups.collect()
}

/// Returns a state with its bytes: `suspended 2.0 GiB`; `None` for none.
fn sized(state: &str, bytes: Option<u64>) -> Option<String> {
    let bytes = bytes.filter(|bytes| *bytes > 0)?;
    Some(format!("{state} {}", gib(bytes)))
}

/// Returns NVML's index of a GPU, or else the beginning of its UUID.
fn label(index: Option<u32>, id: DeviceId) -> String {
    index.map_or_else(|| id.short().to_string(), |index| index.to_string())
}

impl Gpu {
    fn of(gpu: &GpuMemory, groups: &[Group]) -> Self {
        let names: BTreeSet<&Name> = groups.iter().map(|group| &group.name).collect();
        let is_top = |group: &&Group| !group.name.above().is_some_and(|it| names.contains(&it));
        let part = |group: &Group| {
            let usage = group.usages.iter().find(|it| it.gpu == Some(gpu.id))?;
            let bytes = usage.usage.filter(|bytes| *bytes > 0)?;
            Some((group.title.clone(), bytes))
        };
        let name = Escaped(&gpu.name).to_string();
        Self {
            memory: GpuMemory {
                name,
                ..gpu.clone()
            },
            label: label(gpu.index, gpu.id),
            parts: groups.iter().filter(is_top).filter_map(part).collect(),
        }
    }
}

impl Group {
    fn of(figures: &Figures, recents: Vec<Recent>, draining: &Draining<'_>) -> Self {
        let gpus = figures.gpus.iter().zip(recents);
        let usages = gpus.map(|(gpu, recent)| {
            let drains = draining.contains(&(&*figures.root, &*figures.name, gpu.id));
            Usage::of(figures, gpu, recent, drains)
        });
        let mut usages: Vec<Usage> = usages.collect();
        let of_others = |label: &str| Usage {
            label: label.into(),
            max: figures::bytes(Some(figures.of_all(Key::Max)), None),
            max_text: max_text(figures::size(figures.of_all(Key::Max))),
            ..Usage::default()
        };
        if let Some(others) = figures.others {
            let processes = figures.processes.filter(|_| usages.is_empty());
            usages.push(Usage {
                processes: processes.map(|count| count as u64),
                ..of_others(others)
            });
        }
        if usages.is_empty() {
            usages.push(Usage::default());
        }
        Self {
            name: Name::new(&figures.root, &figures.name),
            title: Escaped(&figures.title).to_string(),
            settings: settings(figures),
            usages,
            unlisted: match figures.limits_all() {
                true => of_others("others"),
                false => Usage::default(),
            },
        }
    }
}

/// Returns the text of a limit; `-` for no limit.
fn max_text(text: String) -> String {
    if text == "max" { "-".into() } else { text }
}

/// Returns the settings of a group as text: `all GPUs max=8GiB; on_limit=wait`.
fn settings(figures: &Figures) -> String {
    let rules = figures.rules.rules.iter().map(|(selector, values)| {
        let gpu = match selector {
            Selector::All => "all GPUs".into(),
            Selector::Device(id) => id.short().to_string(),
        };
        let sizes = values.iter().map(|(key, size)| format!(" {key}={size}"));
        gpu + &sizes.collect::<String>()
    });
    let options = Some(figures.options_text()).filter(|text| !text.is_empty());
    rules.chain(options).collect::<Vec<_>>().join("; ")
}

impl Usage {
    fn of(figures: &Figures, gpu: &figures::Gpu, recent: Recent, drains: bool) -> Self {
        let high = gpu.bytes(Key::High);
        let above = |limit: Option<u64>| limit.is_some() && gpu.usage > limit;
        let waits = gpu.longest_wait.as_ref().map(|longest| match gpu.waiting {
            Some(waiting @ 2..) => format!("{longest} (+{})", waiting - 1),
            _ => longest.to_string(),
        });
        let states = [
            waits,
            above(gpu.limit()).then(|| "above max".into()),
            (above(high) && !above(gpu.limit())).then(|| "above high".into()),
            sized("suspended", gpu.suspended),
            sized("uncovered", gpu.uncovered),
            drains.then(|| "draining".into()),
            gpu.trend.as_ref().map(|_| "may leak".into()),
        ];
        let limited_by = gpu.effective.as_ref().map(|(_, by)| by.clone());
        Self {
            gpu: Some(gpu.id),
            label: label(gpu.index, gpu.id),
            own_limit: (figures.rules.get(Selector::Device(gpu.id), Key::Max)).is_some(),
            max: gpu.max,
            max_text: gpu.text(Key::Max).map_or_else(|| "-".into(), max_text),
            limit: gpu.limit(),
            limited_by: limited_by
                .filter(|by| *by != figures.name)
                .unwrap_or_default(),
            high,
            usage: gpu.usage,
            peak: gpu.peak,
            free: gpu.free,
            refusals: gpu.refusals,
            processes: gpu.processes.map(|count| count as u64),
            recent,
            states: states.into_iter().flatten().collect(),
        }
    }
}

impl Process {
    fn of(process: &processes::Process, known: &mut Known, driver: Option<&Driver>) -> Self {
        let (id, parts) = process.gpu.as_ref().map(|(id, parts)| (*id, parts)).unzip();
        let on_host = parts.and_then(|parts| sized("suspended", Some(parts.suspended)));
        let state = match (&process.waits, process.state) {
            (Some(waits), _) => waits.to_string(),
            (None, "running") => String::new(),
            // On a GPU of which nothing is on the host, there is no figure.
            (None, "suspended") => on_host.unwrap_or_else(|| "suspended".into()),
            (None, state) => state.into(),
        };
        Self {
            group: Name::new(&process.root, &process.group),
            title: Escaped(&process.title).to_string(),
            who: Who {
                pid: process.pid,
                own_pid: process.own_pid,
                start_time: process.start_time,
            },
            user: Escaped(&accounts::user_name(process.uid)).to_string(),
            place: place::of_group(&process.group)
                .or_else(|| known.place(process))
                .unwrap_or_default(),
            gpu: id,
            label: figure(id.map(|id| label(groups::index(id, driver), id))),
            total: parts.map(|parts| parts.total),
            split: parts.and_then(|parts| parts.split),
            state,
            command: figure(process.command.as_deref().map(Escaped)),
        }
    }
}
