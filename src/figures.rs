//! A group in figures, as `show`, `tree` and `get` print them.

use super::changes::is_above;
use super::groups::{self, Selection, View};
use super::nvml::Driver;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::{Size, gib};
use gpulimit_group::Kind;
use gpulimit_ledger::{DeviceUsage, Ledger, ProcessUsage};
use gpulimit_limits::{Key, LimitSet, Options, Selector, Values};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// The schema of all JSON.
pub const SCHEMA: u32 = 1;

/// A group.
pub struct Figures {
    /// Its name.
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// Where it is.
    pub root: PathBuf,
    /// What is said of it.
    pub rules: LimitSet,
    /// `None` where the ledger is not ours to read; so for all figures of the GPUs.
    pub processes: Option<usize>,
    /// A limit of a group above for all GPUs that is smaller than the own one, and whose it is.
    pub above_all: Option<(Size, String)>,
    /// What to call the GPUs that are not among `gpus`, where there is something to say of them.
    pub others: Option<&'static str>,
    /// The GPUs that its members have used, and those with a limit of their own; with them, all
    /// others that NVML lists.
    pub gpus: Vec<Gpu>,
}

/// A GPU of a group; bytes.
pub struct Gpu {
    /// Which one.
    pub id: DeviceId,
    /// For people.
    pub label: String,
    index: Option<u32>,
    /// What counts for it: its own rule, then the one for all.
    pub rule: Values,
    /// `None` unknown.
    pub capacity: Option<u64>,
    /// `None` where there is no limit, or one whose bytes are not known.
    pub max: Option<u64>,
    /// The smallest `max` of the group and those above it, and whose it is.
    pub effective: Option<(u64, String)>,
    /// In use.
    pub usage: Option<u64>,
    /// The most that was in use.
    pub peak: Option<u64>,
    /// What the group could still get.
    pub free: Option<u64>,
    /// Requests.
    pub refusals: Option<u64>,
    pub waits: Option<u64>,
    pub waited_ms: Option<u64>,
    /// Living ones that have used it.
    pub processes: Option<usize>,
}

impl Figures {
    /// Of all groups that can be opened; what cannot is said, and the status is a failure.
    pub fn all(selection: &Selection) -> (Vec<Self>, ExitCode) {
        let driver = Driver::load().ok();
        let (views, status) = selection.views(driver.as_ref());
        let figures = views.iter().map(|view| Self::of(view, driver.as_ref()));
        (figures.collect(), status)
    }

    /// Reads them.
    pub fn of(view: &View, driver: Option<&Driver>) -> Self {
        let mut ids: Vec<DeviceId> = view.devices.iter().map(|device| device.id).collect();
        for (selector, _) in &view.rules.rules {
            if let Selector::Device(id) = selector
                && !ids.contains(id)
            {
                ids.push(*id);
            }
        }
        // A GPU for which the rule for all others counts is not left out beside them.
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
                .map(|id| Gpu::of(view, id, driver))
                .collect(),
        }
    }

    /// With names that stay: bytes and counts are integers, what is not known is null.
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

    /// What is said of all GPUs, for a group that has seen none.
    pub fn of_all(&self, key: Key) -> Size {
        self.rules.get(Selector::All, key).unwrap_or(key.default())
    }

    /// The options that are not as they are in a group of which nothing was said:
    /// `on_limit=wait oom=kill-group`.
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

/// How long a group stays, as written in JSON.
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
    /// Reads them; for a GPU that the group has not seen, too.
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
            (max, &*above.name, above.ledger.as_ref())
        });
        // From below, so that of equal limits the one next to the group is named.
        let levels: Vec<(u64, &str, Option<&Ledger>)> =
            std::iter::once((own, view.group.name(), view.ledger.as_ref()))
                .chain(above)
                .filter_map(|(max, name, ledger)| Some((max?, name, ledger)))
                .collect();
        let charged = |ledger: &Ledger| match ledger.find_device(&id) {
            Some(device) => ledger.charged(device),
            None => 0,
        };
        let left = levels
            .iter()
            .filter_map(|(max, _, ledger)| Some(max.saturating_sub(charged((*ledger)?))));
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
                .map(|(max, name, _)| (*max, (*name).to_owned())),
            usage: usage.map(|usage| usage.charged.saturating_sub(usage.idle)),
            peak: usage.map(|usage| usage.peak),
            free: left.min(),
            refusals: usage.map(|usage| usage.refusals),
            waits: usage.map(|usage| usage.waits),
            waited_ms: usage.map(|usage| usage.waited_ms),
            processes: view.count(uses),
        }
    }

    /// The bytes of a key; `None` where nothing is said, or a part of an unknown whole.
    pub fn bytes(&self, key: Key) -> Option<u64> {
        bytes(self.rule.get(key), self.capacity)
    }

    /// A key in the words of a table.
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
            "peak": self.peak,
            "free": self.free,
            "refusals": self.refusals,
            "waits": self.waits,
            "waited_ms": self.waited_ms,
            "processes": self.processes,
        })
    }
}

/// Whether there are rules for single GPUs and one for all others.
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
            smallest = (size, Some(above.name.clone()));
        }
    }
    let (size, name) = smallest;
    Some((size, name?))
}

/// What counts for a GPU.
fn rule(rules: &LimitSet, id: DeviceId) -> Values {
    let mut values = Values::default();
    for key in Key::ALL {
        values.set(key, rules.for_device(id, key));
    }
    values
}

/// The bytes that a size is; `None` for no limit, and for a part of an unknown whole.
pub fn bytes(size: Option<Size>, capacity: Option<u64>) -> Option<u64> {
    match (size?, capacity) {
        (Size::Max, _) | (Size::Percent(_), None) => None,
        (size, capacity) => Some(size.resolve(capacity.unwrap_or(0))),
    }
}

/// A size in the words of a table.
pub fn size(size: Size) -> String {
    match size {
        Size::Bytes(bytes) => gib(bytes).to_string(),
        Size::Percent(_) | Size::Max => size.to_string(),
    }
}
