//! Models of claiming, charging and cleaning slots. Loom tries every value that the memory model
//! allows, with a bounded number of preemptions.

use super::super::charge::UNIT;
use super::super::level::{self, Level, Pressure};
use super::super::reap::Witness;
use super::super::{DeviceIndex, Ledger, Slot, hand_over};
use super::scenario::{identity, words};
use super::weak::bounded_model;
use super::word::{self, AtomicU64, Mode, Name};
use super::{explorer, fault};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use loom::thread;
use std::sync::Arc;

/// A group in a model, with its ledger and one device.
#[derive(Clone)]
struct Group {
    ledger: &'static Arc<Ledger>,
    device: DeviceIndex,
}

/// A witness that reports the memory of every dead process as freed.
struct AllFreed;

impl Witness for AllFreed {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        Some(false)
    }
}

impl Pressure for AllFreed {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        self
    }
}

impl Group {
    fn join(&self, process: usize) -> Slot {
        self.ledger.claim(&identity(process), "").expect("a slot")
    }

    fn levels<'a>(&self, slot: &'a Slot, max: u64) -> [Level<'a>; 1] {
        [Level {
            slot,
            device: self.device,
            max: max * UNIT,
            protection: None,
            keeps_low: false,
            uncovered: None,
        }]
    }

    fn try_charge(&self, slot: &Slot, n: u64) -> bool {
        level::try_charge(&self.levels(slot, 10), n * UNIT)
    }

    fn charged(&self) -> u64 {
        self.ledger.charged(self.device) / UNIT
    }
}

/// Runs a model. `set` creates the members, and loom tries every order of steps of `run`, which
/// returns the members.
fn check<T: 'static>(
    set: impl Fn(&Group) -> T + Send + Sync + 'static,
    run: impl Fn(&Group, T) -> Vec<Box<Slot>> + Send + Sync + 'static,
) {
    check_with(|_, _| Vec::new(), set, run);
}

/// Runs a model as [`check`] does. Operations on the words that `more` returns are steps, too.
fn check_with<T: 'static>(
    more: for<'a> fn(&Group, &'a T) -> Vec<(Name, &'a AtomicU64)>,
    set: impl Fn(&Group) -> T + Send + Sync + 'static,
    run: impl Fn(&Group, T) -> Vec<Box<Slot>> + Send + Sync + 'static,
) {
    let ledger = Ledger::open(std::path::Path::new("0")).expect("memory");
    let ledger: &'static Arc<Ledger> = Box::leak(Box::new(Arc::new(ledger)));
    let device = ledger
        .device(DeviceId::gpu([0xa5; 16]), 80 << 30)
        .expect("a device");
    let group = Group { ledger, device };
    let preemptions = if super::is_deep() { 4 } else { 2 };
    bounded_model(Some(preemptions), move || {
        word::set_mode(Mode::Plain);
        explorer::restart_clock();
        super::scenario::empty(0, ledger);
        let members = set(&group);
        let mut all = more(&group, &members);
        for one in words(0, ledger, device) {
            all.push(one);
        }
        word::watch(all.iter().copied());
        word::begin_weak_run(all.iter().map(|(_, word)| *word));
        drop(all);
        let members = run(&group, members);
        word::end_weak_run();
        drop(members);
    });
}

#[test]
fn a_joining_process_sees_the_other_request_or_is_seen() {
    check(
        |group| group.join(0),
        |group, member| {
            let newcomers = group.clone();
            let handle = thread::spawn(move || {
                let slot = newcomers.join(1);
                let granted = newcomers.try_charge(&slot, 6);
                (slot, granted)
            });
            let mine = group.try_charge(&member, 6);
            let (slot, theirs) = handle.join().expect("the newcomer");
            assert!(!(mine && theirs), "both were granted");
            [member, slot].map(Box::new).into()
        },
    );
}

#[test]
fn cleaning_and_claiming_a_slot_exclude_each_other() {
    check(
        |group| {
            let dead = group.join(0);
            level::charge_unchecked(&group.levels(&dead, 10), 4 * UNIT);
            super::scenario::die(0, dead);
        },
        |group, ()| {
            let newcomers = group.clone();
            let handle = thread::spawn(move || {
                let slot = newcomers.join(1);
                let granted = newcomers.try_charge(&slot, 6);
                (slot, granted)
            });
            group.ledger.clean(&AllFreed);
            let (slot, granted) = handle.join().expect("the newcomer");
            let charged = slot.charged(group.device) / UNIT;
            assert_eq!(charged, if granted { 6 } else { 0 }, "a charge was lost");
            group.ledger.clean(&AllFreed);
            assert_eq!(
                group.charged(),
                charged,
                "the dead process's charge is left"
            );
            vec![Box::new(slot)]
        },
    );
}

/// Returns the suspended bytes and the record of a process.
fn own_words<'a>(group: &Group, slot: &'a Arc<Slot>) -> Vec<(Name, &'a AtomicU64)> {
    let (book, at) = (0, slot.index());
    let suspended = &slot.stats(group.device).suspended;
    let record = slot.record(group.device).word();
    vec![
        (Name::Suspended { book, slot: at }, suspended),
        (Name::Idle, record),
    ]
}

/// Two threads of a process charge and free memory while an actor moves its charge out. The process
/// takes none of this for tampering, and nothing is lost when the charge is back.
fn threads_of_a_suspended_process(is_confirmed: fn() -> bool) {
    check_with(
        own_words,
        move |group| {
            let mut slot = group.join(0);
            slot.confirm_suspensions_by(is_confirmed);
            level::charge_unchecked(&group.levels(&slot, 10), 6 * UNIT);
            Arc::new(slot)
        },
        |group, slot| {
            let (actors, others) = (group.clone(), group.clone());
            let actor = thread::spawn(move || {
                actors.ledger.move_out(&identity(0)).expect("moved");
            });
            let thread = Arc::clone(&slot);
            let thread = thread::spawn(move || {
                level::uncharge(&others.levels(&thread, 10), 2 * UNIT);
            });
            let granted = group.try_charge(&slot, 1);
            actor.join().expect("the actor");
            thread.join().expect("the other thread");
            let back = group.ledger.receive(&identity(0), group.device, &|| true);
            level::uncharge(&group.levels(&slot, 10), 0);
            let left = (granted, back.is_ok(), group.charged(), slot.distrusts());
            let slot = Arc::into_inner(slot).expect("the last thread");
            if left != (true, true, 5, false) {
                word::end_weak_run();
                drop(slot);
                panic!("granted, back, charged, distrusts: {left:?}");
            }
            vec![Box::new(slot)]
        },
    );
}

#[test]
fn threads_charge_and_free_while_their_process_is_suspended() {
    threads_of_a_suspended_process(|| true);
}

#[test]
#[should_panic(expected = "distrusts")]
fn a_suspension_that_the_driver_does_not_confirm_is_detected() {
    threads_of_a_suspended_process(|| false);
}

/// An actor takes a charge back when the driver reports that the process runs, while the owner
/// finds the same and restores its charge. The units count once.
#[test]
fn a_charge_that_two_restore_counts_once() {
    check_with(
        own_words,
        |group| {
            let mut slot = group.join(0);
            slot.confirm_suspensions_by(|| false);
            level::charge_unchecked(&group.levels(&slot, 10), 6 * UNIT);
            group.ledger.move_out(&identity(0)).expect("moved");
            Arc::new(slot)
        },
        |group, slot| {
            let actors = group.clone();
            let actor = thread::spawn(move || {
                let taken = actors.ledger.take_back(&identity(0), &|| true);
                taken.expect("taken back");
            });
            let granted = group.try_charge(&slot, 1);
            actor.join().expect("the actor");
            level::uncharge(&group.levels(&slot, 10), 0);
            let (charged, expected) = (group.charged(), 6 + u64::from(granted));
            let slot = Arc::into_inner(slot).expect("the last thread");
            if charged != expected {
                word::end_weak_run();
                drop(slot);
                panic!("{charged} units are charged, not {expected}");
            }
            vec![Box::new(slot)]
        },
    );
}

/// Lets an actor hand 6 of 10 units over to a suspended process, while a third process requests 6.
/// Panics if the request is granted: 6 units are charged all the time.
fn a_charge_that_comes_back() {
    check(
        |group| {
            // The stack of a thread of loom has no room for many slots.
            let members: Vec<_> = (0..3)
                .map(|process| Box::new(group.join(process)))
                .collect();
            level::charge_unchecked(&group.levels(&members[0], 10), 6 * UNIT);
            group.ledger.move_out(&identity(0)).expect("moved");
            level::charge_unchecked(&group.levels(&members[1], 10), 6 * UNIT);
            members
        },
        |group, mut members| {
            let (others, other) = (group.clone(), members.pop().expect("a third"));
            let handle = thread::spawn(move || {
                let granted = others.try_charge(&other, 6);
                (other, granted)
            });
            let handed = hand_over(&group.levels(&members[1], 10), 6 * UNIT, &identity(0));
            let (other, granted) = handle.join().expect("the third process");
            let charged = [0, 1].map(|at: usize| members[at].charged(group.device) / UNIT);
            let expected = if handed.is_ok() { [6, 0] } else { [0, 6] };
            members.push(other);
            if granted || charged != expected {
                word::end_weak_run();
                drop(members);
                panic!("granted: {granted}, charged {charged:?}");
            }
            members
        },
    );
}

#[test]
fn a_charge_comes_back_beside_a_request() {
    a_charge_that_comes_back();
}

#[test]
#[should_panic(expected = "granted: true")]
fn a_charge_that_comes_back_without_a_fence_is_detected() {
    fault::set(fault::Fault::FenceMissing);
    a_charge_that_comes_back();
}

#[test]
#[should_panic(expected = "both were granted")]
fn a_missing_fence_is_detected() {
    fault::set(fault::Fault::FenceMissing);
    check(
        |group| [group.join(0), group.join(1)],
        |group, [member, other]| {
            let others = group.clone();
            let handle = thread::spawn(move || {
                let granted = others.try_charge(&other, 6);
                (other, granted)
            });
            let mine = group.try_charge(&member, 6);
            let (slot, theirs) = handle.join().expect("the other");
            // The members are dropped before the panic. Dropping them while loom unwinds the stack
            // is not allowed.
            let both = mine && theirs;
            if both {
                word::end_weak_run();
                drop((member, slot));
                panic!("both were granted");
            }
            [member, slot].map(Box::new).into()
        },
    );
}
