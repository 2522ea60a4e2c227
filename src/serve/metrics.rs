//! The table of metrics: the name, the type, the unit and the meaning of each, and its values.

use super::Scope;
use super::exposition::{Sample, Value};
use super::pressure::WINDOWS;
use super::reading::{Group, More, Reading};
use crate::figures::{self, Gpu};
use crate::processes::Process;
use crate::snapshot::GpuMemory;
use gpulimit_ledger::{Category, EventKind};
use gpulimit_limits::Key;

/// A family of series.
pub struct Metric {
    /// The name without the suffix `_total` or `_info`.
    pub name: &'static str,
    pub kind: Kind,
    /// The unit, with which the name ends; empty if there is none.
    pub unit: &'static str,
    /// One sentence or two, without characters to escape.
    pub help: &'static str,
    pub values: Values,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    Gauge,
    Counter,
    /// A series whose labels are the information, with the value 1.
    Info,
}

/// What has values, and the function that gives them.
#[derive(Copy, Clone)]
pub enum Values {
    /// The server itself.
    Server(fn(&mut Sample<'_>)),
    /// Each GPU.
    Gpus(fn(&Reading, &GpuMemory, &mut Sample<'_>)),
    /// Each group.
    Groups(fn(&Group, &mut Sample<'_>)),
    /// Each GPU of a group.
    GroupGpus(fn(&Gpu, &More, &mut Sample<'_>)),
    /// A number of events on each GPU of a group. The GPUs that a group has not used yet have 0: a
    /// counter that first appears with 1 would not count as an increase.
    Counts(fn(&Gpu, &More) -> Option<Value>),
    /// Each live process and GPU.
    Processes(fn(&Process, &mut Sample<'_>)),
}

impl Metric {
    /// Returns whether the metric is shown in this scope.
    pub fn is_shown(&self, scope: Scope) -> bool {
        match self.values {
            Values::Processes(_) => scope.processes,
            _ => !(scope.public && self.name == USERS),
        }
    }
}

/// The metric with a label for the user.
const USERS: &str = "gpulimit_user_memory_byte_seconds";

const fn gauge(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    values: Values,
) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        unit,
        help,
        values,
    }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    values: Values,
) -> Metric {
    Metric {
        name,
        kind: Kind::Counter,
        unit,
        help,
        values,
    }
}

const fn info(name: &'static str, help: &'static str, values: Values) -> Metric {
    Metric {
        name,
        kind: Kind::Info,
        unit: "",
        help,
        values,
    }
}

/// All metrics.
pub const METRICS: &[Metric] = &[
    info(
        "gpulimit_build",
        "The version of gpulimit that serves.",
        Values::Server(|sample| {
            sample.put(&[("version", env!("CARGO_PKG_VERSION"))], 1u64);
        }),
    ),
    info(
        "gpulimit_gpu",
        "The name and the address of the GPU, and the version of its driver.",
        Values::Gpus(|reading, gpu, sample| {
            let driver = reading.driver.as_deref().unwrap_or("");
            let labels = [
                ("name", &*gpu.name),
                ("pci_bus_id", &*gpu.bus),
                ("driver_version", driver),
            ];
            sample.put(&labels, 1u64);
        }),
    ),
    info(
        "gpulimit_group",
        "The root and the kind of the group, and the container that it was made for.",
        Values::Groups(|group, sample| {
            let root = group.figures.root.to_string_lossy();
            // Empty labels, too, are written: with honor_labels Prometheus would put the labels of
            // the server's own pod in place of missing ones.
            let (namespace, pod, container) = match &group.pod {
                Some(pod) => (&*pod.namespace, &*pod.pod, &*pod.container),
                None => ("", "", ""),
            };
            let labels = [
                ("root", &*root),
                ("kind", figures::kind(&group.figures.name)),
                ("namespace", namespace),
                ("pod", pod),
                ("container", container),
            ];
            sample.put(&labels, 1u64);
        }),
    ),
    gauge(
        "gpulimit_gpu_memory_total_bytes",
        "bytes",
        "The memory of the GPU.",
        Values::Gpus(|_, gpu, sample| sample.put_known(gpu.total)),
    ),
    gauge(
        "gpulimit_gpu_memory_used_bytes",
        "bytes",
        "The memory that the driver counts as used, by all processes and by itself.",
        Values::Gpus(|_, gpu, sample| sample.put_known(gpu.used)),
    ),
    gauge(
        "gpulimit_gpu_memory_free_bytes",
        "bytes",
        "The memory of the GPU that is not used.",
        Values::Gpus(|_, gpu, sample| sample.put_known(gpu.free())),
    ),
    gauge(
        "gpulimit_gpu_memory_outside_bytes",
        "bytes",
        "The used memory that belongs to no group: other processes and the driver.",
        Values::Gpus(|_, gpu, sample| sample.put_known(gpu.outside())),
    ),
    gauge(
        "gpulimit_memory_usage_bytes",
        "bytes",
        "The memory that the group uses. It includes the groups below: add up only top groups.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.usage)),
    ),
    gauge(
        "gpulimit_memory_suspended_bytes",
        "bytes",
        "The memory of suspended processes, which is on the host. No part of the usage.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.suspended)),
    ),
    gauge(
        "gpulimit_memory_uncovered_bytes",
        "bytes",
        "The memory that processes of the group hold beyond their charges. It stops growth.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.uncovered)),
    ),
    gauge(
        "gpulimit_memory_peak_bytes",
        "bytes",
        "The highest usage since the group was made.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.peak)),
    ),
    gauge(
        "gpulimit_memory_free_bytes",
        "bytes",
        "The memory that the group can still get under its limits.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.free)),
    ),
    gauge(
        "gpulimit_memory_effective_max_bytes",
        "bytes",
        "The smallest limit of the group and of the groups above it.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.limit())),
    ),
    gauge(
        "gpulimit_memory_max_bytes",
        "bytes",
        "The limit of the group itself.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.max)),
    ),
    gauge(
        "gpulimit_memory_high_bytes",
        "bytes",
        "The usage above which the members are asked to give back memory.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.bytes(Key::High))),
    ),
    gauge(
        "gpulimit_memory_low_bytes",
        "bytes",
        "The memory that is left to the group while others have more to give.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.bytes(Key::Low))),
    ),
    gauge(
        "gpulimit_memory_min_bytes",
        "bytes",
        "The memory that is kept for the group.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.bytes(Key::Min))),
    ),
    gauge(
        "gpulimit_memory_category_bytes",
        "bytes",
        "The charged memory of the group by category.",
        Values::GroupGpus(|gpu, _, sample| {
            for (category, bytes) in Category::ALL.iter().zip(gpu.by.iter().flatten()) {
                sample.put(&[("category", category.name())], *bytes);
            }
        }),
    ),
    gauge(
        "gpulimit_processes",
        "",
        "The processes of the group that have used the GPU. Draining ones have ended, and the \
         driver has not freed their memory yet.",
        Values::GroupGpus(|gpu, more, sample| {
            if gpu.usage.is_some() {
                sample.put(&[("state", "running")], more.running);
                sample.put(&[("state", "draining")], more.draining);
            }
        }),
    ),
    gauge(
        "gpulimit_waiting_requests",
        "",
        "The processes of the group that wait for memory.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.waiting)),
    ),
    gauge(
        "gpulimit_oldest_wait_seconds",
        "seconds",
        "For how long the oldest of these requests has waited; 0 if none waits.",
        Values::GroupGpus(|gpu, more, sample| {
            let waited = gpu.waiting.map(|_| more.oldest_wait.as_secs_f64());
            sample.put_known(waited);
        }),
    ),
    gauge(
        "gpulimit_memory_growth_bytes_per_second",
        "bytes_per_second",
        "How fast the smallest usage of the group rises; 0 if it does not.",
        Values::GroupGpus(|gpu, _, sample| {
            let rate = gpu.trend.map_or(0.0, |trend| trend.rate);
            sample.put_known(gpu.usage.map(|_| rate));
        }),
    ),
    gauge(
        "gpulimit_suspected_leak",
        "",
        "Whether the smallest usage of the group keeps rising.",
        Values::GroupGpus(|gpu, _, sample| {
            let leaks = gpu.usage.map(|_| u64::from(gpu.trend.is_some()));
            sample.put_known(leaks);
        }),
    ),
    counter(
        "gpulimit_refusals",
        "",
        "The requests for memory that were refused since the group was made.",
        Values::Counts(|gpu, _| gpu.refusals.map(Value::from)),
    ),
    counter(
        "gpulimit_waits",
        "",
        "The requests for memory that have waited since the group was made.",
        Values::Counts(|gpu, _| gpu.waits.map(Value::from)),
    ),
    counter(
        "gpulimit_wait_seconds",
        "seconds",
        "The time for which these requests waited, added up. Its rate is the mean number of \
         waiting requests.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.waited_ms.map(seconds))),
    ),
    counter(
        "gpulimit_memory_byte_seconds",
        "byte_seconds",
        "Memory times time since the group was made. Only named groups count it.",
        Values::GroupGpus(|gpu, more, sample| {
            sample.put_known(gpu.usage.map(|_| more.byte_seconds));
        }),
    ),
    counter(
        USERS,
        "byte_seconds",
        "Memory times time of the processes of a user in the group.",
        Values::GroupGpus(|_, more, sample| {
            for (user, used) in &more.users {
                sample.put(&[("user", user)], *used);
            }
        }),
    ),
    counter(
        "gpulimit_events",
        "",
        "The events of the group by kind, without those of the groups below.",
        Values::Groups(|group, sample| {
            for (kind, count) in EventKind::ALL.iter().zip(group.events.iter().flatten()) {
                sample.put(&[("event", kind.name())], *count);
            }
        }),
    ),
    counter(
        "gpulimit_memory_pressure_waiting_seconds",
        "seconds",
        "The time in which at least one request waited, since the server first saw the group.",
        Values::GroupGpus(|gpu, more, sample| {
            sample.put_known(gpu.usage.map(|_| seconds(more.waited)));
        }),
    ),
    gauge(
        "gpulimit_memory_pressure_ratio",
        "ratio",
        "The share of the last seconds in which at least one request waited.",
        Values::GroupGpus(|gpu, more, sample| {
            if gpu.usage.is_some() {
                for (window, ratio) in WINDOWS.iter().zip(more.pressure) {
                    sample.put(&[("window", &format!("{window}s"))], ratio);
                }
            }
        }),
    ),
    gauge(
        "gpulimit_process_memory_bytes",
        "bytes",
        "The memory that the process uses on the GPU.",
        Values::Processes(|process, sample| {
            let bytes = process.gpu.as_ref().map(|(_, parts)| parts.total);
            sample.put_known(bytes);
        }),
    ),
];

fn seconds(ms: u64) -> Value {
    Value::from(ms as f64 / 1_000.0)
}
