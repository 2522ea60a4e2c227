//! Tests of cleaning the slots of dead processes.

use super::*;
use crate::charge::{self, UNIT};
use crate::scratch::{GPU, Knows, Scratch, level, stranger};
use std::cell::RefCell;

fn file(scratch: &Scratch) -> Description {
    scratch.place.open(true).expect("open")
}

fn reaped(scratch: &Scratch, slot: usize, held: Option<bool>) -> Fate {
    reap(scratch, &file(scratch), slot, &Knows(held))
}

/// Writes into the ledger that the slot's owner was found dead `ms` milliseconds ago.
fn found_dead(scratch: &Scratch, slot: usize, ms: u64) {
    let owner = &scratch.content().slots[slot].owner;
    owner
        .dead_since
        .store(os::boot_ms() - ms, Ordering::Relaxed);
}

fn charged(scratch: &Scratch) -> u64 {
    scratch.charged(scratch.device) / UNIT
}

#[test]
fn owned_empty_and_claimed_slots_are_left_alone() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    assert_eq!(reaped(&scratch, slot.index(), Some(false)), Fate::Live);
    assert_eq!(reaped(&scratch, 5, Some(false)), Fate::Empty);
    let dead = scratch.dead(&stranger(1), 3, 0);
    let other = file(&scratch);
    assert!(lock::try_lock(&other, Bytes::claim(dead)).expect("locks"));
    assert_eq!(reaped(&scratch, dead, Some(false)), Fate::Busy);
    lock::unlock(&other, Bytes::claim(dead)).expect("locks");
    assert_eq!(reaped(&scratch, dead, Some(false)), Fate::Cleaned);
    assert_eq!(charged(&scratch), 0);
    // This process can take the claim lock, so the lock was released.
    assert!(lock::try_lock(&other, Bytes::claim(dead)).expect("locks"));
}

#[test]
fn a_slot_drains_while_the_driver_holds_its_memory() {
    let scratch = Scratch::new();
    let _alive = scratch.join();
    let dead = scratch.dead(&stranger(1), 3, 0);
    assert_eq!(reaped(&scratch, dead, Some(true)), Fate::Draining);
    let since = &scratch.content().slots[dead].owner.dead_since;
    assert!(since.load(Ordering::Relaxed).abs_diff(os::boot_ms()) < 60_000);
    found_dead(&scratch, dead, GRACE_MS + 1);
    assert_eq!(
        reaped(&scratch, dead, Some(true)),
        Fate::Draining,
        "the driver still holds the dead process's memory"
    );
    assert_eq!(charged(&scratch), 3);
    // A forked child that has the driver's files open keeps the memory: nobody waits for it.
    for (dead_ms, pending) in [(GRACE_MS, 3), (DRAIN_MAX_MS, 0)] {
        found_dead(&scratch, dead, dead_ms);
        let (file, own) = (file(&scratch), usize::MAX);
        let swept = sweep(
            &scratch,
            &file,
            scratch.device,
            own,
            &Knows(Some(true)),
            true,
        );
        assert_eq!(swept.pending, pending, "{dead_ms}");
        assert_eq!(charged(&scratch), 3);
    }
    // What the driver lists may be the memory of a later process with the same pid.
    let before = Identity {
        start_time: 1,
        ..Identity::of_self()
    };
    let replaced = scratch.dead(&before, 4, 0);
    assert_eq!(reaped(&scratch, replaced, Some(true)), Fate::Draining);
    found_dead(&scratch, replaced, DRAIN_MAX_MS);
    assert_eq!(reaped(&scratch, replaced, Some(true)), Fate::Cleaned);
    assert_eq!(charged(&scratch), 3);
    assert_eq!(reaped(&scratch, dead, Some(false)), Fate::Cleaned);
}

#[test]
fn without_a_witness_the_grace_time_decides() {
    let scratch = Scratch::new();
    let dead = scratch.dead(&stranger(1), 3, 0);
    assert_eq!(
        reap(&scratch, &file(&scratch), dead, &NoWitness),
        Fate::Draining
    );
    found_dead(&scratch, dead, GRACE_MS);
    assert_eq!(
        reap(&scratch, &file(&scratch), dead, &NoWitness),
        Fate::Cleaned
    );
    // A stored time of death in the future is wrong, and is replaced by the present time.
    let dead = scratch.dead(&stranger(1), 3, 0);
    let since = &scratch.content().slots[dead].owner.dead_since;
    since.store(os::boot_ms() + 60_000, Ordering::Relaxed);
    assert_eq!(
        reap(&scratch, &file(&scratch), dead, &NoWitness),
        Fate::Draining
    );
    assert!(since.load(Ordering::Relaxed) <= os::boot_ms());
    // Trying to clean the slot again does not restart the grace time.
    found_dead(&scratch, dead, 1);
    let before = since.load(Ordering::Relaxed);
    reap(&scratch, &file(&scratch), dead, &NoWitness);
    assert_eq!(since.load(Ordering::Relaxed), before);
}

#[test]
fn undecided_requests_of_the_dead_are_withdrawn_at_once() {
    let scratch = Scratch::new();
    let dead = scratch.dead(&stranger(1), 7, 5);
    assert_eq!(reaped(&scratch, dead, Some(true)), Fate::Draining);
    let word = scratch.word(dead, scratch.device).load(Ordering::Relaxed);
    assert_eq!((charge::charged(word), charge::undecided(word)), (2, 0));
}

#[test]
fn the_grace_time_decides_about_a_program_that_has_become_another() {
    let scratch = Scratch::new();
    let lists = Knows(Some(true));
    let ended = scratch.dead(&stranger(1), 3, 0);
    // This process lives, so the dead program in this slot was its program before `exec`.
    let before = scratch.dead(&Identity::of_self(), 3, 0);
    // If it has not joined again, what the driver lists may be the memory of this slot.
    assert!(!has_drained(&scratch, before, &lists, DRAIN_MAX_MS));
    let _now = scratch.join();
    for (dead_ms, drained) in [(0, false), (GRACE_MS - 1, false), (GRACE_MS, true)] {
        assert!(!has_drained(&scratch, ended, &lists, dead_ms), "{dead_ms}");
        assert_eq!(
            has_drained(&scratch, before, &lists, dead_ms),
            drained,
            "{dead_ms}"
        );
    }
    assert!(has_drained(&scratch, before, &Knows(Some(false)), 0));
}

#[test]
fn a_device_outside_the_table_is_left_to_the_grace_time() {
    let scratch = Scratch::new();
    let dead = scratch.dead(&stranger(1), 3, 0);
    let unknown = DeviceIndex::new(31).expect("below 32");
    scratch.word(dead, unknown).store(1, Ordering::Relaxed);
    assert_eq!(reaped(&scratch, dead, Some(false)), Fate::Draining);
    found_dead(&scratch, dead, GRACE_MS);
    assert_eq!(reaped(&scratch, dead, Some(false)), Fate::Cleaned);
    assert!(!scratch.has_words(dead));
}

#[test]
fn shared_memory_of_the_dead_is_freed_when_a_member_adopts_it() {
    struct Heir(RefCell<Vec<(DeviceId, u64)>>);
    impl Witness for Heir {
        fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
            Some(false)
        }
        fn adopt(&self, _: &Identity, device: &DeviceId, bytes: u64) -> bool {
            self.0.borrow_mut().push((*device, bytes));
            true
        }
    }
    let scratch = Scratch::new();
    let alive = scratch.join();
    let dead = scratch.dead(&stranger(1), 9, 0);
    let left = &scratch.content().slots[dead].stats[scratch.device.get()].left;
    left.store(2 << 32 | 3, Ordering::Relaxed);
    assert_eq!(
        reaped(&scratch, dead, Some(false)),
        Fate::Draining,
        "a living member may hold the shared memory"
    );
    let heir = Heir(RefCell::default());
    assert_eq!(reap(&scratch, &file(&scratch), dead, &heir), Fate::Cleaned);
    assert_eq!(heir.0.into_inner(), [(GPU, 5 * UNIT)]);
    assert_eq!(scratch.orphans(scratch.device).total(), 0);
    let dead = scratch.dead(&stranger(1), 9, 0);
    let left = &scratch.content().slots[dead].stats[scratch.device.get()].left;
    left.store(2 << 32 | 3, Ordering::Relaxed);
    drop(alive);
    assert_eq!(
        reaped(&scratch, dead, Some(false)),
        Fate::Cleaned,
        "no living member can hold the shared memory"
    );
}

#[test]
fn freed_memory_is_recorded_as_an_event() {
    let scratch = Scratch::new();
    let process = stranger(1);
    let dead = scratch.dead(&process, 5, 2);
    scratch
        .word(dead, scratch.other)
        .store(0, Ordering::Relaxed);
    scratch.dead(&stranger(2), 10, 0);
    assert_eq!(reaped(&scratch, dead, Some(false)), Fate::Cleaned);
    let events = scratch.events(0);
    assert_eq!(events.len(), 1);
    let what = &events[0].what;
    assert_eq!(
        (what.kind, what.device),
        (EventKind::Reap, Some(scratch.device))
    );
    assert_eq!((what.process.pid, what.bytes), (process.pid, 3 * UNIT));
    assert_eq!(
        what.charged,
        13 * UNIT,
        "the event counts the dead process's charge"
    );
}

#[test]
fn a_cleaned_slot_is_empty() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let index = slot.index();
    slot.publish(scratch.device, crate::Category::Vmm, 1);
    slot.publish_idle(scratch.device, 2);
    slot.publish_reclaimable(scratch.device, 3);
    slot.count_refusal(scratch.device);
    slot.mark_shared(scratch.device, UNIT as i64);
    slot.waiting().ticket.store(4, Ordering::Relaxed);
    let path = [level(&slot, scratch.device, u64::MAX)];
    super::super::charge(&path, UNIT, &Knows(None)).expect("no limit");
    drop(slot);
    let page = &scratch.content().slots[index];
    let DeviceStats {
        by,
        peak,
        refusals,
        reclaimable,
        left,
        changed,
        unit_ms,
        suspended,
        ..
    } = &page.stats[scratch.device.get()];
    let owner = &page.owner;
    let figures = [
        &scratch.charge(index, scratch.device).idle,
        peak,
        refusals,
        reclaimable,
        left,
        changed,
        unit_ms,
        suspended,
        &page.waiting.ticket,
        &owner.child,
        &owner.birth,
        &owner.pid,
        &owner.uid,
    ];
    let mut figures = figures.into_iter().chain(by).chain(&owner.command);
    assert!(figures.all(|figure| figure.load(Ordering::Relaxed) == 0));
    assert_eq!(charged(&scratch), 0);
    assert_eq!(
        scratch.usage(scratch.device).refusals,
        1,
        "the group still counts the refusal"
    );
}

#[test]
fn a_sweep_reports_freed_and_pending_units() {
    let scratch = Scratch::new();
    let own = scratch.join();
    let path = [level(&own, scratch.device, u64::MAX)];
    super::super::charge(&path, UNIT, &Knows(None)).expect("no limit");
    let sweep = |held, await_ending| {
        let swept = sweep(
            &scratch,
            &file(&scratch),
            scratch.device,
            own.index(),
            &Knows(held),
            await_ending,
        );
        (swept.cleaned, swept.pending, swept.busy)
    };
    assert_eq!(sweep(Some(false), true), (false, 0, 0));
    let first = scratch.dead(&stranger(1), 5, 0);
    let second = scratch.dead(&stranger(2), 6, 0);
    assert_eq!(sweep(Some(true), false), (false, 11, 0));
    let other = file(&scratch);
    for slot in [first, second] {
        assert!(lock::try_lock(&other, Bytes::claim(slot)).expect("locks"));
    }
    assert_eq!(
        sweep(Some(true), false),
        (false, 0, 11),
        "another process is cleaning these slots"
    );
    lock::unlock(&other, Bytes::claim(first)).expect("locks");
    assert_eq!(sweep(Some(false), false), (true, 0, 6));
    lock::unlock(&other, Bytes::claim(second)).expect("locks");
    scratch
        .word(second, scratch.device)
        .store(6 | 4 << 32, Ordering::Relaxed);
    assert_eq!(
        sweep(Some(true), false),
        (true, 2, 0),
        "a dead process's request was withdrawn"
    );
    assert_eq!(sweep(Some(false), false), (true, 0, 0));
    assert_eq!(charged(&scratch), 1, "this process's charge is left");
    scratch.dead(&stranger(3), 0, 0);
    assert_eq!(
        sweep(Some(false), false),
        (false, 0, 0),
        "dead processes have no charge on this device"
    );
}

#[test]
fn exiting_owners_count_as_pending_on_request() {
    let scratch = Scratch::new();
    let own = scratch.join();
    let ending = scratch.join();
    scratch
        .word(ending.index(), scratch.device)
        .store(4, Ordering::Relaxed);
    let sweep = |await_ending| {
        let swept = sweep(
            &scratch,
            &file(&scratch),
            scratch.device,
            own.index(),
            &Knows(Some(false)),
            await_ending,
        );
        (swept.cleaned, swept.pending, swept.busy)
    };
    assert_eq!(sweep(true), (false, 0, 0), "the owner is alive");
    // The owner's pid now belongs to another process.
    let owner = &scratch.content().slots[ending.index()].owner;
    owner.start_time.store(1, Ordering::Relaxed);
    assert_eq!(sweep(true), (false, 4, 0));
    assert_eq!(sweep(false), (false, 0, 0));
}

/// Creates the slot of a zombie: it has no file lock, but its owner's pid still exists.
fn zombie(scratch: &Scratch) -> usize {
    let own = Identity::of_self();
    let start_time = own.start_time + 1 + scratch.high_water() as u64;
    scratch.dead(&Identity { start_time, ..own }, 1, 0)
}

fn swept(scratch: &Scratch, own: usize) -> Swept {
    let file = file(scratch);
    sweep(
        scratch,
        &file,
        scratch.device,
        own,
        &Knows(Some(false)),
        true,
    )
}

#[test]
fn all_owners_of_a_large_group_are_looked_at_once_a_second() {
    let scratch = Scratch::new();
    let own = scratch.join().index();
    let swept_at = &scratch.header().swept_at[scratch.device.get()];
    let all = 3 * SHARE;
    let fill = || {
        for _ in 0..all {
            zombie(&scratch);
        }
    };
    fill();
    swept_at.store(os::boot_ms(), Ordering::Relaxed);
    assert!(swept(&scratch, own).cleaned);
    assert_eq!(charged(&scratch), (all - SHARE) as u64, "a share");
    for wrong in [os::boot_ms() + 60_000, os::boot_ms() - FRESH_MS, 0] {
        fill();
        swept_at.store(wrong, Ordering::Relaxed);
        assert!(swept(&scratch, own).cleaned);
        assert_eq!(charged(&scratch), 0, "all of them");
        assert!(swept_at.load(Ordering::Relaxed).abs_diff(os::boot_ms()) < 60_000);
    }
}

#[test]
fn every_sweep_of_a_large_group_finds_gone_pids_and_draining_slots() {
    let scratch = Scratch::new();
    let own = scratch.join().index();
    let living: Vec<_> = (0..2 * SHARE).map(|_| scratch.join()).collect();
    for slot in &living {
        scratch
            .word(slot.index(), scratch.device)
            .store(1, Ordering::Relaxed);
    }
    let gone = scratch.dead(&stranger(1), 3, 0);
    let draining = zombie(&scratch);
    found_dead(&scratch, draining, 5);
    let swept_at = &scratch.header().swept_at[scratch.device.get()];
    swept_at.store(os::boot_ms(), Ordering::Relaxed);
    assert!(swept(&scratch, own).cleaned);
    assert!(!scratch.has_words(gone) && !scratch.has_words(draining));
    assert_eq!(charged(&scratch), living.len() as u64);
}
