//! Memory of `cuMemCreate` that several processes hold.
//!
//! NVML attributes shared memory to the process that exported it, for as long as that process has a
//! handle or a mapping of the memory. Then, while a file descriptor of the memory is still open,
//! NVML attributes the memory to no process, although it still takes its part of the GPU. When the
//! last descriptor is closed and only one process has imported the memory, NVML attributes the
//! memory to that process (measured, H100, 580.159.04). No CUDA call tells the exporter which
//! processes hold the memory, or tells an importer that NVML now attributes the memory to it.
//!
//! So a process that lets go of shared memory leaves its charge behind as an *orphan*, and NVML's
//! figures decide how long the orphan stays charged. An orphan is needed in two cases. In the
//! first, NVML's figures for members are larger than the charges of these members. In the second,
//! the GPU uses *hidden* bytes, which are in no process's figure. The second case has an exception:
//! if the hidden bytes did not grow by the size of the memory when the process let go of it, the
//! orphan for that memory is not needed. Orphans that are not needed are uncharged. The free bytes
//! of the GPU are no evidence, because other processes free memory too. When an importer measures,
//! it charges the memory that NVML now attributes to it. It also uncharges the orphan for this
//! memory, whichever process left that orphan. The process that cleans up the ledger slot of a dead
//! process takes over the orphans for the memory that the dead process left.

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::{Identity, SeenProcess};
use gpulimit_group::{Holder, Member, MemberDevice};
use gpulimit_ledger::{Category, Witness};

use super::book::RESERVE;
use crate::driver::figures::{self, ProcessList};

/// The GPU may use more bytes than NVML's figures for all processes add up to. This is the most
/// bytes of that difference for each process. A context has 5.6 MiB of such memory (measured).
const PROCESS_OVERHEAD: u64 = 8 << 20;

/// The used bytes of the GPU are read until two successive readings are equal. This is the most
/// times that they are read.
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
    /// The most bytes of `hidden` that are not shared memory but other memory of processes.
    overhead: u64,
    /// Bytes that living members have charged as orphans: charges for shared memory that a process
    /// left behind.
    orphaned: u64,
}

impl Borne {
    /// Returns the bytes that NVML attributes to no process and that may be shared memory.
    fn unattributed(&self) -> u64 {
        if self.hidden > self.overhead {
            self.hidden
        } else {
            0
        }
    }

    /// `orphans` are the charges of the group that processes left behind for shared memory, in
    /// bytes. Returns how many of these bytes must stay charged. `size` bytes of them are for
    /// memory that a process has just let go of. `before` is the value of `hidden` before that.
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

    /// Returns the bytes of shared memory that processes may still hold but that no living member
    /// has charged, not even as orphans.
    fn unclaimed(&self) -> u64 {
        if self.unseen {
            return u64::MAX;
        }
        let all = self.uncharged.saturating_add(self.unattributed());
        all.saturating_sub(self.orphaned)
    }
}

/// Returns the bytes of a GPU that NVML attributes to no process. `None` when NVML gives no
/// figures. `None` too when NVML does not list this process, because the result would then include
/// the memory of this process.
pub fn hidden(device: &MemberDevice) -> Option<u64> {
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

/// Returns the used bytes of the GPU, and the bytes that NVML shows for each process. If the used
/// bytes change all the time, `choose` gets their last two readings and returns the one to use.
fn look(device: &MemberDevice, choose: fn(u64, u64) -> u64) -> Option<(u64, Vec<(u32, u64)>)> {
    steady(
        || figures::used(&device.id(), device.capacity()),
        || figures::processes(&device.id()),
        choose,
    )
}

/// Reads `used` before and after `processes`. If `used` has changed in between, because other
/// processes take or free memory, repeats the readings.
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

/// Compares NVML's figures for a device with the charges of the living members. `None` when NVML
/// gives no figures.
///
/// The charges are read before NVML's figures. A member may charge and take memory between these
/// two readings, and this memory then looks uncharged. That may keep an orphan for longer than
/// necessary, but never uncharges an orphan too early.
fn borne(living: Vec<Holder>, device: &MemberDevice) -> Option<Borne> {
    // Uses the larger of the last two readings. Memory that is freed or taken between the two must
    // not make `hidden` too small.
    let (used, listed) = look(device, u64::max)?;
    compare(used, listed, &living)
}

/// Compares NVML's figures with the charges of the `living` members. NVML's figures are `used` for
/// the whole GPU, and one figure for each process in `listed`. Returns `None` when NVML lists no
/// living member. NVML does not list a living member in another PID namespace; such a member may
/// hold any number of bytes.
fn compare(used: u64, listed: Vec<(u32, u64)>, living: &[Holder]) -> Option<Borne> {
    let hidden = unlisted(used, &listed);
    let overhead = PROCESS_OVERHEAD * listed.len() as u64;
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
        borne.unseen |= shown.is_none() && charged > RESERVE;
        let uncharged = shown.unwrap_or(0).saturating_sub(charged);
        // If a member's reserve is charged, NVML's figure for the member may exceed the bytes that
        // it has charged as in use by up to the reserve: the driver sometimes takes a block that
        // the member measures only later. Such an excess does not count as uncharged.
        if uncharged > RESERVE.min(usage.idle) {
            borne.uncharged = borne.uncharged.saturating_add(uncharged);
        }
        borne.orphaned = borne.orphaned.saturating_add(usage.orphaned);
    }
    told.then_some(borne)
}

/// Uncharges the orphans of the group that are not needed: the orphans of freed memory, and the
/// orphans of memory that its present holder has charged. Where NVML gives no figures, no orphan
/// counts as needed. Returns false when the group has no orphans.
///
/// `size`: the bytes that this process has just let go of. `before`: the result of [`hidden`]
/// before this process let go of them.
pub fn settle(member: &Member, device: &MemberDevice, size: u64, before: Option<u64>) -> bool {
    member.release_orphans(device, |orphans, living| {
        borne(living, device).map_or(0, |borne| borne.needed(orphans, size, before))
    })
}

/// A [`Witness`] that answers like [`ProcessList`]. A dead process may have left memory to living
/// members. This witness also takes over the charges for such memory, as orphans of this process.
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
            .map_or(0, |borne| borne.unclaimed())
            .min(bytes);
        if left > 0 {
            member.charge_unchecked(&device, left);
            member.orphan(&device, left);
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

    /// Returns a member with the pid `PIDS + number`, which NVML may list, and with these MiB
    /// charged, idle, orphaned and managed.
    fn holder(number: u32, [charged, idle, orphaned, managed]: [u64; 4]) -> Holder {
        let group = Scratch::new(&[]);
        let member = group.member();
        let device = member.device(GPU, CAPACITY).expect("a device");
        let mut holder = member.all_living(&device).remove(0);
        holder.identity.pid = PIDS + number;
        let usage = &mut holder.usage;
        (usage.charged, usage.idle) = (charged * MIB, idle * MIB);
        usage.orphaned = orphaned * MIB;
        usage.by[Category::Managed as usize] = managed * MIB;
        holder
    }

    /// NVML lists these MiB for each pid, and attributes `hidden` bytes to no process. Returns the
    /// uncharged and the orphaned bytes.
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
        // A member whose figure exceeds its charge by up to the size of the reserve may have used
        // the reserve.
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
        let overhead = 2 * 8 * MIB;
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
            "it may have charged the reserve only"
        );
        assert_eq!(bears(RESERVE / MIB + 1), Some((u64::MAX, 0)));
        let living = [holder(1, [100, 0, 0, 0])];
        assert_eq!(bear(0, &[], &living), None);
        assert_eq!(
            bear(0, &[(2, 100)], &living),
            None,
            "only other processes are listed"
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
        // Of the 30 orphaned bytes, 10 were left just now; before, NVML attributed 20 bytes to no
        // process.
        let needed = |borne: Borne| borne.needed(30, 10, Some(20));
        assert_eq!(needed(borne(0, 8)), 0, "the memory is gone");
        assert_eq!(needed(borne(10, 8)), 10, "a member holds it");
        assert_eq!(needed(borne(10, 29)), 30, "and no process holds the rest");
        assert_eq!(needed(borne(0, 29)), 20, "the hidden bytes have not grown");
        assert_eq!(needed(borne(0, 30)), 30);
        let unseen = |uncharged, hidden| Borne {
            unseen: true,
            ..borne(uncharged, hidden)
        };
        assert_eq!(needed(unseen(0, 30)), 30, "the unseen member may hold it");
        assert_eq!(needed(unseen(0, 29)), 20, "or only the older orphans");
        assert_eq!(needed(unseen(10, 29)), 30, "another member holds it");
        // The number of bytes that NVML attributed to no process before is unknown.
        assert_eq!(borne(0, 9).needed(30, 10, None), 9);
        assert_eq!(borne(0, 8).needed(30, 10, None), 0);
        assert_eq!(unseen(0, 0).needed(30, 10, None), 30);
        // For a dead process, the orphans of living members are not part of the memory that the
        // dead process left.
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
        other.charge_unchecked(&device, 30 * MIB);
        other.orphan(&device, 30 * MIB);
        let settle = || settle(one, &device, 0, None);
        assert!(settle() && !settle());
        assert_eq!((one.orphans(&device), one.charged(&device)), (0, 0));
    }
}
