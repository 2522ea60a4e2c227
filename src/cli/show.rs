//! `gpulimit show`: what each group may use, and what it uses.

use super::failure::Failure;
use super::groups::{self, View};
use super::nvml::Driver;
use super::output;
use super::table::{Column, Table};
use gpulimit::device::DeviceId;
use gpulimit::group::Kind;
use gpulimit::ledger::{DeviceUsage, ProcessUsage};
use gpulimit::limits::{Key, Selector, Values};
use gpulimit::units::{Size, gib};
use serde_json::{Value, json};
use std::fmt::Display;
use std::process::ExitCode;

/// Options of `show`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show this group only
    group: Option<String>,

    /// Print JSON: sizes are bytes, unknown figures null
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
USAGE is what the group's processes use, managed memory included; FREE is what they could still
get; PEAK is the most that was charged at once; REFUSED counts refused requests. What is not known
is shown as -.

Examples:
  gpulimit show
  gpulimit show lab --json | jq '.groups[].gpus[].usage'";

/// The schema of the JSON.
pub const SCHEMA: u32 = 1;

/// Shows the groups.
pub fn show(args: &Args) -> Result<ExitCode, Failure> {
    let root = super::root()?;
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let (views, status) = groups::views(&root, args.group.as_deref(), driver)?;
    let shown: Vec<Shown> = views.iter().map(|view| Shown::of(view, driver)).collect();
    if args.json {
        let groups: Vec<Value> = shown.iter().map(Shown::json).collect();
        output::json(&json!({
            "schema": SCHEMA,
            "root": root.path().to_string_lossy(),
            "groups": groups,
        }))?;
    } else if !shown.is_empty() {
        output::print(&table(&shown).render())?;
    } else if status == ExitCode::SUCCESS {
        output::note(&format!(
            "no groups in {}: `gpulimit run --max 4G -- COMMAND` makes one",
            root.path().display()
        ));
    }
    Ok(status)
}

/// A group in figures.
struct Shown {
    name: String,
    kind: Kind,
    rules: Vec<(Selector, Values)>,
    /// `None` where the ledger is not ours to read; so for all figures of the GPUs.
    processes: Option<usize>,
    gpus: Vec<Gpu>,
}

/// A GPU of a group in figures; bytes.
struct Gpu {
    id: DeviceId,
    index: Option<u32>,
    label: String,
    capacity: Option<u64>,
    rule: Option<Size>,
    /// `None` where there is no limit, or one whose bytes are not known.
    max: Option<u64>,
    usage: Option<u64>,
    peak: Option<u64>,
    free: Option<u64>,
    refusals: Option<u64>,
    processes: Option<usize>,
}

impl Shown {
    fn of(view: &View, driver: Option<&Driver>) -> Self {
        let mut ids: Vec<DeviceId> = view.devices.iter().map(|device| device.id).collect();
        for (selector, _) in &view.rules.rules {
            if let Selector::Device(id) = selector
                && !ids.contains(id)
            {
                ids.push(*id);
            }
        }
        Self {
            name: view.group.name().into(),
            kind: view.group.kind(),
            rules: view.rules.rules.clone(),
            processes: view.count(|process| process.alive),
            gpus: ids
                .into_iter()
                .map(|id| Gpu::of(view, id, driver))
                .collect(),
        }
    }

    fn json(&self) -> Value {
        let rules = self.rules.iter().map(|(selector, values)| {
            let mut rule = json!({ "gpu": selector.to_string() });
            for (key, size) in values.iter() {
                rule[key.name()] = size.to_string().into();
            }
            rule
        });
        let gpus = self.gpus.iter().map(|gpu| {
            json!({
                "uuid": gpu.id.to_string(),
                "index": gpu.index,
                "capacity": gpu.capacity,
                "max": gpu.max,
                "usage": gpu.usage,
                "peak": gpu.peak,
                "free": gpu.free,
                "refusals": gpu.refusals,
                "processes": gpu.processes,
            })
        });
        json!({
            "name": self.name,
            "kind": match self.kind {
                Kind::Named => "named",
                Kind::Job => "job",
            },
            "limits": rules.collect::<Vec<_>>(),
            "processes": self.processes,
            "gpus": gpus.collect::<Vec<_>>(),
        })
    }
}

impl Gpu {
    fn of(view: &View, id: DeviceId, driver: Option<&Driver>) -> Self {
        let entry = view.devices.iter().find(|device| device.id == id);
        let known = entry
            .map(|entry| entry.capacity)
            .filter(|capacity| *capacity != 0);
        let capacity = known.or_else(|| {
            let gpu = driver?.gpus().iter().find(|gpu| gpu.id == id)?;
            gpu.capacity
        });
        let rule = view.rules.for_device(id, Key::Max);
        let max = match (rule, capacity) {
            (None | Some(Size::Max), _) | (Some(Size::Percent(_)), None) => None,
            (Some(size), capacity) => Some(size.resolve(capacity.unwrap_or(0))),
        };
        let usage = view.ledger.as_ref().map(|ledger| {
            let seen = entry.map(|entry| ledger.usage(entry.index));
            seen.unwrap_or_default()
        });
        let uses = |process: &ProcessUsage| {
            let on = |device: &DeviceUsage| entry.is_some_and(|entry| entry.index == device.device);
            process.alive && process.devices.iter().any(on)
        };
        Self {
            id,
            index: groups::index(id, driver),
            label: groups::label(id, driver),
            capacity,
            rule,
            max,
            usage: usage.map(|usage| usage.charged.saturating_sub(usage.idle)),
            peak: usage.map(|usage| usage.peak),
            free: max
                .zip(usage)
                .map(|(max, usage)| max.saturating_sub(usage.charged)),
            refusals: usage.map(|usage| usage.refusals),
            processes: view.count(uses),
        }
    }

    fn max_text(&self) -> String {
        match self.max {
            Some(bytes) => gib(bytes).to_string(),
            None => size(self.rule.unwrap_or(Size::Max)),
        }
    }
}

/// A size in the words of the table.
fn size(size: Size) -> String {
    match size {
        Size::Bytes(bytes) => gib(bytes).to_string(),
        Size::Percent(_) | Size::Max => size.to_string(),
    }
}

fn table(shown: &[Shown]) -> Table {
    let mut table = Table::new(&[
        Column::Left("GROUP"),
        Column::Left("GPU"),
        Column::Right("MAX"),
        Column::Right("USAGE"),
        Column::Right("PEAK"),
        Column::Right("FREE"),
        Column::Right("REFUSED"),
        Column::Right("PROCESSES"),
    ]);
    let bytes = |bytes: Option<u64>| figure(bytes.map(gib));
    for group in shown {
        if group.gpus.is_empty() {
            let all = group
                .rules
                .iter()
                .find(|(selector, _)| *selector == Selector::All);
            table.row(vec![
                group.name.clone(),
                "all".into(),
                size(
                    all.and_then(|(_, values)| values.get(Key::Max))
                        .unwrap_or(Size::Max),
                ),
                bytes(None),
                bytes(None),
                bytes(None),
                bytes(None),
                figure(group.processes),
            ]);
        }
        for gpu in &group.gpus {
            table.row(vec![
                group.name.clone(),
                gpu.label.clone(),
                gpu.max_text(),
                bytes(gpu.usage),
                bytes(gpu.peak),
                bytes(gpu.free),
                figure(gpu.refusals),
                figure(gpu.processes),
            ]);
        }
    }
    table
}

/// What is not known is a dash.
fn figure(figure: Option<impl Display>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| figure.to_string())
}
