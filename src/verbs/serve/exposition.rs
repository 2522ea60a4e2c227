//! The table of metrics as text, in Prometheus' format.
//!
//! The text of many groups is long, so it is made in pieces while the client reads.

use super::access::Scope;
use super::metrics::{METRICS, Metric, Values};
use super::reading::Reading;
use crate::figures::{processes::Process, snapshot::GpuMemory};
use crate::machine::accounts;
use crate::shown::output::Escaped;
use gpulimit_base::device::DeviceId;
use std::fmt::{Display, Write};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Weak};

/// The length in bytes from which a piece is sent.
const PIECE: usize = 32 << 10;

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes the lines of a metric for one GPU, group or process.
pub struct Sample<'a> {
    out: &'a mut String,
    /// The name of the series.
    name: &'a str,
    /// The labels that all lines have, as text in two parts. A part may be empty.
    labels: [&'a str; 2],
}

impl Sample<'_> {
    /// Writes a line with these labels beside the common ones.
    pub fn put(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let out = &mut *self.out;
        out.push_str(self.name);
        let mut before = '{';
        for part in self.labels.iter().filter(|part| !part.is_empty()) {
            out.push(before);
            out.push_str(part);
            before = ',';
        }
        for (name, value) in labels {
            out.push(before);
            label(out, name, value);
            before = ',';
        }
        if before == ',' {
            out.push('}');
        }
        // Writing to a `String` never fails.
        let _ = writeln!(out, " {value}");
    }

    /// Writes a line if the value is known.
    pub fn put_known(&mut self, value: Option<impl Display>) {
        if let Some(value) = value {
            self.put(&[], value);
        }
    }
}

/// Writes a label. Other users choose values, such as commands.
fn label(out: &mut String, name: &str, value: &str) {
    out.push_str(name);
    out.push_str("=\"");
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        out.push_str(&rest[..at]);
        out.push('\\');
        out.push_str(if rest[at..].starts_with('\n') {
            "n"
        } else {
            &rest[at..=at]
        });
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

/// Number of characters of a UUID that name a MIG instance, or a GPU that NVML does not list:
/// `MIG-1a2b3c4d`.
const SHORT: usize = 12;

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

/// A reading with the labels of its series as text. All clients that read its metrics share it.
pub struct Page {
    reading: Arc<Reading>,
    scope: Scope,
    gpus: Vec<String>,
    groups: Vec<String>,
    processes: Vec<Option<String>>,
}

/// The text of all metrics, in pieces.
pub struct Text {
    /// Weak, so that clients that do not read on keep no memory.
    page: Weak<Page>,
    /// The next metric of the table, and the next item of this metric.
    next: (usize, usize),
}

impl Text {
    pub fn new(page: Weak<Page>) -> Self {
        Self { page, next: (0, 0) }
    }

    /// Returns the next piece; an empty one after the last one. Fails if the metrics were dropped,
    /// because the client reads too slowly.
    pub fn piece(&mut self) -> io::Result<String> {
        let mut out = String::new();
        if self.next.0 < METRICS.len() {
            let page = self.page.upgrade().ok_or(ErrorKind::TimedOut)?;
            out.reserve(PIECE + 4096);
            self.next = page.write(self.next, &mut out);
        }
        Ok(out)
    }
}

impl Page {
    /// Returns the metrics of a reading. Call in the thread that reads groups: the names of users
    /// are looked up.
    pub fn of(reading: Arc<Reading>, scope: Scope) -> Self {
        let of_gpu = |gpu: &GpuMemory| {
            let uuid = gpu.id.to_string();
            // Queries that group by `gpu` must not merge the MIG instances of a machine.
            let short = || uuid.chars().take(SHORT).collect();
            let name = gpu.index.map_or_else(short, |index| index.to_string());
            labels(&[("gpu", &name), ("uuid", &uuid)])
        };
        let mut page = Self {
            gpus: reading.gpus.iter().map(of_gpu).collect(),
            groups: (reading.groups.iter())
                .map(|group| labels(&[("group", &group.figures.title)]))
                .collect(),
            processes: Vec::new(),
            reading,
            scope,
        };
        if scope.processes {
            let processes = page.reading.processes().iter();
            page.processes = processes.map(|process| page.of_process(process)).collect();
        }
        page
    }

    /// Returns the labels of a live process of this pid namespace on a GPU.
    fn of_process(&self, process: &Process) -> Option<String> {
        let (pid, gpu) = (process.pid?, process.gpu()?);
        process.alive.then(|| {
            let command = Escaped(process.command.as_deref().unwrap_or("")).to_string();
            let rest = labels(&[
                ("pid", &pid.to_string()),
                ("user", &accounts::user_name(process.uid)),
                ("command", &command),
            ]);
            let group = labels(&[("group", &process.title)]);
            format!("{group},{},{rest}", self.gpu(gpu))
        })
    }

    /// Returns the labels of a GPU. Every GPU of a group is in the list of GPUs.
    fn gpu(&self, id: DeviceId) -> &str {
        let at = self.reading.gpus.iter().position(|gpu| gpu.id == id);
        at.map_or("", |at| &self.gpus[at])
    }

    /// Returns whether these are the metrics of this reading.
    pub fn is_of(&self, reading: &Arc<Reading>) -> bool {
        Arc::ptr_eq(&self.reading, reading)
    }

    /// Writes a piece, from a metric of the table and an item of this metric on. Returns where the
    /// next piece begins; beyond the table after the last one.
    fn write(&self, (first, mut item): (usize, usize), out: &mut String) -> (usize, usize) {
        let shown = METRICS.iter().enumerate().skip(first);
        for (at, metric) in shown.filter(|(_, metric)| metric.is_shown(self.scope)) {
            if item == 0 {
                let Metric { name, help, .. } = metric;
                let is_counter = name.ends_with("_total");
                let kind = if is_counter { "counter" } else { "gauge" };
                let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            }
            let items = match metric.values {
                Values::Server(_) => 1,
                Values::Gpus(_) => self.gpus.len(),
                Values::Groups(_) | Values::GroupGpus(_) | Values::Counts(_) => self.groups.len(),
                Values::Processes(_) => self.processes.len(),
            };
            for item in item..items {
                self.item(metric, item, out);
                if out.len() >= PIECE {
                    return (at, item + 1);
                }
            }
            item = 0;
        }
        (METRICS.len(), 0)
    }

    /// Writes the lines of one item of a metric.
    fn item(&self, metric: &Metric, at: usize, out: &mut String) {
        let (reading, name, labels) = (&*self.reading, metric.name, ["", ""]);
        let mut sample = Sample { out, name, labels };
        match metric.values {
            Values::Server(value) => value((), &mut sample),
            Values::Gpus(value) => {
                sample.labels[1] = &self.gpus[at];
                value((reading, &reading.gpus[at]), &mut sample);
            }
            Values::Groups(value) => {
                sample.labels[0] = &self.groups[at];
                value(&reading.groups[at], &mut sample);
            }
            Values::GroupGpus(value) | Values::Counts(value) => {
                sample.labels[0] = &self.groups[at];
                for (gpu, more) in reading.groups[at].gpus() {
                    sample.labels[1] = self.gpu(gpu.id);
                    value((gpu, more), &mut sample);
                }
                let counts = matches!(metric.values, Values::Counts(_));
                for id in reading.groups[at].unused.iter().filter(|_| counts) {
                    sample.labels[1] = self.gpu(*id);
                    sample.put(&[], 0);
                }
            }
            Values::Processes(value) => {
                if let Some(labels) = &self.processes[at] {
                    sample.labels[0] = labels;
                    value(&reading.processes()[at], &mut sample);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn label_values_cannot_end_their_line() {
        let mut out = String::new();
        Sample {
            out: &mut out,
            name: "a",
            labels: ["", "b=\"c\""],
        }
        .put(&[("d", "\"} 1\n\\")], 2u64);
        assert_eq!(out, "a{b=\"c\",d=\"\\\"} 1\\n\\\\\"} 2\n");
    }

    #[test]
    fn names_are_unique_and_help_needs_no_escapes() {
        let names: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            assert!(metric.name.starts_with("gpulimit_"), "{}", metric.name);
            assert!(!metric.help.contains(['\\', '\n', '"']), "{}", metric.help);
        }
    }
}
