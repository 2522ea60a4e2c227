//! The figures of groups that `show`, `tree` and `get` print.

pub mod order;

use super::past;
use super::trend::Trend;
use super::waiting::Waiters;
pub use crate::groups::sizes::{bytes, size};
use crate::groups::sizes::{is_above, rule};
use crate::groups::{self, Selection, View, above::Above};
use crate::machine::nvml::Driver;
use crate::words::{notes::Notes, text::shown_path};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::{Size, gib};
use gpulimit_group::Kind;
use gpulimit_ledger::{Category, DeviceEntry, DeviceUsage, ProcessUsage};
use gpulimit_limits::{Key, LimitSet, Options, Selector, Values};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The limits and the usage of a group.
pub struct Figures {
    /// The group's full name.
    pub name: String,
    /// The group's name as it is printed, perhaps with the path of the group's root.
    pub title: String,
    /// The path of the root that the group is in.
    pub root: PathBuf,
    /// The group's own settings.
    pub rules: LimitSet,
    /// The live processes in the group. `None`, like all usage figures, if the ledger cannot be
    /// read.
    pub processes: Option<usize>,
    /// The smallest `max` for all GPUs among groups above, with that group's name; `None` if this
    /// group's is not larger.
    pub above_all: Option<(Size, String)>,
    /// The label of the table row for GPUs that are not in `gpus`; `None` if there is no such row.
    pub others: Option<&'static str>,
    /// GPUs that members have used or that have their own limit; all GPUs if another limit applies
    /// to the rest.
    pub gpus: Vec<Gpu>,
}

/// A group's limits and usage on one GPU; sizes in bytes.
pub struct Gpu {
    /// The GPU or MIG instance.
    pub id: DeviceId,
    /// The GPU's name as it is printed.
    pub label: String,
    /// NVML's index of the GPU.
    pub index: Option<u32>,
    /// The limits for this GPU. A limit for all GPUs applies if this GPU has none of its own.
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
    /// The bytes that the group can still get, after all limits and the memory kept by `min` for
    /// other groups.
    pub free: Option<u64>,
    /// The number of requests for memory of this GPU that were refused.
    pub refusals: Option<u64>,
    pub waits: Option<u64>,
    pub waited_ms: Option<u64>,
    /// The number of live processes in the group that have used this GPU.
    pub processes: Option<usize>,
    /// How the usage grows; `None` if it does not, or if this is unknown.
    pub trend: Option<Trend>,
    /// The number of live processes in the group that wait for memory of this GPU.
    pub waiting: Option<usize>,
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
        (Self::of_views(&views, &waiters, driver), notes)
    }

    /// Reads the figures of several groups.
    pub fn of_views(views: &[View], waiters: &Waiters, driver: Option<&Driver>) -> Vec<Self> {
        let figures = views.iter().map(|view| Self::of(view, waiters, driver));
        figures.collect()
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
        // GPUs that NVML does not list come last, in the order of the ledger.
        ids.sort_by_key(|id| groups::index(*id, driver).unwrap_or(u32::MAX));
        Self {
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
            gpus: ids
                .into_iter()
                .map(|id| Gpu::read(view, id, driver, trends))
                .collect(),
        }
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

    /// Returns the figures as JSON. Bytes and counts are integers; unknown figures are null.
    pub fn json(&self) -> Value {
        let rules = self.rules.rules.iter().map(|(selector, values)| {
            let mut rule = json!({ "gpu": selector.to_string() });
            for (key, size) in values.iter() {
                rule[key.name()] = size.to_string().into();
            }
            rule
        });
        json!({
            "name": self.name,
            "root": shown_path(&self.root),
            "kind": kind(&self.name),
            "limits": rules.collect::<Vec<_>>(),
            "options": options(&self.rules.options),
            "processes": self.processes,
            "gpus": self.gpus.iter().map(Gpu::json).collect::<Vec<_>>(),
        })
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

fn options(options: &Options) -> Value {
    use gpulimit_limits::OptionKey::{OnLimit, Oom};
    json!({
        "on_limit": options.get(OnLimit),
        "wait_timeout_ms": u64::try_from(options.wait_timeout.as_millis()).ok(),
        "pressure_timeout_ms": u64::try_from(options.pressure_timeout.as_millis()).ok(),
        "oom": options.get(Oom),
        "count_context": options.count_context,
        "suspended_max": match options.suspended_max {
            Some(u64::MAX) => Size::Max.to_string().into(),
            bytes => json!(bytes),
        },
    })
}

impl Gpu {
    /// Reads a group's figures for a GPU, except `waiting`. If the group has never used the GPU,
    /// its usage is 0.
    pub fn of(view: &View, id: DeviceId, driver: Option<&Driver>) -> Self {
        Self::read(view, id, driver, &mut read_trend)
    }

    /// Does the same as [`Self::of`], with trends from `trends`.
    pub fn read(
        view: &View,
        id: DeviceId,
        driver: Option<&Driver>,
        trends: &mut Trends<'_>,
    ) -> Self {
        let entry = view.devices.iter().find(|device| device.id == id);
        let capacity = entry
            .map(|entry| entry.capacity)
            .filter(|capacity| *capacity != 0)
            .or_else(|| groups::gpu(id, driver)?.capacity);
        let own = bytes(view.rules.for_device(id, Key::Max), capacity);
        let usage = view.ledger.as_ref().map(|ledger| {
            let seen = entry.map(|entry| ledger.usage_without(entry.index, &view.drained));
            seen.unwrap_or_default()
        });
        let uses = |process: &ProcessUsage| {
            let on = |device: &DeviceUsage| entry.is_some_and(|entry| entry.index == device.device);
            process.alive && process.devices.iter().any(on)
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
        // This group's free memory includes the memory that `min` keeps for groups below it.
        let own_left = own
            .zip(usage)
            .map(|(max, usage)| max.saturating_sub(usage.charged));
        let left = above.iter().filter_map(|(max, above)| {
            let taken = above.taken(view.group.name(), id, capacity.unwrap_or(0))?;
            Some(max.saturating_sub(taken))
        });
        let in_use = usage.map(|usage| usage.charged.saturating_sub(usage.idle));
        let uncovered = entry.and_then(|entry| view.uncovered(entry, driver));
        let free = left.chain(own_left).min();
        Self {
            id,
            index: groups::index(id, driver),
            label: groups::label(id, driver),
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
            trend: (|| trends(view, entry?, in_use?))(),
            waiting: None,
            by: usage.map(|usage| usage.by),
            suspended: usage.map(|usage| usage.suspended),
            uncovered,
        }
    }

    /// Returns the limit that applies to the group, in bytes.
    pub fn limit(&self) -> Option<u64> {
        self.effective.as_ref().map(|(max, _)| *max)
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

    fn json(&self) -> Value {
        let limit = self.effective.as_ref();
        json!({
            "uuid": self.id.to_string(),
            "index": self.index,
            "capacity": self.capacity,
            "max": self.max,
            "high": self.bytes(Key::High),
            "low": self.bytes(Key::Low),
            "min": self.bytes(Key::Min),
            "effective_max": limit.map(|(max, _)| max),
            "limited_by": limit.map(|(_, group)| group),
            "usage": self.usage,
            "suspended": self.suspended,
            "uncovered": self.uncovered,
            "peak": self.peak,
            "free": self.free,
            "refusals": self.refusals,
            "waits": self.waits,
            "waited_ms": self.waited_ms,
            "processes": self.processes,
            "trend": self.trend_json(),
            "waiting": self.waiting,
        })
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
