//! Tests of reading usage. The test itself writes the slots of the members.

use super::*;
use crate::charge_unchecked;
use crate::scratch::{Knows, Scratch, level, stranger};

#[test]
fn a_groups_usage_is_the_sum_of_its_members_usage() {
    let scratch = Scratch::new();
    let device = scratch.device;
    assert_eq!(scratch.usage(device), Usage::default());
    let slots = [scratch.join(), scratch.join()];
    for (slot, units) in slots.iter().zip([10, 20]) {
        charge_unchecked(&[level(slot, device, u64::MAX)], units * UNIT);
        slot.publish(device, Category::Linear, units);
        slot.publish(device, Category::Vmm, 100 * units);
        slot.publish_idle(device, 1_000 * units);
    }
    slots[0].orphan(device, 2 * UNIT);
    scratch.dead(&stranger(1), 9, 4);
    let usage = scratch.usage(device);
    assert_eq!(usage.charged, 35 * UNIT);
    assert_eq!(usage.undecided, 4 * UNIT);
    assert_eq!(scratch.charged(device), usage.charged);
    assert_eq!(usage.idle, 30_000);
    let mut by = [0; Category::COUNT];
    by[Category::Linear as usize] = 30;
    by[Category::Vmm as usize] = 3_000 + 2 * UNIT;
    assert_eq!(usage.by, by);
    slots[1].count_refusal(device);
    slots[1].count_refusal(device);
    assert_eq!(scratch.usage(device).refusals, 2);
    assert_eq!(scratch.usage(scratch.other), Usage::default());
    assert_eq!(scratch.charged(scratch.other), 0);
    // The categories of a member without a charge are not counted.
    slots[1].publish(scratch.other, Category::Linear, 5);
    assert_eq!(scratch.usage(scratch.other).by, [0; Category::COUNT]);
}

/// Both figures of a group agree, also before the slot is cleaned.
#[test]
fn the_dead_leave_no_memory_on_the_host() {
    let scratch = Scratch::new();
    let device = scratch.device;
    let dead = scratch.dead(&stranger(1), 9, 0);
    let stats = &scratch.content().slots[dead].stats[device.get()];
    stats.suspended.store(70 * UNIT, Ordering::Relaxed);
    stats.resident.store(80 * UNIT, Ordering::Relaxed);
    let processes = scratch.processes(&Knows(Some(true)));
    assert!(!processes[0].alive && !processes[0].is_suspended());
    let on = processes[0].on(device);
    assert_eq!((on.charged, on.suspended), (9 * UNIT, 0));
    assert_eq!(scratch.usage(device).suspended, 0);
}

#[test]
fn the_slots_of_a_process_are_merged() {
    let scratch = Scratch::new();
    let device = scratch.device;
    let identity = |pid, start_time| Identity {
        start_time,
        ..stranger(pid)
    };
    let claim = |pid, start_time, below, units| {
        let identity = identity(pid, start_time);
        let slot = scratch.claim(&identity, below).expect("a slot");
        charge_unchecked(&[level(&slot, device, u64::MAX)], units * UNIT);
        slot
    };
    let slots = [
        claim(1, 1, "", 10),
        claim(2, 1, "", 20),
        claim(1, 1, "", 30),
        // Another group, another process with the pid, and two that may be different ones.
        claim(1, 1, "job", 40),
        claim(1, 2, "", 50),
        claim(3, 0, "", 60),
        claim(3, 0, "", 70),
    ];
    slots[0].publish_idle(device, UNIT);
    slots[2].publish_idle(device, 2 * UNIT);
    slots[2].publish(device, Category::Linear, 7);
    slots[2].count_refusal(scratch.other);
    let merged = ProcessUsage::merged(scratch.processes(&Knows(None)));
    let charged = merged
        .iter()
        .map(|process| process.on(device).charged / UNIT);
    assert_eq!(charged.collect::<Vec<_>>(), [40, 20, 40, 50, 60, 70]);
    let first = &merged[0];
    assert_eq!(first.identity, identity(1, 1));
    assert_eq!(first.on(device).idle, 3 * UNIT);
    assert_eq!(first.on(device).of(Category::Linear), 7);
    assert_eq!(first.on(scratch.other).refusals, 1);
}

#[test]
fn a_members_usage_is_listed_by_device() {
    let scratch = Scratch::new();
    let slot = scratch
        .claim(&Identity::of_self(), "alice/job")
        .expect("room");
    charge_unchecked(&[level(&slot, scratch.device, u64::MAX)], 10 * UNIT);
    slot.publish_idle(scratch.device, 3 * UNIT);
    for (number, category) in Category::ALL.into_iter().enumerate() {
        slot.publish(scratch.device, category, 1 << number);
    }
    slot.orphan(scratch.device, UNIT);
    slot.count_refusal(scratch.other);
    let mut processes = scratch.processes(&Knows(None));
    assert_eq!(processes.len(), 1);
    let process = processes.remove(0);
    assert_eq!(process.identity, Identity::of_self());
    assert_eq!((process.below.as_str(), process.alive), ("alice/job", true));
    let devices: Vec<_> = process.devices.iter().map(|usage| usage.device).collect();
    assert_eq!(devices, [scratch.device, scratch.other]);
    let on = process.on(scratch.device);
    assert_eq!(
        (on.charged, on.idle, on.in_use()),
        (10 * UNIT, 3 * UNIT, 7 * UNIT)
    );
    assert_eq!((on.orphaned, on.refusals), (UNIT, 0));
    assert_eq!(on.of(Category::Graphs), 1 << Category::Graphs as usize);
    assert_eq!(on.of(Category::Vmm), UNIT + (1 << Category::Vmm as usize));
    let pools_managed_driver = [Category::Pools, Category::Managed, Category::Driver];
    let others: u64 = pools_managed_driver
        .into_iter()
        .map(|category| on.of(category))
        .sum();
    assert_eq!(on.allocations(), 127 + UNIT - others);
    assert_eq!(
        (
            process.on(scratch.other).refusals,
            process.on(scratch.other).charged
        ),
        (1, 0)
    );
    let nowhere = process.on(DeviceIndex::new(31).expect("below 32"));
    assert_eq!((nowhere.charged, nowhere.device.get()), (0, 31));
    // A device is still listed after its charge is gone, because the peak stays.
    crate::uncharge(&[level(&slot, scratch.device, u64::MAX)], 10 * UNIT);
    let stats = slot.stats(scratch.device);
    stats.peak.store(5, Ordering::Relaxed);
    assert_eq!(
        scratch.processes(&Knows(None))[0].on(scratch.device).peak,
        5
    );
}

#[test]
fn dead_members_are_listed_while_they_drain() {
    let scratch = Scratch::new();
    let alive = scratch.join();
    let dead = scratch.dead(&stranger(1), 5, 0);
    scratch.dead(&stranger(2), 0, 0);
    let shown = |witness| {
        let processes = scratch.readonly().processes(&Knows(witness));
        let shown: Vec<_> = processes
            .iter()
            .map(|process| (process.identity.pid, process.alive))
            .collect();
        shown
    };
    let own = (std::process::id(), true);
    assert_eq!(shown(Some(true)), [own, (stranger(1).pid, false)]);
    assert_eq!(shown(Some(false)), [own]);
    assert_eq!(
        shown(None),
        [own, (stranger(1).pid, false)],
        "the grace time has not begun"
    );
    let since = &scratch.content().slots[dead].owner.dead_since;
    since.store(os::boot_ms() - 10_000, Ordering::Relaxed);
    assert_eq!(shown(None), [own]);
    // Only a child that the process has forked makes the driver keep its memory for so long.
    for (dead_ms, drains) in [(10_000, true), (30_000, false)] {
        since.store(os::boot_ms() - dead_ms, Ordering::Relaxed);
        let processes = scratch.readonly().processes(&Knows(Some(true)));
        let drain: Vec<bool> = processes.iter().map(|process| process.drains).collect();
        assert_eq!(drain, [false, drains], "{dead_ms}");
    }
    since.store(os::boot_ms() + 60_000, Ordering::Relaxed);
    assert_eq!(
        shown(None),
        [own, (stranger(1).pid, false)],
        "the time of death is in the future"
    );
    drop(alive);
}

/// docs/internals/bounds.md names this bound: no file tells when a process ended.
#[test]
fn the_grace_time_of_a_process_that_ended_long_ago_begins_at_the_first_look() {
    for (witness, first) in [(None, 1), (Some(false), 0)] {
        let scratch = Scratch::new();
        let dead = scratch.dead(&stranger(1), 5, 0);
        let page = &scratch.content().slots[dead];
        let long_ago = os::boot_ms().saturating_sub(3_600_000).max(1);
        page.owner.birth.store(long_ago, Ordering::Relaxed);
        page.alive_at.store(long_ago, Ordering::Relaxed);
        let witness = Knows(witness);
        let look = || {
            scratch.clean(&witness);
            scratch.processes(&witness).len()
        };
        assert_eq!(look(), first);
        assert_eq!(look(), first, "the second has not passed");
        let since = &page.owner.dead_since;
        since.store(os::boot_ms() - 1_000, Ordering::Relaxed);
        assert_eq!(look(), 0);
    }
}

#[test]
fn reclaimable_memory_is_bounded_by_the_charge() {
    let scratch = Scratch::new();
    let slots = [scratch.join(), scratch.join(), scratch.join()];
    let device = scratch.device;
    for (slot, reclaimable) in slots.iter().zip([3, 20, 5]) {
        charge_unchecked(&[level(slot, device, u64::MAX)], 10 * UNIT);
        slot.publish_reclaimable(device, reclaimable * UNIT);
    }
    assert_eq!(reclaimable(&scratch, slots[0].index(), device), 15 * UNIT);
    assert_eq!(reclaimable(&scratch, slots[1].index(), device), 8 * UNIT);
    assert_eq!(reclaimable(&scratch, slots[1].index(), scratch.other), 0);
}

#[test]
fn a_reader_leaves_out_what_it_cannot_clean() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    charge_unchecked(&[level(&slot, scratch.device, u64::MAX)], 10 * UNIT);
    let dead = scratch.dead(&stranger(1), 5, 1);
    let reader = scratch.readonly();
    let drained = |witness, seen_ms| reader.drained(&Knows(witness), |_, _| seen_ms);
    assert_eq!(drained(Some(false), 0), [dead]);
    assert_eq!(drained(Some(true), 10_000), [0; 0]);
    assert_eq!(drained(None, 0), [0; 0], "the grace time has not begun");
    assert_eq!(drained(None, 10_000), [dead]);
    let since = &scratch.content().slots[dead].owner.dead_since;
    since.store(os::boot_ms() - 10_000, Ordering::Relaxed);
    assert_eq!(drained(None, 0), [dead]);
    assert_eq!(reader.usage(scratch.device).charged, 14 * UNIT);
    let usage = reader.usage_without(scratch.device, &[dead]);
    assert_eq!((usage.charged, usage.undecided), (10 * UNIT, 0));
    // A writable ledger is cleaned instead.
    assert_eq!(scratch.drained(&Knows(None), |_, _| 0), [0; 0]);
}
