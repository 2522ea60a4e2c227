//! The memory of users, each with all processes of the user, on a GPU or on all GPUs.

use super::fields::{Cell, fields, left, right};
use super::processes::Process;
use crate::groups;
use crate::machine::nvml::Driver;
use crate::words::{clock, order::Natural};
use gpulimit_base::device::DeviceId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The processes and the memory of a user: a row of `ps --by user`, or of the users in `top`.
#[derive(Default)]
pub struct Use {
    pub uid: u32,
    pub user: String,
    /// The GPU; `None` for processes that have not used a GPU yet, and for all GPUs together.
    pub gpu: Option<DeviceId>,
    /// The live processes.
    pub processes: usize,
    /// The bytes of all processes, also of those whose memory the driver has not freed yet.
    pub total: Option<u64>,
    /// The bytes of suspended processes, on the host; no part of the total.
    pub suspended: Option<u64>,
    /// The processes that wait for memory of the GPU.
    pub waiting: usize,
    /// The longest time that one of them has waited.
    pub waited: Option<Duration>,
}

impl Use {
    /// Adds up the rows of each user, for each GPU or for all together. The result is sorted by
    /// user and GPU.
    pub fn of(rows: &[Process], by_gpu: bool, driver: Option<&Driver>) -> Vec<Self> {
        let mut uses: BTreeMap<(&str, u32, Option<DeviceId>), Self> = BTreeMap::new();
        // A process has a row for each of its GPUs. Machines can number users differently.
        let mut counted = BTreeSet::new();
        for row in rows {
            let gpu = row.gpu().filter(|_| by_gpu);
            let user = (row.user.as_str(), row.uid, gpu);
            let sum = uses.entry(user).or_insert_with(|| Self {
                uid: row.uid,
                user: row.user.clone(),
                gpu,
                ..Self::default()
            });
            let is_new = counted.insert((&row.root, gpu, row.pid, row.own_pid, row.start_time));
            sum.processes += usize::from(row.alive && is_new);
            if let Some(parts) = &row.on {
                let add = |sum: Option<u64>, bytes| Some(sum.unwrap_or(0).saturating_add(bytes));
                sum.total = add(sum.total, parts.total);
                sum.suspended = add(sum.suspended, parts.suspended);
            }
            if let Some(waiter) = &row.waits {
                sum.waiting += 1;
                sum.waited = sum.waited.max(Some(waiter.waited()));
            }
        }
        let mut uses: Vec<Self> = uses.into_values().collect();
        let place = |gpu: DeviceId| (groups::index(gpu, driver).unwrap_or(u32::MAX), gpu);
        uses.sort_by_cached_key(|one| {
            let gpu = one.gpu.map(place);
            (Natural::of(&one.user), one.uid, gpu.is_none(), gpu)
        });
        uses
    }
}

fields! { pub FIELDS(it: Use):
    /// The number of the user.
    "uid": Count => it.uid;
    /// The name of the user, or the number.
    "user": Text, left("USER").top(1) => &*it.user;
    /// The GPU; null for processes that have not used one yet.
    "gpu": Device, left("GPU") => Cell::Gpu(it.gpu);
    /// The live processes.
    "processes": Count, right("PROCESSES").top(3) => it.processes;
    /// The memory of all processes.
    "total": Bytes, right("TOTAL").top(2) => it.total;
    /// The memory of suspended processes, which is on the host; no part of the total.
    "suspended": Bytes, right("SUSPENDED").sparse().top(4) => it.suspended;
    /// The processes that wait now.
    "waiting": Count, right("WAITING").sparse().top(5) => it.waiting;
    /// The longest of these waits; null if none waits.
    "waited_ms": Ms, right("WAITED").sparse().top(6) => waited(it.waited);
}

/// Returns a time in milliseconds.
pub fn millis(time: Option<Duration>) -> Option<u64> {
    u64::try_from(time?.as_millis()).ok()
}

fn waited(time: Option<Duration>) -> Cell {
    Cell::Said(millis(time).into(), time.map(clock::rough_span))
}
