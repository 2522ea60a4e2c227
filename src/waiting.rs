//! The requests that wait for memory, and the processes that have made them.
//!
//! A request waits in the line of the group that is full: the process's own group, or a group above
//! it. Only that group's ledger lists the request, so all these ledgers are read.

use super::clock;
use super::groups::{self, View, of_process};
use super::nvml::Driver;
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::gib;
use gpulimit_group::{Group, Root, is_within, upwards};
use gpulimit_ledger::{DeviceEntry, Ledger, ProcessUsage};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A request that waits for memory of a GPU.
pub struct Waiter {
    root: PathBuf,
    /// The name of the process's group.
    group: String,
    process: Key,
    gpu: DeviceId,
    bytes: u64,
    waited: Duration,
    /// The name of the full group.
    line: String,
}

/// The devices and the processes of a ledger.
type Members = (Vec<DeviceEntry>, Vec<ProcessUsage>);

/// The requests that wait for memory in some groups, in the groups above and in the groups below.
pub struct Waiters(Vec<Waiter>);

impl Waiters {
    /// Reads the requests from the ledgers of these groups, of the groups above, and of the groups
    /// below with processes. Leaves out ledgers that the caller cannot read.
    pub fn of(views: &[View], driver: Option<&Driver>) -> Self {
        let (mut seen, mut waiters) = (BTreeSet::new(), Vec::new());
        let mut read = |group: &Group, processes: &dyn Fn() -> Option<Members>| {
            if seen.insert((group.root().to_owned(), group.name().to_owned()))
                && let Some((devices, processes)) = processes()
            {
                let of = |process| Waiter::of(group, process, &devices);
                waiters.extend(processes.iter().filter_map(of));
            }
        };
        let of_ledger = |ledger: &Ledger| {
            let processes = ledger.processes(groups::witness(driver));
            (ledger.devices(), processes)
        };
        for view in views {
            read(&view.group, &|| {
                Some((view.devices.clone(), view.processes.clone()))
            });
        }
        for above in views.iter().flat_map(|view| &view.above) {
            read(&above.group, &|| above.ledger.as_ref().map(of_ledger));
        }
        for group in views.iter().flat_map(below) {
            let open = || Ledger::open_readonly(&group.ledger_path()).ok();
            read(&group, &|| open().as_ref().map(of_ledger));
        }
        Self(waiters)
    }

    /// Returns the request of a process in `group` that has waited longest for memory of the GPU.
    pub fn find(&self, group: &Group, process: &Identity, gpu: DeviceId) -> Option<&Waiter> {
        let is_its = |waiter: &&Waiter| waiter.gpu == gpu && waiter.process == key(process);
        self.within(group)
            .filter(is_its)
            .max_by_key(|waiter| waiter.waited)
    }

    /// Returns the GPUs for whose memory a process in `group` waits.
    pub fn gpus(&self, group: &Group, process: &Identity) -> BTreeSet<DeviceId> {
        let its = self
            .within(group)
            .filter(|waiter| waiter.process == key(process));
        its.map(|waiter| waiter.gpu).collect()
    }

    /// Counts the processes in `group` and in the groups below it that wait for memory of the GPU.
    pub fn count(&self, group: &Group, gpu: DeviceId) -> usize {
        let of_gpu = self.within(group).filter(|waiter| waiter.gpu == gpu);
        of_gpu
            .map(|waiter| waiter.process)
            .collect::<BTreeSet<_>>()
            .len()
    }

    fn within(&self, group: &Group) -> impl Iterator<Item = &Waiter> {
        let is_within = |waiter: &&Waiter| {
            waiter.root == group.root() && is_within(&waiter.group, group.name())
        };
        self.0.iter().filter(is_within)
    }
}

impl Waiter {
    /// Returns the request with which a process waits in the line of `group`.
    fn of(group: &Group, process: &ProcessUsage, devices: &[DeviceEntry]) -> Option<Self> {
        let waits = process.waits?;
        let device = devices.iter().find(|entry| entry.index == waits.device)?;
        Some(Self {
            root: group.root().into(),
            group: of_process(group, process),
            process: key(&process.identity),
            gpu: device.id,
            bytes: waits.bytes,
            waited: waits.waited(),
            line: group.name().into(),
        })
    }

    /// Returns the request as JSON. Bytes and milliseconds are integers.
    pub fn json(&self) -> Value {
        json!({
            "bytes": self.bytes,
            "group": self.line,
            "waited_ms": u64::try_from(self.waited.as_millis()).ok(),
        })
    }
}

/// Formats the request for a table: `waits for 2.0 GiB, 40 s`.
impl fmt::Display for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "waits for {}, {}",
            gib(self.bytes),
            clock::rough_span(self.waited)
        )
    }
}

/// The pid, its namespace and the start time of a process.
type Key = (u32, u64, u64);

fn key(process: &Identity) -> Key {
    (process.pid, process.pid_ns, process.start_time)
}

/// Returns the groups below the view's group that have processes, and the groups between.
fn below(view: &View) -> Vec<Group> {
    let own = view.group.name();
    let names: BTreeSet<String> = (view.processes.iter())
        .map(|process| of_process(&view.group, process))
        .flat_map(|name| upwards(&name).map(str::to_owned).collect::<Vec<_>>())
        .filter(|name| name != own && is_within(name, own))
        .collect();
    let Ok(root) = Root::at(view.group.root()) else {
        return Vec::new();
    };
    names
        .iter()
        .filter_map(|name| root.group(name).ok())
        .collect()
}
