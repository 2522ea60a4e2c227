//! Tests of requests in several groups. The test itself writes the ledger words of the other
//! processes.

use super::*;
use crate::lock::{self, Bytes};
use crate::scratch::{InSleep, Knows, Scratch, level, stranger};
use crate::{Ledger, NoWitness};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Returns the peak of the process that owns the slot.
fn own_peak(slot: &Slot, device: DeviceIndex) -> u64 {
    slot.stats(device).peak.load(Ordering::Relaxed)
}

#[test]
fn a_request_is_rounded_up_and_bounded() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let charge =
        |bytes, max| charge(&[level(&slot, scratch.device, max)], bytes, &Knows(None)).is_ok();
    let try_charge = |bytes, max| try_charge(&[level(&slot, scratch.device, max)], bytes);
    assert!(charge(0, 0) && scratch.charged(scratch.device) == 0);
    assert!(!charge(1, UNIT - 1) && !try_charge(1, UNIT - 1));
    assert!(charge(1, UNIT) && !charge(1, 2 * UNIT - 1));
    assert!(try_charge(UNIT + 1, 3 * UNIT) && !try_charge(1, 3 * UNIT));
    assert_eq!(slot.charged(scratch.device), 3 * UNIT);
    uncharge(&[level(&slot, scratch.device, 0)], UNIT + 1);
    assert_eq!(slot.charged(scratch.device), UNIT);
    let most = charge::REQUEST_MAX * UNIT;
    assert!(!charge(most + 1, u64::MAX) && !try_charge(most + 1, u64::MAX));
    assert!(charge(most, u64::MAX));
    uncharge(&[level(&slot, scratch.device, 0)], most);
    assert!(try_charge(most, u64::MAX));
}

#[test]
fn moved_bytes_are_charged_unless_an_undecided_request_leaves_no_room() {
    let scratches = [Scratch::new(), Scratch::new()];
    let slots = scratches.each_ref().map(Scratch::join);
    let path = [0, 1].map(|at| level(&slots[at], scratches[at].device, 10 * UNIT));
    let charged = || {
        slots
            .each_ref()
            .map(|slot| slot.charged(path[0].device) / UNIT)
    };
    let dead = scratches[1].dead(&stranger(1), 6, 0);
    assert!(charge_moved(&path, 6 * UNIT - 1), "even above the limit");
    assert_eq!(charged(), [6, 6]);
    uncharge(&path, 6 * UNIT);
    let request = scratches[1].word(dead + 1, scratches[1].device);
    let high_water = &scratches[1].signals().high_water;
    high_water.store(dead as u64 + 2, Ordering::Relaxed);
    for (units, fits) in [(4, true), (5, false)] {
        request.store(units | units << 32, Ordering::Relaxed);
        assert_eq!(charge_moved(&path, 6 * UNIT), fits);
        assert_eq!(charged(), if fits { [6, 6] } else { [0, 0] });
        uncharge(&path, 6 * UNIT);
    }
}

#[test]
fn a_truncated_ledger_grants_no_request() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let path = [level(&slot, scratch.device, u64::MAX)];
    std::fs::write(scratch.path(), "").expect("cut");
    assert!(!try_charge(&path, UNIT));
    assert!(charge(&path, UNIT, &Knows(None)).is_err());
}

#[test]
fn a_refusal_names_the_level_whose_limit_is_too_small() {
    let scratches = [Scratch::new(), Scratch::new()];
    let slots = scratches.each_ref().map(Scratch::join);
    let request = |bytes, maxima: [u64; 2]| {
        let at = |level_: usize| {
            level(
                &slots[level_],
                scratches[level_].device,
                maxima[level_] * UNIT,
            )
        };
        charge(&[at(0), at(1)], bytes, &Knows(None))
    };
    request(3 * UNIT, [10, 10]).expect("it fits");
    let refused = |level, max| {
        Err(Refused {
            level,
            charged: 3 * UNIT,
            max: max * UNIT,
            pending: 0,
        })
    };
    assert_eq!(request(6 * UNIT, [5, 5]), refused(0, 5));
    assert_eq!(request(6 * UNIT, [10, 5]), refused(1, 5));
    assert_eq!(request(8 * UNIT, [8, 20]), refused(0, 8));
    assert_eq!(request(8 * UNIT, [20, 9]), refused(1, 9));
    // The request has more units than a ledger word can count.
    assert_eq!(request((1 << 42) + 1, [1 << 40, 5]), refused(1, 5));
    assert_eq!(
        request((1 << 42) + 1, [1 << 40, 1 << 41]),
        refused(0, 1 << 40)
    );
    assert!(charge(&[], UNIT, &Knows(None)).is_ok());
    assert_eq!(
        charge(&[], u64::MAX, &Knows(None))
            .expect_err("absurd")
            .charged,
        0
    );
}

#[test]
fn peaks_exclude_idle_memory() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let device = scratch.device;
    let path = [level(&slot, device, u64::MAX)];
    scratch.dead(&stranger(1), 5, 0);
    charge(&path, 10 * UNIT, &Knows(None)).expect("no limit");
    uncharge(&path, 10 * UNIT);
    charge(&path, 2 * UNIT, &Knows(None)).expect("no limit");
    assert_eq!(
        (own_peak(&slot, device), scratch.usage(device).peak),
        (10 * UNIT, 15 * UNIT)
    );
    // Memory that was charged ahead counts as usage once the process uses it.
    slot.publish_idle(device, 8 * UNIT);
    charge(&path, 12 * UNIT, &Knows(None)).expect("no limit");
    assert_eq!(
        (own_peak(&slot, device), scratch.usage(device).peak),
        (10 * UNIT, 15 * UNIT)
    );
    slot.publish_idle(device, UNIT);
    note_usage(&path);
    assert_eq!(
        (own_peak(&slot, device), scratch.usage(device).peak),
        (13 * UNIT, 18 * UNIT)
    );
}

#[test]
fn unchecked_charges_exceed_the_limit() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    charge_unchecked(&[level(&slot, scratch.device, 0)], 2 * UNIT + 1);
    assert_eq!(scratch.charged(scratch.device), 3 * UNIT);
    assert_eq!(own_peak(&slot, scratch.device), 0, "not recorded yet");
}

#[test]
fn a_level_reads_only_the_words_of_its_device() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let dead = scratch.dead(&stranger(1), 5, 0);
    scratch
        .word(dead, scratch.other)
        .store(50, Ordering::Relaxed);
    assert_eq!(charge::look(&level(&slot, scratch.device, 0)).charged, 5);
    assert_eq!(charge::look(&level(&slot, scratch.other, 0)).charged, 50);
}

#[test]
fn a_file_that_names_too_many_slots_has_all_existing_ones_read() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    scratch
        .word(4_095, scratch.device)
        .store(7, Ordering::Relaxed);
    let high_water = &scratch.content().header.signals.high_water;
    high_water.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(charge::look(&level(&slot, scratch.device, 0)).charged, 7);
    assert_eq!(scratch.charged(scratch.device), 7 * UNIT);
}

#[test]
fn protected_memory_leaves_less_room() {
    struct Keeps;
    impl Protection for Keeps {
        fn untaken(&self, _: &Ledger, _: DeviceIndex, low: bool) -> u64 {
            if low { 6 * UNIT } else { 2 * UNIT }
        }
    }
    let scratch = Scratch::new();
    let slot = scratch.join();
    let with = |max, keeps_low| Level {
        protection: Some(&Keeps),
        keeps_low,
        ..level(&slot, scratch.device, max * UNIT)
    };
    assert!(!try_charge(&[with(10, true)], 5 * UNIT));
    assert!(try_charge(&[with(10, true)], 4 * UNIT));
    assert!(!try_charge(&[with(10, false)], 5 * UNIT));
    assert!(try_charge(&[with(10, false)], 4 * UNIT));
    assert_eq!(
        Rung::max(&with(5, true)),
        0,
        "the protected memory exceeds the limit"
    );
}

#[test]
fn a_process_with_a_changed_word_is_granted_no_request_for_a_second() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let path = [level(&slot, scratch.device, 100 * UNIT)];
    charge(&path, 7 * UNIT, &Knows(None)).expect("room");
    // The process must recognise refused requests, uncharged memory and unchecked charges as its
    // own changes of the word.
    assert!(!try_charge(&path, 100 * UNIT));
    uncharge(&path, 4 * UNIT);
    charge_unchecked(&path, 2 * UNIT);
    charge(&path, UNIT, &Knows(None)).expect("no other process has changed the charge");
    uncharge(&path, UNIT);
    scratch
        .word(slot.index(), scratch.device)
        .store(1, Ordering::Relaxed);
    let refused = charge(&path, UNIT, &Knows(None)).expect_err("seen");
    assert_eq!(
        (refused.level, refused.charged, refused.max),
        (0, 5 * UNIT, 100 * UNIT)
    );
    assert_eq!(scratch.charged(scratch.device), 5 * UNIT);
}

/// A test process that gives memory back only the first time it is asked.
struct Once<'a>(&'a Level<'a>, Cell<u32>);

impl Pressure for Once<'_> {
    fn reclaim(&self, device: DeviceIndex) -> bool {
        assert_eq!(device, self.0.device);
        self.1.set(self.1.get() + 1);
        let first = self.1.get() == 1;
        if first {
            uncharge(&[*self.0], 4 * UNIT);
        }
        first
    }

    fn witness(&self) -> &dyn Witness {
        &NoWitness
    }
}

#[test]
fn idle_memory_is_reclaimed_on_the_device_of_the_first_level() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let path = [level(&slot, scratch.device, 10 * UNIT)];
    let pressure = Once(&path[0], Cell::new(0));
    charge(&path, 10 * UNIT, &pressure).expect("room");
    assert_eq!(pressure.1.get(), 0);
    charge(&path, 4 * UNIT, &pressure).expect("given");
    assert!(charge(&path, 4 * UNIT, &pressure).is_err());
    assert_eq!(pressure.1.get(), 2);
}

#[test]
fn drained_slots_of_the_dead_make_room() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let path = [level(&slot, scratch.device, 10 * UNIT)];
    scratch.dead(&stranger(1), 8, 0);
    charge(&path, 10 * UNIT, &Knows(Some(false))).expect("the dead process's memory is free");
    uncharge(&path, 10 * UNIT);
    // Now the dead process's memory is freed only while the request waits.
    scratch.dead(&stranger(1), 8, 0);
    charge(&path, 10 * UNIT, &Knows(None)).expect("the request is granted after the grace time");
}

#[test]
fn a_request_beside_steady_deaths_ends() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let path = [level(&slot, scratch.device, 10 * UNIT)];
    let mut request = Contention::new(&path, &Knows(Some(false)));
    let mut is_told = || {
        let dead = scratch.dead(&stranger(1), 8, 0);
        let freed = request.reap(&path[0]).freed;
        assert_eq!(
            scratch.word(dead, scratch.device).load(Ordering::Relaxed),
            0
        );
        request.since -= DRAIN_PATIENCE / 2;
        freed
    };
    assert_eq!([(); 3].map(|()| is_told()), [true, true, false]);
}

#[test]
fn a_request_that_is_needless_or_has_outdated_limits_does_not_wait() {
    /// A [`Pressure`] that ends waits for one of two reasons, and counts how often it did.
    struct Ending {
        is_needless: bool,
        ends: Cell<u32>,
    }
    impl Ending {
        fn ends(&self, for_this_reason: bool) -> bool {
            let ends = u32::from(for_this_reason);
            self.ends.set(self.ends.get() + ends);
            for_this_reason
        }
    }
    impl Pressure for Ending {
        fn reclaim(&self, _: DeviceIndex) -> bool {
            false
        }
        fn witness(&self) -> &dyn Witness {
            &StillThere
        }
        fn is_outdated(&self) -> bool {
            self.ends(!self.is_needless)
        }
        fn is_needless(&self) -> bool {
            self.ends(self.is_needless)
        }
    }
    struct StillThere;
    impl Witness for StillThere {
        fn holds_memory(
            &self,
            _: &gpulimit_base::identity::Identity,
            _: &gpulimit_base::device::DeviceId,
            _: bool,
        ) -> Option<bool> {
            Some(true)
        }
    }
    let scratch = Scratch::new();
    let slot = scratch.join();
    let path = [level(&slot, scratch.device, 10 * UNIT)];
    let dead = scratch.dead(&stranger(1), 8, 0);
    let [outdated, needless] = [false, true].map(|is_needless| Ending {
        is_needless,
        ends: Cell::new(0),
    });
    for pressure in [&outdated, &needless] {
        assert!(
            charge(&path, 10 * UNIT, pressure).is_err(),
            "still draining"
        );
        assert_eq!(pressure.ends.get(), 1);
    }
    // An undecided request of a living process blocks this request. This request does not wait,
    // because the limits are outdated.
    let alive = scratch.join();
    scratch
        .word(dead, scratch.device)
        .store(0, Ordering::Relaxed);
    scratch
        .word(alive.index(), scratch.device)
        .store(8 << 32 | 8, Ordering::Relaxed);
    assert!(charge(&path, 10 * UNIT, &outdated).is_err());
    assert_eq!(outdated.ends.get(), 2);
}

#[test]
fn a_request_waits_a_bounded_time_for_a_stopped_one() {
    let scratch = Scratch::new();
    let (slot, frozen) = (scratch.join(), scratch.join());
    let path = [level(&slot, scratch.device, 10 * UNIT)];
    scratch
        .word(frozen.index(), scratch.device)
        .store(8 << 32 | 8, Ordering::Relaxed);
    let refused = charge(&path, 3 * UNIT, &Knows(None)).expect_err("in the way");
    assert_eq!(
        refused.charged, 0,
        "the refusal does not count undecided units"
    );
    // Now the other process withdraws its request while this request waits.
    let decides = Decides(scratch.word(frozen.index(), scratch.device), Cell::new(3));
    charge(&path, 3 * UNIT, &decides).expect("it was withdrawn");
}

#[test]
fn a_request_waits_a_bounded_time_for_an_exiting_process() {
    let scratch = Scratch::new();
    let (slot, ending) = (scratch.join(), scratch.join());
    let path = [level(&slot, scratch.device, 10 * UNIT)];
    // The exiting process still holds its file lock, but its pid already belongs to another
    // process.
    let owner = &scratch.content().slots[ending.index()].owner;
    owner.start_time.store(1, Ordering::Relaxed);
    let word = scratch.word(ending.index(), scratch.device);
    word.store(8, Ordering::Relaxed);
    charge(&path, 3 * UNIT, &Decides(word, Cell::new(3))).expect("it has ended");
    word.store(8, Ordering::Relaxed);
    let refused = charge(&path, 3 * UNIT, &Knows(None)).expect_err("exiting takes forever");
    assert_eq!(refused.charged, 11 * UNIT);
    // The next requests do not wait for it again.
    let _never = InSleep::happens(|| panic!("the request waits"));
    charge(&path, 3 * UNIT, &Knows(None)).expect_err("it has not ended");
}

#[test]
fn a_request_waits_a_bounded_time_for_a_slot_being_cleaned() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let path = [level(&slot, scratch.device, 10 * UNIT)];
    let dead = scratch.dead(&stranger(1), 8, 0);
    let cleaner = scratch.place.open(true).expect("open");
    assert!(lock::try_lock(&cleaner, Bytes::claim(dead)).expect("locks"));
    let word = scratch.word(dead, scratch.device);
    charge(&path, 3 * UNIT, &Decides(word, Cell::new(3))).expect("it is clean");
    word.store(8, Ordering::Relaxed);
    let refused = charge(&path, 3 * UNIT, &Knows(None)).expect_err("the cleaner hangs");
    assert_eq!(refused.charged, 11 * UNIT);
}

#[test]
fn a_process_with_a_saturated_word_does_not_ask_others() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let path = [level(&slot, scratch.device, u64::MAX)];
    for _ in 0..2 {
        charge(&path, charge::REQUEST_MAX * UNIT, &Knows(None)).expect("no limit");
    }
    assert!(charge(&path, UNIT, &Knows(None)).is_err());
    assert_eq!(scratch.asked(), 0);
}

/// A test helper that withdraws another process's request at the n-th call of `is_outdated`.
struct Decides<'a>(&'a AtomicU64, Cell<u32>);

impl Pressure for Decides<'_> {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        &NoWitness
    }

    fn is_outdated(&self) -> bool {
        self.1.set(self.1.get() - 1);
        if self.1.get() == 0 {
            self.0.store(0, Ordering::Relaxed);
        }
        false
    }
}

/// Requests units beside a member that offers `reclaimable` units but gives them only if `gives`,
/// and beside a dead process with `dead` units. Returns (granted, number of asks).
fn ask(gives: bool, reclaimable: u64, request: u64, dead: u64) -> (bool, u64) {
    let scratch = Scratch::new();
    let (slot, other) = (scratch.join(), scratch.join());
    scratch.dead(&stranger(1), dead, 0);
    let (device, ledger) = (scratch.device, Arc::clone(&scratch));
    charge_unchecked(&[level(&other, device, u64::MAX)], 10 * UNIT);
    other.publish_reclaimable(device, reclaimable * UNIT);
    // A real member gives memory back later, at its next call into the driver.
    let member = InSleep::happens(move || {
        if gives && ledger.asked() == 1 && other.charged(device) == 10 * UNIT {
            uncharge(&[level(&other, device, u64::MAX)], reclaimable * UNIT);
            other.publish_reclaimable(device, 0);
        }
    });
    let path = [level(&slot, device, (12 + dead) * UNIT)];
    let granted = charge(&path, request * UNIT, &Knows(None)).is_ok();
    drop(member);
    (granted, scratch.asked())
}

#[test]
fn others_are_asked_only_if_they_can_give_what_is_lacking() {
    assert_eq!(ask(true, 4, 6, 0), (true, 1), "just enough");
    assert_eq!(ask(true, 5, 6, 0), (true, 1), "more");
    assert_eq!(
        ask(true, 4, 26, 20),
        (true, 1),
        "with the memory of a dead process"
    );
    assert_eq!(
        ask(true, 4, 7, 0),
        (false, 0),
        "the member has too little idle memory"
    );
    assert_eq!(ask(false, 4, 6, 0), (false, 1), "the member gives nothing");
    assert_eq!(ask(true, 4, 2, 0), (true, 0), "there is room");
}

#[test]
fn readers_never_see_idle_memory_as_used() {
    const USED: u64 = 5 * UNIT;
    struct Ahead<'a>(&'a Slot, DeviceIndex, u64);
    impl Idle for Ahead<'_> {
        fn add(&self) {
            self.0.publish_idle(self.1, self.2);
        }
        fn remove(&self) {
            self.0.publish_idle(self.1, 0);
        }
    }
    struct End<'a>(&'a std::sync::atomic::AtomicU32);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(u32::MAX, Ordering::Relaxed);
        }
    }
    let scratch = Scratch::new();
    let device = scratch.device;
    let slots = [0; 2].map(|_| scratch.join());
    for slot in &slots {
        charge(&[level(slot, device, u64::MAX)], USED, &Knows(None)).expect("no limit");
    }
    let looks = std::sync::atomic::AtomicU32::new(0);
    let enough = || looks.load(Ordering::Relaxed) >= 20_000;
    std::thread::scope(|scope| {
        for slot in &slots {
            scope.spawn(|| {
                // The limit has room for only one of the two concurrent requests.
                let path = [level(slot, device, 2 * USED + 10 * UNIT)];
                for round in 0.. {
                    let bytes = (1 + round % 10) * UNIT;
                    let idle = Ahead(slot, device, bytes);
                    let granted = match round % 2 {
                        0 => try_charge_ahead(&path, bytes, &idle),
                        _ => charge_ahead(&path, bytes, &Knows(None), &idle).is_ok(),
                    };
                    if granted {
                        uncharge_idle(&path, bytes, &idle);
                    }
                    if enough() {
                        break;
                    }
                }
            });
        }
        // This guard ends the threads even if an assertion fails.
        let _end = End(&looks);
        let naps = Rc::new(Cell::new(0));
        let nap = Rc::clone(&naps);
        let _count = InSleep::happens(move || nap.set(nap.get() + 1));
        while !enough() {
            naps.set(0);
            let usage = scratch.usage(device);
            let processes = scratch.processes(&Knows(None));
            looks.fetch_add(1, Ordering::Relaxed);
            // A reading gives up when it has slept 256 times, because a thread was suspended during
            // a request. The values may be inconsistent then.
            if naps.get() >= 256 {
                continue;
            }
            if usage.undecided == 0 {
                assert_eq!(usage.charged - usage.idle, 2 * USED);
            }
            for process in processes {
                assert_eq!(process.on(device).peak, USED);
            }
        }
    });
    assert_eq!(scratch.usage(device).idle, 0);
}
