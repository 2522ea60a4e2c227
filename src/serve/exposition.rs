//! The table of metrics as text, in the two formats that Prometheus reads.
//!
//! The text of many groups is long, so it is made in pieces while the client reads.

use super::Scope;
use super::metrics::{Kind, METRICS, Metric, Values};
use super::reading::{Group, Reading};
use crate::accounts;
use crate::output::Escaped;
use crate::processes::Process;
use gpulimit_base::device::DeviceId;
use std::fmt::Write;
use std::sync::Arc;

/// The length in bytes from which a piece is sent.
const PIECE: usize = 32 << 10;

/// A format of metrics.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Format {
    OpenMetrics,
    Text,
}

impl Format {
    /// Chooses the format by the request's header `Accept`.
    pub fn of(accept: &str) -> Self {
        let (mut open, mut text) = (0.0, 0.0);
        for kind in accept.split(',') {
            let mut parts = kind.split(';').map(str::trim);
            let name = parts.next().unwrap_or("");
            let (mut quality, mut version) = (1.0, None);
            for part in parts {
                match part.split_once('=') {
                    Some(("q", q)) => quality = q.trim().parse().unwrap_or(0.0),
                    Some(("version", said)) => version = Some(said.trim_matches('"')),
                    _ => {}
                }
            }
            match name {
                "application/openmetrics-text" if version.is_none_or(|it| it == "1.0.0") => {
                    open = f64::max(open, quality);
                }
                "text/plain" | "text/*" | "*/*" => text = f64::max(text, quality),
                _ => {}
            }
        }
        match open > 0.0 && open >= text {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The value of a series.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Value {
    Integer(u64),
    /// A finite number.
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Integer(value as u64)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// Writes the lines of a metric for one GPU, group or process.
pub struct Sample<'a> {
    out: &'a mut String,
    /// The name of the series.
    name: &'a str,
    /// The labels that all lines have, as text.
    labels: &'a str,
}

impl Sample<'_> {
    /// Writes a line with these labels beside the common ones.
    pub fn put(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) {
        let out = &mut *self.out;
        out.push_str(self.name);
        if !labels.is_empty() || !self.labels.is_empty() {
            out.push('{');
            out.push_str(self.labels);
            for (at, (name, value)) in labels.iter().enumerate() {
                if at > 0 || !self.labels.is_empty() {
                    out.push(',');
                }
                label(out, name, value);
            }
            out.push('}');
        }
        out.push(' ');
        match value.into() {
            Value::Integer(value) => integer(out, value),
            // Most values are 0. The condition holds for whole numbers of 32 bits.
            Value::Real(value) if value == f64::from(value as u32) => integer(out, value as u64),
            // Writing to a `String` never fails.
            Value::Real(value) => drop(write!(out, "{value}")),
        }
        out.push('\n');
    }

    /// Writes a line if the value is known.
    pub fn put_known(&mut self, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.put(&[], value);
        }
    }
}

/// Writes a number, faster than the macros do: a text has tens of thousands of numbers.
fn integer(out: &mut String, value: u64) {
    if value >= 10 {
        integer(out, value / 10);
    }
    out.push(char::from(b'0' + (value % 10) as u8));
}

/// Writes a label. Other users choose values, such as commands.
fn label(out: &mut String, name: &str, value: &str) {
    out.push_str(name);
    out.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Returns labels as text.
fn labels(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, value) in pairs {
        if !out.is_empty() {
            out.push(',');
        }
        label(&mut out, name, value);
    }
    out
}

/// The text of all metrics, in pieces.
pub struct Text {
    reading: Arc<Reading>,
    scope: Scope,
    format: Format,
    labels: Labels,
    /// The next metric of the table, and the next item of this metric.
    next: (usize, usize),
}

/// The labels of all items, as text.
struct Labels {
    gpus: Vec<String>,
    groups: Vec<String>,
    /// For each group, the labels of its GPUs, and of the GPUs that it has not used.
    group_gpus: Vec<Vec<String>>,
    processes: Vec<Option<String>>,
}

impl Labels {
    fn of(reading: &Reading, scope: Scope) -> Self {
        let index = |id: DeviceId| {
            let gpu = reading.gpus.iter().find(|gpu| gpu.id == id);
            let index = gpu.and_then(|gpu| gpu.index);
            index.map_or_else(String::new, |index| index.to_string())
        };
        let gpus: Vec<(DeviceId, String, String)> = (reading.gpus.iter())
            .map(|gpu| (gpu.id, index(gpu.id), gpu.id.to_string()))
            .collect();
        let of_group = |group: &Group, id: DeviceId| {
            // Every GPU of a group is in the list of GPUs.
            let known = gpus.iter().find(|(known, ..)| *known == id);
            known.map_or_else(String::new, |(_, index, uuid)| {
                labels(&[
                    ("group", &group.figures.title),
                    ("gpu", index),
                    ("uuid", uuid),
                ])
            })
        };
        let of_process = |process: &Process| {
            // A process of another pid namespace has no number here.
            let (pid, (id, _)) = (process.pid?, process.gpu.as_ref()?);
            process.alive.then(|| {
                labels(&[
                    ("group", &process.title),
                    ("gpu", &index(*id)),
                    ("uuid", &id.to_string()),
                    ("pid", &pid.to_string()),
                    ("user", &accounts::user_name(process.uid)),
                    (
                        "command",
                        &Escaped(process.command.as_deref().unwrap_or("")).to_string(),
                    ),
                ])
            })
        };
        Self {
            processes: match scope.processes {
                true => reading.processes().iter().map(of_process).collect(),
                false => Vec::new(),
            },
            group_gpus: (reading.groups.iter())
                .map(|group| {
                    let used = group.figures.gpus.iter().map(|gpu| gpu.id);
                    let all = used.chain(group.unused.iter().copied());
                    all.map(|id| of_group(group, id)).collect()
                })
                .collect(),
            groups: (reading.groups.iter())
                .map(|group| labels(&[("group", &group.figures.title)]))
                .collect(),
            gpus: (gpus.iter())
                .map(|(_, index, uuid)| labels(&[("gpu", index), ("uuid", uuid)]))
                .collect(),
        }
    }
}

impl Text {
    /// Returns the metrics of a reading. Call in the thread that reads groups: the names of users
    /// are looked up.
    pub fn new(reading: Arc<Reading>, scope: Scope, format: Format) -> Self {
        Self {
            labels: Labels::of(&reading, scope),
            reading,
            scope,
            format,
            next: (0, 0),
        }
    }

    /// Returns the next piece; `None` after the last one.
    pub fn piece(&mut self) -> Option<String> {
        let mut out = String::with_capacity(PIECE + 4096);
        while out.len() < PIECE {
            let (at, item) = self.next;
            let Some(metric) = METRICS.get(at) else {
                if at == METRICS.len() && self.format == Format::OpenMetrics {
                    out.push_str("# EOF\n");
                }
                self.next = (METRICS.len() + 1, 0);
                break;
            };
            if item == 0 && metric.is_shown(self.scope) {
                self.head(metric, &mut out);
            }
            self.next = match metric.is_shown(self.scope) && self.item(metric, item, &mut out) {
                true => (at, item + 1),
                false => (at + 1, 0),
            };
        }
        (!out.is_empty()).then_some(out)
    }

    /// Writes the lines about a metric itself.
    fn head(&self, metric: &Metric, out: &mut String) {
        let (name, kind) = match (self.format, metric.kind) {
            (_, Kind::Gauge) => (metric.name.to_owned(), "gauge"),
            (Format::OpenMetrics, Kind::Counter) => (metric.name.to_owned(), "counter"),
            (Format::OpenMetrics, Kind::Info) => (metric.name.to_owned(), "info"),
            (Format::Text, Kind::Counter) => (series(metric), "counter"),
            (Format::Text, Kind::Info) => (series(metric), "gauge"),
        };
        let _ = writeln!(out, "# HELP {name} {}", metric.help);
        let _ = writeln!(out, "# TYPE {name} {kind}");
        if self.format == Format::OpenMetrics && !metric.unit.is_empty() {
            let _ = writeln!(out, "# UNIT {name} {}", metric.unit);
        }
    }

    /// Writes the lines of one item of a metric. Returns false after the last item.
    fn item(&self, metric: &Metric, item: usize, out: &mut String) -> bool {
        let (reading, labels) = (&*self.reading, &self.labels);
        let name = series(metric);
        let mut sample = |labels: &str, write: &dyn Fn(&mut Sample<'_>)| {
            write(&mut Sample {
                out,
                name: &name,
                labels,
            });
        };
        match metric.values {
            Values::Server(value) => {
                if item == 0 {
                    sample("", &value);
                }
                item == 0
            }
            Values::Gpus(value) => {
                let Some(gpu) = reading.gpus.get(item) else {
                    return false;
                };
                sample(&labels.gpus[item], &|sample| value(reading, gpu, sample));
                true
            }
            Values::Groups(value) => {
                let Some(group) = reading.groups.get(item) else {
                    return false;
                };
                sample(&labels.groups[item], &|sample| value(group, sample));
                true
            }
            Values::GroupGpus(value) => {
                let Some(group) = reading.groups.get(item) else {
                    return false;
                };
                let gpus = group.figures.gpus.iter().zip(&group.more);
                for ((gpu, more), labels) in gpus.zip(&labels.group_gpus[item]) {
                    sample(labels, &|sample| value(gpu, more, sample));
                }
                true
            }
            Values::Counts(value) => {
                let Some(group) = reading.groups.get(item) else {
                    return false;
                };
                let used = group.figures.gpus.iter().zip(&group.more);
                let used = used.map(|(gpu, more)| value(gpu, more));
                let unused = group.unused.iter().map(|_| Some(Value::Integer(0)));
                for (value, labels) in used.chain(unused).zip(&labels.group_gpus[item]) {
                    sample(labels, &|sample| sample.put_known(value));
                }
                true
            }
            Values::Processes(value) => {
                let Some(process) = reading.processes().get(item) else {
                    return false;
                };
                if let Some(labels) = labels.processes.get(item).and_then(Option::as_deref) {
                    sample(labels, &|sample| value(process, sample));
                }
                true
            }
        }
    }
}

/// Returns the name of a metric's series.
fn series(metric: &Metric) -> String {
    let suffix = match metric.kind {
        Kind::Gauge => "",
        Kind::Counter => "_total",
        Kind::Info => "_info",
    };
    format!("{}{suffix}", metric.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_format_is_chosen_by_what_is_accepted() {
        for (accept, format) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,\
                 */*;q=0.1",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text;version=0.0.1", Format::Text),
            (
                "application/openmetrics-text; q=0.1, text/plain",
                Format::Text,
            ),
            ("application/openmetrics-text;q=0", Format::Text),
        ] {
            assert_eq!(Format::of(accept), format, "{accept}");
        }
    }

    #[test]
    fn label_values_cannot_end_their_line() {
        let mut out = String::new();
        Sample {
            out: &mut out,
            name: "a",
            labels: "b=\"c\"",
        }
        .put(&[("d", "\"} 1\n\\")], 2u64);
        assert_eq!(out, "a{b=\"c\",d=\"\\\"} 1\\n\\\\\"} 2\n");
    }

    #[test]
    fn numbers_are_written_as_the_macros_write_them() {
        let whole = [0, 9, 10, 907, u64::from(u32::MAX), u64::MAX].map(Value::Integer);
        let real = [
            0.0,
            0.5,
            1e-9,
            12.0,
            4_294_967_295.0,
            4_294_967_296.0,
            1e22,
            3.25,
        ];
        for value in whole.into_iter().chain(real.map(Value::Real)) {
            let (mut out, name, labels) = (String::new(), "a", "");
            let text = match value {
                Value::Integer(value) => value.to_string(),
                Value::Real(value) => value.to_string(),
            };
            Sample {
                out: &mut out,
                name,
                labels,
            }
            .put(&[], value);
            assert_eq!(out, format!("a {text}\n"));
        }
    }

    #[test]
    fn names_end_with_their_units_and_help_needs_no_escapes() {
        let names: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            let of_name =
                metric.name.starts_with("gpulimit_") && metric.name.ends_with(metric.unit);
            assert!(of_name, "{}", metric.name);
            assert!(!metric.help.contains(['\\', '\n', '"']), "{}", metric.help);
        }
    }
}
