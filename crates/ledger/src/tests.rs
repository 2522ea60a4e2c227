//! Tests of the ledger as a whole.

use super::scratch::{GPU, Knows, OTHER_GPU, Scratch, UNIT, level, stranger};
use super::*;
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn categories_have_distinct_names_and_figures() {
    let names: BTreeSet<_> = Category::ALL.map(Category::name).into();
    assert_eq!(names.len(), Category::COUNT);
    assert_eq!(Category::Vmm.name(), "vmm");
    let places = Category::ALL.map(|category| category as usize);
    assert!(places.into_iter().eq(0..Category::COUNT));
}

#[test]
fn device_indices_are_bounded_by_the_table() {
    assert_eq!(DeviceIndex::new(31).map(usize::from), Some(31));
    assert!(DeviceIndex::new(32).is_none());
    let all: BTreeSet<_> = DeviceIndex::all().map(DeviceIndex::get).collect();
    assert!(all.into_iter().eq(0..MAX_DEVICES));
}

#[test]
fn all_members_find_a_device_and_its_figures() {
    let scratch = Scratch::new();
    assert_eq!(
        scratch.device(GPU, 80 << 30).expect("known"),
        scratch.device
    );
    assert_ne!(scratch.device, scratch.other);
    scratch.set_context_hint(scratch.device, 500);
    let reader = scratch.readonly();
    reader.set_context_hint(scratch.device, 1);
    assert_eq!(reader.find_device(&OTHER_GPU), Some(scratch.other));
    assert_eq!(reader.device(GPU, 0).expect("known"), scratch.device);
    assert_eq!(
        (
            reader.context_hint(scratch.device),
            reader.context_hint(scratch.other)
        ),
        (500, 0)
    );
    let entry = reader.device_entry(scratch.device).expect("known");
    assert_eq!(
        (entry.id, entry.capacity, entry.context_bytes),
        (GPU, 80 << 30, 500)
    );
    assert_eq!(entry.index, scratch.device);
    let devices = reader.devices();
    assert_eq!((devices.len(), devices[9]), (11, entry));
    let mig = DeviceId::mig([7; 16]);
    assert!(reader.find_device(&mig).is_none());
    let instance = scratch.device(mig, 10 << 30).expect("room");
    assert_eq!(reader.find_device(&mig), Some(instance));
    assert_eq!(
        reader.device_entry(instance).map(|entry| entry.id),
        Some(mig)
    );
    let free = DeviceIndex::new(12).expect("below 32");
    assert!(reader.device_entry(free).is_none());
}

#[test]
fn a_full_device_table_is_an_error() {
    let scratch = Scratch::new();
    for number in 11..MAX_DEVICES as u8 {
        let device = scratch
            .device(DeviceId::gpu([number; 16]), 1)
            .expect("room");
        assert_eq!(device.get(), usize::from(number));
    }
    let error = scratch
        .device(DeviceId::gpu([99; 16]), 1)
        .expect_err("full");
    assert!(matches!(error, LedgerError::NoDevice { .. }), "{error}");
    assert_eq!(
        scratch.device(GPU, 80 << 30).expect("known"),
        scratch.device
    );
}

#[test]
fn changes_of_groups_below_are_counted() {
    let scratch = Scratch::new();
    scratch.children_changed();
    scratch.children_changed();
    let reader = scratch.readonly();
    reader.children_changed();
    assert_eq!(reader.children(), 2);
}

#[test]
fn members_are_asked_at_most_every_200_ms() {
    let scratch = Scratch::new();
    assert!(!scratch.readonly().ask_members());
    assert!(scratch.ask_members());
    assert_eq!(scratch.asked(), 1);
    let at = &scratch.content().header.signals.asked_at;
    let just = os::boot_ms();
    assert!(
        at.load(Ordering::Relaxed).abs_diff(just) < 60_000,
        "the time of asking is recorded"
    );
    // The recorded time of asking is set to now, to a while ago, and (wrongly) to the future.
    at.store(os::boot_ms(), Ordering::Relaxed);
    assert!(!scratch.ask_members());
    at.store(os::boot_ms() - 10_000, Ordering::Relaxed);
    assert!(scratch.ask_members());
    at.store(os::boot_ms() + 60_000, Ordering::Relaxed);
    assert!(scratch.ask_members());
    assert_eq!(scratch.asked(), 3);
}

#[test]
fn waits_are_counted_and_added_up() {
    let scratch = Scratch::new();
    scratch.note_wait(scratch.device, Duration::from_millis(20));
    scratch.note_wait(scratch.device, Duration::from_millis(300));
    scratch
        .readonly()
        .note_wait(scratch.device, Duration::from_secs(1));
    let usage = scratch.usage(scratch.device);
    assert_eq!((usage.waits, usage.waited_ms), (2, 320));
    assert_eq!(scratch.usage(scratch.other).waits, 0);
}

#[test]
fn passing_high_is_reported_once_a_second() {
    let scratch = Scratch::new();
    assert!(!scratch.readonly().note_above_high(scratch.device));
    assert!(scratch.note_above_high(scratch.device));
    assert!(scratch.note_above_high(scratch.other));
    let noted = &scratch.content().header.above_high[scratch.device.get()];
    noted.store(os::boot_ms(), Ordering::Relaxed);
    assert!(!scratch.note_above_high(scratch.device));
    noted.store(os::boot_ms() - 1_001, Ordering::Relaxed);
    assert!(scratch.note_above_high(scratch.device));
    noted.store(os::boot_ms() + 60_000, Ordering::Relaxed);
    assert!(
        scratch.note_above_high(scratch.device),
        "a recorded time in the future is ignored"
    );
    assert!(noted.load(Ordering::Relaxed) <= os::boot_ms());
}

#[test]
fn cleaning_counts_cleaned_and_draining_slots() {
    let scratch = Scratch::new();
    let alive = scratch.join();
    let path = [level(&alive, scratch.device, u64::MAX)];
    charge(&path, UNIT, &Knows(None)).expect("no limit");
    scratch.dead(&stranger(1), 1, 0);
    scratch.dead(&stranger(2), 2, 0);
    // This process was killed before it charged any memory.
    scratch.dead(&stranger(3), 0, 0);
    assert_eq!(
        scratch.readonly().clean(&Knows(Some(false))),
        Cleaned::default()
    );
    let cleaned = |cleaned, draining| Cleaned { cleaned, draining };
    assert_eq!(scratch.clean(&Knows(Some(true))), cleaned(1, 2));
    assert_eq!(scratch.clean(&Knows(Some(false))), cleaned(2, 0));
    assert_eq!(scratch.clean(&Knows(Some(false))), cleaned(0, 0));
    assert_eq!(scratch.charged(scratch.device), UNIT);
}

#[test]
fn charges_in_a_slot_without_an_owner_are_cleaned_too() {
    let scratch = Scratch::new();
    let slot = scratch.dead(&stranger(1), 1, 0);
    scratch.content().slots[slot]
        .owner
        .pid
        .store(0, Ordering::Relaxed);
    assert_eq!(
        scratch.clean(&Knows(Some(false))).draining,
        1,
        "without an owner, only the grace time decides"
    );
    assert_eq!(scratch.charged(scratch.device), UNIT);
}

#[test]
fn living_members_are_detected_on_a_read_only_ledger() {
    let scratch = Scratch::new();
    assert!(!scratch.has_live() && !scratch.is_unlinked());
    scratch.dead(&stranger(1), 1, 0);
    assert!(!scratch.has_live());
    let slot = scratch.join();
    assert!(scratch.readonly().has_live());
    drop(slot);
    assert!(!scratch.has_live());
    std::fs::remove_file(scratch.path()).expect("removed");
    assert!(scratch.has_live(), "cannot be determined");
    assert!(scratch.is_unlinked());
    assert_eq!(scratch.clean(&Knows(Some(false))), Cleaned::default());
}

#[test]
fn a_used_ledger_is_detected_without_opening_it() {
    let scratch = Scratch::new();
    assert!(!Ledger::is_used(scratch.path()));
    let slot = scratch.join();
    assert!(Ledger::is_used(scratch.path()));
    // The overwritten file is no longer a ledger, but its locks remain.
    std::fs::write(scratch.path(), "").expect("cut");
    assert!(Ledger::is_used(scratch.path()));
    std::fs::remove_file(scratch.path()).expect("removed");
    assert!(!Ledger::is_used(scratch.path()), "cannot be determined");
    drop(slot);
}

#[test]
fn damage_of_an_open_ledger_is_detected() {
    let scratch = Scratch::new();
    let why = || match scratch.damage() {
        Some(LedgerError::Damaged { what, .. }) => what,
        _ => "",
    };
    assert_eq!(why(), "");
    let magic = &scratch.content().header.preface.magic;
    let before = magic.swap(0, Ordering::Relaxed);
    assert_eq!(why(), "the file was overwritten");
    magic.store(before, Ordering::Relaxed);
    let other = Scratch::new();
    std::fs::write(scratch.path(), "").expect("cut");
    assert!(!scratch.has_words(0), "reads as zeros");
    assert!(why().starts_with("the file was cut short"), "{}", why());
    assert!(other.damage().is_none());
}

#[test]
fn a_closed_ledger_is_not_mapped() {
    let scratch = Scratch::new();
    let path = scratch.path().to_str().expect("of letters");
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
        maps.lines().filter(|line| line.ends_with(path)).count()
    };
    let before = mapped();
    let reader = scratch.readonly();
    assert_eq!(mapped(), before + 1);
    drop(reader);
    assert_eq!(mapped(), before);
}

#[test]
fn removal_keeps_processes_out_until_it_ends() {
    let scratch = Scratch::new();
    let slot = scratch.join();
    let error = scratch.begin_removal().expect_err("a member");
    assert!(matches!(error, LedgerError::InUse { .. }), "{error}");
    drop(slot);
    let removal = scratch.begin_removal().expect("nobody");
    assert!(
        scratch.begin_removal().is_err(),
        "a second removal fails while the first one lasts"
    );
    drop(removal);
    drop(scratch.join());
}

#[test]
fn errors_name_the_ledger_and_the_reason() {
    use std::error::Error;
    let path = Path::new("/nowhere/ledger");
    let error = LedgerError::io(path, "open", std::io::Error::other("because"));
    assert_eq!(error.path(), path);
    assert_eq!(
        error.source().map(ToString::to_string).as_deref(),
        Some("because")
    );
    assert!(LedgerError::damaged(path, "cut short").source().is_none());
    let with_room =
        |code| LedgerError::io_with_room(path, "make", std::io::Error::from_raw_os_error(code));
    for code in [libc::ENOSPC, libc::EDQUOT] {
        assert!(matches!(with_room(code), LedgerError::NoSpace { .. }));
    }
    assert!(matches!(with_room(libc::EIO), LedgerError::Io { .. }));
    let scratch = Scratch::new();
    assert_eq!(
        scratch
            .begin_removal()
            .map(drop)
            .map_err(|error| error.to_string()),
        Ok(())
    );
    let _slot = scratch.join();
    let error = scratch.begin_removal().expect_err("a member");
    assert_eq!(error.path(), scratch.path());
}

#[test]
fn a_look_sees_deaths_by_the_file_that_it_keeps_open() {
    for write in [false, true] {
        let scratch = Scratch::with_history();
        let slot = scratch.join();
        let mut look = Ledger::look(scratch.path(), write).expect("open");
        assert!(look.has_live());
        assert_eq!(look.clean(&NoWitness), Cleaned::default());
        // Without its name, the file can be looked at only where it is open.
        let elsewhere = scratch.path().with_extension("elsewhere");
        std::fs::rename(scratch.path(), &elsewhere).expect("renamed");
        let dead = scratch.dead(&stranger(7), 3, 0);
        let lives = |look: &Ledger| {
            let processes = look.processes(&NoWitness);
            let of = |slot| processes.iter().find(|process| process.slot == slot);
            [slot.index(), dead].map(|slot| of(slot).map(|process| process.alive))
        };
        assert_eq!(lives(&look), [Some(true), Some(false)]);
        assert!(!look.is_held(dead));
        look.close_file();
        assert_eq!(lives(&look), [Some(true); 2], "unknown counts as alive");
        std::fs::rename(&elsewhere, scratch.path()).expect("renamed");
        assert_eq!(lives(&look), [Some(true), Some(false)]);
    }
}
