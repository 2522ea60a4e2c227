//! The table of metrics: the name and the meaning of each, and its values.

use super::access::Scope;
use super::exposition::Sample;
use super::pressure::WINDOWS;
use super::reading::{Group, More, Reading};
use crate::figures::{self, Gpu, processes::Process, snapshot::GpuMemory};
use gpulimit_ledger::{Category, EventKind};
use gpulimit_limits::Key;

/// A family of series.
pub struct Metric {
    /// The name of its series. Counters end with `_total`.
    pub name: &'static str,
    /// One sentence or two, without characters to escape.
    pub help: &'static str,
    pub values: Values,
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
    Counts(fn(&Gpu) -> Option<u64>),
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
const USERS: &str = "gpulimit_user_memory_byte_seconds_total";

const fn metric(name: &'static str, help: &'static str, values: Values) -> Metric {
    Metric { name, help, values }
}

/// All metrics.
pub const METRICS: &[Metric] = &[
    metric(
        "gpulimit_build_info",
        "The version of gpulimit that serves.",
        Values::Server(|sample| {
            sample.put(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        }),
    ),
    metric(
        "gpulimit_gpu_info",
        "The name and the address of the GPU, and the version of its driver.",
        Values::Gpus(|reading, gpu, sample| {
            let driver = reading.driver.as_deref().unwrap_or("");
            let labels = [
                ("name", &*gpu.name),
                ("pci_bus_id", &*gpu.bus),
                ("driver_version", driver),
            ];
            sample.put(&labels, 1);
        }),
    ),
    metric(
        "gpulimit_group_info",
        "The root and the kind of the group, and the container that it was made for.",
        Values::Groups(|group, sample| {
            let root = group.figures.root.to_string_lossy();
            // Empty labels, too, are written: with honor_labels Prometheus would put the labels of
            // the server's own pod in place of missing ones.
            let (namespace, pod, container) = match &group.ledger.pod {
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
            sample.put(&labels, 1);
        }),
    ),
    metric(
        "gpulimit_gpu_memory_total_bytes",
        "The memory of the GPU.",
        Values::Gpus(|_, gpu, sample| sample.put_known(gpu.total)),
    ),
    metric(
        "gpulimit_gpu_memory_used_bytes",
        "The memory that the driver counts as used, by all processes and by itself.",
        Values::Gpus(|_, gpu, sample| sample.put_known(gpu.used)),
    ),
    metric(
        "gpulimit_gpu_memory_free_bytes",
        "The memory of the GPU that is not used.",
        Values::Gpus(|_, gpu, sample| sample.put_known(gpu.free())),
    ),
    metric(
        "gpulimit_gpu_memory_outside_bytes",
        "The used memory that belongs to no group: other processes and the driver.",
        Values::Gpus(|_, gpu, sample| sample.put_known(gpu.outside())),
    ),
    metric(
        "gpulimit_memory_usage_bytes",
        "The memory that the group uses. It includes the groups below: add up only top groups.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.usage)),
    ),
    metric(
        "gpulimit_memory_suspended_bytes",
        "The memory of suspended processes, which is on the host. No part of the usage.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.suspended)),
    ),
    metric(
        "gpulimit_memory_uncovered_bytes",
        "The memory that processes of the group hold beyond their charges. It stops growth.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.uncovered)),
    ),
    metric(
        "gpulimit_memory_peak_bytes",
        "The highest usage since the group was made.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.peak)),
    ),
    metric(
        "gpulimit_memory_free_bytes",
        "The memory that the group can still get under its limits.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.free)),
    ),
    metric(
        "gpulimit_memory_effective_max_bytes",
        "The smallest limit of the group and of the groups above it.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.limit())),
    ),
    metric(
        "gpulimit_memory_max_bytes",
        "The limit of the group itself.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.max)),
    ),
    metric(
        "gpulimit_memory_high_bytes",
        "The usage above which the members are asked to give back memory.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.bytes(Key::High))),
    ),
    metric(
        "gpulimit_memory_low_bytes",
        "The memory that is left to the group while others have more to give.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.bytes(Key::Low))),
    ),
    metric(
        "gpulimit_memory_min_bytes",
        "The memory that is kept for the group.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.bytes(Key::Min))),
    ),
    metric(
        "gpulimit_memory_keep_free_bytes",
        "The memory that the group's requests leave free on the GPU.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.bytes(Key::KeepFree))),
    ),
    metric(
        "gpulimit_memory_category_bytes",
        "The charged memory of the group by category.",
        Values::GroupGpus(|gpu, _, sample| {
            for (category, bytes) in Category::ALL.iter().zip(gpu.by.iter().flatten()) {
                sample.put(&[("category", category.name())], bytes);
            }
        }),
    ),
    metric(
        "gpulimit_processes",
        "The processes of the group that have used the GPU. Draining ones have ended, and the \
         driver has not freed their memory yet.",
        Values::GroupGpus(|gpu, more, sample| {
            if gpu.usage.is_some() {
                sample.put(&[("state", "running")], more.running);
                sample.put(&[("state", "draining")], more.draining);
            }
        }),
    ),
    metric(
        "gpulimit_waiting_requests",
        "The processes of the group that wait for memory.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.waiting)),
    ),
    metric(
        "gpulimit_oldest_wait_seconds",
        "For how long the oldest of these requests has waited; 0 if none waits.",
        Values::GroupGpus(|gpu, _, sample| {
            let longest = gpu.longest_wait.as_ref();
            let waited = longest.map_or(0.0, |longest| longest.waited().as_secs_f64());
            sample.put_known(gpu.waiting.map(|_| waited));
        }),
    ),
    metric(
        "gpulimit_memory_growth_bytes_per_second",
        "How fast the smallest usage of the group rises; 0 if it does not.",
        Values::GroupGpus(|gpu, _, sample| {
            let rate = gpu.trend.map_or(0.0, |trend| trend.rate);
            sample.put_known(gpu.usage.map(|_| rate));
        }),
    ),
    metric(
        "gpulimit_suspected_leak",
        "Whether the smallest usage of the group keeps rising.",
        Values::GroupGpus(|gpu, _, sample| {
            let leaks = gpu.usage.map(|_| u64::from(gpu.trend.is_some()));
            sample.put_known(leaks);
        }),
    ),
    metric(
        "gpulimit_refusals_total",
        "The requests for memory that were refused since the group was made.",
        Values::Counts(|gpu| gpu.refusals),
    ),
    metric(
        "gpulimit_waits_total",
        "The requests for memory that have waited since the group was made.",
        Values::Counts(|gpu| gpu.waits),
    ),
    metric(
        "gpulimit_wait_seconds_total",
        "The time for which these requests waited, added up. Its rate is the mean number of \
         waiting requests.",
        Values::GroupGpus(|gpu, _, sample| sample.put_known(gpu.waited_ms.map(seconds))),
    ),
    metric(
        "gpulimit_memory_byte_seconds_total",
        "Memory times time since the group was made. Only named groups count it.",
        Values::GroupGpus(|gpu, more, sample| {
            sample.put_known(gpu.usage.map(|_| more.byte_seconds));
        }),
    ),
    metric(
        USERS,
        "Memory times time of the processes of a user in the group.",
        Values::GroupGpus(|_, more, sample| {
            for (user, used) in &more.users {
                sample.put(&[("user", user)], used);
            }
        }),
    ),
    metric(
        "gpulimit_events_total",
        "The events of the group by kind, without those of the groups below.",
        Values::Groups(|group, sample| {
            for (kind, count) in EventKind::ALL
                .iter()
                .zip(group.ledger.events.iter().flatten())
            {
                sample.put(&[("event", kind.name())], count);
            }
        }),
    ),
    metric(
        "gpulimit_memory_pressure_waiting_seconds_total",
        "The time in which at least one request waited, since the server first saw the group.",
        Values::GroupGpus(|gpu, more, sample| {
            sample.put_known(gpu.usage.map(|_| seconds(more.waited)));
        }),
    ),
    metric(
        "gpulimit_memory_pressure_ratio",
        "The share of the last seconds in which at least one request waited.",
        Values::GroupGpus(|gpu, more, sample| {
            if gpu.usage.is_some() {
                for (window, ratio) in WINDOWS.iter().zip(more.pressure) {
                    sample.put(&[("window", &format!("{window}s"))], ratio);
                }
            }
        }),
    ),
    metric(
        "gpulimit_process_memory_bytes",
        "The memory that the process uses on the GPU.",
        Values::Processes(|process, sample| {
            let bytes = process.gpu.as_ref().map(|(_, parts)| parts.total);
            sample.put_known(bytes);
        }),
    ),
];

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}
