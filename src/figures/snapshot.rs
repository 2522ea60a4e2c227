//! Everything that `top` and `serve` show, read in one round.

use super::fields::{self, fields, some};
use super::outside::{Finder, Outside};
use super::waiting::Waiters;
use crate::figures::Figures;
use crate::groups;
use crate::groups::{Seen, View};
use crate::machine::nvml::{Activity, Driver};
use crate::words::written;
use gpulimit_base::device::DeviceId;
use gpulimit_group::upwards;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The memory of a GPU or of a MIG instance, in bytes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct GpuMemory {
    /// The machine, where several are shown; else empty.
    #[serde(skip)]
    pub machine: String,
    #[serde(with = "written")]
    pub id: DeviceId,
    /// NVML's index; `None` if NVML does not list the GPU.
    pub index: Option<u32>,
    /// The product's name; empty if unknown.
    pub name: String,
    /// The PCI bus id; empty if unknown.
    pub bus: String,
    /// The memory of the GPU; `None` if unknown.
    pub total: Option<u64>,
    /// The memory that NVML counts as used, by all processes and by the driver.
    pub used: Option<u64>,
    /// The memory that the top groups use, with managed memory.
    pub grouped: u64,
    /// The top groups that use memory, as they are printed, with their bytes.
    pub parts: Vec<(String, u64)>,
    /// The managed memory of the top groups, which NVML does not count as used.
    pub managed: u64,
    /// The sum of the limits of the top groups on this GPU; `None` if one of them has no limit, or
    /// if there are no groups.
    pub limits: Option<u64>,
    /// The number and the bytes of the processes outside of all groups; `None` if unknown.
    pub outside: Option<(usize, u64)>,
    /// The bytes of those that may be in groups that the caller may not read.
    pub unsure: u64,
    pub activity: Activity,
}

/// The groups and the GPUs at one moment.
pub struct Round {
    pub gpus: Vec<GpuMemory>,
    /// The groups. Each group comes before the groups below it.
    pub groups: Vec<Figures>,
    /// The members of the readable groups, in the same order.
    pub seen: Vec<Seen>,
    pub waiters: Waiters,
    /// The processes outside of all groups, as far as they are known.
    pub outside: Vec<Outside>,
}

impl Round {
    /// Reads the figures of the groups that `visit` opens one after the other, and the GPUs. Each
    /// group is open only while it is read: a thousand open ledgers would take much memory. Also
    /// returns what `visit` returns.
    pub fn read<T>(
        driver: Option<&Driver>,
        outside: &mut Finder,
        visit: impl FnOnce(&mut dyn FnMut(usize, View)) -> T,
        mut figures: impl FnMut(usize, &View) -> Figures,
    ) -> (Self, T) {
        let (mut groups, mut seen, mut waiters) = (Vec::new(), Vec::new(), Waiters::default());
        let visited = visit(&mut |at, view| {
            groups.push((at, figures(at, &view)));
            waiters.add(&view, driver);
            seen.extend(view.into_seen().map(|seen| (at, seen)));
        });
        let (mut groups, seen): (_, Vec<Seen>) = (in_order(groups), in_order(seen));
        for seen in &seen {
            waiters.add_below(&seen.group, &seen.processes, driver);
        }
        for group in &mut groups {
            group.count_waiting(&waiters);
        }
        let outside = outside.known(driver);
        let round = Self {
            gpus: gpus(&groups, outside.as_deref(), driver),
            groups,
            seen,
            waiters,
            outside: outside.unwrap_or_default(),
        };
        (round, visited)
    }
}

fn in_order<T>(mut items: Vec<(usize, T)>) -> Vec<T> {
    items.sort_by_key(|(at, _)| *at);
    items.into_iter().map(|(_, item)| item).collect()
}

impl GpuMemory {
    /// Returns a GPU that NVML does not list.
    fn unlisted(id: DeviceId, total: Option<u64>) -> Self {
        Self {
            machine: String::new(),
            id,
            index: None,
            name: String::new(),
            bus: String::new(),
            total,
            used: None,
            grouped: 0,
            parts: Vec::new(),
            managed: 0,
            limits: None,
            outside: None,
            unsure: 0,
            activity: Activity::default(),
        }
    }

    /// Adds up the processes outside of all groups that use this GPU.
    fn count_outside(&mut self, all: &[Outside]) {
        let on_it = || all.iter().filter(|one| one.gpu == self.id);
        let sum = |bytes: u64, one: &Outside| bytes.saturating_add(one.bytes.unwrap_or(0));
        self.unsure = on_it().filter(|one| one.is_unsure()).fold(0, sum);
        self.outside = Some((on_it().count(), on_it().fold(0, sum)));
    }

    /// Returns the used memory that belongs to no shown group: other programs, the driver, and
    /// groups that are not shown.
    pub fn others(&self) -> Option<u64> {
        // NVML counts no managed memory, so it is no part of what the groups use there.
        let grouped = self.grouped.saturating_sub(self.managed);
        Some(self.used?.saturating_sub(grouped))
    }

    /// Returns the memory as JSON. Bytes are integers; unknown figures are null.
    pub fn json(&self) -> Value {
        fields::json(FIELDS, self, None)
    }

    /// Returns the memory that nobody uses.
    pub fn free(&self) -> Option<u64> {
        Some(self.total?.saturating_sub(self.used?))
    }
}

fields! { pub FIELDS(it: GpuMemory):
    /// The machine, where several are shown.
    "machine": Machine => some(&it.machine);
    "uuid": Text => it.id.to_string();
    /// NVML's index.
    "index": Count => it.index;
    /// The name of the product.
    "name": Text => some(&it.name);
    /// The PCI bus id.
    "bus": Text => some(&it.bus);
    "total": Bytes => it.total;
    /// The memory that NVML counts as used.
    "used": Bytes => it.used;
    "free": Bytes => it.free();
    /// The usage of the top groups.
    "groups": Bytes => it.grouped;
    /// The used memory of no shown group: other processes, the driver, and groups not shown.
    "others": Bytes => it.others();
    /// The memory of the processes outside of all groups, as `ps --outside` lists them.
    "outside": Bytes => it.outside.map(|(_, bytes)| bytes);
    /// The number of these processes.
    "outsiders": Count => it.outside.map(|(count, _)| count);
    /// The memory of those that may be in groups which the caller may not read.
    "outside_unsure": Bytes => it.outside.map(|_| it.unsure);
    /// The sum of the limits of the top groups; null if one of them has none.
    "limits": Bytes => it.limits;
    /// The part of the last moments in which a kernel ran on the GPU.
    "busy": Percent => it.activity.busy;
    /// The temperature in degrees Celsius.
    "temperature": Count => it.activity.temperature;
    /// The power that the GPU takes, in watts.
    "power": Count => it.activity.power;
    /// The most power that the GPU may take, in watts.
    "power_limit": Count => it.activity.power_limit;
    /// The clock of the processors in MHz.
    "clock": Count => it.activity.clock;
    /// The clock of the memory in MHz.
    "memory_clock": Count => it.activity.memory_clock;
}

/// Returns the memory of the machine's GPUs and MIG instances, then of GPUs that only these groups
/// know.
pub fn gpus(
    groups: &[Figures],
    outside: Option<&[Outside]>,
    driver: Option<&Driver>,
) -> Vec<GpuMemory> {
    let listed = driver.map(Driver::memory).unwrap_or_default();
    let listed = listed.into_iter().map(|(gpu, id, memory)| GpuMemory {
        index: (id == gpu.id).then_some(gpu.index),
        name: gpu.name.clone(),
        bus: gpu.bus.clone(),
        used: memory.as_ref().map(|memory| memory.used),
        activity: driver.map(|it| it.activity(&id)).unwrap_or_default(),
        ..GpuMemory::unlisted(id, memory.as_ref().map(|memory| memory.total))
    });
    let mut gpus: Vec<GpuMemory> = listed.collect();
    // The usage of a group whose ledger cannot be read is unknown; its child groups count instead.
    let readable = names(groups.iter().filter(|group| group.processes.is_some()));
    for group in groups {
        let is_top = is_top(group, &readable);
        for figures in &group.gpus {
            let at = gpus.iter().position(|gpu| gpu.id == figures.id);
            let at = at.unwrap_or_else(|| {
                gpus.push(GpuMemory::unlisted(figures.id, figures.capacity));
                gpus.len() - 1
            });
            if is_top {
                let (gpu, usage) = (&mut gpus[at], figures.usage.unwrap_or(0));
                gpu.grouped = gpu.grouped.saturating_add(usage);
                if usage > 0 {
                    gpu.parts.push((group.title.clone(), usage));
                }
                // All memory of a GPU that shares the host's counts as used.
                if groups::gpu(gpu.id, driver).is_none_or(|gpu| !gpu.shares_host) {
                    gpu.managed = gpu.managed.saturating_add(figures.managed());
                }
            }
        }
    }
    let names = names(groups);
    let tops: Vec<&Figures> = (groups.iter())
        .filter(|group| is_top(group, &names))
        .collect();
    for gpu in &mut gpus {
        gpu.limits = limits(&tops, gpu);
        outside.into_iter().for_each(|all| gpu.count_outside(all));
    }
    gpus
}

fn names<'a>(groups: impl IntoIterator<Item = &'a Figures>) -> BTreeSet<(&'a str, &'a Path)> {
    let name = |group: &'a Figures| (&*group.name, &*group.root);
    groups.into_iter().map(name).collect()
}

/// Returns whether none of the groups above a group is among `names`.
fn is_top(group: &Figures, names: &BTreeSet<(&str, &Path)>) -> bool {
    let mut above = upwards(&group.name).skip(1);
    !above.any(|name| names.contains(&(name, &*group.root)))
}

/// Returns the sum of the limits of the top groups on a GPU, whether they have used it or not, so
/// that the sum is the same for all who look. Everybody may read limits.
fn limits(tops: &[&Figures], gpu: &GpuMemory) -> Option<u64> {
    let limits = tops.iter().map(|group| group.limit_on(gpu.id, gpu.total));
    limits.reduce(|sum, limit| Some(sum?.saturating_add(limit?)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_may_be_in_unreadable_groups_are_told_apart() {
        let id = DeviceId::gpu([7; 16]);
        let outside = |why: &str, bytes| Outside {
            pid: 7,
            uid: None,
            place: None,
            gpu: id,
            bytes: Some(bytes),
            command: String::new(),
            is_to_join: false,
            why: why.into(),
            says: String::new(),
        };
        let found = [
            outside("static", 3),
            outside(crate::figures::outside::UNKNOWN, 4),
        ];
        let mut gpu = GpuMemory::unlisted(id, None);
        gpu.count_outside(&found);
        assert_eq!((gpu.outside, gpu.unsure), (Some((2, 7)), 4));
        let json = gpu.json();
        assert_eq!(
            (&json["outside"], &json["outside_unsure"]),
            (&7.into(), &4.into())
        );
    }
}
