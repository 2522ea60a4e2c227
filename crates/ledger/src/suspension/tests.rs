//! Tests of figures that move between the charge and the suspended bytes of a process.

use super::*;
use crate::scratch::{InSleep, Scratch, level, stranger};
use crate::{Slot, charge_unchecked, try_charge, uncharge};
use std::rc::Rc;

const MAX: u64 = 100 * UNIT;

/// A member that has charged `units` and of which `idle` units are unused. The driver confirms its
/// suspensions.
fn member(scratch: &Scratch, pid: u32, units: u64, idle: u64) -> (Slot, Identity) {
    let identity = Identity {
        start_time: 1,
        ..stranger(pid)
    };
    let mut slot = scratch.claim(&identity, "").expect("a slot");
    charge_unchecked(&[level(&slot, scratch.device, MAX)], units * UNIT);
    slot.publish_idle(scratch.device, idle * UNIT);
    slot.confirm_suspensions_by(|| true);
    (slot, identity)
}

fn figures(scratch: &Scratch, slot: &Slot) -> (u64, u64) {
    let device = scratch.device;
    let suspended = scratch.suspended(slot.index(), device);
    (slot.charged(device) / UNIT, suspended / UNIT)
}

/// Brings the memory of a suspended member back, as an actor does.
fn bring_back(scratch: &Scratch, to: &Identity) -> Result<(), Unmoved> {
    let actor = scratch.join();
    let path = [level(&actor, scratch.device, MAX)];
    let bytes = scratch.suspended_of(to, scratch.device);
    assert!(try_charge(&path, bytes), "there is no room");
    hand_over(&path, bytes, to)
}

#[test]
fn a_charge_moves_out_and_back() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    let actor = scratch.act_on(&process).expect("the only actor");
    assert_eq!(scratch.move_out(&process), Ok(60 * UNIT));
    assert_eq!(figures(&scratch, &slot), (0, 60));
    assert_eq!(scratch.charged(scratch.device), 0);
    assert_eq!(scratch.move_out(&process), Ok(0), "it is out already");
    assert_eq!(scratch.suspended_of(&process, scratch.device), 60 * UNIT);
    assert_eq!(scratch.suspended_of(&process, scratch.other), 0);
    assert_eq!(scratch.suspended_of(&stranger(9), scratch.device), 0);
    bring_back(&scratch, &process).expect("handed over");
    assert_eq!(figures(&scratch, &slot), (60, 0));
    assert_eq!(scratch.charged(scratch.device), 60 * UNIT);
    drop(actor);
    assert!(try_charge(&[level(&slot, scratch.device, MAX)], UNIT));
    assert!(!slot.distrusts());
}

#[test]
fn others_get_the_room_of_a_suspended_member() {
    let scratch = Scratch::new();
    let ((_slot, process), (other, _)) = (member(&scratch, 1, 60, 0), member(&scratch, 2, 30, 0));
    let path = [level(&other, scratch.device, MAX)];
    assert!(!try_charge(&path, 11 * UNIT));
    scratch.move_out(&process).expect("moved");
    assert!(try_charge(&path, 70 * UNIT) && !try_charge(&path, UNIT));
    let actor = scratch.join();
    let own = [level(&actor, scratch.device, MAX)];
    assert!(!try_charge(&own, 60 * UNIT), "the room is taken");
    uncharge(&path, 60 * UNIT);
    bring_back(&scratch, &process).expect("handed over");
    assert_eq!(scratch.charged(scratch.device), 100 * UNIT);
}

/// Another tool has brought the memory back, and others have its room.
#[test]
fn a_charge_is_taken_back_above_the_limit() {
    let scratch = Scratch::new();
    let ((slot, process), (other, _)) = (member(&scratch, 1, 60, 0), member(&scratch, 2, 0, 0));
    let path = [level(&other, scratch.device, MAX)];
    scratch.move_out(&process).expect("moved");
    scratch.set_resident(&process, scratch.device, UNIT);
    assert!(try_charge(&path, 70 * UNIT));
    // Another actor has begun to suspend the process again.
    assert_eq!(scratch.take_back(&process, &|| false), Ok(()));
    assert_eq!(figures(&scratch, &slot), (0, 60));
    for _ in 0..2 {
        assert_eq!(scratch.take_back(&process, &|| true), Ok(()));
        assert!(!scratch.has_suspended());
        assert_eq!(figures(&scratch, &slot), (60, 0));
        assert_eq!(scratch.charged(scratch.device), 130 * UNIT);
    }
    assert!(!try_charge(&path, UNIT));
    uncharge(&path, 70 * UNIT);
    assert!(try_charge(&[level(&slot, scratch.device, MAX)], UNIT) && !slot.distrusts());
    scratch.move_out(&process).expect("moved");
    assert_eq!(slot.take_back(&|| true), Ok(()));
    assert_eq!(figures(&scratch, &slot), (61, 0));
    let gone = scratch.take_back(&stranger(9), &|| true);
    assert_eq!(gone, Err(Unmoved::Gone));
}

#[test]
fn forged_bytes_that_are_taken_back_fill_no_word() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    let figure = scratch.figure(slot.index(), scratch.device);
    for _ in 0..5 {
        figure.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(scratch.take_back(&process, &|| true), Ok(()));
        let charged = slot.charged(scratch.device) / UNIT;
        assert!((charge::REQUEST_MAX..=charge::WORD_MAX).contains(&charged));
        assert!(slot.is_decided(scratch.device));
    }
}

/// The owner and an actor find at the same time that the driver does not confirm a suspension.
#[test]
fn a_charge_comes_back_once() {
    let scratch = Scratch::new();
    let (mut slot, process) = member(&scratch, 1, 60, 0);
    slot.confirm_suspensions_by(|| false);
    let path = [level(&slot, scratch.device, MAX)];
    let take_back = || scratch.take_back(&process, &|| true);
    std::thread::scope(|scope| {
        let actor = scope.spawn(|| {
            for _ in 0..2_000 {
                scratch.move_out(&process).expect("moved");
                take_back().expect("taken back");
            }
        });
        while !actor.is_finished() {
            uncharge(&path, 0);
        }
    });
    take_back().expect("taken back");
    uncharge(&path, 0);
    assert_eq!(figures(&scratch, &slot), (60, 0));
}

#[test]
fn unused_bytes_and_orphans_stay_charged() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 7);
    slot.orphan(scratch.device, 5 * UNIT);
    assert_eq!(scratch.move_out(&process), Ok(48 * UNIT));
    assert_eq!(figures(&scratch, &slot), (12, 48));
}

#[test]
fn orphans_of_a_suspended_member_are_released_as_usual() {
    let scratch = Scratch::new();
    let device = scratch.device;
    let ((slot, process), (other, _)) = (member(&scratch, 1, 60, 0), member(&scratch, 2, 0, 0));
    slot.orphan(device, 5 * UNIT);
    assert_eq!(scratch.move_out(&process), Ok(55 * UNIT));
    let seen = scratch.orphans(device);
    assert_eq!(other.release_orphans(device, &seen, 2 * UNIT), 3 * UNIT);
    assert_eq!(figures(&scratch, &slot), (2, 55));
    bring_back(&scratch, &process).expect("handed over");
    assert!(try_charge(&[level(&slot, device, MAX)], UNIT) && !slot.distrusts());
    assert_eq!(figures(&scratch, &slot), (58, 0));
    let seen = scratch.orphans(device);
    assert_eq!(other.release_orphans(device, &seen, 0), 2 * UNIT);
    uncharge(&[level(&slot, device, MAX)], 56 * UNIT);
    assert_eq!(figures(&scratch, &slot), (0, 0));
}

#[test]
fn the_owner_accepts_a_suspension_that_the_driver_confirms() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    scratch.move_out(&process).expect("moved");
    let path = [level(&slot, scratch.device, MAX)];
    // Requests of threads that the driver has not stopped yet are charged as usual.
    assert!(try_charge(&path, 10 * UNIT) && !slot.distrusts());
    assert_eq!(scratch.move_out(&process), Ok(0), "it is out already");
    assert_eq!(figures(&scratch, &slot), (10, 60));
    bring_back(&scratch, &process).expect("handed over");
    assert!(try_charge(&path, 10 * UNIT));
    assert_eq!(figures(&scratch, &slot), (80, 0));
    uncharge(&path, 80 * UNIT);
    assert_eq!(figures(&scratch, &slot), (0, 0));
}

/// A member that falsifies the figures of another one gains nothing: the other one restores its
/// charge, as it does after any change of its word.
#[test]
fn an_unconfirmed_suspension_is_tampering() {
    let scratch = Scratch::new();
    for confirmation in [Some((|| false) as fn() -> bool), None] {
        let mut slot = scratch.join();
        confirmation.inspect(|ask| slot.confirm_suspensions_by(*ask));
        let path = [level(&slot, scratch.device, MAX)];
        charge_unchecked(&path, 60 * UNIT);
        scratch
            .word(slot.index(), scratch.device)
            .store(10, Ordering::Relaxed);
        let figure = scratch.figure(slot.index(), scratch.device);
        figure.store(50 * UNIT, Ordering::Relaxed);
        assert!(!try_charge(&path, UNIT) && slot.distrusts());
        assert_eq!(figures(&scratch, &slot), (60, 0));
        uncharge(&path, 60 * UNIT);
        assert_eq!(figures(&scratch, &slot), (0, 0));
    }
}

#[test]
fn forged_suspended_bytes_explain_no_more_than_they_say() {
    let scratch = Scratch::new();
    let (slot, _) = member(&scratch, 1, 60, 0);
    let path = [level(&slot, scratch.device, MAX)];
    scratch
        .word(slot.index(), scratch.device)
        .store(0, Ordering::Relaxed);
    let figure = scratch.figure(slot.index(), scratch.device);
    figure.store(59 * UNIT, Ordering::Relaxed);
    assert!(!try_charge(&path, UNIT) && slot.distrusts());
    assert_eq!(slot.charged(scratch.device), 60 * UNIT - 59 * UNIT);
    // The rest is found missing as soon as the figure is gone.
    figure.store(0, Ordering::Relaxed);
    uncharge(&path, UNIT);
    assert_eq!(slot.charged(scratch.device), 59 * UNIT);
}

#[test]
fn forged_bytes_lower_no_charge_of_their_owner() {
    let scratch = Scratch::new();
    let (slot, _) = member(&scratch, 1, 60, 0);
    let path = [level(&slot, scratch.device, MAX)];
    let figure = scratch.figure(slot.index(), scratch.device);
    figure.store(u64::MAX, Ordering::Relaxed);
    assert!(try_charge(&path, 40 * UNIT) && !try_charge(&path, UNIT));
    uncharge(&path, 100 * UNIT);
    assert_eq!(slot.charged(scratch.device), 0);
}

#[test]
fn memory_freed_while_suspended_is_uncharged_afterwards() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    let path = [level(&slot, scratch.device, MAX)];
    scratch.move_out(&process).expect("moved");
    // The driver freed the memory before the lock, but the thread was slow.
    uncharge(&path, 20 * UNIT);
    assert_eq!(figures(&scratch, &slot), (0, 60));
    uncharge(&path, 5 * UNIT);
    bring_back(&scratch, &process).expect("handed over");
    assert!(try_charge(&path, UNIT));
    assert_eq!(figures(&scratch, &slot), (36, 0));
    uncharge(&path, 36 * UNIT);
    assert!(try_charge(&path, 3 * UNIT), "no debt is left");
    assert_eq!(figures(&scratch, &slot), (3, 0));
}

/// Units that are still in the word pay a part of what is freed.
#[test]
fn only_what_the_word_lacks_is_owed() {
    let scratch = Scratch::new();
    let device = scratch.device;
    let free: [fn(&[Level<'_>], u64); 2] = [uncharge, |path, bytes| {
        crate::uncharge_idle(path, bytes, &());
    }];
    for free in free {
        let (slot, process) = member(&scratch, 1, 60, 0);
        let path = [level(&slot, device, MAX)];
        scratch.move_out(&process).expect("moved");
        assert!(try_charge(&path, 10 * UNIT));
        free(&path, 4 * UNIT);
        assert_eq!(figures(&scratch, &slot), (6, 60));
        free(&path, 18 * UNIT);
        assert_eq!(figures(&scratch, &slot), (0, 60));
        bring_back(&scratch, &process).expect("handed over");
        assert!(try_charge(&path, UNIT) && !slot.distrusts());
        assert_eq!(figures(&scratch, &slot), (49, 0));
        assert!(try_charge(&path, UNIT), "the debt is paid once");
        assert_eq!(figures(&scratch, &slot), (50, 0));
    }
}

/// An actor may die before each of its steps. The owner and the other members go on as usual, and
/// the next actor finds one of the two states.
#[test]
fn a_bit_left_by_a_dead_actor_is_settled() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    let (word, figure) = (
        scratch.word(slot.index(), scratch.device),
        scratch.figure(slot.index(), scratch.device),
    );
    let path = [level(&slot, scratch.device, MAX)];
    for suspended in [0, 60] {
        word.fetch_or(MOVING, Ordering::Relaxed);
        figure.store(suspended * UNIT, Ordering::Relaxed);
        assert_eq!(figures(&scratch, &slot), (60, 0), "all units are charged");
        uncharge(&path, UNIT);
        assert!(try_charge(&path, UNIT) && !slot.distrusts());
        let other = scratch.join();
        assert!(!try_charge(
            &[level(&other, scratch.device, MAX)],
            41 * UNIT
        ));
        assert!(try_charge(&[level(&other, scratch.device, MAX)], 40 * UNIT));
        drop(other);
        let moved = 60 - suspended;
        assert_eq!(scratch.move_out(&process), Ok(moved * UNIT));
        assert_eq!(figures(&scratch, &slot), (0, 60));
        bring_back(&scratch, &process).expect("handed over");
        assert_eq!(figures(&scratch, &slot), (60, 0));
    }
}

#[test]
fn what_the_owner_frees_meanwhile_is_not_suspended() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    let (word, figure) = (
        scratch.word(slot.index(), scratch.device),
        scratch.figure(slot.index(), scratch.device),
    );
    word.fetch_or(MOVING, Ordering::Relaxed);
    figure.store(60 * UNIT, Ordering::Relaxed);
    uncharge(&[level(&slot, scratch.device, MAX)], 25 * UNIT);
    assert_eq!(scratch.move_out(&process), Ok(0));
    assert_eq!(figures(&scratch, &slot), (0, 35));
}

/// The charges of all are added up after the suspended bytes are back in the word: a process that
/// adds them up at the same time sees the units at one of the two places.
#[test]
fn a_charge_that_does_not_fit_is_not_moved_back() {
    let scratch = Scratch::new();
    let ((slot, process), (other, _)) = (member(&scratch, 1, 60, 0), member(&scratch, 2, 0, 0));
    scratch.move_out(&process).expect("moved");
    let actor = scratch.join();
    let path = [level(&actor, scratch.device, MAX)];
    assert!(try_charge(&path, 60 * UNIT));
    // A request of another process that is undecided.
    let word = scratch.word(other.index(), scratch.device);
    word.store(41 | 41 << 32, Ordering::Relaxed);
    assert_eq!(
        hand_over(&path, 60 * UNIT, &process),
        Err(Unmoved::Contended)
    );
    assert_eq!(figures(&scratch, &slot), (0, 60));
    assert_eq!(actor.charged(scratch.device), 60 * UNIT);
    word.store(0, Ordering::Relaxed);
    let lowered = [level(&actor, scratch.device, 59 * UNIT)];
    assert_eq!(
        hand_over(&lowered, 60 * UNIT, &process),
        Err(Unmoved::Contended)
    );
    hand_over(&path, 60 * UNIT, &process).expect("handed over");
    assert_eq!(
        (actor.charged(scratch.device), figures(&scratch, &slot)),
        (0, (60, 0))
    );
}

#[test]
fn two_actors_exclude_each_other() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    assert!(!scratch.is_acted_on(slot.index()));
    let first = scratch.act_on(&process).expect("the first");
    assert!(scratch.is_acted_on(slot.index()));
    assert_eq!(scratch.act_on(&process).err(), Some(Unmoved::Busy));
    drop(first);
    assert!(scratch.act_on(&process).is_ok());
}

#[test]
fn only_living_members_are_moved() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    assert_eq!(scratch.move_out(&stranger(9)), Err(Unmoved::Gone));
    assert_eq!(scratch.act_on(&stranger(9)).err(), Some(Unmoved::Gone));
    let file = scratch.place.open(true).expect("open");
    assert!(lock::try_lock(&file, Bytes::claim(slot.index())).expect("asked"));
    assert_eq!(scratch.move_out(&process), Err(Unmoved::Busy));
    drop(file);
    drop(slot);
    assert_eq!(scratch.move_out(&process), Err(Unmoved::Gone));
}

/// The owner may change between the search for its slot and the lock.
#[test]
fn an_actor_waits_for_the_lock_and_looks_at_the_owner_again() {
    let scratch = Rc::new(Scratch::new());
    let moved_after = |pid, change: fn(&Scratch, &Slot)| {
        let (slot, process) = member(&scratch, pid, 60, 0);
        let file = scratch.place.open(true).expect("open");
        let claim = Bytes::claim(slot.index());
        assert!(lock::try_lock(&file, claim).expect("asked"));
        let event = {
            let scratch = Rc::clone(&scratch);
            move || {
                change(&scratch, &slot);
                lock::unlock(&file, claim).expect("unlocked");
            }
        };
        let _meanwhile = InSleep::happens(event);
        scratch.move_out(&process)
    };
    assert_eq!(moved_after(1, |_, _| {}), Ok(60 * UNIT));
    let replace = |scratch: &Scratch, slot: &Slot| {
        let owner = &scratch.content().slots[slot.index()].owner;
        owner.pid.store(3, Ordering::Relaxed);
    };
    assert_eq!(moved_after(2, replace), Err(Unmoved::Gone));
}

/// A dead actor leaves the word and the figure as they are when the room is looked for.
#[test]
fn forged_suspended_bytes_are_corrected_before_they_are_in_the_word() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    let figure = scratch.figure(slot.index(), scratch.device);
    for (forged, units) in [
        (7 * UNIT + 1, 7),
        (u64::MAX, charge::REQUEST_MAX),
        (8 * UNIT, 8),
    ] {
        figure.store(forged, Ordering::Relaxed);
        let look = || {
            assert_eq!(figure.load(Ordering::Relaxed), units * UNIT);
            assert_eq!(slot.charged(scratch.device), (60 + units) * UNIT);
            false
        };
        let received = scratch.receive(&process, scratch.device, &look);
        assert_eq!(received, Err(Unmoved::Contended));
        assert_eq!(figures(&scratch, &slot), (60, units));
    }
}

#[test]
fn errors_say_what_is_in_the_way() {
    for (error, said) in [
        (Unmoved::Gone, "has ended"),
        (Unmoved::Busy, "another command"),
        (Unmoved::Contended, "no room"),
        (Unmoved::Closed, "cannot be opened"),
    ] {
        assert!(error.to_string().contains(said), "{error:?}: {error}");
    }
}

#[test]
fn a_dead_actor_leaves_its_charge_or_that_of_the_process() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    scratch.move_out(&process).expect("moved");
    let actor = scratch.join();
    let path = [level(&actor, scratch.device, MAX)];
    assert!(try_charge(&path, 60 * UNIT));
    // The process is gone: the actor keeps its charge.
    assert_eq!(
        hand_over(&path, 60 * UNIT, &stranger(9)),
        Err(Unmoved::Gone)
    );
    assert_eq!(actor.charged(scratch.device), 60 * UNIT);
    assert!(actor.is_decided(scratch.device));
    hand_over(&path, 60 * UNIT, &process).expect("handed over");
    assert_eq!(
        (actor.charged(scratch.device), figures(&scratch, &slot)),
        (0, (60, 0))
    );
    hand_over(&path, 60 * UNIT, &process).expect("a repetition does nothing");
    assert_eq!(
        (actor.charged(scratch.device), figures(&scratch, &slot)),
        (0, (60, 0))
    );
}

#[test]
fn a_suspended_member_that_dies_leaves_nothing() {
    let scratch = Scratch::new();
    for bit in [0, MOVING] {
        let dead = scratch.dead(&stranger(1), 3, 0);
        scratch
            .word(dead, scratch.device)
            .fetch_or(bit, Ordering::Relaxed);
        scratch
            .figure(dead, scratch.device)
            .store(57 * UNIT, Ordering::Relaxed);
        let clean = || scratch.clean(&crate::scratch::Knows(Some(false)));
        assert_eq!(clean().cleaned, 1);
        let left = scratch.figure(dead, scratch.device).load(Ordering::Relaxed);
        assert_eq!((left, scratch.charged(scratch.device)), (0, 0));
    }
}

#[test]
fn no_time_is_counted_without_a_history_or_a_beginning() {
    for (scratch, changed) in [
        (Scratch::new(), os::wall_ms() - 10_000),
        (Scratch::with_history(), 0),
    ] {
        let (slot, process) = member(&scratch, 1, 60, 0);
        let stats = &scratch.content().slots[slot.index()].stats[scratch.device.get()];
        stats.changed.store(changed, Ordering::Relaxed);
        scratch.move_out(&process).expect("moved");
        assert_eq!(stats.unit_ms.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn the_time_of_a_charge_is_counted_up_to_the_suspension() {
    let scratch = Scratch::with_history();
    let (slot, process) = member(&scratch, 1, 60, 0);
    let stats = &scratch.content().slots[slot.index()].stats[scratch.device.get()];
    let ago = |ms| stats.changed.store(os::wall_ms() - ms, Ordering::Relaxed);
    ago(10_000);
    scratch.move_out(&process).expect("moved");
    let seconds = || stats.unit_ms.load(Ordering::Relaxed) / 60 / 1_000;
    assert_eq!(seconds(), 10);
    ago(20_000);
    let bill = || scratch.bills()[0].byte_seconds / u128::from(60 * UNIT);
    assert_eq!(bill(), 10, "nor does its present time");
    bring_back(&scratch, &process).expect("handed over");
    assert_eq!(seconds(), 10, "suspended memory costs nothing");
    uncharge(&[level(&slot, scratch.device, MAX)], 60 * UNIT);
    assert_eq!(seconds(), 10, "the owner counts no time twice");
}

/// The ledgers of the groups above say what an actor does, but have no lock of it.
#[test]
fn members_of_groups_below_are_not_abandoned() {
    let scratch = Scratch::new();
    let (_own, process) = member(&scratch, 1, 60, 0);
    let below = Identity {
        start_time: 1,
        ..stranger(2)
    };
    let _below = scratch.claim(&below, "job").expect("a slot");
    scratch.set_errand(&below, Errand::Suspend, false);
    assert!(scratch.abandoned().is_empty());
    scratch.set_errand(&process, Errand::Suspend, false);
    assert_eq!(scratch.abandoned().len(), 1);
}

#[test]
fn others_see_the_obstacles_of_a_living_member() {
    let scratch = Scratch::new();
    let (slot, process) = member(&scratch, 1, 60, 0);
    let (_other, another) = member(&scratch, 2, 10, 0);
    assert_eq!(scratch.obstacles_of(&process), Some(0));
    slot.show_obstacles(1 << 63 | 5);
    assert_eq!(scratch.obstacles_of(&process), Some(1 << 63 | 5));
    assert_eq!(scratch.obstacles_of(&another), Some(0));
    slot.show_obstacles(4);
    assert_eq!(scratch.obstacles_of(&process), Some(4));
    let index = slot.index();
    drop(slot);
    assert_eq!(scratch.obstacles_of(&process), None);
    // The next owner of the slot begins without obstacles.
    let (slot, process) = member(&scratch, 3, 1, 0);
    assert_eq!(slot.index(), index);
    assert_eq!(scratch.obstacles_of(&process), Some(0));
}
