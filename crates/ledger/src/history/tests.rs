//! Tests of the history of a group.

use super::*;
use crate::scratch::{Knows, Scratch, level, stranger};
use crate::{Idle, Line, Slot, reap};
use gpulimit_base::identity::Identity;
use std::time::Duration;

const NOW: u64 = 1_800_000_000;

fn history(scratch: &Scratch) -> &DeviceHistory {
    scratch.recorded(scratch.device).expect("recorded")
}

fn charge(scratch: &Scratch, slot: &Slot, units: u64) {
    let path = [level(slot, scratch.device, u64::MAX)];
    crate::charge(&path, units * UNIT, &Knows(None)).expect("no limit");
}

fn uncharge(scratch: &Scratch, slot: &Slot, units: u64) {
    crate::uncharge(&[level(slot, scratch.device, u64::MAX)], units * UNIT);
}

/// Returns the largest and the smallest usage in units of all recorded periods of a ring.
fn extremes(scratch: &Scratch, resolution: Resolution) -> (u64, u64) {
    let periods = scratch.history(scratch.device, resolution);
    let usage = || periods.iter().filter_map(|period| period.usage);
    let max = usage().map(|usage| usage.max / UNIT).max();
    (
        max.unwrap_or(0),
        usage().map(|usage| usage.min / UNIT).min().unwrap_or(0),
    )
}

fn period(start: u64, max: u64, min: u64) -> Period {
    let [max, min] = [max, min].map(|units| units * UNIT);
    Period {
        start,
        usage: Some(Extremes { max, min }),
        ..Period::default()
    }
}

#[test]
fn only_a_ledger_with_a_history_has_one() {
    let scratch = Scratch::new();
    charge(&scratch, &scratch.join(), 3);
    assert!(!scratch.keeps_history() && !scratch.records(scratch.device));
    assert_eq!(scratch.history(scratch.device, Resolution::Seconds), []);
    let scratch = Scratch::with_history();
    assert!(scratch.keeps_history() && scratch.records(scratch.device));
    let slot = scratch.join();
    charge(&scratch, &slot, 3);
    charge(&scratch, &slot, 4);
    for resolution in Resolution::ALL {
        assert_eq!(extremes(&scratch, resolution), (7, 0), "{resolution:?}");
    }
    assert_eq!(scratch.history(scratch.other, Resolution::Seconds), []);
}

#[test]
fn space_for_a_device_is_reserved_at_its_first_use() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::with_history();
    let blocks = || std::fs::metadata(scratch.path()).expect("there").blocks() * 512;
    let before = blocks();
    let device = gpulimit_base::device::DeviceId::gpu([42; 16]);
    let index = scratch.device(device, 1 << 30).expect("room");
    assert!(scratch.records(index));
    assert!(blocks() >= before + size_of::<DeviceHistory>() as u64);
    assert_eq!(size_of::<DeviceHistory>(), 64 << 10);
    let after = blocks();
    scratch.device(device, 1 << 30).expect("known");
    assert_eq!(blocks(), after, "once");
}

#[test]
fn usage_is_without_the_idle_memory_of_all_members() {
    let scratch = Scratch::with_history();
    let (slot, other) = (scratch.join(), scratch.join());
    charge(&scratch, &other, 100);
    other.publish_idle(scratch.device, 60 * UNIT);
    slot.publish_idle(scratch.device, 0);
    // Forget the usage of 100 units, which was recorded before the bytes became idle.
    forget(&scratch);
    charge(&scratch, &slot, 5);
    assert_eq!(extremes(&scratch, Resolution::Minutes), (45, 40));
}

#[test]
fn memory_that_is_charged_ahead_is_usage_once_it_is_used() {
    struct Ahead<'a>(&'a Slot, DeviceIndex, u64);
    impl Idle for Ahead<'_> {
        fn add(&self) {
            self.0.publish_idle(self.1, self.2);
        }
        fn remove(&self) {}
    }
    let scratch = Scratch::with_history();
    let slot = scratch.join();
    charge(&scratch, &slot, 10);
    let path = [level(&slot, scratch.device, u64::MAX)];
    let ahead = Ahead(&slot, scratch.device, 7 * UNIT);
    crate::charge_ahead(&path, 7 * UNIT, &Knows(None), &ahead).expect("no limit");
    assert_eq!(extremes(&scratch, Resolution::Minutes), (10, 0));
    slot.publish_idle(scratch.device, 2 * UNIT);
    crate::note_usage(&path);
    assert_eq!(extremes(&scratch, Resolution::Minutes), (15, 0));
}

#[test]
fn idle_memory_of_a_member_that_comes_into_use_is_recorded() {
    let scratch = Scratch::with_history();
    let (slot, other) = (scratch.join(), scratch.join());
    slot.publish_idle(scratch.device, 8 * UNIT);
    charge(&scratch, &slot, 10);
    charge(&scratch, &other, 20);
    forget(&scratch);
    slot.publish_idle(scratch.device, 3 * UNIT);
    assert_eq!(extremes(&scratch, Resolution::Minutes), (0, 0));
    slot.note_use(scratch.device, 5 * UNIT);
    assert_eq!(extremes(&scratch, Resolution::Minutes), (27, 22));
}

#[test]
fn suspended_memory_is_usage_up_to_the_suspension_and_from_the_charge_for_its_return() {
    let scratch = Scratch::with_history();
    let (slot, actor) = (scratch.join(), scratch.claim(&stranger(1), ""));
    let actor = actor.expect("a slot");
    let seen = || extremes(&scratch, Resolution::Minutes);
    charge(&scratch, &slot, 60);
    slot.publish_idle(scratch.device, 7 * UNIT);
    forget(&scratch);
    let process = Identity::of_self();
    assert_eq!(scratch.move_out(&process), Ok(53 * UNIT));
    assert_eq!(seen(), (53, 0));
    forget(&scratch);
    charge(&scratch, &actor, 53);
    assert_eq!(seen(), (53, 0));
    forget(&scratch);
    let path = [level(&actor, scratch.device, u64::MAX)];
    crate::hand_over(&path, 53 * UNIT, &process).expect("handed over");
    slot.note_use(scratch.device, 0);
    assert_eq!(seen(), (53, 53), "the same usage");
    let usage = scratch.usage(scratch.device);
    assert_eq!(usage.peak, 60 * UNIT, "it has not risen");
    assert_eq!(actor.charged(scratch.device), 0);
}

#[test]
fn a_peak_is_recorded_again_in_the_next_second() {
    let scratch = Scratch::with_history();
    let slot = scratch.join();
    for second in [NOW, NOW, NOW + 1, NOW + 1] {
        slot.note_between(scratch.device, second, 20, 10);
        let read = history(&scratch).read(Resolution::Seconds, second);
        assert_eq!(read.last(), Some(&period(second, 20, 10)));
    }
    // Another member has changed both figures.
    history(&scratch).note(NOW + 1, 30, 5);
    slot.note_between(scratch.device, NOW + 1, 21, 10);
    slot.note_between(scratch.device, NOW + 1, 29, 6);
    slot.note_between(scratch.device, NOW + 1, 31, 4);
    let read = history(&scratch).read(Resolution::Seconds, NOW + 1);
    assert_eq!(read, [period(NOW, 20, 10), period(NOW + 1, 31, 4)]);
}

#[test]
fn a_bucket_keeps_the_extremes_of_its_period() {
    let scratch = Scratch::with_history();
    let history = history(&scratch);
    history.note(NOW, 20, 10);
    history.note(NOW, 15, 12);
    history.note(NOW + 1, 12, 5);
    history.note(NOW + 1, 30, 11);
    let words = history.extremes(NOW + 1);
    assert!(includes(words, NOW + 1, 30, 5) && includes(words, NOW + 1, 6, 6));
    assert!(!includes(words, NOW + 1, 31, 6) && !includes(words, NOW + 1, 6, 4));
    assert!(!includes(words, NOW + 2, 6, 6), "another second");
    assert!(!includes(words, NOW, 6, 6), "the second before");
    assert_eq!(
        history.read(Resolution::Seconds, NOW + 1),
        [period(NOW, 20, 10), period(NOW + 1, 30, 5)]
    );
    let minute = NOW / 60 * 60;
    assert_eq!(
        history.read(Resolution::Minutes, NOW + 1),
        [period(minute, 30, 5)]
    );
    let quarter = NOW / 900 * 900;
    assert_eq!(
        history.read(Resolution::Quarters, NOW + 1),
        [period(quarter, 30, 5)]
    );
}

#[test]
fn a_ring_forgets_what_it_has_no_room_for() {
    let scratch = Scratch::with_history();
    let history = history(&scratch);
    history.note(NOW, 20, 10);
    history.note(NOW + 600, 3, 2);
    assert_eq!(
        history.read(Resolution::Seconds, NOW + 600),
        [period(NOW + 600, 3, 2)]
    );
    history.note(NOW + 1, 7, 6);
    // The ring holds 600 periods, one of which may be ahead of the reader's clock.
    assert_eq!(history.read(Resolution::Seconds, NOW + 599).len(), 2);
    assert_eq!(history.read(Resolution::Seconds, NOW + 600).len(), 1);
    assert_eq!(history.read(Resolution::Minutes, NOW + 600).len(), 2);
    assert_eq!(history.read(Resolution::Quarters, NOW + 10 * 24 * 3600), []);
}

#[test]
fn a_late_writer_does_not_replace_the_next_period() {
    let scratch = Scratch::with_history();
    let history = history(&scratch);
    let (bucket, late) = bucket(history, Resolution::Seconds, NOW);
    change(&bucket.max, late + 1, |_| Some(5));
    change(&bucket.max, late, |_| Some(9));
    assert_eq!(value(&bucket.max, late + 1), Some(5));
}

#[test]
fn words_of_the_future_are_ignored_and_replaced() {
    let scratch = Scratch::with_history();
    let history = history(&scratch);
    for hour in 0..2_000 {
        history.note(NOW + hour * 1_800, 1 << 30, 1 << 29);
    }
    assert_eq!(history.read(Resolution::Minutes, NOW - 3_600), []);
    // The wall clock was set back.
    history.note(NOW - 3_600, 8, 4);
    for resolution in Resolution::ALL {
        let start = (NOW - 3_600) / resolution.seconds() * resolution.seconds();
        assert_eq!(history.read(resolution, NOW - 3_600), [period(start, 8, 4)]);
    }
}

#[test]
fn impossible_words_make_no_impossible_figures() {
    let scratch = Scratch::with_history();
    let history = history(&scratch);
    for resolution in Resolution::ALL {
        for (at, bucket) in resolution.ring(history).iter().enumerate() {
            let noise = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bucket.max.store(noise, Ordering::Relaxed);
            bucket.min.store(noise.rotate_left(17), Ordering::Relaxed);
            bucket.counts.store(!noise, Ordering::Relaxed);
        }
        let (bucket, number) = bucket(history, resolution, NOW);
        let word = |value: u64| number << PERIOD_SHIFT | value;
        bucket.max.store(word(7), Ordering::Relaxed);
        bucket.min.store(word(9), Ordering::Relaxed);
        let read = history.read(resolution, NOW);
        let last = read
            .iter()
            .find(|one| one.start == number * resolution.seconds());
        let usage = last.expect("read").usage.expect("usage");
        assert_eq!(
            usage,
            Extremes {
                max: 7 * UNIT,
                min: 7 * UNIT
            }
        );
        let starts: Vec<_> = read.iter().map(|one| one.start).collect();
        assert!(starts.is_sorted() && starts.iter().all(|&start| start <= NOW + 900));
    }
}

#[test]
fn events_are_counted_up_to_the_most_that_fits() {
    let scratch = Scratch::with_history();
    let history = history(&scratch);
    for _ in 0..5_000 {
        history.count(NOW, Count::Refusal);
    }
    history.count(NOW, Count::WaitedSeconds(3));
    history.count(NOW, Count::WaitedSeconds(u64::MAX));
    history.count(NOW, Count::Kill);
    for resolution in Resolution::ALL {
        let read = history.read(resolution, NOW);
        let [one] = read[..] else { panic!("{read:?}") };
        assert_eq!((one.refusals, one.waited, one.kills), (4_095, 4_095, 1));
        assert_eq!(one.usage, None, "no charge");
    }
}

#[test]
fn refusals_waits_and_kills_of_members_are_counted() {
    let scratch = Scratch::with_history();
    let slot = scratch.join();
    slot.count_refusal(scratch.device);
    scratch.note_wait(scratch.device, Duration::from_millis(1_200));
    scratch.note_kill(scratch.device);
    let read = scratch.history(scratch.device, Resolution::Quarters);
    let sum = |of: fn(&Period) -> u32| read.iter().map(of).sum::<u32>();
    let counts = (
        sum(|one| one.refusals),
        sum(|one| one.waited),
        sum(|one| one.kills),
    );
    assert_eq!(counts, (1, 2, 1));
}

/// Makes the slot's owner appear to have changed its charge this many milliseconds ago.
fn changed_ago(scratch: &Scratch, slot: &Slot, ms: u64) {
    let stats = slot.stats(scratch.device);
    stats.changed.store(os::wall_ms() - ms, Ordering::Relaxed);
    let timed = &slot.timed[scratch.device.get()];
    timed.tick.store(0, Ordering::Relaxed);
    timed.steady.store(os::steady_ms() - ms, Ordering::Relaxed);
    let owner = &scratch.content().slots[slot.index()].owner;
    owner.birth.store(os::boot_ms() - ms, Ordering::Relaxed);
}

/// Returns the user's bill for the device, in units times seconds.
fn bill(scratch: &Scratch, uid: Option<u32>) -> u64 {
    let bills = scratch.bills();
    let own = |bill: &&Bill| bill.uid == uid && bill.device == scratch.device;
    let bill = bills.iter().find(own);
    bill.map_or(0, |bill| (bill.byte_seconds / u128::from(UNIT)) as u64)
}

#[test]
fn a_user_is_billed_for_living_and_ended_processes() {
    let scratch = Scratch::with_history();
    let uid = Some(Identity::of_self().uid);
    let slot = scratch.join();
    charge(&scratch, &slot, 10);
    changed_ago(&scratch, &slot, 60_000);
    assert!(
        (600..660).contains(&bill(&scratch, uid)),
        "{:?}",
        scratch.bills()
    );
    // The charge of the last minute counts with the old size.
    charge(&scratch, &slot, 90);
    assert!((600..1_500).contains(&bill(&scratch, uid)));
    uncharge(&scratch, &slot, 100);
    drop(slot);
    let rest = bill(&scratch, uid);
    assert!((600..1_500).contains(&rest));
    let again = scratch.join();
    charge(&scratch, &again, 10);
    changed_ago(&scratch, &again, 60_000);
    assert!((rest + 600..rest + 660).contains(&bill(&scratch, uid)));
}

#[test]
fn a_dead_process_is_billed_once() {
    let scratch = Scratch::with_history();
    let _alive = scratch.join();
    let other = Identity {
        uid: 4711,
        ..stranger(1)
    };
    let dead = scratch.dead(&other, 10, 0);
    let page = &scratch.content().slots[dead];
    page.owner
        .birth
        .store(os::boot_ms() - 60_000, Ordering::Relaxed);
    let stats = &page.stats[scratch.device.get()];
    stats.unit_ms.store(400_000, Ordering::Relaxed);
    stats
        .changed
        .store(os::wall_ms() - 5_000, Ordering::Relaxed);
    page.alive_at.store(os::wall_ms(), Ordering::Relaxed);
    let before = bill(&scratch, Some(4711));
    assert!((450..500).contains(&before), "{before}");
    scratch.clean(&Knows(Some(false)));
    let after = bill(&scratch, Some(4711));
    assert!((before..before + 300).contains(&after), "{after}");
    scratch.clean(&Knows(Some(false)));
    assert_eq!(bill(&scratch, Some(4711)), after);
}

/// An older build, or a killed writer, has left no time of a change.
#[test]
fn a_dead_process_without_the_time_of_a_change_is_billed_what_it_recorded() {
    let scratch = Scratch::with_history();
    let slot = killed(&scratch, 4712);
    let page = &scratch.content().slots[slot];
    let stats = &page.stats[scratch.device.get()];
    stats.changed.store(0, Ordering::Relaxed);
    page.alive_at.store(os::wall_ms(), Ordering::Relaxed);
    page.owner
        .dead_since
        .store(os::boot_ms(), Ordering::Relaxed);
    assert_eq!(bill(&scratch, Some(4712)), 20);
}

/// Returns the slot of a user's process that was killed: it joined and charged 10 units a minute
/// ago, and changed its charge 2 seconds later for the last time.
fn killed(scratch: &Scratch, uid: u32) -> usize {
    let who = Identity {
        uid,
        ..stranger(uid)
    };
    let dead = scratch.dead(&who, 10, 0);
    let page = &scratch.content().slots[dead];
    let stats = &page.stats[scratch.device.get()];
    stats.unit_ms.store(20_000, Ordering::Relaxed);
    let (boot, wall) = (os::boot_ms(), os::wall_ms());
    page.owner.birth.store(boot - 60_000, Ordering::Relaxed);
    stats.changed.store(wall - 58_000, Ordering::Relaxed);
    dead
}

/// Makes a process appear to have been found dead 30 seconds after it joined.
fn found_dead(scratch: &Scratch, slot: usize) {
    let owner = &scratch.content().slots[slot].owner;
    let birth = owner.birth.load(Ordering::Relaxed);
    owner.dead_since.store(birth + 30_000, Ordering::Relaxed);
}

/// Returns the sure and the uncertain bill of a user for the device, in units times seconds.
fn both(scratch: &Scratch, uid: Option<u32>) -> (u64, u64) {
    let bills = scratch.bills();
    let own = |bill: &&Bill| bill.uid == uid && bill.device == scratch.device;
    let bill = bills.iter().find(own).expect("billed");
    let seconds = |bytes: u128| (bytes / u128::from(UNIT)) as u64;
    (seconds(bill.byte_seconds), seconds(bill.uncertain))
}

#[test]
fn the_time_in_which_a_process_may_have_been_dead_is_no_sure_bill() {
    let scratch = Scratch::with_history();
    let _alive = scratch.join();
    let dead = killed(&scratch, 4711);
    let (sure, uncertain) = both(&scratch, Some(4711));
    assert!(sure == 20 && uncertain >= 570, "{sure}, {uncertain}");
    found_dead(&scratch, dead);
    let (sure, uncertain) = both(&scratch, Some(4711));
    assert!(sure == 20 && (270..400).contains(&uncertain), "{uncertain}");
    scratch.clean(&Knows(Some(false)));
    let folded = both(&scratch, Some(4711));
    assert!(
        folded.0 == 20 && (270..400).contains(&folded.1),
        "{folded:?}"
    );
    scratch.clean(&Knows(Some(false)));
    assert_eq!(both(&scratch, Some(4711)), folded);
}

#[test]
fn a_process_is_billed_up_to_the_last_look_that_found_it_alive() {
    let scratch = Scratch::with_history();
    let _alive = scratch.join();
    let dead = killed(&scratch, 4711);
    found_dead(&scratch, dead);
    let page = &scratch.content().slots[dead];
    let changed = page.stats[scratch.device.get()]
        .changed
        .load(Ordering::Relaxed);
    page.alive_at.store(changed + 13_000, Ordering::Relaxed);
    let (sure, uncertain) = both(&scratch, Some(4711));
    assert_eq!(sure, 20 + 130);
    assert!((140..270).contains(&uncertain), "{uncertain}");
    // Any member can write a time that cannot be.
    page.alive_at.store(u64::MAX, Ordering::Relaxed);
    let (sure, uncertain) = both(&scratch, Some(4711));
    assert!((290..400).contains(&sure) && uncertain == 0, "{sure}");
}

#[test]
fn uncertain_bills_of_users_without_an_entry_are_kept() {
    let scratch = Scratch::with_history();
    let _alive = scratch.join();
    for uid in 0..layout::USERS as u32 {
        scratch.bill_of(uid, scratch.device);
    }
    let dead = killed(&scratch, 4711);
    found_dead(&scratch, dead);
    scratch.clean(&Knows(Some(false)));
    let (sure, uncertain) = both(&scratch, None);
    assert!(sure == 20 && (270..400).contains(&uncertain), "{uncertain}");
    let look = Ledger::look(&scratch.place.path, true).expect("opened");
    assert_eq!(look.bills(), scratch.bills());
}

/// A short look reads the first bills from the file, and the others from the mapping.
#[test]
fn a_short_look_finds_the_same_bills() {
    let scratch = Scratch::with_history();
    let _alive = scratch.join();
    let path = &scratch.place.path;
    for uid in 0..10 {
        let look = Ledger::look(path, uid % 2 == 0).expect("opened");
        let bills = look.bills();
        assert_eq!((bills.len(), &bills), (uid as usize, &scratch.bills()));
        let [bill, _] = scratch.bill_of(uid, scratch.device);
        bill.store(1 << (40 + uid), Ordering::Relaxed);
    }
}

#[test]
fn a_process_that_joins_looks_for_dead_members() {
    for scratch in [Scratch::with_history(), Scratch::new()] {
        let living = scratch.join();
        charge(&scratch, &living, 5);
        let dead = killed(&scratch, 4711);
        let page = |slot: usize| &scratch.content().slots[slot];
        let signs = || {
            let words = [&page(dead).owner.dead_since, &page(living.index()).alive_at];
            words.map(|word| word.load(Ordering::Relaxed) != 0)
        };
        assert_eq!(signs(), [false; 2]);
        // The first process that joined may have looked just before.
        let looked_at = &scratch.header().looked_at;
        looked_at.store(u64::MAX, Ordering::Relaxed);
        scratch.join();
        assert_eq!(signs(), [true, scratch.keeps_history()]);
        assert_eq!(scratch.charged(scratch.device), 15 * UNIT, "it drains");
    }
}

#[test]
fn a_forged_charge_over_time_is_no_more_than_the_device_can_hold() {
    let scratch = Scratch::with_history();
    let slot = scratch.join();
    slot.stats(scratch.device)
        .unit_ms
        .store(u64::MAX, Ordering::Relaxed);
    changed_ago(&scratch, &slot, 1_000);
    slot.stats(scratch.device)
        .unit_ms
        .store(u64::MAX, Ordering::Relaxed);
    let device = (80 << 30) / UNIT;
    let uid = Some(Identity::of_self().uid);
    assert!((device..device * 60).contains(&bill(&scratch, uid)));
}

#[test]
fn a_process_of_another_time_namespace_is_billed() {
    let scratch = Scratch::with_history();
    let slot = scratch.join();
    charge(&scratch, &slot, 10);
    changed_ago(&scratch, &slot, 60_000);
    let owner = &scratch.content().slots[slot.index()].owner;
    let later = os::boot_ms() + 1_000_000_000;
    owner.birth.store(later, Ordering::Relaxed);
    let bill = bill(&scratch, Some(Identity::of_self().uid));
    assert!((600..660).contains(&bill), "{bill}");
}

#[test]
fn a_wall_clock_that_was_set_forward_adds_at_most_the_age_of_the_process() {
    let scratch = Scratch::with_history();
    let slot = scratch.join();
    charge(&scratch, &slot, 10);
    changed_ago(&scratch, &slot, 60_000);
    let stats = slot.stats(scratch.device);
    let day = os::wall_ms() - 86_400_000;
    stats.changed.store(day, Ordering::Relaxed);
    let bill = bill(&scratch, Some(Identity::of_self().uid));
    assert!((600..660).contains(&bill), "{bill}");
}

#[test]
fn users_without_an_entry_share_the_last_one() {
    let scratch = Scratch::with_history();
    let last = layout::USERS as u32 - 1;
    for uid in 0..last + 5 {
        let [bill, _] = scratch.bill_of(uid, scratch.device);
        bill.fetch_add(1_000, Ordering::Relaxed);
    }
    assert_eq!(bill(&scratch, Some(0)), 1);
    assert_eq!(bill(&scratch, Some(last - 1)), 1);
    assert_eq!(bill(&scratch, Some(last)), 0);
    assert_eq!(bill(&scratch, None), 5);
}

#[test]
fn a_waiting_request_names_its_bytes_and_its_begin() {
    let scratch = Scratch::with_history();
    let slot = scratch.join();
    let until = os::now() + Duration::from_secs(60);
    let before = os::boot_ms();
    let _line = Line::join(&slot, scratch.device, 5 * UNIT, until).expect("a place");
    let processes = scratch.processes(&Knows(None));
    let waits = processes[0].waits.expect("waits");
    assert_eq!((waits.device, waits.bytes), (scratch.device, 5 * UNIT));
    assert!((before..=os::boot_ms()).contains(&waits.since_ms));
    // Any member can write a time that cannot be.
    let waits_since = |since| {
        slot.waiting().since.store(since, Ordering::Relaxed);
        scratch.processes(&Knows(None))[0].waits.expect("waits")
    };
    let birth = &scratch.content().slots[slot.index()].owner.birth;
    birth.store(5_000, Ordering::Relaxed);
    assert_eq!(waits_since(1).since_ms, 5_000);
    assert_eq!(waits_since(u64::MAX).waited(), Duration::ZERO);
    // The clock of another time namespace is ahead.
    let before = os::boot_ms();
    let seen = &slot.waiting().seen;
    seen.store(before + 1_000_000_000, Ordering::Relaxed);
    let waits = waits_since(before + 1_000_000_000 - 7_000);
    assert!((before..=os::boot_ms()).contains(&(waits.since_ms + 7_000)));
    assert!(waits.waited() >= Duration::from_secs(7), "{waits:?}");
}

/// Makes all rings of the device empty.
fn forget(scratch: &Scratch) {
    for resolution in Resolution::ALL {
        for bucket in resolution.ring(history(scratch)) {
            bucket.max.store(0, Ordering::Relaxed);
            bucket.min.store(0, Ordering::Relaxed);
        }
    }
}

#[test]
fn the_first_change_in_a_second_records_the_usage_before_it() {
    let scratch = Scratch::with_history();
    let slot = scratch.join();
    charge(&scratch, &slot, 10);
    changed_ago(&scratch, &slot, 5_000);
    forget(&scratch);
    uncharge(&scratch, &slot, 4);
    assert_eq!(extremes(&scratch, Resolution::Quarters), (10, 10));
    let dead = scratch.dead(&stranger(1), 20, 0);
    forget(&scratch);
    assert_eq!(
        reap::reap(
            &scratch,
            &scratch.place.open(true).expect("open"),
            dead,
            &Knows(Some(false))
        ),
        reap::Fate::Cleaned
    );
    assert_eq!(extremes(&scratch, Resolution::Quarters), (26, 6));
}
