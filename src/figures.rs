//! The figures of groups that `show`, `tree` and `get` print.

use super::changes::is_above;
use super::groups::{self, Selection, View};
use super::history;
use super::nvml::Driver;
use super::trend::Trend;
use super::waiting::Waiters;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::{Size, gib};
use gpulimit_group::{Group, Kind};
use gpulimit_ledger::{DeviceUsage, Ledger, ProcessUsage};
use gpulimit_limits::{Key, LimitSet, Options, Selector, Values};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// The version of the schema of all JSON output of gpulimit.
pub const SCHEMA: u32 = 1;

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
    index: Option<u32>,
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
}

impl Figures {
    /// Reads the figures of the selected groups. Reports groups that cannot be opened; the exit
    /// status is then a failure.
    pub fn all(selection: &Selection) -> (Vec<Self>, ExitCode) {
        let driver = Driver::load().ok();
        let (views, status) = selection.views(driver.as_ref());
        let waiters = Waiters::of(&views, driver.as_ref());
        let figures = views
            .iter()
            .map(|view| Self::of(view, &waiters, driver.as_ref()));
        (figures.collect(), status)
    }

    /// Reads the figures of a group.
    pub fn of(view: &View, waiters: &Waiters, driver: Option<&Driver>) -> Self {
        let mut ids: Vec<DeviceId> = view.devices.iter().map(|device| device.id).collect();
        for (selector, _) in &view.rules.rules {
            if let Selector::Device(id) = selector
                && !ids.contains(id)
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
            ids.sort_by_key(|id| groups::index(*id, Some(driver)));
        }
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
                .map(|id| Gpu {
                    waiting: view
                        .ledger
                        .is_some()
                        .then(|| waiters.count(&view.group, id)),
                    ..Gpu::of(view, id, driver)
                })
                .collect(),
        }
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
            "root": self.root.to_string_lossy(),
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
        "oom": options.get(Oom),
        "count_context": options.count_context,
    })
}

impl Gpu {
    /// Reads a group's figures for a GPU, except `waiting`. If the group has never used the GPU,
    /// its usage is 0.
    pub fn of(view: &View, id: DeviceId, driver: Option<&Driver>) -> Self {
        let entry = view.devices.iter().find(|device| device.id == id);
        let capacity = entry
            .map(|entry| entry.capacity)
            .filter(|capacity| *capacity != 0)
            .or_else(|| groups::gpu(id, driver)?.capacity);
        let own = bytes(view.rules.for_device(id, Key::Max), capacity);
        let usage = view.ledger.as_ref().map(|ledger| {
            let seen = entry.map(|entry| ledger.usage(entry.index));
            seen.unwrap_or_default()
        });
        let uses = |process: &ProcessUsage| {
            let on = |device: &DeviceUsage| entry.is_some_and(|entry| entry.index == device.device);
            process.alive && process.devices.iter().any(on)
        };
        let above = view.above.iter().map(|above| {
            let max = bytes(above.rules.for_device(id, Key::Max), capacity);
            (max, &above.group, above.ledger.as_ref())
        });
        // List the levels from the group upwards, so that among equal limits the limit of the
        // closest group is reported.
        let levels: Vec<(u64, &Group, Option<&Ledger>)> =
            std::iter::once((own, &view.group, view.ledger.as_ref()))
                .chain(above)
                .filter_map(|(max, group, ledger)| Some((max?, group, ledger)))
                .collect();
        let charged = |ledger: &Ledger| match ledger.find_device(&id) {
            Some(device) => ledger.charged(device),
            None => 0,
        };
        // This group's free memory includes the memory that `min` keeps for groups below it.
        let kept = |group: &Group, ledger: &Ledger| match group.name() == view.group.name() {
            true => 0,
            false => group.kept_from(view.group.name(), ledger, &id, capacity.unwrap_or(0)),
        };
        let left = levels.iter().filter_map(|(max, group, ledger)| {
            let ledger = (*ledger)?;
            Some(max.saturating_sub(charged(ledger).saturating_add(kept(group, ledger))))
        });
        let in_use = usage.map(|usage| usage.charged.saturating_sub(usage.idle));
        let trend = || history::trend(view.ledger.as_ref()?, entry?.index, in_use?);
        Self {
            id,
            index: groups::index(id, driver),
            label: groups::label(id, driver),
            rule: rule(&view.rules, id),
            capacity,
            max: own,
            effective: levels
                .iter()
                .min_by_key(|(max, ..)| *max)
                .map(|(max, group, _)| (*max, group.name().to_owned())),
            usage: in_use,
            peak: usage.map(|usage| usage.peak),
            free: left.min(),
            refusals: usage.map(|usage| usage.refusals),
            waits: usage.map(|usage| usage.waits),
            waited_ms: usage.map(|usage| usage.waited_ms),
            processes: view.count(uses),
            trend: trend(),
            waiting: None,
        }
    }

    /// Returns the limit that applies to the group, in bytes.
    pub fn limit(&self) -> Option<u64> {
        self.effective.as_ref().map(|(max, _)| *max)
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

    /// Returns the GPU's names as JSON.
    pub fn name_json(&self) -> Value {
        json!({ "uuid": self.id.to_string(), "index": self.index })
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

/// Returns the limits in `rules` that apply to a GPU.
fn rule(rules: &LimitSet, id: DeviceId) -> Values {
    let mut values = Values::default();
    for key in Key::ALL {
        values.set(key, rules.for_device(id, key));
    }
    values
}

/// Returns a size in bytes; `None` for "no limit", and for a percentage of unknown `capacity` (the
/// GPU's memory).
pub fn bytes(size: Option<Size>, capacity: Option<u64>) -> Option<u64> {
    match (size?, capacity) {
        (Size::Max, _) | (Size::Percent(_), None) => None,
        (size, capacity) => Some(size.resolve(capacity.unwrap_or(0))),
    }
}

/// Formats a size for a table.
pub fn size(size: Size) -> String {
    match size {
        Size::Bytes(bytes) => gib(bytes).to_string(),
        Size::Percent(_) | Size::Max => size.to_string(),
    }
}
