//! The table of metrics: the name and the meaning of each, and its values.

use super::access::Scope;
use super::exposition::Sample;
use super::pressure::WINDOWS;
use super::reading::{Group, More, Reading};
use crate::figures::{self, Gpu, processes::Process, snapshot::GpuMemory};
use gpulimit_group::pod::Pod;
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

/// What has values, and the function that writes them.
#[derive(Copy, Clone)]
pub enum Values {
    /// The server itself.
    Server(fn((), &mut Sample<'_>)),
    /// Each GPU.
    Gpus(fn((&Reading, &GpuMemory), &mut Sample<'_>)),
    /// Each group.
    Groups(fn(&Group, &mut Sample<'_>)),
    /// Each GPU of a group.
    GroupGpus(fn((&Gpu, &More), &mut Sample<'_>)),
    /// A number of events on each GPU of a group. The GPUs that a group has not used yet have 0: a
    /// counter that first appears with 1 would not count as an increase.
    Counts(fn((&Gpu, &More), &mut Sample<'_>)),
    /// Each live process and GPU.
    Processes(fn(&Process, &mut Sample<'_>)),
}

impl Metric {
    /// Returns whether the metric is shown in this scope.
    pub fn is_shown(&self, scope: Scope) -> bool {
        match self.values {
            Values::Processes(_) => scope.processes,
            _ => !(scope.public && self.name == "gpulimit_user_memory_byte_seconds_total"),
        }
    }
}

/// Declares metrics: the help, the name, what has values, and the value, which may be unknown.
/// Where an item has several values, `out` puts them with their labels.
macro_rules! metrics {
    ($($(#[doc = $help:literal])*
    $name:literal: $values:ident($item:pat $(, $out:ident)?) => $value:expr;)*) => {
        /// All metrics.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name,
            help: concat!($($help),*).trim_ascii_start(),
            values: Values::$values(metrics!(@ $item, $($out,)? $value)),
        }),*];
    };
    (@ $item:pat, $out:ident, $value:expr) => { |$item, $out| $value };
    (@ $item:pat, $value:expr) => { |$item, out| out.put_known($value) };
}

metrics! {
    /// The version of gpulimit that serves.
    "gpulimit_build_info": Server(_, out) => out.put(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    /// The name and the address of the GPU, and the version of its driver.
    "gpulimit_gpu_info": Gpus((reading, gpu), out) => {
        let driver = ("driver_version", reading.driver.as_deref().unwrap_or(""));
        out.put(&[("name", &*gpu.name), ("pci_bus_id", &*gpu.bus), driver], 1);
    };
    /// The root and the kind of the group, and the container that it was made for.
    "gpulimit_group_info": Groups(group, out) => {
        let root = group.figures.root.to_string_lossy();
        // Empty labels, too, are written: with honor_labels Prometheus would put the labels of
        // the server's own pod in place of missing ones.
        let of_pod = |of: fn(&Pod) -> &String| group.ledger.pod.as_ref().map_or("", |it| of(it));
        let labels = [
            ("root", &*root),
            ("kind", figures::kind(&group.figures.name)),
            ("namespace", of_pod(|it| &it.namespace)),
            ("pod", of_pod(|it| &it.pod)),
            ("container", of_pod(|it| &it.container)),
        ];
        out.put(&labels, 1);
    };
    /// The memory of the GPU.
    "gpulimit_gpu_memory_total_bytes": Gpus((_, gpu)) => gpu.total;
    /// The memory that the driver counts as used, by all processes and by itself.
    "gpulimit_gpu_memory_used_bytes": Gpus((_, gpu)) => gpu.used;
    /// The memory of the GPU that is not used.
    "gpulimit_gpu_memory_free_bytes": Gpus((_, gpu)) => gpu.free();
    /// The used memory that belongs to no group: other processes and the driver.
    "gpulimit_gpu_memory_others_bytes": Gpus((_, gpu)) => gpu.others();
    /// The memory of the processes outside of all groups.
    "gpulimit_gpu_memory_outside_bytes": Gpus((_, gpu)) => gpu.outside.map(|(_, bytes)| bytes);
    /// The processes outside of all groups that use the GPU.
    "gpulimit_gpu_processes_outside": Gpus((_, gpu)) => gpu.outside.map(|(count, _)| count);
    /// The part of the last moments in which a kernel ran on the GPU.
    "gpulimit_gpu_utilization_ratio": Gpus((_, gpu)) => gpu.activity.busy.map(ratio);
    /// The temperature of the GPU.
    "gpulimit_gpu_temperature_celsius": Gpus((_, gpu)) => gpu.activity.temperature;
    /// The power that the GPU takes.
    "gpulimit_gpu_power_watts": Gpus((_, gpu)) => gpu.activity.power;
    /// The most power that the GPU may take.
    "gpulimit_gpu_power_limit_watts": Gpus((_, gpu)) => gpu.activity.power_limit;
    /// The clock of the GPU's processors.
    "gpulimit_gpu_clock_hertz": Gpus((_, gpu)) => gpu.activity.clock.map(hertz);
    /// The clock of the GPU's memory.
    "gpulimit_gpu_memory_clock_hertz": Gpus((_, gpu)) => gpu.activity.memory_clock.map(hertz);
    /// The memory that the group uses. It includes the groups below: add up only top groups.
    "gpulimit_memory_usage_bytes": GroupGpus((gpu, _)) => gpu.usage;
    /// The memory of suspended processes, which is on the host. No part of the usage.
    "gpulimit_memory_suspended_bytes": GroupGpus((gpu, _)) => gpu.suspended;
    /// The memory that processes of the group hold beyond their charges. It stops growth.
    "gpulimit_memory_uncovered_bytes": GroupGpus((gpu, _)) => gpu.uncovered;
    /// The highest usage since the group was made.
    "gpulimit_memory_peak_bytes": GroupGpus((gpu, _)) => gpu.peak;
    /// The memory that the group can still get under its limits.
    "gpulimit_memory_free_bytes": GroupGpus((gpu, _)) => gpu.free;
    /// The smallest limit of the group and of the groups above it.
    "gpulimit_memory_effective_max_bytes": GroupGpus((gpu, _)) => gpu.limit();
    /// The limit of the group itself.
    "gpulimit_memory_max_bytes": GroupGpus((gpu, _)) => gpu.max;
    /// The usage above which the members are asked to give back memory.
    "gpulimit_memory_high_bytes": GroupGpus((gpu, _)) => gpu.bytes(Key::High);
    /// The memory that is left to the group while others have more to give.
    "gpulimit_memory_low_bytes": GroupGpus((gpu, _)) => gpu.bytes(Key::Low);
    /// The memory that is kept for the group.
    "gpulimit_memory_min_bytes": GroupGpus((gpu, _)) => gpu.bytes(Key::Min);
    /// The memory that the group's requests leave free on the GPU.
    "gpulimit_memory_keep_free_bytes": GroupGpus((gpu, _)) => gpu.bytes(Key::KeepFree);
    /// The charged memory of the group by category.
    "gpulimit_memory_category_bytes": GroupGpus((gpu, _), out) => {
        for (category, bytes) in Category::ALL.iter().zip(gpu.by.iter().flatten()) {
            out.put(&[("category", category.name())], bytes);
        }
    };
    /// The processes of the group that have used the GPU. Draining ones have ended, and the driver
    /// has not freed their memory yet.
    "gpulimit_processes": GroupGpus((gpu, _), out) => {
        for (state, count) in [("running", gpu.processes), ("draining", gpu.draining)] {
            count.iter().for_each(|count| out.put(&[("state", state)], count));
        }
    };
    /// The processes of the group that wait for memory.
    "gpulimit_waiting_requests": GroupGpus((gpu, _)) => gpu.waiting;
    /// For how long the oldest of these requests has waited; 0 if none waits.
    "gpulimit_oldest_wait_seconds": GroupGpus((gpu, _)) => gpu.waiting.map(|_| {
        let longest = gpu.longest_wait.as_ref();
        longest.map_or(0.0, |longest| longest.waited().as_secs_f64())
    });
    /// How fast the smallest usage of the group rises; 0 if it does not.
    "gpulimit_memory_growth_bytes_per_second": GroupGpus((gpu, _)) =>
        gpu.usage.map(|_| gpu.trend.map_or(0.0, |trend| trend.rate));
    /// Whether the smallest usage of the group keeps rising.
    "gpulimit_suspected_leak": GroupGpus((gpu, _)) =>
        gpu.usage.map(|_| u64::from(gpu.trend.is_some()));
    /// The requests for memory that were refused since the group was made.
    "gpulimit_refusals_total": Counts((gpu, _)) => gpu.refusals;
    /// The requests for memory that have waited since the group was made.
    "gpulimit_waits_total": Counts((gpu, _)) => gpu.waits;
    /// The time for which these requests waited, added up. Its rate is the mean number of waiting
    /// requests.
    "gpulimit_wait_seconds_total": GroupGpus((gpu, _)) => gpu.waited_ms.map(seconds);
    /// Memory times time since the group was made. Only groups with a history count it.
    "gpulimit_memory_byte_seconds_total": GroupGpus((gpu, more)) =>
        gpu.usage.map(|_| more.byte_seconds);
    /// Memory times time of the processes of a user in the group.
    "gpulimit_user_memory_byte_seconds_total": GroupGpus((_, more), out) => {
        for (user, used) in &more.users {
            out.put(&[("user", user)], used);
        }
    };
    /// The events of the group by kind, without those of the groups below.
    "gpulimit_events_total": Groups(group, out) => {
        let counts = group.ledger.events.iter().flatten();
        for ((kind, name), count) in EventKind::ALL.iter().zip(counts) {
            // Only the trail of a root has this kind.
            if *kind != EventKind::Outside {
                out.put(&[("event", name)], count);
            }
        }
    };
    /// The time in which at least one request waited, since the server first saw the group.
    "gpulimit_memory_pressure_waiting_seconds_total": GroupGpus((gpu, more)) =>
        gpu.usage.map(|_| seconds(more.waited));
    /// The share of the last seconds in which at least one request waited.
    "gpulimit_memory_pressure_ratio": GroupGpus((gpu, more), out) => {
        for (window, ratio) in WINDOWS.iter().zip(more.pressure).filter(|_| gpu.usage.is_some()) {
            out.put(&[("window", &format!("{window}s"))], ratio);
        }
    };
    /// The memory that the process uses on the GPU.
    "gpulimit_process_memory_bytes": Processes(process) =>
        process.total();
    /// The mean part of the GPU's processors that the process used in the last seconds.
    "gpulimit_process_utilization_ratio": Processes(process) =>
        process.share.map(|share| ratio(share.percent));
    /// When the process was last seen to use the GPU's processors, or to change its charge.
    "gpulimit_process_last_use_timestamp_seconds": Processes(process) =>
        process.last_use().map(seconds);
    /// The memory that the process uses on the host. It is the same for each GPU of the process.
    "gpulimit_process_host_memory_bytes": Processes(process) => process.host;
    /// When the process started.
    "gpulimit_process_start_time_seconds": Processes(process) => process.started_ms.map(seconds);
}

fn ratio(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

fn hertz(mhz: u32) -> u64 {
    u64::from(mhz) * 1_000_000
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}
