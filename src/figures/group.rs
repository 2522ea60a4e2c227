//! The figures of groups that `show` and `get` print.

use super::fields::{self, Cell, fields, left, path, right, some};
use super::past::{self, Recent};
use super::trend::Trend;
use super::waiting::{Waiter, Waiters};
pub use crate::groups::sizes::{bytes, of_max, size};
use crate::groups::sizes::{is_above, rule};
use crate::groups::{self, Selection, View, above::Above, of_process};
use crate::machine::nvml::Driver;
use crate::words::{notes::Notes, text::shown_path, written};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::{Size, gib};
use gpulimit_group::Kind;
use gpulimit_ledger::{Category, DeviceEntry, DeviceUsage, ProcessUsage};
use gpulimit_limits::{Key, LimitSet, OptionKey, Options, Selector, Values};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The limits and the usage of a group.
#[derive(Clone, Deserialize, Serialize)]
pub struct Figures {
    /// The machine, where several are shown; else empty.
    #[serde(skip)]
    pub machine: String,
    /// The group's full name.
    pub name: String,
    /// The group's name as it is printed, perhaps with the path of the group's root.
    pub title: String,
    /// The path of the root that the group is in.
    pub root: PathBuf,
    /// The group's own settings.
    #[serde(serialize_with = "written::serialize", deserialize_with = "limits")]
    pub rules: LimitSet,
    /// The live processes in the group. `None`, like all usage figures, if the ledger cannot be
    /// read.
    pub processes: Option<u64>,
    /// The smallest `max` for all GPUs among groups above, with that group's name; `None` if this
    /// group's is not larger.
    #[serde(skip)]
    pub above_all: Option<(Size, String)>,
    /// The label of the table row for GPUs that are not in `gpus`; `None` if there is no such row.
    #[serde(skip)]
    pub others: Option<Word>,
    /// GPUs that members have used or that have their own limit; all GPUs if another limit applies
    /// to the rest.
    pub gpus: Vec<Gpu>,
    /// The sum of the figures of several GPUs, if [`Figures::add_up`] was called.
    #[serde(skip)]
    pub sum: Option<Gpu>,
}

/// One of the words of this program.
pub type Word = &'static str;

/// A group's limits and usage on one GPU; sizes in bytes.
#[derive(Clone, Deserialize, Serialize)]
pub struct Gpu {
    /// The GPU or MIG instance.
    #[serde(with = "written")]
    pub id: DeviceId,
    /// The GPU's name as it is printed.
    #[serde(skip)]
    pub label: String,
    /// NVML's index of the GPU.
    pub index: Option<u32>,
    /// The limits for this GPU. A limit for all GPUs applies if this GPU has none of its own.
    #[serde(skip)]
    pub rule: Values,
    /// The GPU's memory in bytes; `None` if unknown.
    pub capacity: Option<u64>,
    /// The group's own `max` on this GPU; `None` without a limit, or for a percentage of a GPU of
    /// unknown size.
    pub max: Option<u64>,
    /// The `max` that applies, which is the smallest of the group and the groups above, and its
    /// group's name.
    pub effective: Option<(u64, String)>,
    /// The bytes in use.
    pub usage: Option<u64>,
    /// The highest charge of the group on this GPU so far, in bytes.
    pub peak: Option<u64>,
    /// The bytes that the group can still get, after all limits, the memory kept by `min` for other
    /// groups, and the GPU's size.
    pub free: Option<u64>,
    /// The number of requests for memory of this GPU that were refused.
    pub refusals: Option<u64>,
    pub waits: Option<u64>,
    pub waited_ms: Option<u64>,
    /// The number of live processes in the group that have used this GPU.
    pub processes: Option<u64>,
    /// How the usage grows; `None` if it does not, or if this is unknown.
    pub trend: Option<Trend>,
    /// The usage of the last ten minutes, if somebody has read it.
    pub recent: Recent,
    /// The requests that were refused in the last minute, if somebody has read the history.
    pub refused_lately: u64,
    /// The number of ended processes whose memory the driver has not freed yet.
    pub draining: Option<u64>,
    /// The number of live processes in the group that wait for memory of this GPU.
    pub waiting: Option<u64>,
    /// The request that has waited longest among these.
    pub longest_wait: Option<Waiter>,
    /// The charged bytes by category, as the members published them.
    pub by: Option<[u64; Category::COUNT]>,
    /// The bytes of suspended processes, which are on the host. No part of the usage.
    pub suspended: Option<u64>,
    /// The bytes that members hold on the GPU beyond their charges; `None` if NVML does not tell.
    pub uncovered: Option<u64>,
}

/// Returns how a group's usage of a GPU grows. The last argument is the present usage in bytes.
pub type Trends<'a> = dyn FnMut(&View, &DeviceEntry, u64) -> Option<Trend> + 'a;

/// Reads how a group's usage of a GPU grows from its history.
pub fn read_trend(view: &View, device: &DeviceEntry, usage: u64) -> Option<Trend> {
    past::trend(view.ledger.as_ref()?, device.index, usage)
}

impl Figures {
    /// Reads the figures of the selected groups. The notes name groups that cannot be opened.
    pub fn all(selection: &Selection, driver: Option<&Driver>) -> (Vec<Self>, Notes) {
        let (views, notes) = selection.views(driver);
        let waiters = Waiters::of(&views, driver);
        let figures = views.iter().map(|view| Self::of(view, &waiters, driver));
        (figures.collect(), notes)
    }

    /// Reads the figures of a group.
    pub fn of(view: &View, waiters: &Waiters, driver: Option<&Driver>) -> Self {
        let mut figures = Self::read(view, driver, &mut read_trend);
        figures.count_waiting(waiters);
        figures
    }

    /// Counts the processes that wait.
    pub fn count_waiting(&mut self, waiters: &Waiters) {
        // The caller may not know the processes of a group whose ledger it cannot read.
        if self.processes.is_some() {
            for gpu in &mut self.gpus {
                gpu.waiting = Some(waiters.count(&self.root, &self.name, gpu.id));
                gpu.longest_wait = waiters.longest(&self.root, &self.name, gpu.id).cloned();
            }
        }
    }

    /// Reads the figures of a group, except the number of processes that wait.
    pub fn read(view: &View, driver: Option<&Driver>, trends: &mut Trends<'_>) -> Self {
        let mut ids: Vec<DeviceId> = view.devices.iter().map(|device| device.id).collect();
        for (selector, _) in &view.rules.rules {
            // A user can write any GPU into the limits of their own groups.
            if let Selector::Device(id) = selector
                && !ids.contains(id)
                && (view.purse.is_free() || driver.is_none_or(|driver| driver.lists_gpu(*id)))
            {
                ids.push(*id);
            }
        }
        // If the group has limits for single GPUs and another for all other GPUs, list all GPUs.
        let has_others = has_rest(&view.rules);
        if let (true, Some(driver)) = (has_others, driver) {
            for (id, _) in driver.capacities() {
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        let mut gpu = |id| {
            let mut gpu = Gpu::of(view, id, driver);
            gpu.trend = (|| trends(view, view.device(id)?, gpu.usage?))();
            gpu
        };
        // GPUs that NVML does not list come last, in the order of the ledger.
        ids.sort_by_key(|id| groups::index(*id, driver).unwrap_or(u32::MAX));
        Self {
            machine: String::new(),
            name: view.group.name().into(),
            title: view.title.clone(),
            root: view.group.root().into(),
            rules: view.rules.clone(),
            processes: view.count(|process| process.alive),
            above_all: above_all(view),
            others: match (ids.is_empty(), has_others && driver.is_none()) {
                (true, _) => Some("all"),
                (_, true) => Some("others"),
                _ => None,
            },
            gpus: ids.into_iter().map(&mut gpu).collect(),
            sum: None,
        }
    }

    /// Adds up the figures of the GPUs, if there are several. A sum with an unknown part is
    /// unknown. The trend and the wait are those of one GPU.
    pub fn add_up(&mut self) {
        let [first, _, ..] = &self.gpus[..] else {
            return;
        };
        let gpus = &self.gpus;
        let sum = |figure: fn(&Gpu) -> Option<u64>| {
            let parts = gpus.iter().map(figure);
            parts.reduce(|sum, part| Some(sum?.saturating_add(part?)))?
        };
        let parts = gpus.iter().map(|gpu| gpu.recent.len()).max().unwrap_or(0);
        let at = |part| gpus.iter().filter_map(move |gpu| *gpu.recent.get(part)?);
        let by = (first.effective.clone()).map_or_else(String::new, |(_, group)| group);
        self.sum = Some(Gpu {
            id: first.id,
            label: String::new(),
            index: None,
            rule: Values::default(),
            capacity: sum(|gpu| gpu.capacity),
            max: sum(|gpu| gpu.max),
            effective: sum(Gpu::limit).map(|max| (max, by)),
            usage: sum(|gpu| gpu.usage),
            peak: sum(|gpu| gpu.peak),
            free: sum(|gpu| gpu.free),
            refusals: sum(|gpu| gpu.refusals),
            waits: sum(|gpu| gpu.waits),
            waited_ms: sum(|gpu| gpu.waited_ms),
            processes: self.processes,
            trend: gpus.iter().find_map(|gpu| gpu.trend),
            recent: (0..parts)
                .map(|part| at(part).reduce(u64::saturating_add))
                .collect(),
            refused_lately: sum(|gpu| Some(gpu.refused_lately)).unwrap_or(0),
            draining: sum(|gpu| gpu.draining),
            waiting: sum(|gpu| gpu.waiting),
            longest_wait: (gpus.iter().filter_map(|gpu| gpu.longest_wait.clone()))
                .max_by_key(Waiter::waited),
            by: None,
            suspended: sum(|gpu| gpu.suspended),
            uncovered: sum(|gpu| gpu.uncovered),
        });
    }

    /// Adds up the known figures of the GPUs; `None` if none is known.
    pub fn sum_of_known(&self, figure: fn(&Gpu) -> Option<u64>) -> Option<u64> {
        let known = self.gpus.iter().filter_map(figure);
        known.reduce(u64::saturating_add)
    }

    /// Returns whether nobody is in the group and nothing of it is on a GPU or on the host.
    pub fn is_idle(&self) -> bool {
        let holds = |gpu: &Gpu| gpu.usage > Some(0) || gpu.suspended > Some(0);
        self.processes == Some(0) && !self.gpus.iter().any(holds)
    }

    /// Drops the figures of all GPUs but these. Returns whether a row of the group is left.
    pub fn keep_only(&mut self, devices: &[Selector]) -> bool {
        if devices.contains(&Selector::All) {
            return true;
        }
        let of = |gpu: &Gpu| Selector::Device(gpu.id);
        let listed: Vec<Selector> = self.gpus.iter().map(of).collect();
        let are_listed = devices.iter().all(|device| listed.contains(device));
        self.gpus.retain(|gpu| devices.contains(&of(gpu)));
        // The row for the other GPUs stays if it is about one of these.
        self.others = self.others.filter(|_| !are_listed);
        if self.gpus.is_empty() && self.others.is_none() && self.limits_all() {
            self.others = Some("others");
        }
        !self.gpus.is_empty() || self.others.is_some()
    }

    /// Returns whether a limit of the group, or of a group above, applies to all other GPUs.
    pub fn limits_all(&self) -> bool {
        let mut rules = self.rules.rules.iter();
        rules.any(|(selector, _)| *selector == Selector::All) || self.above_all.is_some()
    }

    /// Returns the `max` in bytes that applies to the group on a GPU of `capacity` bytes, also if
    /// the group has not used that GPU; `None` without a limit.
    pub fn limit_on(&self, id: DeviceId, capacity: Option<u64>) -> Option<u64> {
        if let Some(gpu) = self.gpus.iter().find(|gpu| gpu.id == id) {
            return gpu.limit();
        }
        let own = bytes(self.rules.for_device(id, Key::Max), capacity);
        let above = self.above_all.as_ref().map(|(size, _)| *size);
        own.into_iter().chain(bytes(above, capacity)).min()
    }

    pub fn json(&self) -> Value {
        fields::json(FIELDS, self, None)
    }

    fn gpu_json(&self, gpu: &Gpu) -> Value {
        fields::json(Row::FIELDS, &Row::new(self, Some(gpu)), None)
    }

    /// Returns the rows of the group in tables.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let others = self.others.map(|_| None);
        let gpus = self.gpus.iter().map(Some).chain(others);
        gpus.map(|gpu| Row::new(self, gpu))
    }

    /// Returns a limit that is set for all GPUs.
    pub fn of_all(&self, key: Key) -> Size {
        self.rules.get(Selector::All, key).unwrap_or(key.default())
    }

    /// Returns the options that differ from the defaults, as text: `on_limit=wait oom=kill-group`.
    pub fn options_text(&self) -> String {
        let normal = Options::default();
        let said: Vec<String> = self
            .rules
            .options
            .iter()
            .filter(|(key, value)| normal.get(*key) != *value)
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        said.join(" ")
    }
}

/// Returns the kind of a group for JSON. Users remove `named` groups; gpulimit removes `job` groups
/// of ended jobs.
pub fn kind(name: &str) -> &'static str {
    match Kind::of(name) {
        Kind::Named => "named",
        Kind::Job => "job",
    }
}

fields! { pub FIELDS(it: Figures):
    /// The machine, where several are shown.
    "machine": Machine     => some(&it.machine);
    /// The full name of the group.
    "name": Text           => &*it.name;
    /// The group root.
    "root": Text           => shown_path(&it.root);
    /// `named`, which users remove, or `job`, which gpulimit removes with the job.
    "kind": Text           => kind(&it.name);
    /// The limits as they were set.
    "limits": Many("rule") => it.rules.rules.iter().map(rule_json).collect::<Vec<_>>();
    "options": One("options") => fields::json(OPTIONS, &it.rules.options, None);
    /// The live processes.
    "processes": Count     => it.processes;
    /// The GPUs that processes have used or that have a limit of their own.
    "gpus": Many("group_gpu") => it.gpus.iter().map(|gpu| it.gpu_json(gpu)).collect::<Vec<_>>();
}

fields! { pub OPTIONS(it: Options):
    /// `fail` or `wait`.
    "on_limit": Text         => it.get(OptionKey::OnLimit);
    /// How long a request waits for room.
    "wait_timeout_ms": Ms    => u64::try_from(it.wait_timeout.as_millis()).ok();
    /// How long a request waits for members that give back memory.
    "pressure_timeout_ms": Ms => u64::try_from(it.pressure_timeout.as_millis()).ok();
    /// Which processes are killed to make room: `none`, `kill-largest` or `kill-group`.
    "oom": Text              => it.get(OptionKey::Oom);
    /// Whether the driver's memory for contexts counts.
    "count_context": Flag    => it.count_context;
    /// The most bytes of suspended processes, or `max`; null for the default.
    "suspended_max": Setting   => match it.suspended_max {
        Some(u64::MAX) => Size::Max.to_string().into(),
        bytes => json!(bytes),
    };
}

/// Reads limits as they were written.
fn limits<'de, D: Deserializer<'de>>(from: D) -> Result<LimitSet, D::Error> {
    let text = String::deserialize(from)?;
    LimitSet::parse(&text).ok_or_else(|| D::Error::custom(text))
}

fn rule_json((selector, values): &(Selector, Values)) -> Value {
    let mut rule = json!({ "gpu": selector.to_string() });
    for (key, size) in values.iter() {
        rule[key.name()] = size.to_string().into();
    }
    rule
}

impl Gpu {
    /// Reads a group's figures for a GPU, except the trend and what waits. If the group has never
    /// used the GPU, its usage is 0.
    pub fn of(view: &View, id: DeviceId, driver: Option<&Driver>) -> Self {
        let entry = view.device(id);
        let capacity = view.capacity(id, driver);
        let own = bytes(view.rules.for_device(id, Key::Max), capacity);
        let usage = view.ledger.as_ref().map(|ledger| {
            let seen = entry.map(|entry| ledger.usage_without(entry.index, &view.drained));
            seen.unwrap_or_default()
        });
        let uses = |process: &ProcessUsage| {
            let on = |device: &DeviceUsage| entry.is_some_and(|entry| entry.index == device.device);
            process.alive && process.devices.iter().any(on)
        };
        let drains = |process: &ProcessUsage| {
            let usage = entry.map(|entry| process.on(entry.index).in_use());
            !process.alive && usage.is_some_and(|bytes| bytes > 0)
        };
        let above: Vec<(u64, &Above)> = (view.above.iter())
            .filter_map(|above| {
                let max = bytes(above.rules.for_device(id, Key::Max), capacity)?;
                Some((max, &**above))
            })
            .collect();
        // List the limits from the group upwards, so that among equal limits the limit of the
        // closest group is reported.
        let limits = own.map(|max| (max, view.group.name())).into_iter();
        let limits = limits.chain(above.iter().map(|(max, above)| (*max, above.group.name())));
        // A limit may be above what the GPU has.
        let left_of = |max: u64, taken| max.min(capacity.unwrap_or(max)).saturating_sub(taken);
        // This group's free memory includes the memory that `min` keeps for groups below it.
        let own_left = own
            .zip(usage)
            .map(|(max, usage)| left_of(max, usage.charged));
        // Also what is kept for jobs below this group.
        let inner = (view.processes.iter()).map(|process| of_process(&view.group, process));
        let inner: Vec<String> = if above.is_empty() {
            Vec::new()
        } else {
            inner.collect()
        };
        let left = above.iter().filter_map(|(max, above)| {
            let taken = above.taken(view.group.name(), &inner, id, capacity.unwrap_or(0))?;
            Some(left_of(*max, taken))
        });
        let in_use = usage.map(|usage| usage.in_use());
        let uncovered = entry.and_then(|entry| view.uncovered(entry, driver));
        let free = left.chain(own_left).min().filter(|_| usage.is_some());
        Self {
            id,
            index: groups::index(id, driver),
            label: groups::short_label(groups::index(id, driver), id),
            rule: rule(&view.rules, id),
            capacity,
            max: own,
            effective: limits
                .min_by_key(|(max, _)| *max)
                .map(|(max, group)| (max, group.to_owned())),
            usage: in_use,
            peak: usage.map(|usage| usage.peak),
            free: free.map(|free| free.saturating_sub(uncovered.unwrap_or(0))),
            refusals: usage.map(|usage| usage.refusals),
            waits: usage.map(|usage| usage.waits),
            waited_ms: usage.map(|usage| usage.waited_ms),
            processes: view.count(uses),
            draining: view.count(drains),
            recent: Recent::new(),
            refused_lately: 0,
            trend: None,
            waiting: None,
            longest_wait: None,
            by: usage.map(|usage| usage.by),
            suspended: usage.map(|usage| usage.suspended),
            uncovered,
        }
    }

    /// Returns the limit that applies to the group, in bytes.
    pub fn limit(&self) -> Option<u64> {
        self.effective.as_ref().map(|(max, _)| *max)
    }

    /// Returns the used part of the limit in percent.
    pub fn percent(&self) -> Option<u64> {
        percent(self.usage?, self.limit()?)
    }

    fn limited_by(&self) -> Option<&str> {
        self.effective.as_ref().map(|(_, group)| &**group)
    }

    /// Returns the managed memory in bytes, which NVML does not show; 0 if unknown.
    pub fn managed(&self) -> u64 {
        self.by.map_or(0, |by| by[Category::Managed as usize])
    }

    /// Returns a limit in bytes. Returns `None` if the limit is not set, or if it is a percentage
    /// and the GPU's memory is unknown.
    pub fn bytes(&self, key: Key) -> Option<u64> {
        bytes(self.rule.get(key), self.capacity)
    }

    /// Formats a limit for a table.
    pub fn text(&self, key: Key) -> Option<String> {
        let said = self.rule.get(key)?;
        Some(match self.bytes(key) {
            Some(bytes) => gib(bytes).to_string(),
            None => said.to_string(),
        })
    }

    /// Leaves out which process makes the usage grow.
    pub fn forget_process(&mut self) {
        if let Some(trend) = &mut self.trend {
            trend.process = None;
        }
    }

    /// Returns the trend as JSON; null if there is none.
    pub fn trend_json(&self) -> Value {
        let trend = self.trend.zip(self.usage);
        trend.map_or(Value::Null, |(trend, usage)| {
            trend.json(usage, self.limit())
        })
    }

    /// Returns the trend as a sentence for people.
    pub fn trend_text(&self) -> Option<String> {
        Some(self.trend?.text(self.usage?, self.limit()))
    }
}

/// A group on one GPU, or on all GPUs that have no row of their own.
pub struct Row<'a> {
    pub group: &'a Figures,
    pub gpu: Option<&'a Gpu>,
    /// Whether the figures are the sum of those of several GPUs.
    pub is_sum: bool,
}

impl<'a> Row<'a> {
    /// Returns the row of a group on one GPU; with `None`, on all GPUs without a row of their own.
    pub fn new(group: &'a Figures, gpu: Option<&'a Gpu>) -> Self {
        let is_sum = false;
        Self { group, gpu, is_sum }
    }

    fields! { pub FIELDS<'a>(it: Row<'a>):
        /// The machine, where several are shown.
        "machine": Machine, path("MACHINE").sparse().top(1) => some(&it.group.machine);
        "": Text, path("GROUP") => &*it.group.title;
        "": Text, left("GPU") => it.label();
        /// The UUID of the GPU.
        "uuid": Text => it.gpu.map(|gpu| gpu.id.to_string());
        /// NVML's index of the GPU.
        "index": Count => it.of(|gpu| gpu.index);
        /// The memory of the GPU.
        "capacity": Bytes => it.of(|gpu| gpu.capacity);
        /// The group's own limit; unknown without one.
        "max": Bytes, right("MAX").top(2) => it.own_max();
        "": Text, left("EFFECTIVE").narrow(8).sparse().top(25) => it.effective();
        /// The usage above which members are asked to give back memory.
        "high": Bytes, right("HIGH").narrow(4).sparse().top(24) => it.limit(Key::High);
        /// The usage up to which members are not asked to give back memory for other groups.
        "low": Bytes, right("LOW").narrow(3).sparse() => it.limit(Key::Low);
        /// The memory that is kept for the group.
        "min": Bytes, right("MIN").narrow(2).sparse() => it.limit(Key::Min);
        /// What the group's requests leave free on the GPU.
        "keep_free": Bytes, right("KEEP FREE").narrow(1).sparse() => it.limit(Key::KeepFree);
        /// The smallest limit of the group and of the groups above.
        "effective_max": Bytes => it.of(Gpu::limit);
        /// The group that has the effective limit.
        "limited_by": Text => it.of(Gpu::limited_by);
        /// The memory that the group and the groups below it use, with managed memory.
        "usage": Bytes, right("USAGE").top(1) => it.of(|gpu| gpu.usage);
        /// The memory of suspended processes, which is on the host; no part of the usage.
        "suspended": Bytes, right("SUSPENDED").sparse() => it.of(|gpu| gpu.suspended);
        /// The memory that processes hold by NVML beyond their charges; unknown if NVML does not
        /// tell.
        "uncovered": Bytes => it.of(|gpu| gpu.uncovered);
        /// The highest charge so far.
        "peak": Bytes, right("PEAK").narrow(6).top(6) => it.of(|gpu| gpu.peak);
        /// What the group can still get.
        "free": Bytes, right("FREE").top(20) => it.of(|gpu| gpu.free);
        /// The refused requests so far.
        "refusals": Count, right("REFUSED").narrow(7).top(21) => it.of(|gpu| gpu.refusals);
        /// The requests that have waited so far.
        "waits": Count => it.of(|gpu| gpu.waits);
        /// How long these requests have waited.
        "waited_ms": Ms => it.of(|gpu| gpu.waited_ms);
        /// The live processes that have used the GPU.
        "processes": Count, right("PROCESSES").narrow(5).top(22).short("PROC") => it.processes();
        /// The ended processes whose memory the driver has not freed yet.
        "draining": Count, right("DRAINING").sparse() => it.of(|gpu| gpu.draining);
        /// How the usage grows; null if it does not.
        "trend": One("trend") => it.gpu.map(Gpu::trend_json);
        /// The processes that wait for memory now.
        "waiting": Count, right("WAITING").sparse() => it.of(|gpu| gpu.waiting);
        "": Text, left("OPTIONS").narrow(1).sparse() => it.options();
    }

    fn of<T>(&self, figure: impl Fn(&'a Gpu) -> Option<T>) -> Option<T> {
        figure(self.gpu?)
    }

    /// Returns the name of the GPU, or `all` or `others`.
    pub fn label(&self) -> &'a str {
        self.gpu.map_or_else(|| self.others(), |gpu| &gpu.label)
    }

    /// Returns what the row stands for that is of no GPU.
    fn others(&self) -> &'static str {
        let limited = if self.group.limits_all() {
            "others"
        } else {
            ""
        };
        self.group.others.unwrap_or(limited)
    }

    /// Formats the group's own `max`.
    pub fn max(&self) -> String {
        match self.gpu {
            Some(gpu) => gpu.text(Key::Max).unwrap_or_else(|| size(Size::Max)),
            None => size(self.group.of_all(Key::Max)),
        }
    }

    fn own_max(&self) -> Cell {
        let of_all = || bytes(Some(self.group.of_all(Key::Max)), None);
        Cell::said(self.gpu.map_or_else(of_all, |gpu| gpu.max), self.max())
    }

    /// Formats the smallest `max` of the groups above this group; `None` if the group's own `max`
    /// is not larger.
    pub fn effective(&self) -> Option<String> {
        let (max, by) = match self.gpu {
            Some(gpu) => {
                let (max, by) = gpu.effective.as_ref()?;
                (gib(*max).to_string(), by)
            }
            None => {
                let (max, by) = self.group.above_all.as_ref()?;
                (size(*max), by)
            }
        };
        (*by != self.group.name).then(|| format!("{max} ({by})"))
    }

    fn limit(&self, key: Key) -> Cell {
        let text = match self.gpu {
            Some(gpu) => gpu.text(key),
            None => Some(self.group.of_all(key))
                .filter(|size| *size != key.default())
                .map(size),
        };
        Cell::Said(self.of(|gpu| gpu.bytes(key)).into(), text)
    }

    fn options(&self) -> Option<String> {
        Some(self.group.options_text()).filter(|text| !text.is_empty())
    }

    fn processes(&self) -> Cell {
        let count = match self.gpu {
            Some(gpu) => gpu.processes,
            None => self.group.processes.filter(|_| self.label() == "all"),
        };
        count.into()
    }
}

/// Returns a part in percent of a whole, rounded to the nearest; `None` if the whole is 0.
pub fn percent(part: u64, whole: u64) -> Option<u64> {
    let (part, whole) = (u128::from(part) * 100, u128::from(whole));
    (whole > 0).then(|| u64::try_from((part + whole / 2) / whole).unwrap_or(u64::MAX))
}

/// Returns whether the group has limits for single GPUs and also limits for all other GPUs.
fn has_rest(rules: &LimitSet) -> bool {
    let has = |all: bool| {
        let mut selectors = rules.rules.iter().map(|(selector, _)| *selector);
        selectors.any(|selector| (selector == Selector::All) == all)
    };
    has(true) && has(false)
}

fn above_all(view: &View) -> Option<(Size, String)> {
    let own = view.rules.get(Selector::All, Key::Max);
    let mut smallest = (own.unwrap_or(Key::Max.default()), None);
    for above in &view.above {
        if let Some(size) = above.rules.get(Selector::All, Key::Max)
            && is_above(smallest.0, size, None)
        {
            smallest = (size, Some(above.group.name().to_owned()));
        }
    }
    let (size, name) = smallest;
    Some((size, name?))
}
