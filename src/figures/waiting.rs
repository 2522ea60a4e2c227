//! The requests that wait for memory, and the processes that have made them.
//!
//! A request waits in the line of the group that is full: the process's own group, or a group above
//! it. Only that group's ledger lists the request, so all these ledgers are read.

use super::fields::{self, fields};
use crate::groups::{self, View, of_process};
use crate::machine::nvml::Driver;
use crate::words::{clock, written};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::gib;
use gpulimit_group::{Group, Root, is_within, upwards};
use gpulimit_ledger::{DeviceEntry, Ledger, ProcessUsage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A request that waits for memory of a GPU.
#[derive(Clone, Deserialize, Serialize)]
pub struct Waiter {
    root: PathBuf,
    /// The name of the process's group.
    group: String,
    process: (u32, u64, u64),
    #[serde(with = "written")]
    pub gpu: DeviceId,
    pub bytes: u64,
    waited: Duration,
    /// The name of the full group.
    pub line: String,
}

/// The requests that wait for memory in some groups, in the groups above and in the groups below.
#[derive(Default)]
pub struct Waiters {
    waiters: Vec<Waiter>,
    /// The names and roots of the groups whose ledgers were read. Paths take longer to compare.
    read: BTreeSet<(String, PathBuf)>,
}

impl Waiters {
    /// Reads the requests from the ledgers of these groups, of the groups above, and of the groups
    /// below with processes. Leaves out ledgers that the caller cannot read.
    pub fn of(views: &[View], driver: Option<&Driver>) -> Self {
        let mut waiters = Self::default();
        for view in views {
            waiters.add(view, driver);
        }
        for view in views {
            waiters.add_below(&view.group, &view.processes, driver);
        }
        waiters
    }

    /// Adds the requests in the ledgers of the group and of the groups above it.
    pub fn add(&mut self, view: &View, driver: Option<&Driver>) {
        if self.is_new(&view.group) {
            self.take(&view.group, &view.devices, &view.processes);
        }
        for above in &view.above {
            if let (true, Some(ledger)) = (self.is_new(&above.group), &above.ledger) {
                self.take_from(&above.group, ledger, driver);
            }
        }
    }

    /// Adds the requests in ledgers of groups below `group`, of which these are the processes. Call
    /// after [`Self::add`] for all groups.
    pub fn add_below(
        &mut self,
        group: &Group,
        processes: &[ProcessUsage],
        driver: Option<&Driver>,
    ) {
        for group in below(group, processes) {
            if self.is_new(&group)
                && let Ok(ledger) = Ledger::open_readonly(&group.ledger_path())
            {
                self.take_from(&group, &ledger, driver);
            }
        }
    }

    /// Notes that the group's ledger is read. Returns whether it was not read before.
    fn is_new(&mut self, group: &Group) -> bool {
        let key = (group.name().to_owned(), group.root().to_owned());
        self.read.insert(key)
    }

    fn take_from(&mut self, group: &Group, ledger: &Ledger, driver: Option<&Driver>) {
        let processes = ledger.processes(groups::witness(driver));
        self.take(group, &ledger.devices(), &processes);
    }

    fn take(&mut self, group: &Group, devices: &[DeviceEntry], processes: &[ProcessUsage]) {
        let of = |process| Waiter::of(group, process, devices);
        self.waiters.extend(processes.iter().filter_map(of));
    }

    /// Returns the requests of a process in `group`.
    pub fn of_process(&self, group: &Group, process: &Identity) -> Vec<&Waiter> {
        let all = self.within(group.root(), group.name());
        all.filter(|waiter| waiter.process == process.key())
            .collect()
    }

    /// Counts the processes in a group and in the groups below it that wait for memory of the GPU.
    pub fn count(&self, root: &Path, group: &str, gpu: DeviceId) -> u64 {
        let processes: BTreeSet<_> = self
            .on(root, group, gpu)
            .map(|waiter| waiter.process)
            .collect();
        processes.len() as u64
    }

    /// Returns the request that has waited longest among these.
    pub fn longest(&self, root: &Path, group: &str, gpu: DeviceId) -> Option<&Waiter> {
        self.on(root, group, gpu).max_by_key(|waiter| waiter.waited)
    }

    fn on(&self, root: &Path, group: &str, gpu: DeviceId) -> impl Iterator<Item = &Waiter> {
        let of_gpu = move |waiter: &&Waiter| waiter.gpu == gpu;
        self.within(root, group).filter(of_gpu)
    }

    fn within(&self, root: &Path, group: &str) -> impl Iterator<Item = &Waiter> {
        let is_within =
            move |waiter: &&Waiter| waiter.root == root && is_within(&waiter.group, group);
        self.waiters.iter().filter(is_within)
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
            process: process.identity.key(),
            gpu: device.id,
            bytes: waits.bytes,
            waited: waits.waited(),
            line: group.name().into(),
        })
    }

    /// Returns how long the request has waited.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    pub fn json(&self) -> Value {
        fields::json(FIELDS, self, None)
    }

    /// Returns a request for tests.
    #[cfg(test)]
    pub fn example(group: &str, gpu: DeviceId, bytes: u64, waited: Duration) -> Self {
        Self {
            root: "/root".into(),
            group: group.into(),
            process: (1, 2, 3),
            gpu,
            bytes,
            waited,
            line: "lab".into(),
        }
    }
}

fields! { pub FIELDS(it: Waiter):
    "bytes": Bytes => it.bytes;
    /// The full group.
    "group": Text => &*it.line;
    "waited_ms": Ms => u64::try_from(it.waited.as_millis()).ok();
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

/// Returns the groups below `group` that have processes, and the groups between.
fn below(group: &Group, processes: &[ProcessUsage]) -> Vec<Group> {
    let own = group.name();
    let names: BTreeSet<String> = (processes.iter())
        .filter(|process| !process.below.is_empty())
        .map(|process| of_process(group, process))
        .flat_map(|name| upwards(&name).map(str::to_owned).collect::<Vec<_>>())
        .filter(|name| name != own && is_within(name, own))
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let Ok(root) = Root::at(group.root()) else {
        return Vec::new();
    };
    names
        .iter()
        .filter_map(|name| root.group(name).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_of_a_group_is_its_own_or_of_a_group_below() {
        let gpus = [1, 2].map(|number| DeviceId::gpu([number; 16]));
        let waiter = |group, gpu, seconds| {
            Waiter::example(group, gpu, 1 << 30, Duration::from_secs(seconds))
        };
        let waiters = Waiters {
            waiters: vec![
                waiter("lab", gpus[0], 5),
                waiter("lab/alice", gpus[0], 9),
                waiter("lab", gpus[1], 40),
                waiter("laboratory", gpus[0], 50),
            ],
            ..Waiters::default()
        };
        let longest = |group, gpu| {
            let longest = waiters.longest(Path::new("/root"), group, gpu);
            longest.map(|longest| longest.waited().as_secs())
        };
        assert_eq!(longest("lab", gpus[0]), Some(9));
        assert_eq!(longest("lab", gpus[1]), Some(40));
        assert_eq!(longest("lab/alice", gpus[1]), None);
    }
}
