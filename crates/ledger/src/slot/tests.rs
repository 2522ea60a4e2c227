//! Tests of claiming slots, and of detecting changes of a slot by other processes.

use super::*;
use crate::charge::UNIT;
use crate::scratch::{InSleep, Knows, Scratch, level, stranger};
use std::cell::Cell;
use std::rc::Rc;

fn pick_of(scratch: &Scratch, crowd: usize) -> Option<usize> {
    let file = scratch.place.open(true).expect("open");
    let candidate = Candidate {
        ledger: scratch,
        identity: &Identity::of_self(),
        below: "",
        owner: &file,
        claim: &file,
    };
    candidate.pick(crowd, &mut Random::new()).expect("locks")
}

/// Chooses a slot 100 times. Returns the different slots that were chosen, in ascending order.
fn picks_of(scratch: &Scratch, crowd: usize) -> Vec<usize> {
    let mut picks: Vec<_> = (0..100).filter_map(|_| pick_of(scratch, crowd)).collect();
    assert!(
        [0, 100].contains(&picks.len()),
        "either every attempt finds a slot, or none does"
    );
    picks.sort_unstable();
    picks.dedup();
    picks
}

#[test]
fn a_single_process_takes_the_lowest_free_slot() {
    let scratch = Scratch::new();
    let mut slots: Vec<_> = (0..4).map(|_| scratch.join()).collect();
    let indices: Vec<_> = slots.iter().map(Slot::index).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(scratch.high_water(), 4);
    slots.remove(1);
    assert_eq!(picks_of(&scratch, 1), [1]);
    assert_eq!(scratch.join().index(), 1);
    assert_eq!(scratch.high_water(), 4);
    assert_eq!(picks_of(&scratch, 1), [1], "slot 1 is free again");
}

#[test]
fn a_crowd_is_spread_over_the_lowest_free_slots() {
    let scratch = Scratch::new();
    let mut slots: Vec<_> = (0..4).map(|_| scratch.join()).collect();
    slots.remove(1);
    assert_eq!(picks_of(&scratch, 3), [1, 4, 5]);
    // Almost all slots are taken now, so fewer than `crowd` slots are free.
    let high_water = &scratch.content().header.signals.high_water;
    high_water.store(MAX_SLOTS as u64, Ordering::Relaxed);
    for slot in 4..MAX_SLOTS - 1 {
        let owner = &scratch.content().slots[slot].owner;
        owner.pid.store(1, Ordering::Relaxed);
        scratch
            .word(slot, scratch.device)
            .store(1, Ordering::Relaxed);
    }
    assert_eq!(picks_of(&scratch, 8), [1, MAX_SLOTS - 1]);
    slots.push(scratch.join());
    slots.push(scratch.join());
    assert_eq!(picks_of(&scratch, 8), []);
}

#[test]
fn an_empty_slot_of_a_dead_owner_is_preferred_to_a_new_slot() {
    let scratch = Scratch::new();
    let (_alive, free) = (scratch.join(), scratch.join());
    let killed = scratch.dead(&stranger(1), 0, 0);
    drop(free);
    assert_eq!(picks_of(&scratch, 1), [1], "a free slot is preferred");
    let _other = scratch.join();
    let charged = scratch.dead(&stranger(2), 3, 0);
    assert_eq!(picks_of(&scratch, 1), [killed]);
    assert_eq!(picks_of(&scratch, 2), [charged + 1, charged + 2], "a crowd");
    let slot = scratch.join();
    assert_eq!(slot.index(), killed);
    assert_eq!(picks_of(&scratch, 1), [charged + 1], "which still drains");
    // A slot below `high_water` that is free again is preferred to a new one.
    drop(slot);
    assert_eq!(picks_of(&scratch, 1), [killed]);
}

#[test]
fn a_reader_cannot_join() {
    let scratch = Scratch::new();
    let reader = Arc::new(scratch.readonly());
    let error = reader
        .claim(&Identity::of_self(), "")
        .expect_err("a reader");
    assert!(matches!(error, LedgerError::ReadOnly { .. }), "{error}");
}

#[test]
fn joining_a_removed_group_is_an_error() {
    let scratch = Scratch::new();
    std::fs::remove_file(scratch.path()).expect("removed");
    let error = scratch.claim(&Identity::of_self(), "").expect_err("gone");
    assert!(matches!(error, LedgerError::Replaced { .. }), "{error}");
}

#[test]
fn a_claim_waits_for_the_end_of_a_removal() {
    let scratch = Scratch::new();
    let removal = scratch.begin_removal().expect("nobody");
    let path = scratch.path().to_owned();
    let waits = Rc::new(Cell::new(0));
    let count = Rc::clone(&waits);
    let removed = InSleep::happens(move || {
        count.set(count.get() + 1);
        let _ = std::fs::remove_file(&path);
    });
    let late = scratch.claim(&Identity::of_self(), "");
    let error = late.expect_err("gone");
    assert!(matches!(error, LedgerError::Replaced { .. }), "{error}");
    assert_eq!(waits.get(), 1);
    drop((removal, removed));
    // The next removal is cancelled, so the waiting process gets a slot.
    let scratch = Scratch::new();
    let mut removal = scratch.begin_removal().ok();
    assert!(removal.is_some(), "nobody");
    let _cancelled = InSleep::happens(move || drop(removal.take()));
    scratch.claim(&Identity::of_self(), "").expect("a slot");
}

#[test]
fn a_slot_names_its_owner_and_the_owners_group() {
    let scratch = Scratch::new();
    let claim = |below: &str| {
        let before = os::boot_ms();
        let slot = scratch.claim(&Identity::of_self(), below).expect("room");
        let page = &scratch.content().slots[slot.index()];
        let (child, name) = (page.owner.child.load(Ordering::Relaxed), read_below(page));
        let birth = page.owner.birth.load(Ordering::Relaxed);
        assert!((before..=os::boot_ms()).contains(&birth));
        assert_eq!(page.owner.read(), Some(Identity::of_self()));
        (child, name)
    };
    assert_eq!(claim(""), (0, String::new()));
    assert_eq!(claim("alice"), (child_key("alice"), "alice".into()));
    assert_eq!(claim("alice/job"), (child_key("alice"), "alice/job".into()));
    assert_eq!(
        claim("bob"),
        (child_key("bob"), "bob".into()),
        "nothing of the previous owner's name is left"
    );
    let long = vec!["x".repeat(64); 10].join("/");
    assert_eq!(claim(&long).1, long[..8 * BELOW_WORDS]);
    // A faulty member may have written invalid names like these into the ledger.
    for forged in ["a\u{1b}[2J", "a\nb", "../lab", "a//b", "/a", "ä"] {
        assert_eq!(claim(forged).1, "", "{forged:?}");
    }
    let cut = ("x".repeat(64) + "/").repeat(8) + &"y".repeat(55);
    assert_eq!(claim(&(cut.clone() + "/z")).1, cut);
}

#[test]
fn figures_are_published_per_device() {
    let scratch = Scratch::new();
    let (_first, slot) = (scratch.join(), scratch.join());
    let path = [level(&slot, scratch.device, u64::MAX)];
    crate::charge(&path, 3 * UNIT, &Knows(None)).expect("no limit");
    assert_eq!(
        (slot.charged(scratch.device), slot.charged(scratch.other)),
        (3 * UNIT, 0)
    );
    slot.word(scratch.device)
        .fetch_add(5 << 32 | 5, Ordering::Relaxed);
    assert_eq!(
        slot.charged(scratch.device),
        3 * UNIT,
        "undecided units are not counted as charged"
    );
    assert!(Arc::ptr_eq(slot.ledger(), &scratch));
}

#[test]
fn a_word_that_another_process_lowered_is_repaired() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let charge = |bytes| crate::try_charge(&[level(&slot, scratch.device, u64::MAX)], bytes);
    assert!(charge(5 * UNIT) && !slot.distrusts());
    slot.word(scratch.device).store(2, Ordering::Relaxed);
    assert!(!charge(UNIT));
    assert_eq!(slot.charged(scratch.device), 5 * UNIT);
    let until = slot.distrust.load(Ordering::Relaxed);
    assert!(until > os::boot_ms() - 60_000 && until <= os::boot_ms() + DISTRUST_MS);
    slot.distrust
        .store(os::boot_ms() + 60_000, Ordering::Relaxed);
    assert!(slot.distrusts() && !charge(UNIT), "no request is granted");
    slot.distrust.store(os::boot_ms() - 1, Ordering::Relaxed);
    assert!(!slot.distrusts() && charge(UNIT));
    assert_eq!(slot.distrust.load(Ordering::Relaxed), 0);
}

#[test]
fn a_slot_hidden_by_a_lowered_high_water_is_shown_again() {
    let scratch = Scratch::new();
    let (_first, slot) = (scratch.join(), scratch.join());
    let charge = |bytes| crate::try_charge(&[level(&slot, scratch.device, u64::MAX)], bytes);
    assert!(charge(UNIT));
    let high_water = &scratch.content().header.signals.high_water;
    for named in [0, 1] {
        high_water.store(named, Ordering::Relaxed);
        assert!(!charge(UNIT) && slot.distrust.load(Ordering::Relaxed) > 0);
        assert_eq!(high_water.load(Ordering::Relaxed), 2);
        slot.distrust.store(1, Ordering::Relaxed);
        assert!(charge(UNIT));
    }
    high_water.store(5, Ordering::Relaxed);
    assert!(charge(UNIT), "a higher `high_water` is no error");
}

#[test]
fn space_is_reserved_for_all_that_an_owner_writes() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let blocks = || std::fs::metadata(scratch.path()).expect("there").blocks() * 512;
    let before = blocks();
    let file = scratch.place.open(true).expect("open");
    let candidate = Candidate {
        ledger: &scratch,
        identity: &Identity::of_self(),
        below: "",
        owner: &file,
        claim: &file,
    };
    candidate.reserve(1_000).expect("room");
    let pages = (size_of::<SlotPage>() + BLOCKS * 4096) as u64;
    assert!(
        blocks() >= before + pages,
        "space is reserved for one page, and one more per block"
    );
    assert_eq!(
        std::fs::metadata(scratch.path()).expect("there").len(),
        layout::FILE_SIZE
    );
}
