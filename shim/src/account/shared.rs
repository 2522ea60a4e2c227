//! Memory of `cuMemCreate` that other processes hold, too.
//!
//! NVML shows it for its exporter as long as that has a handle or a mapping. Then it is in nobody's
//! figure while a descriptor is open, although it takes its part of the GPU, and it comes into the
//! figure of who has the only import when the last descriptor is closed (measured, H100,
//! 580.159.04): no call tells an exporter who has it, or an importer that it is his now. So whoever
//! lets go of such memory leaves its charge behind as an orphan, and the driver's figures decide:
//! what members have beyond their charges stays charged, and what the GPU uses beyond all
//! processes, unless that has not grown by this memory; the rest is given back. How much the GPU
//! has free says nothing: others free, too. An importer that measures charges what came to it, and
//! gives the orphan back, whosever it is. For the dead, whoever cleans their slot takes over what
//! they leave.

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::{Identity, SeenProcess};
use gpulimit_group::{Holder, Member, MemberDevice};
use gpulimit_ledger::{Category, Witness};

use super::book::RESERVE;
use crate::driver::figures::{self, ProcessList};

/// What the GPU uses beyond its processes' figures: bytes for each of them (a context has 5.6 MiB,
/// measured).
const PROCESS_OVERHEAD: u64 = 8 << 20;

/// How often the GPU's figures are looked at until they stand still.
const LOOKS: u32 = 4;

/// What living members may have on a device.
#[derive(Clone, Copy, Debug)]
struct Borne {
    /// Bytes that the driver shows for them beyond what they have charged for themselves.
    uncharged: u64,
    /// It does not show all of them.
    unseen: bool,
    /// Bytes that it shows for nobody.
    hidden: u64,
    /// Of these, what there is beside memory that is shared, at most.
    overhead: u64,
    /// Bytes that they have charged for memory that has left them.
    orphaned: u64,
}

impl Borne {
    /// Bytes in nobody's figure that may be memory that is shared.
    fn nobodys(&self) -> u64 {
        if self.hidden > self.overhead {
            self.hidden
        } else {
            0
        }
    }

    /// How many bytes of the `orphans` may be needed. Of those somebody has just let go of `size`,
    /// when so many bytes were in nobody's figure `before`.
    fn needed(&self, orphans: u64, size: u64, before: Option<u64>) -> u64 {
        let gone = before.is_some_and(|before| self.hidden < before.saturating_add(size));
        let rest = orphans.saturating_sub(if gone { size } else { 0 });
        let elsewhere = if self.unseen {
            rest
        } else {
            self.nobodys().min(rest)
        };
        self.uncharged.saturating_add(elsewhere)
    }

    /// What nobody has charged, or has left charged.
    fn unclaimed(&self) -> u64 {
        if self.unseen {
            return u64::MAX;
        }
        let all = self.uncharged.saturating_add(self.nobodys());
        all.saturating_sub(self.orphaned)
    }
}

/// Bytes of a GPU that are in no process's figure; `None` when the driver does not tell, or does
/// not list this process: what that has is then in nobody's figure from the beginning.
pub fn hidden(device: &MemberDevice) -> Option<u64> {
    let (used, listed) = look(device, u64::min)?;
    beyond(used, &listed, std::process::id())
}

fn beyond(used: u64, listed: &[(u32, u64)], own: u32) -> Option<u64> {
    let is_listed = listed.iter().any(|(pid, _)| *pid == own);
    is_listed.then(|| unlisted(used, listed))
}

/// Of `used` bytes those that are in no process's figure.
fn unlisted(used: u64, listed: &[(u32, u64)]) -> u64 {
    let all: u64 = listed.iter().map(|(_, bytes)| bytes).sum();
    used.saturating_sub(all)
}

/// What is used of the GPU, and what the driver shows for each process. Two figures of it are to be
/// chosen from where they change all the time.
fn look(device: &MemberDevice, choose: fn(u64, u64) -> u64) -> Option<(u64, Vec<(u32, u64)>)> {
    steady(
        || figures::used(&device.id(), device.capacity()),
        || figures::processes(&device.id()),
        choose,
    )
}

/// What is `used` is looked at before and after the `processes`, again where others have taken or
/// given back memory in between.
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

/// What the living may have. `None` when the driver does not tell.
///
/// What is charged was read before: what is charged and taken in between is seen as uncharged, and
/// not the other way round.
fn borne(living: Vec<Holder>, device: &MemberDevice) -> Option<Borne> {
    // The larger: what is freed or taken in between is not to look like less in nobody's figure.
    let (used, listed) = look(device, u64::max)?;
    compare(used, listed, &living)
}

/// Compares the driver's figures, `used` of the whole GPU and those of the processes that it has
/// `listed`, with the charges of the `living`. `None` when it lists none of these. One that it does
/// not list, as it is in another PID namespace, may have anything.
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
                // A MIG device may list a process more than once.
                shown = Some(shown.unwrap_or(0) + bytes);
            }
        }
        told |= shown.is_some();
        borne.unseen |= shown.is_none() && charged > RESERVE;
        let uncharged = shown.unwrap_or(0).saturating_sub(charged);
        // What the driver takes now and then comes out of the reserve, where that is charged, and
        // is measured later.
        if uncharged > RESERVE.min(usage.idle) {
            borne.uncharged = borne.uncharged.saturating_add(uncharged);
        }
        borne.orphaned = borne.orphaned.saturating_add(usage.orphaned);
    }
    told.then_some(borne)
}

/// Gives back the orphans of the group that nobody needs: of memory that is gone, or that is
/// charged by who has it. Where the driver does not tell, none is needed. False when there were
/// none.
///
/// `size`: bytes that this process has just let go of; [`hidden`] was `before` that.
pub fn settle(member: &Member, device: &MemberDevice, size: u64, before: Option<u64>) -> bool {
    member.release_orphans(device, |orphans, living| {
        borne(living, device).map_or(0, |borne| borne.needed(orphans, size, before))
    })
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
    /// Pids above the largest that Linux gives.
    const PIDS: u32 = 1 << 23;

    /// A process of which the driver may list `PIDS + number`, with these MiB charged, idle,
    /// orphaned and managed.
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

    /// What these bear, bytes, where the driver lists these MiB for each pid and so many bytes
    /// beyond them for nobody.
    fn bear(hidden: u64, listed: &[(u32, u64)], living: &[Holder]) -> Option<(u64, u64)> {
        let bytes = |(number, mib): &(u32, u64)| (PIDS + number, mib * MIB);
        let listed: Vec<_> = listed.iter().map(bytes).collect();
        let all: u64 = listed.iter().map(|(_, bytes)| bytes).sum();
        let borne = compare(all + hidden, listed, living);
        borne.map(|borne| match borne.unseen {
            true => (u64::MAX, borne.orphaned),
            false => (borne.uncharged + borne.nobodys(), borne.orphaned),
        })
    }

    #[test]
    fn what_the_driver_shows_beyond_the_charges_is_borne() {
        let one = holder(1, [100, 10, 20, 5]);
        let bears = |mib| bear(0, &[(1, mib)], std::slice::from_ref(&one));
        assert_eq!(bears(65), Some((0, 20 * MIB)));
        assert_eq!(bears(85), Some((20 * MIB, 20 * MIB)));
        assert_eq!(bears(40), Some((0, 20 * MIB)));
        // As much as the reserve may have been taken out of it.
        assert_eq!(bears(69), Some((0, 20 * MIB)));
        assert_eq!(bears(70), Some((5 * MIB, 20 * MIB)));
        // Not all of the reserve is there.
        let living = [holder(1, [100, 1, 0, 0])];
        assert_eq!(bear(0, &[(1, 100)], &living), Some((0, 0)));
        assert_eq!(bear(0, &[(1, 101)], &living), Some((2 * MIB, 0)));
        // On a MIG device, listed twice.
        let twice = [(1, 60), (1, 59), (2, 500)];
        assert_eq!(bear(0, &twice, &living), Some((20 * MIB, 0)));
        // All of them.
        let living = [holder(1, [100, 0, 7, 0]), holder(2, [50, 0, 3, 0])];
        let both = bear(0, &[(1, 103), (2, 147)], &living);
        assert_eq!(both, Some((110 * MIB, 10 * MIB)));
    }

    #[test]
    fn what_is_in_nobodys_figure_is_borne() {
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
    fn who_is_not_listed_may_have_anything() {
        let bears = |charged| {
            let living = [holder(1, [100, 0, 0, 0]), holder(2, [charged, 0, 0, 0])];
            bear(0, &[(1, 100)], &living)
        };
        assert_eq!(bears(RESERVE / MIB), Some((0, 0)), "nothing but a reserve");
        assert_eq!(bears(RESERVE / MIB + 1), Some((u64::MAX, 0)));
        let living = [holder(1, [100, 0, 0, 0])];
        assert_eq!(bear(0, &[], &living), None);
        assert_eq!(bear(0, &[(2, 100)], &living), None, "of others only");
    }

    #[test]
    fn absurd_figures_of_others_do_not_wrap() {
        let living = [1, 2].map(|number| {
            let mut holder = holder(number, [100, 0, 0, 50]);
            holder.usage.orphaned = u64::MAX;
            holder
        });
        assert_eq!(bear(0, &[(1, 0), (2, 0)], &living), Some((0, u64::MAX)));
    }

    #[test]
    fn what_nobody_has_is_known_to_whom_the_driver_lists() {
        assert_eq!(beyond(130, &[(1, 100)], 1), Some(30));
        assert_eq!(beyond(130, &[(1, 100), (2, 20)], 2), Some(10));
        assert_eq!(beyond(130, &[(1, 100), (2, 40)], 2), Some(0));
        assert_eq!(beyond(130, &[(1, 100)], 2), None);
        assert_eq!(beyond(130, &[], 1), None);
    }

    #[test]
    fn figures_that_stand_still_are_taken() {
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
    fn what_has_been_let_go_of_is_gone_or_somebody_has_it() {
        let borne = |uncharged, hidden| Borne {
            uncharged,
            unseen: false,
            hidden,
            overhead: 8,
            orphaned: 0,
        };
        // Of 30 bytes 10 have been left just now, where 20 were in nobody's figure.
        let needed = |borne: Borne| borne.needed(30, 10, Some(20));
        assert_eq!(needed(borne(0, 8)), 0, "gone");
        assert_eq!(needed(borne(10, 8)), 10, "somebody has it");
        assert_eq!(needed(borne(10, 29)), 30, "and the rest nobody");
        assert_eq!(needed(borne(0, 29)), 20, "not grown by it");
        assert_eq!(needed(borne(0, 30)), 30);
        let unseen = |uncharged, hidden| Borne {
            unseen: true,
            ..borne(uncharged, hidden)
        };
        assert_eq!(needed(unseen(0, 30)), 30, "they may have it");
        assert_eq!(needed(unseen(0, 29)), 20, "or what was there before");
        assert_eq!(needed(unseen(10, 29)), 30, "somebody else has it");
        // Nobody has looked before.
        assert_eq!(borne(0, 9).needed(30, 10, None), 9);
        assert_eq!(borne(0, 8).needed(30, 10, None), 0);
        assert_eq!(unseen(0, 0).needed(30, 10, None), 30);
        // Of the dead: what others have left is not theirs.
        let unclaimed = |orphaned, borne| Borne { orphaned, ..borne }.unclaimed();
        assert_eq!(unclaimed(5, borne(10, 9)), 14);
        assert_eq!(unclaimed(5, borne(10, 8)), 5);
        assert_eq!(unclaimed(50, borne(10, 9)), 0);
        assert_eq!(unclaimed(50, unseen(10, 9)), u64::MAX);
    }

    #[test]
    fn orphans_go_back_where_the_driver_does_not_tell() {
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
