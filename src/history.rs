//! `gpulimit history`: shows the usage of groups over time.

mod curve;
mod past;

use super::clock::Moment;
use super::failure::Failure;
use super::figures::Gpu;
use super::groups::{self, Selection, View};
use super::nvml::Driver;
use super::trend::{self, Floors, Trend};
use super::{clock, csv, gpu, output, since, terminal};
use curve::Curve;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use gpulimit_ledger::{DeviceEntry, DeviceIndex, EventKind, Ledger, Period, Resolution};
use gpulimit_limits::Selector;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use past::{Span, Window};
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `history`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only this group and the groups below it
    group: Option<String>,

    /// Begin of the time to show: 30m or 2h ago, yesterday, 14:00, 2026-11-20
    #[arg(long, value_name = "TIME", default_value = "10m")]
    since: String,

    /// The GPU to show: index, UUID, start of the UUID, PCI bus id. Repeat for more
    #[arg(long = "device", value_name = "GPU")]
    devices: Vec<String>,

    /// Print JSON: sizes are in bytes, and unknown figures are null
    #[arg(long)]
    json: bool,

    /// Print CSV, one line for each period: sizes are in bytes, and unknown figures are empty
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

const HELP: &str = "\
Draws a curve for each group and GPU. Named groups keep their usage of the last
ten minutes by the second, of the last day by the minute, and of the last week
by the quarter of an hour. Members record the usage when they take memory; in
between, usage only falls. What it fell to at which time is unknown until the
next request, and drawn in another character. Marks below the curve say when
requests were refused, members were asked for memory, and processes were
suspended, resumed or killed; suspensions in groups below are marked there.
Times are in the zone of the caller, in JSON and CSV in UTC. Without a UTF-8
locale the curve is of ASCII.

Examples:
  gpulimit history lab
  gpulimit history lab/alice --since yesterday --device 0
  gpulimit history lab --since 2h --json | jq '.histories[].periods[].max'";

/// Shows the curves.
pub fn history(args: &Args) -> Result<ExitCode, Failure> {
    let now = clock::now();
    let since = since::parse(&args.since, &now)
        .map_err(|why| Failure::usage(format_args!("invalid time '{}': {why}", args.since)))?;
    let selection = Selection::of(args.group.as_deref())?;
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let devices = gpu::shown(&args.devices, driver)?;
    let (views, status) = selection.views(driver);
    let first = views.first().filter(|_| selection.named);
    if let Some(View {
        ledger: None,
        group,
        ..
    }) = first
    {
        return Err(groups::unreadable(group.ledger_path()));
    }
    let is_told = groups::note_unrecorded(&groups::unrecorded(&views));
    let past = |view| Past::all(view, &devices, since, now.timestamp(), driver);
    let pasts: Vec<Past> = views.iter().flat_map(past).collect();
    let status = groups::lost(&views, status);
    if args.json {
        selection.print_json("histories", pasts.iter().map(Past::json).collect())?;
    } else if args.csv {
        let heads = HEADS.map(String::from);
        let rows = std::iter::once(heads).chain(pasts.iter().flat_map(Past::rows));
        output::print(&csv::lines(rows)?)?;
    } else if pasts.is_empty() && status == ExitCode::SUCCESS && !is_told {
        output::note(match first {
            Some(View {
                ledger: Some(ledger),
                ..
            }) if !ledger.keeps_history() => "this group keeps no history: only named groups do",
            _ => "no named group has used such a GPU",
        });
    } else {
        let texts: Vec<String> = pasts.iter().map(|past| past.text(&now)).collect();
        output::print(&texts.join("\n"))?;
    }
    Ok(status)
}

/// The past usage of a group on one GPU.
pub struct Past {
    /// The group's name for printing.
    title: String,
    name: String,
    root: PathBuf,
    gpu: Gpu,
    resolution: Resolution,
    usage: u64,
    spans: Vec<Span>,
    marks: Vec<Mark>,
}

/// An event that moved memory, in the trail of the group.
struct Mark {
    unix_ms: u64,
    kind: EventKind,
    bytes: u64,
}

/// The kinds of events that are marks.
const MARKS: [EventKind; 5] = [
    EventKind::Asked,
    EventKind::Given,
    EventKind::Suspend,
    EventKind::Resume,
    EventKind::Lost,
];

/// Returns the marks of a group on one GPU since a time in seconds since 1970.
fn marks(ledger: &Ledger, device: DeviceIndex, since: u64) -> Vec<Mark> {
    let trail = ledger.trail(0).into_iter();
    let own = trail.filter(|traced| traced.group.is_empty());
    own.map(|traced| traced.event)
        .filter(|event| MARKS.contains(&event.what.kind) && event.what.device == Some(device))
        .map(|event| Mark {
            unix_ms: event.time_us / 1_000,
            kind: event.what.kind,
            bytes: event.what.bytes,
        })
        .filter(|mark| mark.unix_ms >= since.saturating_mul(1_000))
        .collect()
}

/// Returns the past usage of a group on these GPUs as JSON, an object for each GPU. `since` is in
/// seconds since 1970.
pub fn json(
    view: &View,
    devices: &[Selector],
    since: u64,
    now: &Zoned,
    driver: Option<&Driver>,
) -> Vec<Value> {
    let pasts = Past::all(view, devices, since, now.timestamp(), driver);
    pasts.iter().map(Past::json).collect()
}

/// Returns the trend of a group's usage of a GPU, whose present usage is `usage` bytes.
pub fn trend(ledger: &Ledger, device: DeviceIndex, usage: u64) -> Option<Trend> {
    if !ledger.records(device) {
        return None;
    }
    let now = second(Timestamp::now());
    let floors = Resolution::ALL.map(|resolution| {
        let window = Window::whole(resolution, now, usage);
        let spans = window.spans(|resolution| ledger.history(device, resolution));
        Floors {
            length: resolution.seconds(),
            floors: spans.iter().map(Span::floor).collect(),
        }
    });
    trend::trend(&floors)
}

/// The figures of a history, summed up since a time.
pub struct Sums {
    /// Begin of the first period, in seconds since 1970.
    pub from: u64,
    /// The highest usage in bytes.
    pub peak: u64,
    /// Number of refused requests; `None` if a period has more than it can count.
    pub refusals: Option<u64>,
    /// Seconds for which requests waited; `None` if a period has more than it can count.
    pub waited: Option<u64>,
}

/// Returns what the history says of a GPU since a time in seconds since 1970. `usage` is the
/// present usage in bytes. Returns `None` if the history does not reach back so far.
///
/// The highest usage is exact: the first change of a charge in a second records the usage before
/// it, so that memory which was charged earlier is in it, too.
pub fn sums(ledger: &Ledger, device: DeviceIndex, since: u64, usage: u64) -> Option<Sums> {
    let window = Window::new(since, second(Timestamp::now()), usage);
    if !ledger.records(device) || window.since > since {
        return None;
    }
    let spans = window.spans(|resolution| ledger.history(device, resolution));
    let sum = |count: fn(&Span) -> u32| {
        let is_whole = spans.iter().all(|span| count(span) < Period::MOST);
        is_whole.then(|| spans.iter().map(|span| u64::from(count(span))).sum())
    };
    let usages = spans.iter().filter_map(|span| span.known);
    Some(Sums {
        from: spans.first().map_or(since, |span| span.start),
        peak: usages.map(|usage| usage.max).max().unwrap_or(usage),
        refusals: sum(|span| span.refusals),
        waited: sum(|span| span.waited),
    })
}

/// The highest usage of a group on one GPU in each part of the last ten minutes, oldest first;
/// `None` where the usage is unknown. Empty if the group keeps no history.
pub type Recent = Vec<Option<u64>>;

/// Returns the recent usage of a group on a GPU, whose present usage is `usage` bytes.
pub fn recent(ledger: &Ledger, device: DeviceIndex, usage: u64) -> Recent {
    /// Length of a part in seconds.
    const PART: usize = 10;
    if !ledger.records(device) {
        return Vec::new();
    }
    let window = Window::whole(Resolution::Seconds, second(Timestamp::now()), usage);
    let mut spans = window.spans(|resolution| ledger.history(device, resolution));
    // The window begins in the middle of a period.
    spans.drain(..spans.len() % PART);
    let highest = |part: &[Span]| part.iter().filter_map(Span::highest).max();
    spans.chunks(PART).map(highest).collect()
}

/// Returns a time in seconds since 1970.
pub fn second(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

impl Past {
    /// Returns the past usage on each of these GPUs with a history. `since` is in seconds since
    /// 1970.
    pub fn all(
        view: &View,
        devices: &[Selector],
        since: u64,
        now: Timestamp,
        driver: Option<&Driver>,
    ) -> Vec<Self> {
        let Some(ledger) = view.ledger.as_ref().filter(|ledger| ledger.keeps_history()) else {
            return Vec::new();
        };
        let is_asked = |device: &&DeviceEntry| {
            devices.contains(&Selector::All) || devices.contains(&Selector::Device(device.id))
        };
        let recorded = |device: &&DeviceEntry| ledger.records(device.index);
        let asked = view.devices.iter().filter(is_asked).filter(recorded);
        let mut all = Vec::new();
        for device in asked {
            if view.purse.is_open() || all.is_empty() {
                let one = Self::of(view, ledger, device, since, now, driver);
                view.purse.spend(one.spans.len());
                all.push(one);
            }
        }
        all
    }

    fn of(
        view: &View,
        ledger: &Ledger,
        device: &DeviceEntry,
        since: u64,
        now: Timestamp,
        driver: Option<&Driver>,
    ) -> Self {
        let gpu = Gpu::of(view, device.id, driver);
        let usage = gpu.usage.unwrap_or(0);
        let window = Window::new(since, second(now), usage);
        Self {
            title: view.title.clone(),
            name: view.group.name().into(),
            root: view.group.root().into(),
            gpu,
            resolution: window.resolution,
            usage,
            spans: window.spans(|resolution| ledger.history(device.index, resolution)),
            marks: marks(ledger, device.index, window.since),
        }
    }

    /// Returns a title and the curve.
    fn text(&self, now: &Zoned) -> String {
        const WIDTH: usize = 80;
        let width = terminal::width(&io::stdout()).unwrap_or(WIDTH);
        let title = format!("{}  {}", self.title, self.usage_text());
        let mut lines = vec![output::fit(&title, 2)];
        lines.extend(self.gpu.trend_text().map(|trend| output::fit(&trend, 2)));
        lines.extend(self.curve(now.time_zone(), width, terminal::is_utf8()));
        lines.join("\n") + "\n"
    }

    /// Returns the present usage, and what happened in this time, as a line.
    pub fn usage_text(&self) -> String {
        let sum = |count: fn(&Span) -> u32| {
            let counts = self.spans.iter().map(|span| u64::from(count(span)));
            counts.sum::<u64>()
        };
        let used = match self.gpu.limit() {
            Some(max) => format!("{} of {}", gib(self.usage).in_unit_of(max), gib(max)),
            None => gib(self.usage).to_string(),
        };
        let mut said = format!("GPU {}  {used} used", self.gpu.label);
        if let Some(suspended) = self.gpu.suspended.filter(|bytes| *bytes > 0) {
            said += &format!(", {} suspended", gib(suspended));
        }
        for (count, text) in [
            (sum(|span| span.refusals), "refused"),
            (sum(|span| span.kills), "killed"),
        ] {
            if count > 0 {
                said += &format!(", {count} {text}");
            }
        }
        let waited = Duration::from_secs(sum(|span| span.waited));
        if !waited.is_zero() {
            said += &format!(", waited {}", clock::span(waited));
        }
        let bytes = |kind| {
            let of_kind = self.marks.iter().filter(|mark| mark.kind == kind);
            let add = |sum: u64, mark: u64| sum.saturating_add(mark);
            of_kind.map(|mark| mark.bytes).reduce(add)
        };
        if let Some(asked) = bytes(EventKind::Asked).filter(|bytes| *bytes > 0) {
            said += &format!(", members asked for {}", gib(asked));
        }
        // Nothing measures what members give for `high`, because no request waits for it.
        if let Some(given) = bytes(EventKind::Given) {
            said += &format!(", gave {} to requests", gib(given));
        }
        said
    }

    /// Returns a sentence about how the usage grows; `None` if it does not.
    pub fn trend_text(&self) -> Option<String> {
        self.gpu.trend_text()
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> DeviceId {
        self.gpu.id
    }

    /// Returns the lines of the curve. Without `unicode`, they have only characters of ASCII.
    pub fn curve(&self, zone: &TimeZone, width: usize, unicode: bool) -> Vec<String> {
        let curve = Curve {
            spans: &self.spans,
            length: self.resolution.seconds(),
            limit: self.gpu.limit(),
            zone,
            width,
            unicode,
            asked: &self.times(&[EventKind::Asked]),
            moved: &self.times(&[EventKind::Suspend, EventKind::Resume, EventKind::Lost]),
        };
        curve.lines()
    }

    /// Returns when marks of these kinds were made, in seconds since 1970.
    fn times(&self, kinds: &[EventKind]) -> Vec<u64> {
        let marks = self.marks.iter().filter(|mark| kinds.contains(&mark.kind));
        marks.map(|mark| mark.unix_ms / 1_000).collect()
    }

    fn json(&self) -> Value {
        let mark = |mark: &Mark| {
            let unix_ms = mark.unix_ms;
            json!({
                "time": Moment { unix_ms }.to_string(),
                "kind": mark.kind.name(),
                "bytes": mark.bytes,
            })
        };
        let period = |span: &Span| {
            json!({
                "time": time(span),
                "max": span.known.map(|usage| usage.max),
                "min": span.known.map(|usage| usage.min),
                "at_most": span.at_most,
                "at_least": span.at_least,
                "refusals": span.refusals,
                "waited_ms": u64::from(span.waited) * 1_000,
                "kills": span.kills,
            })
        };
        json!({
            "name": self.name,
            "root": output::shown_path(&self.root),
            "gpu": self.gpu.name_json(),
            "period_ms": self.resolution.seconds() * 1_000,
            "effective_max": self.gpu.limit(),
            "usage": self.usage,
            "suspended": self.gpu.suspended,
            "trend": self.gpu.trend_json(),
            "events": self.marks.iter().map(mark).collect::<Vec<_>>(),
            "periods": self.spans.iter().map(period).collect::<Vec<_>>(),
        })
    }

    /// Returns the cells of the CSV output.
    fn rows(&self) -> impl Iterator<Item = [String; HEADS.len()]> {
        let known = |figure: Option<u64>| figure.map_or_else(String::new, |it| it.to_string());
        self.spans.iter().map(move |span| {
            [
                time(span),
                self.name.clone(),
                self.root.to_string_lossy().into_owned(),
                self.gpu.id.to_string(),
                (self.resolution.seconds() * 1_000).to_string(),
                known(span.known.map(|usage| usage.max)),
                known(span.known.map(|usage| usage.min)),
                known(span.at_most),
                span.at_least.to_string(),
                span.refusals.to_string(),
                (u64::from(span.waited) * 1_000).to_string(),
                span.kills.to_string(),
            ]
        })
    }
}

/// The heads of the CSV output.
const HEADS: [&str; 12] = [
    "time",
    "group",
    "root",
    "gpu",
    "period_ms",
    "max",
    "min",
    "at_most",
    "at_least",
    "refusals",
    "waited_ms",
    "kills",
];

fn time(span: &Span) -> String {
    let unix_ms = span.start * 1_000;
    Moment { unix_ms }.to_string()
}
