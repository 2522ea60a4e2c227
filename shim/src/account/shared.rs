//! Memory of `cuMemCreate` that several processes hold.
//!
//! NVML attributes shared memory to its exporter, while the exporter has a handle or a mapping.
//! Afterwards, while a file descriptor is open, NVML attributes the memory to no process. At last,
//! NVML attributes the memory to its importer, if there is only one (measured, H100, 580.159.04).
//! A reset of the exporter's context changes nothing in that (H200). No CUDA call reports these
//! changes.
//!
//! So a process that releases shared memory leaves its charge behind as an *orphan*. An orphan that
//! is not needed is uncharged. An orphan is needed in two cases:
//! - NVML's figures for members are larger than the charges of these members.
//! - The GPU uses *hidden* bytes, which are in no process's figure. Exception: the release did not
//!   make the hidden bytes grow by the size of the memory.
//!
//! A process that finds imported memory in its own figure charges this memory and uncharges the
//! orphan. A process that cleans up the slot of a dead process takes over the dead process's
//! orphans.

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::{Identity, SeenProcess};
use gpulimit_group::{Holder, Member, MemberDevice};
use gpulimit_ledger::{Category, Witness};

use super::book::RESERVE;
use crate::driver::figures::{self, ProcessList};

/// The most times that the used bytes of the GPU are read again while successive readings differ.
const LOOKS: u32 = 4;

/// NVML's figures for a device, compared with the charges of the living members.
#[derive(Clone, Copy, Debug)]
struct Borne {
    /// Bytes by which NVML's figures for living members exceed what these members have charged.
    uncharged: u64,
    /// Whether a living member is missing from NVML's process list.
    unseen: bool,
    /// Bytes in use on the GPU that NVML attributes to no process.
    hidden: u64,
    /// The most bytes of `hidden` that are not shared memory.
    overhead: u64,
    /// Bytes that living members have charged as orphans (charges for shared memory that a process
    /// has released).
    orphaned: u64,
}

impl Borne {
    /// Returns the bytes that NVML attributes to no process, if they may be shared memory;
    /// otherwise 0.
    fn unattributed(&self) -> u64 {
        if self.hidden > self.overhead {
            self.hidden
        } else {
            0
        }
    }

    /// Returns how many bytes of `orphans` must stay charged. `size`: the bytes just released.
    /// `before`: `hidden` before the release.
    fn needed(&self, orphans: u64, size: u64, before: Option<u64>) -> u64 {
        let gone = before.is_some_and(|before| self.hidden < before.saturating_add(size));
        let rest = orphans.saturating_sub(if gone { size } else { 0 });
        let elsewhere = if self.unseen {
            rest
        } else {
            self.unattributed().min(rest)
        };
        self.uncharged.saturating_add(elsewhere)
    }

    /// Returns the bytes of shared memory that processes may still hold and that no living member
    /// has charged.
    fn unclaimed(&self) -> u64 {
        if self.unseen {
            return u64::MAX;
        }
        let all = self.uncharged.saturating_add(self.unattributed());
        all.saturating_sub(self.orphaned)
    }
}

/// Returns the bytes in use on a GPU that NVML attributes to no process. `None`: NVML does not list
/// this process.
pub fn hidden(device: &MemberDevice<'_>) -> Option<u64> {
    let (used, listed) = look(device, u64::min)?;
    beyond(used, &listed, std::process::id())
}

fn beyond(used: u64, listed: &[(u32, u64)], own: u32) -> Option<u64> {
    let is_listed = listed.iter().any(|(pid, _)| *pid == own);
    is_listed.then(|| unlisted(used, listed))
}

/// Returns the part of the GPU's `used` bytes that NVML attributes to none of the processes in
/// `listed`.
fn unlisted(used: u64, listed: &[(u32, u64)]) -> u64 {
    let all: u64 = listed.iter().map(|(_, bytes)| bytes).sum();
    used.saturating_sub(all)
}

/// Returns the GPU's used bytes and NVML's figure for each process. `choose` chooses between
/// unequal readings of the used bytes.
fn look(device: &MemberDevice<'_>, choose: fn(u64, u64) -> u64) -> Option<(u64, Vec<(u32, u64)>)> {
    let processes = || figures::processes(&device.id());
    let used = || figures::used(&device.id(), device.capacity());
    steady(used, processes, choose).or_else(|| {
        // NVML does not tell what is used of memory that the GPU shares with the host.
        let listed = processes()?;
        Some((listed.iter().map(|(_, bytes)| bytes).sum(), listed))
    })
}

/// Reads `used` before and after `processes`. Repeats the readings if `used` has changed in
/// between.
fn steady<T>(
    used: impl Fn() -> Option<u64>,
    processes: impl Fn() -> Option<T>,
    choose: fn(u64, u64) -> u64,
) -> Option<(u64, T)> {
    let mut before = used()?;
    let mut looks = 1;
    loop {
        let listed = processes()?;
        let after = used()?;
        if before == after || looks == LOOKS {
            return Some((choose(before, after), listed));
        }
        before = after;
        looks += 1;
    }
}

/// Compares NVML's figures for a device with the charges of the living members. `None`: NVML gives
/// no figures.
///
/// The charges are read before NVML's figures. So an orphan may stay charged too long, but is never
/// uncharged too early.
fn borne(living: Vec<Holder>, device: &MemberDevice<'_>) -> Option<Borne> {
    // Uses the larger of the last two readings. Otherwise memory that is taken or freed between
    // them could make `hidden` too small.
    let (used, listed) = look(device, u64::max)?;
    compare(used, listed, &living)
}

/// Compares NVML's figures with the charges of the `living` members. `None`: NVML lists none of
/// them, although some have memory.
///
/// `used`: the figure for the whole GPU. `listed`: the figure for each process.
fn compare(used: u64, listed: Vec<(u32, u64)>, living: &[Holder]) -> Option<Borne> {
    let hidden = unlisted(used, &listed);
    let overhead = gpulimit_ledger::overhead(listed.len());
    let listed: Vec<_> = listed
        .into_iter()
        .map(|(pid, bytes)| (SeenProcess::by_pid(pid), bytes))
        .collect();
    let mut borne = Borne {
        uncharged: 0,
        unseen: false,
        hidden,
        overhead,
        orphaned: 0,
    };
    let mut told = false;
    for holder in living {
        let usage = holder.usage;
        let charged = usage
            .in_use()
            .saturating_sub(usage.orphaned.saturating_add(usage.of(Category::Managed)));
        let mut shown = None;
        for (process, bytes) in &listed {
            if process.is(&holder.identity) {
                // NVML may list a process more than once on a MIG device.
                shown = Some(shown.unwrap_or(0) + bytes);
            }
        }
        told |= shown.is_some();
        // A suspended member has no memory on the GPU. What it has charged since is for calls that
        // the driver holds up.
        let is_away = usage.suspended > 0;
        borne.unseen |= shown.is_none() && !is_away && charged > RESERVE;
        let uncharged = shown.unwrap_or(0).saturating_sub(charged);
        // NVML's figure for a member may exceed its charge by up to its reserve, because the member
        // measures later.
        if uncharged > RESERVE.min(usage.idle) {
            borne.uncharged = borne.uncharged.saturating_add(uncharged);
        }
        borne.orphaned = borne.orphaned.saturating_add(usage.orphaned);
    }
    (told || !borne.unseen).then_some(borne)
}

/// Uncharges the group's orphans that are not needed. Without NVML's figures, no orphan is needed.
/// Returns false if the group has none.
///
/// `has_context`: whether NVML lists this process if it can tell. `size`: the bytes that this
/// process has just released. `before`: [`hidden`] before the release.
pub fn settle(
    device: &MemberDevice<'_>,
    has_context: bool,
    size: u64,
    before: Option<u64>,
) -> bool {
    let own = std::process::id();
    device.release_orphans(|orphans, mut living| {
        // A process that has reset its context may still be charged for it.
        living.retain(|holder| has_context || holder.identity.pid != own);
        borne(living, device).map_or(0, |borne| borne.needed(orphans, size, before))
    })
}

/// A [`Witness`] that answers like [`ProcessList`]. Charges that a dead process has left behind
/// become orphans of this process.
pub struct Heir(pub &'static Member);

impl Witness for Heir {
    fn holds_memory(
        &self,
        process: &Identity,
        device: &DeviceId,
        lists_nested: bool,
    ) -> Option<bool> {
        ProcessList.holds_memory(process, device, lists_nested)
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
        let left = borne(device.all_living(), &device)
            .map_or(0, |borne| borne.unclaimed())
            .min(bytes);
        if left > 0 {
            if !device.charge_moved(left) {
                return false;
            }
            device.orphan(left);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::account::scratch::Scratch;

    const MIB: u64 = 1 << 20;
    const GPU: DeviceId = DeviceId::gpu([7; 16]);
    const CAPACITY: u64 = 1000 * MIB;
    /// Pids above the largest pid that Linux assigns.
    const PIDS: u32 = 1 << 23;

    /// Returns a member with the pid `PIDS + number`. The four sizes in MiB are its charged, idle,
    /// orphaned and managed bytes.
    fn holder(number: u32, [charged, idle, orphaned, managed]: [u64; 4]) -> Holder {
        let group = Scratch::new(&[]);
        let member = group.member();
        let device = member.device(GPU, CAPACITY).expect("a device");
        let mut holder = device.all_living().remove(0);
        holder.identity.pid = PIDS + number;
        let usage = &mut holder.usage;
        (usage.charged, usage.idle) = (charged * MIB, idle * MIB);
        usage.orphaned = orphaned * MIB;
        usage.by[Category::Managed as usize] = managed * MIB;
        holder
    }

    /// Returns the uncharged and the orphaned bytes. `listed`: NVML's figure for each pid, in MiB.
    /// NVML attributes `hidden` bytes to no process.
    fn bear(hidden: u64, listed: &[(u32, u64)], living: &[Holder]) -> Option<(u64, u64)> {
        let bytes = |(number, mib): &(u32, u64)| (PIDS + number, mib * MIB);
        let listed: Vec<_> = listed.iter().map(bytes).collect();
        let all: u64 = listed.iter().map(|(_, bytes)| bytes).sum();
        let borne = compare(all + hidden, listed, living);
        borne.map(|borne| match borne.unseen {
            true => (u64::MAX, borne.orphaned),
            false => (borne.uncharged + borne.unattributed(), borne.orphaned),
        })
    }

    #[test]
    fn figures_beyond_the_charges_count_as_uncharged() {
        let one = holder(1, [100, 10, 20, 5]);
        let bears = |mib| bear(0, &[(1, mib)], std::slice::from_ref(&one));
        assert_eq!(bears(65), Some((0, 20 * MIB)));
        assert_eq!(bears(85), Some((20 * MIB, 20 * MIB)));
        assert_eq!(bears(40), Some((0, 20 * MIB)));
        // NVML's figure exceeds the member's charge by up to the reserve, so the driver may have
        // used the reserve.
        assert_eq!(bears(69), Some((0, 20 * MIB)));
        assert_eq!(bears(70), Some((5 * MIB, 20 * MIB)));
        // The member's reserve is not charged in full.
        let living = [holder(1, [100, 1, 0, 0])];
        assert_eq!(bear(0, &[(1, 100)], &living), Some((0, 0)));
        assert_eq!(bear(0, &[(1, 101)], &living), Some((2 * MIB, 0)));
        // NVML lists the process twice on a MIG device.
        let twice = [(1, 60), (1, 59), (2, 500)];
        assert_eq!(bear(0, &twice, &living), Some((20 * MIB, 0)));
        // Several living members.
        let living = [holder(1, [100, 0, 7, 0]), holder(2, [50, 0, 3, 0])];
        let both = bear(0, &[(1, 103), (2, 147)], &living);
        assert_eq!(both, Some((110 * MIB, 10 * MIB)));
    }

    #[test]
    fn memory_of_no_process_counts_beyond_the_overhead() {
        let living = [holder(1, [100, 0, 0, 0])];
        let listed = [(1, 100), (2, 100)];
        let overhead = 3 * 8 * MIB;
        assert_eq!(bear(overhead, &listed, &living), Some((0, 0)));
        assert_eq!(
            bear(overhead + 1, &listed, &living),
            Some((overhead + 1, 0))
        );
    }

    #[test]
    fn a_member_that_is_not_listed_may_hold_any_amount() {
        let bears = |charged| {
            let living = [holder(1, [100, 0, 0, 0]), holder(2, [charged, 0, 0, 0])];
            bear(0, &[(1, 100)], &living)
        };
        assert_eq!(
            bears(RESERVE / MIB),
            Some((0, 0)),
            "the unlisted member charged only its reserve"
        );
        assert_eq!(bears(RESERVE / MIB + 1), Some((u64::MAX, 0)));
        // The charge of a suspended member has moved to its suspended bytes: it holds nothing. One
        // of its calls has charged more and waits.
        let mut suspended = holder(2, [700, RESERVE / MIB, 30, 0]);
        suspended.usage.suspended = 500 * MIB;
        let living = [holder(1, [100, 0, 0, 0]), suspended];
        assert_eq!(bear(0, &[(1, 100)], &living), Some((0, 30 * MIB)));
        // Another tool has brought it back: it holds what NVML says.
        let back = [(1, 100), (2, 1_000)];
        assert_eq!(
            bear(0, &back, &living),
            Some(((1_000 - 700 + RESERVE / MIB + 30) * MIB, 30 * MIB))
        );
        assert_eq!(bear(0, &[], &living[1..]), Some((0, 30 * MIB)));
        assert_eq!(bear(9 * MIB, &[], &[]), Some((9 * MIB, 0)));
        let living = [holder(1, [100, 0, 0, 0])];
        assert_eq!(bear(0, &[], &living), None);
        assert_eq!(
            bear(0, &[(2, 100)], &living),
            None,
            "NVML lists only other processes"
        );
    }

    #[test]
    fn absurd_figures_of_other_members_do_not_wrap() {
        let living = [1, 2].map(|number| {
            let mut holder = holder(number, [100, 0, 0, 50]);
            holder.usage.orphaned = u64::MAX;
            holder
        });
        assert_eq!(bear(0, &[(1, 0), (2, 0)], &living), Some((0, u64::MAX)));
    }

    #[test]
    fn hidden_memory_is_known_only_to_a_process_that_is_listed() {
        assert_eq!(beyond(130, &[(1, 100)], 1), Some(30));
        assert_eq!(beyond(130, &[(1, 100), (2, 20)], 2), Some(10));
        assert_eq!(beyond(130, &[(1, 100), (2, 40)], 2), Some(0));
        assert_eq!(beyond(130, &[(1, 100)], 2), None);
        assert_eq!(beyond(130, &[], 1), None);
    }

    #[test]
    fn figures_are_read_until_they_stand_still() {
        let taken = |used: &[u64], choose| {
            let (uses, lists) = (Cell::new(0), Cell::new(0));
            let seen = steady(
                || {
                    uses.set(uses.get() + 1);
                    used.get(uses.get() - 1).copied()
                },
                || Some(lists.replace(lists.get() + 1)),
                choose,
            );
            (seen, uses.get())
        };
        assert_eq!(taken(&[5, 5, 9], u64::max), (Some((5, 0)), 2));
        assert_eq!(taken(&[5, 7, 3, 3, 9], u64::max), (Some((3, 2)), 4));
        let never = [5, 6, 7, 9, 8, 0];
        assert_eq!(taken(&never, u64::max), (Some((9, 3)), 5));
        assert_eq!(taken(&never, u64::min), (Some((8, 3)), 5));
        assert_eq!(taken(&[], u64::max), (None, 1));
        assert_eq!(taken(&[5], u64::max), (None, 2));
        assert_eq!(steady(|| Some(5), || None::<()>, u64::max), None);
    }

    #[test]
    fn memory_that_was_let_go_of_is_gone_or_held_elsewhere() {
        let borne = |uncharged, hidden| Borne {
            uncharged,
            unseen: false,
            hidden,
            overhead: 8,
            orphaned: 0,
        };
        // Of the 30 orphaned bytes, 10 were released just now. Before that, NVML attributed 20
        // bytes to no process.
        let needed = |borne: Borne| borne.needed(30, 10, Some(20));
        assert_eq!(needed(borne(0, 8)), 0, "the memory is freed");
        assert_eq!(needed(borne(10, 8)), 10, "a member holds 10 of the bytes");
        assert_eq!(needed(borne(10, 29)), 30, "10 are held and 20 may be held");
        assert_eq!(needed(borne(0, 29)), 20, "only 9 more bytes are hidden now");
        assert_eq!(needed(borne(0, 30)), 30);
        let unseen = |uncharged, hidden| Borne {
            unseen: true,
            ..borne(uncharged, hidden)
        };
        assert_eq!(needed(unseen(0, 30)), 30, "an unlisted member may hold all");
        assert_eq!(needed(unseen(0, 29)), 20, "only older memory may be held");
        assert_eq!(needed(unseen(10, 29)), 30, "a member holds 10 of the bytes");
        // It is unknown how many bytes NVML attributed to no process before.
        assert_eq!(borne(0, 9).needed(30, 10, None), 9);
        assert_eq!(borne(0, 8).needed(30, 10, None), 0);
        assert_eq!(unseen(0, 0).needed(30, 10, None), 30);
        // The orphans of living members do not count as memory that a dead process left.
        let unclaimed = |orphaned, borne| Borne { orphaned, ..borne }.unclaimed();
        assert_eq!(unclaimed(5, borne(10, 9)), 14);
        assert_eq!(unclaimed(5, borne(10, 8)), 5);
        assert_eq!(unclaimed(50, borne(10, 9)), 0);
        assert_eq!(unclaimed(50, unseen(10, 9)), u64::MAX);
    }

    #[test]
    fn orphans_are_given_back_where_the_driver_does_not_tell() {
        let group = Scratch::new(&[]);
        let [one, other] = [group.member(), group.member()];
        let device = one.device(GPU, CAPACITY).expect("a device");
        assert_eq!(hidden(&device), None);
        let theirs = other.device(GPU, CAPACITY).expect("a device");
        theirs.charge_unchecked(30 * MIB);
        theirs.orphan(30 * MIB);
        let settle = || settle(&device, true, 0, None);
        assert!(settle() && !settle());
        assert_eq!((device.orphans(), device.charged()), (0, 0));
    }
}
