//! The past usage of groups, as `history`, `top` and `serve` show it.

use super::fields::{self, fields};
use super::spans::{Span, Window};
use super::trend::{self, Grower, Series, Trend};
use crate::figures::{Gpu, of_max};
use crate::groups::View;
use crate::machine::nvml::Driver;
use crate::words::clock::{self, Moment};
use crate::words::text;
use gpulimit_base::units::gib;
use gpulimit_group::Kind;
use gpulimit_ledger::{DeviceEntry, DeviceIndex, Event, EventKind, Ledger, NoWitness, Resolution};
use gpulimit_limits::Selector;
use jiff::Timestamp;
use serde_json::Value;
use std::iter;
use std::path::PathBuf;
use std::time::Duration;

/// The past usage of a group on one GPU.
pub struct Past {
    /// The group's name for printing.
    pub title: String,
    pub name: String,
    pub root: PathBuf,
    pub gpu: Gpu,
    pub resolution: Resolution,
    /// The time at which somebody noticed that the job had ended, in seconds since 1970. `None` for
    /// a job that still runs, and for a named group.
    pub ended: Option<u64>,
    peak: u64,
    usage: u64,
    pub spans: Vec<Span>,
    /// The events in the trail of the group that moved memory.
    marks: Vec<Event>,
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
fn marks(ledger: &Ledger, device: DeviceIndex, since: u64) -> Vec<Event> {
    let is_mark = |event: &Event| {
        let (what, second) = (event.what, event.time_us / 1_000_000);
        MARKS.contains(&what.kind) && what.device == Some(device) && second >= since
    };
    let trail = ledger.trail(0).into_iter();
    let own = trail.filter(|traced| traced.group.is_empty());
    own.map(|traced| traced.event).filter(is_mark).collect()
}

/// Returns the trend of a group's usage of a GPU, whose present usage is `usage` bytes.
pub fn trend(ledger: &Ledger, device: DeviceIndex, usage: u64) -> Option<Trend> {
    if !ledger.records(device) {
        return None;
    }
    let now = second(Timestamp::now());
    let series = Resolution::ALL.map(|resolution| {
        let window = Window::whole(resolution, now, usage);
        let spans = window.spans(|resolution| ledger.history(device, resolution));
        Series {
            length: resolution.seconds(),
            floors: spans.iter().map(Span::floor).collect(),
            tops: spans.iter().map(Span::highest).collect(),
        }
    });
    let trend = trend::trend(&series)?;
    let process = grower(ledger, device).filter(|grower| grower.rate >= trend.rate / 2.0);
    Some(Trend { process, ..trend })
}

/// Returns the member whose floor rises fastest.
fn grower(ledger: &Ledger, device: DeviceIndex) -> Option<Grower> {
    let members = ledger.processes(&NoWitness).into_iter();
    let growers = members.filter_map(|process| {
        let mut floors = ledger.floors(process.slot, device);
        if let Some((_, last)) = floors.last_mut() {
            *last = process.on(device).charged.min(*last);
        }
        Grower::of(process.identity, &floors).filter(|_| process.alive)
    });
    growers.max_by(|one, other| one.rate.total_cmp(&other.rate))
}

/// The highest usage of a group on one GPU in each part of the last ten minutes, oldest first;
/// `None` where the usage is unknown. Empty if the group keeps no history.
pub type Recent = Vec<Option<u64>>;

/// Returns the recent usage of a group on a GPU, whose present usage is `usage` bytes, and the
/// number of requests that were refused in the last minute.
pub fn recent(ledger: &Ledger, device: DeviceIndex, usage: u64) -> (Recent, u64) {
    /// Length of a part in seconds.
    const PART: usize = 10;
    if !ledger.records(device) {
        return Default::default();
    }
    let window = Window::whole(Resolution::Seconds, second(Timestamp::now()), usage);
    let mut spans = window.spans(|resolution| ledger.history(device, resolution));
    // The window begins in the middle of a period.
    spans.drain(..spans.len() % PART);
    let highest = |part: &[Span]| part.iter().filter_map(Span::highest).max();
    let minute = spans.iter().rev().take(60);
    let refused = minute.map(|span| u64::from(span.refusals)).sum();
    (spans.chunks(PART).map(highest).collect(), refused)
}

/// Returns a time in seconds since 1970.
pub fn second(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

/// Returns when the memory of an ended job was last recorded, in seconds since 1970; `None` for
/// other groups.
pub fn ended(view: &View) -> Option<u64> {
    let group = &view.group;
    let lives = || view.processes.iter().any(|process| process.alive) || !group.has_ended();
    match group.is_past() || group.kind() == Kind::Job && !lives() {
        true => view.ledger.as_ref()?.last_recorded(),
        false => None,
    }
}

impl Past {
    /// Returns the past usage on each of these GPUs with a history. `since` is in seconds since
    /// 1970, as `ended` is: what [`ended`] has returned. Of a job that had ended before, returns as
    /// long a time up to its end.
    pub fn all(
        view: &View,
        devices: &[Selector],
        since: u64,
        now: Timestamp,
        driver: Option<&Driver>,
        ended: Option<u64>,
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
                let one = Self::of(view, ledger, device, [since, second(now)], driver, ended);
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
        [since, now]: [u64; 2],
        driver: Option<&Driver>,
        ended: Option<u64>,
    ) -> Self {
        let mut gpu = Gpu::of(view, device.id, driver);
        let usage = gpu.usage.unwrap_or(0);
        if ended.is_none() {
            gpu.trend = trend(ledger, device.index, usage);
        }
        let end = ended.unwrap_or(now);
        let begin = match since > end {
            true => end.saturating_sub(now.saturating_sub(since)),
            false => since,
        };
        let window = Window::new(begin, end, usage);
        let rings = |resolution| ledger.history_until(device.index, resolution, end);
        Self {
            title: view.title.clone(),
            name: view.group.name().into(),
            root: view.group.home().into(),
            gpu,
            resolution: window.resolution,
            ended,
            peak: ledger.usage(device.index).peak,
            usage,
            spans: window.spans(rings),
            marks: marks(ledger, device.index, window.since),
        }
    }

    /// Returns the present usage, and what happened in this time, as a line.
    pub fn usage_text(&self) -> String {
        let sum = |count: fn(&Span) -> u32| {
            let counts = self.spans.iter().map(|span| u64::from(count(span)));
            counts.sum::<u64>()
        };
        let of_max = |bytes| of_max(bytes, self.gpu.limit());
        let used = match self.ended {
            Some(end) => {
                let (end, peak) = (moment(end).local(), of_max(self.peak));
                format!("ended {end}, peak {peak}")
            }
            None => format!("{} used", of_max(self.usage)),
        };
        let mut said = format!("GPU {}  {used}", self.gpu.label);
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
            let of_kind = self.marks.iter().filter(|mark| mark.what.kind == kind);
            of_kind
                .map(|mark| mark.what.bytes)
                .reduce(u64::saturating_add)
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

    /// Returns when marks of these kinds were made, in seconds since 1970.
    pub fn times(&self, kinds: &[EventKind]) -> Vec<u64> {
        let marks = self.marks.iter();
        let marks = marks.filter(|mark| kinds.contains(&mark.what.kind));
        marks.map(|mark| mark.time_us / 1_000_000).collect()
    }

    pub fn json(&self, driver: Option<&Driver>) -> Value {
        fields::json(FIELDS, self, driver)
    }

    /// Returns rows of CSV, one for each period, after one with the heads.
    pub fn rows(pasts: &[Self]) -> impl Iterator<Item = Vec<String>> {
        // A row begins with the time. The group, the GPU and the length of periods follow.
        let row =
            |past: &[String], period: Vec<String>| [&period[..1], past, &period[1..]].concat();
        let heads = row(&fields::heads(&FIELDS[..4]), fields::heads(PERIOD));
        let rows = pasts.iter().flat_map(move |past| {
            let own = fields::cells(&FIELDS[..4], past);
            let row = move |span| row(&own, fields::cells(PERIOD, span));
            past.spans.iter().map(row)
        });
        iter::once(heads).chain(rows)
    }
}

fields! { pub FIELDS(it: Past):
    /// The full name of the group.
    "name": Text => &*it.name;
    /// The group root.
    "root": Text => text::shown_path(&it.root);
    "gpu": Device => Cell::Gpu(Some(it.gpu.id));
    /// The length of a period.
    "period_ms": Ms => it.resolution.seconds() * 1_000;
    /// The smallest limit of the group and of the groups above.
    "effective_max": Bytes => it.gpu.limit();
    /// The present usage.
    "usage": Bytes => it.usage;
    /// The highest charge since the group was made.
    "peak": Bytes => it.peak;
    /// When the end of the job was first noticed; null for a job that runs, and for a group that is
    /// no job.
    "ended": Time => it.ended.map(|end| moment(end).to_string());
    /// The memory of suspended processes, which is on the host; no part of the usage.
    "suspended": Bytes => it.gpu.suspended;
    /// How the usage grows; null if it does not.
    "trend": One("trend") => it.gpu.trend_json();
    /// When members were asked for memory or gave it, and when processes were suspended, resumed or
    /// lost.
    "events": Many("mark") => fields::list(MARK, &it.marks);
    /// What happened in each period, the oldest first.
    "periods": Many("period") => fields::list(PERIOD, &it.spans);
}

fields! { pub MARK(it: Event):
    "time": Time => Moment { unix_ms: it.time_us / 1_000 }.to_string();
    /// `asked`, `given`, `suspend`, `resume` or `lost`.
    "kind": Text => it.what.kind.name();
    "bytes": Bytes => it.what.bytes;
}

fields! { pub PERIOD(it: Span):
    /// The begin of the period.
    "time": Time => moment(it.start).to_string();
    /// The largest usage that is known; null if no member took memory in the period and the usage
    /// is not known from before and after.
    "max": Bytes => it.known.map(|usage| usage.max);
    /// The smallest usage that is known.
    "min": Bytes => it.known.map(|usage| usage.min);
    /// The usage was at most this; null if no request before this period is recorded.
    "at_most": Bytes => it.at_most;
    /// The usage was at least this.
    "at_least": Bytes => it.at_least;
    /// The requests that were refused.
    "refusals": Count => it.refusals;
    /// How long requests waited.
    "waited_ms": Ms => u64::from(it.waited) * 1_000;
    /// The processes that were killed.
    "kills": Count => it.kills;
}

/// Returns a time in seconds since 1970 as a moment.
fn moment(second: u64) -> Moment {
    let unix_ms = second.saturating_mul(1_000);
    Moment { unix_ms }
}
