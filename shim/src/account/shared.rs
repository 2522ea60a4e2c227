//! Memory of `cuMemCreate` that other processes hold, too.
//!
//! NVML shows it for its exporter as long as that has a handle or a mapping. Then it is in nobody's figure while a descriptor is open, although it
//! takes its part of the GPU, and it comes into the figure of who has the only import when the last descriptor is closed (measured, H100,
//! 580.159.04): no call tells an exporter who has it, or an importer that it is his now. So whoever lets go of such memory leaves its charge behind as an
//! orphan, unless the GPU had so much more free afterwards, and the driver's figures decide: what members have beyond their charges and
//! what the GPU uses beyond all processes stay charged; the rest is given back. An importer that measures charges what came to it, and gives the
//! orphan back, whosever it is. For the dead, whoever cleans their slot takes over what they leave.

use gpulimit_core::device::DeviceId;
use gpulimit_core::group::{Holder, Member, MemberDevice};
use gpulimit_core::ledger::{Category, Identity, SeenProcess, Witness};

use super::driver_share::RESERVE;
use crate::nvml::{self, ProcessList};

/// What the GPU uses beyond its processes' figures: bytes for each of them (a context has 5.6 MiB, measured).
const PROCESS_OVERHEAD: u64 = 8 << 20;

/// What living members may have on a device.
#[derive(Clone, Copy, Debug)]
struct Borne {
    /// Bytes that the driver shows for them beyond what they have charged for themselves, and those that it shows for nobody.
    uncharged: u64,
    /// Bytes that they have charged for memory that has left them.
    orphaned: u64,
}

/// Compares the driver's figures with the charges. `None` when the driver does not tell. One that it does not list, as it is in another PID
/// namespace, may have anything.
///
/// What is charged was read before: what is charged and taken in between is seen as uncharged, and not the other way round.
fn borne(living: Vec<Holder>, device: &MemberDevice) -> Option<Borne> {
    let before = nvml::used(&device.id(), device.capacity())?;
    let listed = nvml::processes(&device.id())?;
    // The larger: what is freed or taken in between is not to look like less in nobody's figure.
    let used = nvml::used(&device.id(), device.capacity())?.max(before);
    let all: u64 = listed.iter().map(|(_, bytes)| bytes).sum();
    let hidden = used.saturating_sub(all);
    let overhead = PROCESS_OVERHEAD * listed.len() as u64;
    let listed: Vec<_> = listed
        .into_iter()
        .map(|(pid, bytes)| (SeenProcess::by_pid(pid), bytes))
        .collect();
    let mut borne = Borne {
        uncharged: if hidden > overhead { hidden } else { 0 },
        orphaned: 0,
    };
    let mut told = false;
    for holder in living {
        let usage = holder.usage;
        let charged = usage
            .in_use()
            .saturating_sub(usage.orphaned + usage.of(Category::Managed));
        let mut shown = None;
        for (process, bytes) in &listed {
            if process.is(&holder.identity) {
                // A MIG device may list a process more than once.
                shown = Some(shown.unwrap_or(0) + bytes);
            }
        }
        told |= shown.is_some();
        let uncharged = match shown {
            Some(shown) => shown.saturating_sub(charged),
            None if charged > RESERVE => u64::MAX,
            None => 0,
        };
        // What the driver takes now and then comes out of the reserve, where that is charged, and is measured later.
        if uncharged > RESERVE.min(usage.idle) {
            borne.uncharged = borne.uncharged.saturating_add(uncharged);
        }
        borne.orphaned += usage.orphaned;
    }
    told.then_some(borne)
}

/// Gives back the orphans of the group that nobody needs: of memory that is gone, or that is charged by who has it. Where the driver does not
/// tell, none is needed. False when there were none.
pub fn settle(member: &Member, device: &MemberDevice) -> bool {
    member.release_orphans(device, |_, living| {
        borne(living, device).map_or(0, |borne| borne.uncharged)
    })
}

/// Gives back `bytes` of the orphans of the group: the GPU has them free.
pub fn freed(member: &Member, device: &MemberDevice, bytes: u64) {
    member.release_orphans(device, |orphans, _| orphans.saturating_sub(bytes));
}

/// Tells of the dead as [`ProcessList`], and takes over what they leave to living members.
pub struct Heir(pub &'static Member);

impl Witness for Heir {
    fn holds_memory(&self, process: &Identity, device: &DeviceId, covered: u64) -> Option<bool> {
        ProcessList.holds_memory(process, device, covered)
    }

    fn adopt(&self, _: &Identity, id: &DeviceId, bytes: u64) -> bool {
        let Heir(member) = self;
        let ledger = member.ledger();
        let known = ledger.find_device(id);
        let Some(entry) = known.and_then(|device| ledger.device_entry(device)) else {
            return true;
        };
        let Ok(device) = member.device(*id, entry.capacity) else {
            return false;
        };
        let left = borne(member.all_living(&device), &device)
            .map_or(0, |borne| borne.uncharged.saturating_sub(borne.orphaned))
            .min(bytes);
        if left > 0 {
            member.charge_unchecked(&device, left);
            member.orphan(&device, left);
        }
        true
    }
}
