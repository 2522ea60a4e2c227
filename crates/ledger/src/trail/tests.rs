//! Tests of the trail of events.

use super::*;
use crate::scratch::{Knows, Scratch, level};
use crate::{EventKind, MAX_DEVICES};
use gpulimit_base::device::DeviceId;

fn process(pid: u32, name: &[u8]) -> Identity {
    let mut command = [0; 64];
    command[..name.len()].copy_from_slice(name);
    Identity {
        pid,
        pid_ns: 9,
        start_time: 5,
        uid: 4_000_000_000,
        command,
    }
}

/// Returns an event that shares its entry with no other.
pub(super) fn happening(bytes: u64) -> Happening {
    Happening {
        kind: EventKind::Kill,
        device: None,
        process: process(77, b"train.py"),
        bytes,
        charged: 3,
        max: u64::MAX,
    }
}

fn entry(scratch: &Scratch, number: usize) -> &TrailEntry {
    &scratch.content().trail.entries[number]
}

pub(super) fn numbers(events: &[TrailEvent]) -> Vec<u64> {
    events.iter().map(|event| event.number).collect()
}

#[test]
fn an_event_of_a_group_below_is_read_as_it_was_written() {
    let (lasting, below) = (Scratch::with_history(), Scratch::new());
    // The device has another index in the ledger of the group below.
    let extra = DeviceId::gpu([0x33; 16]);
    let device = below.device(extra, 5 << 30).expect("room");
    below.record_in(None, &happening(0), &Details::default());
    let kill = Happening {
        kind: EventKind::Kill,
        device: Some(device),
        ..happening(7)
    };
    let held = |pid, bytes| {
        let process = process(pid, b"a-name-of-more-than-16-bytes");
        Some(Holding {
            reserve: 4,
            suspended: u64::MAX,
            is_registered: pid == 1,
            ..Holding::new(process, bytes)
        })
    };
    let details = Details {
        group: "alice/run-1-2",
        function: "cuMemAllocFromPoolAsync",
        holders: [held(1, 5), held(2, u64::MAX), None, None, None],
        cause: Some(Cause::Oom),
        by: held(u32::MAX, 6),
        count: 0,
        left: 7,
        outside: u64::MAX,
        kept: 8,
        home: "a/b",
        takes: 9,
        is_unheard: true,
        owner: Some(u32::MAX),
    };
    below.record_in(Some(&lasting), &kill, &details);
    assert_eq!(below.events(0).len(), 2, "the ring of the group has both");
    assert_eq!(lasting.events(0).len(), 0);
    let events = lasting.trail(0);
    assert_eq!(numbers(&events), [0]);
    let event = &events[0];
    assert_eq!(event.event.number, 1, "its number in the group's ring");
    assert_eq!(event.event.time_us, below.events(1)[0].time_us);
    let what = &event.event.what;
    assert_eq!((what.kind, what.bytes), (EventKind::Kill, 7));
    assert_eq!((what.charged, what.max), (3, u64::MAX));
    assert_eq!(what.process.command().to_string(), "train.py");
    let index = what.device.expect("a device");
    let found = lasting.device_entry(index).expect("known");
    assert_eq!((found.id, found.capacity), (extra, 5 << 30));
    assert_eq!(event.group, "alice/run-1-2");
    assert_eq!(event.function, "cuMemAllocFromPoolAsync");
    assert_eq!(event.cause, Some(Cause::Oom));
    let seen = |held: &Holding| (held.process.pid, held.process.uid, held.bytes);
    let holders: Vec<_> = event.holders.iter().map(seen).collect();
    assert_eq!(
        holders,
        [(1, 4_000_000_000, 5), (2, 4_000_000_000, u64::MAX)]
    );
    let first = &event.holders[0];
    let others = event.holders.iter().map(|held| held.is_registered);
    assert_eq!((first.reserve, first.suspended), (4, u64::MAX));
    assert!(others.eq([true, false]));
    assert_eq!((event.left, event.outside), (7, u64::MAX));
    assert_eq!(event.owner, Some(u32::MAX));
    assert_eq!((event.kept, &*event.home), (8, "a/b"));
    assert_eq!((event.takes, event.is_unheard), (9, true));
    let name = event.holders[0].process.command().to_string();
    assert_eq!(name, "a-name-of-more-t");
    assert_eq!(
        event.by.as_ref().map(seen),
        Some((u32::MAX, 4_000_000_000, 6))
    );
}

#[test]
fn a_group_with_a_history_has_its_own_events_in_its_trail() {
    let scratch = Scratch::with_history();
    let device = Some(scratch.device);
    scratch.record(&Happening {
        device,
        ..happening(1)
    });
    let events = scratch.trail(0);
    assert_eq!(events[0].event.what.device, device);
    assert_eq!((&*events[0].group, &*events[0].function), ("", ""));
    assert_eq!(scratch.events(0).len(), 1);
    scratch.readonly().record(&happening(2));
    assert_eq!(scratch.readonly().trail(0).len(), 1);
    let without = Scratch::new();
    without.record(&happening(1));
    assert_eq!(without.trail(0).len(), 0);
    assert_eq!((without.events(0).len(), without.trail_head()), (1, 0));
}

#[test]
fn the_most_recent_events_are_kept_and_can_be_followed() {
    let scratch = Scratch::with_history();
    let all = TRAIL as u64 + 9;
    for bytes in 0..all {
        scratch.record(&happening(bytes));
    }
    let events = scratch.trail(0);
    assert!(numbers(&events).into_iter().eq(9..all));
    assert!(events.iter().all(|one| one.event.what.bytes == one.number));
    assert_eq!(numbers(&scratch.trail(all - 2)), [all - 2, all - 1]);
    assert_eq!(scratch.trail(u64::MAX).len(), 0);
}

#[test]
fn space_is_reserved_page_by_page() {
    let scratch = Scratch::with_history();
    let reserved = || scratch.header().trail_reserved.load(Ordering::Relaxed);
    assert_eq!(reserved(), 0, "an unused trail takes no space");
    for (events, expected) in [(1, 4), (3, 4), (1, 8)] {
        for _ in 0..events {
            scratch.record(&happening(1));
        }
        assert_eq!(reserved(), expected);
    }
    // A ledger file that is gone cannot get more space: events are left out, and nothing else
    // happens to them. A full file system ends the same way.
    std::fs::remove_file(&scratch.place.path).expect("removed");
    for _ in 0..10 {
        scratch.record(&happening(2));
    }
    assert_eq!((scratch.trail(0).len(), scratch.trail_head()), (8, 8));
    assert_eq!(scratch.events(0).len(), 15);
}

#[test]
fn long_names_of_groups_keep_their_end() {
    let scratch = Scratch::with_history();
    for length in [127, 128, 129, 400] {
        let name: String = ('a'..='z').cycle().take(length).collect();
        let details = Details {
            group: &name,
            function: &name,
            ..Details::default()
        };
        scratch.record_in(Some(&scratch), &happening(1), &details);
        let event = scratch.trail(0).pop().expect("an event");
        assert_eq!(event.function, name[..32]);
        match length {
            0..=128 => assert_eq!(event.group, name),
            _ => assert_eq!(event.group, format!("~{}", &name[length - 127..])),
        }
    }
}

#[test]
fn impossible_entries_are_left_out() {
    let scratch = Scratch::with_history();
    for bytes in 0..10 {
        scratch.record(&happening(bytes));
    }
    let set = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
    set(&entry(&scratch, 0).event.time, LATEST_US + 1);
    set(&entry(&scratch, 1).event.what, 99);
    set(&entry(&scratch, 2).event.pid, 1 << 40);
    set(&entry(&scratch, 3).event.uid, u64::MAX);
    for (number, name) in [(4, "\u{1b}[2J"), (5, "a b"), (6, "a\nb"), (7, "\u{e9}")] {
        store_bytes(&entry(&scratch, number).group, name.as_bytes());
    }
    set(&entry(&scratch, 8).event.stamp, 0);
    let forged = entry(&scratch, 9);
    for word in [
        &forged.event.pid_ns,
        &forged.event.bytes,
        &forged.event.charged,
        &forged.event.max,
        &forged.event.count,
        &forged.in_ring,
        &forged.repeats,
        &forged.last,
        &forged.cause,
        &forged.left,
        &forged.outside,
        &forged.kept,
        &forged.takes,
        &forged.is_unheard,
        &forged.owner,
        &forged.holders[0].pid,
    ] {
        set(word, u64::MAX);
    }
    set(
        &forged.event.what,
        EventKind::Refusal as u64 | u64::MAX << 32,
    );
    let events = scratch.trail(0);
    assert_eq!(numbers(&events), [9]);
    assert_eq!(events[0].event.what.device, None, "of {MAX_DEVICES}");
    assert_eq!((events[0].cause, events[0].holders.len()), (None, 0));
    assert_eq!(events[0].owner, None);
}

#[test]
fn a_forged_head_makes_no_endless_loop() {
    let scratch = Scratch::with_history();
    scratch.record(&happening(1));
    let head = &scratch.header().trail_head;
    for forged in [u64::MAX, u64::MAX - 1, 1 << 63] {
        head.store(forged, Ordering::Relaxed);
        assert_eq!(scratch.trail(0).len(), 0);
        scratch.record(&happening(2));
        assert!(scratch.trail(0).len() <= 1);
    }
    let reserved = &scratch.header().trail_reserved;
    reserved.store(u64::MAX, Ordering::Relaxed);
    assert!(scratch.trail(0).len() <= TRAIL);
}

#[test]
fn the_largest_holders_are_found() {
    let scratch = Scratch::with_history();
    assert!(scratch.largest(scratch.device).iter().all(Option::is_none));
    let slots: Vec<_> = (0..5).map(|_| scratch.join()).collect();
    for (slot, units) in slots.iter().zip([3, 0, 9, 5, 1]) {
        let path = [level(slot, scratch.device, u64::MAX)];
        crate::charge(&path, units * charge::UNIT, &Knows(None)).expect("no limit");
    }
    // Idle memory is not in use.
    slots[2].publish_idle(scratch.device, 5 * charge::UNIT);
    let used = |device| {
        let held = scratch.largest(device);
        held.map(|held| held.map(|held| held.bytes / charge::UNIT))
    };
    assert_eq!(
        used(scratch.device),
        [Some(5), Some(4), Some(3), Some(1), None]
    );
    assert_eq!(used(scratch.other), [None; 5]);
    let own = std::process::id();
    let held = scratch.largest(scratch.device)[0].expect("held");
    assert_eq!(held.process.pid, own);
}
