//! Tests of members within one process: their charges, published figures and requests at the limit.

use super::descent::Descent;
use super::*;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_ledger::{Category, DeviceIndex, EventKind, Happening, NoWitness, Pressure, Witness};
use gpulimit_limits::{Key, OnLimit, Oom, Selector};
use gpulimit_support::{Running, Scratch, patience, wait_until};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const GPU: DeviceId = DeviceId::gpu([7; 16]);
const CAPACITY: u64 = 80 << 30;
const UNIT: u64 = 4096;

/// A root of groups for one test, which is removed at the end of the test.
struct Place(
    Root,
    #[expect(dead_code, reason = "the directory is removed when the test ends")] Scratch,
);

impl Place {
    fn new() -> Self {
        let scratch = Scratch::new();
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&scratch.0, private).expect("changed");
        Self(Root::at(&scratch.0).expect("a root"), scratch)
    }

    /// Makes a group with these limits, in units of [`UNIT`] bytes.
    fn group(&self, name: &str, sizes: &[(Key, u64)]) -> Group {
        let mut limits = LimitSet::default();
        for (key, units) in sizes {
            limits.set(Selector::All, *key, Size::Bytes(units * UNIT));
        }
        self.0.create(name, &limits).expect("made").group
    }

    fn join(&self, name: &str) -> Joined {
        let member = Member::join(&self.0, name).expect("joined");
        // Gives the device another index in the top group's ledger than in the other ledgers.
        if let Some(station) = member.levels.last().filter(|_| member.levels.len() > 1) {
            station
                .ledger
                .device(DeviceId::gpu([9; 16]), 1)
                .expect("room");
        }
        let joined = Joined(member);
        joined.on();
        joined
    }
}

/// A member of a group.
struct Joined(Member);

impl Joined {
    /// Returns the member on the GPU.
    fn on(&self) -> MemberDevice<'_> {
        self.0.device(GPU, CAPACITY).expect("room")
    }
}

/// A [`Pressure`] that counts how often it is asked to reclaim, and has nothing to give back.
#[derive(Default)]
struct Poor(Cell<u32>);

impl Pressure for Poor {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        self.0.set(self.0.get() + 1);
        false
    }

    fn witness(&self) -> &dyn Witness {
        &NoWitness
    }
}

fn charge(member: &Joined, units: u64) -> Result<(), Refusal<'_>> {
    (member.on()).charge(units * UNIT, &Poor::default(), Insistence::Full)
}

fn units(member: &Joined) -> Vec<u64> {
    let device = member.on();
    let levels = device.levels();
    levels.map(|at| at.slot.charged(at.index) / UNIT).collect()
}

/// Returns the recorded events of a group, oldest first.
fn happened(group: &Group) -> Vec<Happening> {
    let events = group.ledger().expect("there").events(0);
    events.into_iter().map(|event| event.what).collect()
}

fn kinds(group: &Group) -> Vec<EventKind> {
    happened(group).iter().map(|what| what.kind).collect()
}

/// The lock of a removed group's directory must not count for a new directory of the same name.
#[test]
fn the_lock_of_a_removed_directory_is_not_taken_after_the_group_is_made_again() {
    let place = Place::new();
    let group = place.group("lab", &[]);
    let before = Descent::to(&group).expect("there");
    place.0.remove("lab").expect("removed");
    place.group("lab", &[]);
    let error = group.hold_in(&before.directory).expect_err("removed");
    assert!(error.is_missing(), "{error}");
    let now = Descent::to(&group).expect("there");
    group.hold_in(&now.directory).expect("held");
}

#[test]
fn a_charge_reaches_every_level_or_none() {
    let place = Place::new();
    let mut name = String::new();
    for depth in 1..=MAX_DEPTH {
        name = if depth == 1 {
            "a".into()
        } else {
            format!("{name}/a")
        };
        place.group(&name, &[]);
        let member = place.join(&name);
        assert_eq!(member.0.group(), name);
        charge(&member, 5).expect("no limit");
        assert!(member.on().try_charge_ahead(UNIT, &()));
        member.on().charge_unchecked(3 * UNIT);
        assert_eq!(units(&member), vec![9; depth]);
        member.on().uncharge(2 * UNIT);
        assert_eq!(units(&member), vec![7; depth]);
        member.on().note_usage();
        for (station, index) in member.0.levels.iter().zip(member.on().index) {
            assert!(station.ledger.usage(index).peak >= 7 * UNIT);
        }
    }
}

#[test]
fn a_refusal_names_the_refusing_group_and_its_figures() {
    let place = Place::new();
    let lab = place.group("lab", &[(Key::Max, 10)]);
    let alice = place.group("lab/alice", &[(Key::Max, 8)]);
    let (alices, labs) = (place.join("lab/alice"), place.join("lab"));
    charge(&labs, 4).expect("room");
    charge(&alices, 5).expect("room");
    let refused = |group, charged, max| Refusal {
        group,
        bytes: 2 * UNIT,
        charged: charged * UNIT,
        max: max * UNIT,
        left: (max - charged) * UNIT,
        ..Refusal::default()
    };
    let refusal = charge(&alices, 2).expect_err("the group lab is full");
    assert_eq!(refusal, refused("lab", 9, 10));
    let counted = (alices.on()).count_refusal("cuMemAlloc", 2 * UNIT, &refusal);
    assert_eq!(counted.0, 1);
    let refusal = Refusal {
        bytes: 4 * UNIT,
        ..refused("lab/alice", 5, 8)
    };
    assert_eq!(charge(&alices, 4), Err(refusal));
    assert_eq!(units(&alices), [5, 5]);
    assert_eq!(
        refused("lab", 1 << 18, 1 << 19).to_string(),
        "1.0 GiB left of 2.0 GiB in lab"
    );
    let refusals = |group: &Group| {
        let ledger = group.ledger().expect("there");
        ledger
            .usage(ledger.find_device(&GPU).expect("known"))
            .refusals
    };
    assert_eq!((refusals(&lab), refusals(&alice)), (1, 1));
    assert_eq!(kinds(&alice), []);
    let events = happened(&lab);
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].kind, events[0].bytes),
        (EventKind::Refusal, 2 * UNIT)
    );
    assert_eq!((events[0].charged, events[0].max), (9 * UNIT, 10 * UNIT));
    assert_eq!(events[0].process.pid, std::process::id());
    assert_eq!(events[0].device, Some(alices.on().index[1]));
}

#[test]
fn free_memory_is_that_of_the_tightest_level() {
    let place = Place::new();
    place.group("lab", &[(Key::Max, 10)]);
    place.group("lab/alice", &[]);
    place.group("lab/bob", &[(Key::Max, 6)]);
    place.group("free", &[]);
    let (alice, bob, free) = (
        place.join("lab/alice"),
        place.join("lab/bob"),
        place.join("free"),
    );
    let view = |member: &Joined| (member.on().max(), member.on().free(), member.on().charged());
    let units = |max, free, charged| (max * UNIT, free * UNIT, charged * UNIT);
    charge(&alice, 3).expect("room");
    charge(&bob, 1).expect("room");
    assert_eq!(view(&alice), units(10, 6, 4));
    assert_eq!(view(&bob), units(6, 5, 1));
    charge(&alice, 3).expect("room");
    assert_eq!(view(&bob), units(6, 3, 7));
    charge(&free, 2).expect("no limit");
    assert_eq!(view(&free), (u64::MAX, u64::MAX, 2 * UNIT));
    alice.on().charge_unchecked(20 * UNIT);
    assert_eq!(view(&alice), units(10, 0, 27));
    assert_eq!((bob.on().id(), bob.on().capacity()), (GPU, CAPACITY));
}

#[test]
fn memory_protected_for_others_is_not_free() {
    let place = Place::new();
    place.group("lab", &[(Key::Max, 10)]);
    place.group("lab/alice", &[(Key::Min, 3), (Key::Low, 5)]);
    place.group("lab/bob", &[]);
    place.group("lab/carol", &[(Key::Low, 2)]);
    let (alice, bob) = (place.join("lab/alice"), place.join("lab/bob"));
    let at = |member: &Joined| member.on().free() / UNIT;
    assert_eq!(
        (at(&bob), at(&alice)),
        (7, 10),
        "a group's own protection does not limit its members"
    );
    // Memory that `low` protects for other groups is taken last.
    assert!(!bob.on().try_charge_ahead(4 * UNIT, &()) && bob.on().try_charge_ahead(3 * UNIT, &()));
    assert_eq!(
        charge(&bob, 5).expect_err("min stays protected").group,
        "lab"
    );
    let refusal = charge(&bob, 5).expect_err("min stays protected");
    assert_eq!(refusal.kept, 3 * UNIT);
    charge(&bob, 4).expect("low gives way");
    assert_eq!(at(&bob), 0);
    charge(&alice, 2).expect("protected for alice");
    assert_eq!((at(&bob), at(&alice)), (0, 1));
    // A change of a group's protection takes effect at once.
    let alices = place.0.group("lab/alice").expect("there");
    alices
        .write_limits(|set| {
            set.set(Selector::All, Key::Min, Size::Bytes(0));
            set.set(Selector::All, Key::Low, Size::Bytes(0));
        })
        .expect("written");
    assert_eq!(at(&bob), 1);
    // Only carol's group still has protected memory.
    let is_kept = |member: &Joined| {
        let device = member.on();
        let level = device.at(1).level(member::Spared::Low);
        level.protection.is_some()
    };
    assert!(is_kept(&bob) && is_kept(&alice));
    place.0.remove("lab/carol").expect("removed");
    assert!(!is_kept(&bob));
}

#[test]
fn changed_limits_are_followed_at_once() {
    let place = Place::new();
    let group = place.group(
        "lab",
        &[(Key::Max, 10), (Key::High, 8), (Key::Low, 2), (Key::Min, 1)],
    );
    let member = place.join("lab");
    let bounds = || {
        let bounds = member.on().at(0).bounds();
        [bounds.max, bounds.high, bounds.low, bounds.min].map(|bytes| bytes / UNIT)
    };
    assert_eq!((bounds(), bounds()), ([10, 8, 2, 1], [10, 8, 2, 1]));
    let before = member.0.generations();
    for max in [5, 20, 7] {
        group
            .write_limits(|set| set.set(Selector::All, Key::Max, Size::Bytes(max * UNIT)))
            .expect("written");
        assert_eq!((bounds(), bounds()), ([max, 8, 2, 1], [max, 8, 2, 1]));
        assert_eq!(member.on().max(), max * UNIT);
    }
    assert_eq!(member.0.generations(), before + 3);
}

#[test]
fn a_request_for_unused_memory_is_reported_once_at_any_level() {
    let place = Place::new();
    place.group("lab", &[]);
    place.group("lab/alice", &[]);
    let member = place.join("lab/alice").0;
    assert!(!member.is_asked());
    for station in &member.levels {
        assert!(station.ledger.ask_members());
        assert!(member.is_asked());
        member.take_asked();
        assert!(!member.is_asked());
    }
}

#[test]
fn a_group_below_its_low_gives_nothing_back() {
    let place = Place::new();
    place.group("lab", &[(Key::Low, 4), (Key::Min, 2)]);
    place.group("lab/alice", &[]);
    let (lab, alice) = (place.join("lab"), place.join("lab/alice"));
    let reclaimable = || {
        alice.on().publish_idle(2 * UNIT);
        alice.on().publish_reclaimable(UNIT);
        let stations = alice.0.levels.iter().zip(alice.on().index);
        let mut figures = stations.map(|(station, index)| {
            assert_eq!(station.ledger.usage(index).idle, 2 * UNIT);
            station.ledger.usage(index).idle
        });
        assert!(figures.all(|idle| idle == 2 * UNIT));
        !alice.on().is_low()
    };
    charge(&alice, 4).expect("no limit");
    assert!(
        alice.on().is_low() && !reclaimable(),
        "the parent group uses no more than its `low`"
    );
    charge(&lab, 1).expect("no limit");
    assert!(!alice.on().is_low() && reclaimable());
    place.group("free", &[]);
    let free = place.join("free");
    assert!(!free.on().is_low(), "the group has no protection");
}

#[test]
fn contexts_are_not_counted_only_if_every_group_says_so() {
    let place = Place::new();
    let lab = place.group("lab", &[]);
    let alice = place.group("lab/alice", &[]);
    let member = place.join("lab/alice").0;
    assert!(member.counts_contexts());
    alice
        .write_limits(|set| set.options.count_context = false)
        .expect("written");
    assert!(member.counts_contexts());
    lab.write_limits(|set| set.options.count_context = false)
        .expect("written");
    assert!(!member.counts_contexts());
}

#[test]
fn figures_are_published_at_every_level() {
    let place = Place::new();
    place.group("lab", &[]);
    place.group("lab/alice", &[]);
    let alice = place.join("lab/alice");
    let labs = place.join("lab");
    charge(&alice, 10).expect("no limit");
    charge(&labs, 1).expect("no limit");
    alice.on().publish(Category::Arrays, 6 * UNIT);
    for (station, index) in alice.0.levels.iter().zip(alice.on().index) {
        assert_eq!(
            station.ledger.usage(index).by[Category::Arrays as usize],
            6 * UNIT
        );
    }
    let _idle = place.join("lab");
    assert_eq!(
        alice.on().all_living().len(),
        3,
        "living members are listed even without a charge"
    );
    assert_eq!(
        alice.0.ledger().path(),
        place.0.group("lab/alice").expect("there").ledger_path()
    );
}

#[test]
fn orphans_stay_charged_until_they_are_given_back() {
    let place = Place::new();
    place.group("lab", &[]);
    place.group("lab/alice", &[]);
    let (alice, bob) = (place.join("lab/alice"), place.join("lab"));
    charge(&alice, 10).expect("no limit");
    alice.on().mark_shared(5 * UNIT as i64);
    alice.on().orphan(4 * UNIT);
    let orphans = |member: &Joined| (member.on().orphaned() / UNIT, member.on().orphans() / UNIT);
    assert_eq!((orphans(&alice), orphans(&bob)), ((4, 4), (0, 4)));
    // The release uncharges orphans only in the group above, which both processes share.
    let seen = Cell::new(0);
    let released = bob.on().release_orphans(|total, living| {
        seen.set(living.len());
        total - UNIT
    });
    assert!(released && seen.get() == 2);
    assert_eq!((orphans(&alice), orphans(&bob)), ((4, 4), (0, 3)));
    assert_eq!(units(&alice), [10, 9]);
    assert!(
        !bob.on().release_orphans(|total, _| total),
        "all orphans must stay charged"
    );
    assert!(alice.on().release_orphans(|_, _| 0));
    assert_eq!((orphans(&alice), units(&alice)), ((0, 0), vec![6, 6]));
    assert!(
        !alice
            .on()
            .release_orphans(|_, _| unreachable!("there are none"))
    );
}

#[test]
fn the_size_of_a_context_is_known_to_the_next_member() {
    let place = Place::new();
    place.group("lab", &[]);
    place.group("lab/alice", &[]);
    place.group("other", &[]);
    let (alice, lab) = (place.join("lab/alice"), place.join("lab"));
    let hint = |member: &Joined| member.on().context_hint();
    assert_eq!(hint(&alice), 0);
    alice.on().set_context_hint(500);
    assert_eq!((hint(&alice), hint(&lab)), (500, 500));
    lab.0.levels[0]
        .ledger
        .set_context_hint(lab.on().index[0], 600);
    assert_eq!((hint(&alice), hint(&lab)), (500, 600), "the group's own");
    assert_eq!(hint(&place.join("other")), 500, "the root stores the size");
    let stored = place.0.path().join(format!(".context-{GPU}"));
    fs::remove_file(stored).expect("removed");
    place.group("lab/bob", &[]);
    assert_eq!(
        hint(&place.join("lab/bob")),
        600,
        "the group above knows it"
    );
}

#[test]
fn members_of_a_group_removed_by_hand_are_orphaned() {
    let place = Place::new();
    let lab = place.group("lab", &[]);
    place.group("lab/alice", &[]);
    let member = place.join("lab/alice").0;
    assert!(!member.is_orphaned());
    fs::remove_file(lab.ledger_path()).expect("removed");
    assert!(member.is_orphaned());
    assert!(Member::join(&place.0, "nobody").is_err());
}

// Tests of requests at the limit.

/// Runs `wait` in another thread, and `act` as soon as a request waits in the group.
fn meanwhile<T: Send>(ledger: &Ledger, act: impl FnOnce(), wait: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let waiter = scope.spawn(wait);
        let ended = || waiter.is_finished();
        wait_until("a request waits", || ledger.has_waiters() || ended());
        // If the request has returned, there is no wait to end.
        if !ended() {
            act();
        }
        wait_until("the wait ends", ended);
        waiter.join().expect("the waiter")
    })
}

/// A time that no request waits to its end, unless the test fails.
fn long() -> Duration {
    2 * patience()
}

fn waiting_group(place: &Place, timeout: Duration) -> Group {
    let group = place.group("lab", &[(Key::Max, 10)]);
    group
        .write_limits(|set| {
            set.options.on_limit = OnLimit::Wait;
            set.options.wait_timeout = timeout;
        })
        .expect("written");
    group
}

fn waits(member: &Joined) -> u64 {
    member.0.levels[0].ledger.usage(member.on().index[0]).waits
}

#[test]
fn a_request_waits_until_another_gives_back() {
    let place = Place::new();
    let group = waiting_group(&place, long());
    let (one, other) = (place.join("lab"), place.join("lab"));
    charge(&other, 8).expect("room");
    let give = || other.on().uncharge(6 * UNIT);
    meanwhile(&group.ledger().expect("there"), give, || charge(&one, 6))
        .expect("memory was given back");
    assert_eq!(units(&one), [6]);
    assert_eq!(kinds(&group), [EventKind::Wait, EventKind::Granted]);
    assert_eq!(
        (happened(&group)[0].bytes, happened(&group)[0].max),
        (6 * UNIT, 10 * UNIT)
    );
    assert_eq!(waits(&one), 1);
    assert!(
        one.on().try_charge_ahead(UNIT, &()),
        "no request waits any more"
    );
}

#[test]
fn a_wait_is_bounded_and_never_for_memory_that_cannot_come() {
    let place = Place::new();
    let group = waiting_group(&place, Duration::from_millis(100));
    let (one, other) = (place.join("lab"), place.join("lab"));
    charge(&one, 8).expect("room");
    assert_eq!(
        charge(&one, 6)
            .expect_err("no other member has memory")
            .charged,
        8 * UNIT
    );
    assert_eq!(waits(&one), 0);
    one.on().uncharge(8 * UNIT);
    charge(&other, 8).expect("room");
    assert_eq!(
        charge(&one, 11).expect_err("no limit allows 11 units").max,
        10 * UNIT
    );
    let another_way = one
        .on()
        .charge(6 * UNIT, &Poor::default(), Insistence::Reclaiming);
    assert!(another_way.is_err());
    assert_eq!((waits(&one), kinds(&group)), (0, vec![]));
    assert_eq!(
        charge(&one, 6).expect_err("the timeout has passed").charged,
        8 * UNIT
    );
    assert_eq!((waits(&one), kinds(&group)), (1, vec![EventKind::Wait]));
}

/// A job may have its room before its first charge, or after its last one.
#[test]
fn a_request_waits_for_the_room_of_a_job_that_has_no_charge() {
    let place = Place::new();
    let group = waiting_group(&place, long());
    let (one, other) = (place.join("lab"), place.join("lab"));
    let (slot, index) = (&other.0.levels[0].slot, other.on().index[0]);
    slot.keep_room(index, 7, 8 * UNIT);
    let leave = || slot.leave_room(index);
    meanwhile(&group.ledger().expect("there"), leave, || charge(&one, 6))
        .expect("the job gave its room up");
    assert_eq!(kinds(&group), [EventKind::Wait, EventKind::Granted]);
}

#[test]
fn a_waiter_gives_up_when_the_others_have_nothing_left() {
    let place = Place::new();
    let group = waiting_group(&place, long());
    let (one, other) = (place.join("lab"), place.join("lab"));
    charge(&one, 9).expect("room");
    charge(&other, 1).expect("room");
    let give = || other.on().uncharge(UNIT);
    let refused = meanwhile(&group.ledger().expect("there"), give, || charge(&one, 2));
    assert_eq!(
        refused
            .expect_err("no other process has a charge left")
            .charged,
        9 * UNIT
    );
}

#[test]
fn a_request_does_not_overtake_a_waiter() {
    let place = Place::new();
    let group = waiting_group(&place, long());
    let (one, other, third) = (place.join("lab"), place.join("lab"), place.join("lab"));
    charge(&other, 8).expect("room");
    let act = || {
        // The third member's request would fit, but another request waits ahead of it.
        assert!(!third.on().try_charge_ahead(UNIT, &()));
        let insists = third
            .on()
            .charge(UNIT, &Poor::default(), Insistence::Reclaiming);
        insists.expect("a request that must not wait is not queued");
        third.on().uncharge(UNIT);
        group
            .write_limits(|set| set.options.on_limit = OnLimit::Fail)
            .expect("written");
        charge(&third, 1).expect("requests are queued only with on_limit=wait");
        third.on().uncharge(UNIT);
        group
            .write_limits(|set| {
                set.options.on_limit = OnLimit::Wait;
                set.options.wait_timeout = Duration::from_millis(50);
            })
            .expect("written");
        let refusal = charge(&third, 1).expect_err("another request waits in front");
        assert_eq!((refusal.charged, refusal.max), (8 * UNIT, 10 * UNIT));
        other.on().uncharge(8 * UNIT);
    };
    meanwhile(&group.ledger().expect("there"), act, || charge(&one, 6)).expect("its turn");
    charge(&third, 1).expect("room");
}

#[test]
fn threads_of_one_process_wait_side_by_side() {
    let place = Place::new();
    let group = waiting_group(&place, long());
    let (one, other) = (place.join("lab"), place.join("lab"));
    charge(&other, 10).expect("room");
    let give = || {
        wait_until("both threads wait", || waits_begun(&group) == 2);
        other.on().uncharge(10 * UNIT);
    };
    meanwhile(&group.ledger().expect("there"), give, || {
        std::thread::scope(|scope| {
            let threads = [0; 2].map(|_| scope.spawn(|| charge(&one, 5).is_ok()));
            assert!(
                threads
                    .into_iter()
                    .all(|thread| thread.join().expect("thread"))
            );
        });
    });
    assert_eq!(units(&one), [10]);
}

#[test]
fn memory_given_back_between_an_attempt_and_a_wait_is_used() {
    /// A [`Pressure`] that gives the other member's memory back at a question after an attempt.
    struct Late<'a> {
        other: &'a Joined,
        at: u32,
        asked: Cell<u32>,
    }

    impl Pressure for Late<'_> {
        fn reclaim(&self, _: DeviceIndex) -> bool {
            false
        }

        fn witness(&self) -> &dyn Witness {
            &NoWitness
        }

        fn is_needless(&self) -> bool {
            self.asked.set(self.asked.get() + 1);
            if self.asked.get() == self.at {
                self.other.on().uncharge(10 * UNIT);
            }
            false
        }
    }

    // The first question comes before the wait, the second one while waiting.
    for at in [1, 2] {
        let place = Place::new();
        let _group = waiting_group(&place, long());
        let (one, other) = (place.join("lab"), place.join("lab"));
        charge(&other, 10).expect("room");
        let pressure = Late {
            other: &other,
            at,
            asked: Cell::new(0),
        };
        let granted = one.on().charge(10 * UNIT, &pressure, Insistence::Full);
        granted.expect("the other member has given its memory back");
    }
}

#[test]
fn a_signal_ends_a_wait_whenever_it_comes() {
    /// A [`Pressure`] that sends this thread a signal while it is asked to reclaim.
    struct Signalled;

    impl Pressure for Signalled {
        fn reclaim(&self, _: DeviceIndex) -> bool {
            signals::tests::send_one();
            false
        }

        fn witness(&self) -> &dyn Witness {
            &NoWitness
        }
    }

    let place = Place::new();
    let group = waiting_group(&place, long());
    let (one, other) = (place.join("lab"), place.join("lab"));
    charge(&other, 10).expect("room");
    let wait = || one.on().charge(UNIT, &Signalled, Insistence::Full);
    let refused = meanwhile(&group.ledger().expect("there"), || (), wait);
    refused.expect_err("no room");
    assert_eq!(kinds(&group), [EventKind::Wait]);
    assert_eq!((units(&other), waits(&one)), (vec![10], 1));
}

#[test]
fn a_request_follows_changing_limits_a_bounded_number_of_times() {
    /// A [`Pressure`] that changes the group's limit while it is asked to reclaim.
    struct Restless<'a>(&'a Group, Cell<u32>);

    impl Pressure for Restless<'_> {
        fn reclaim(&self, _: DeviceIndex) -> bool {
            self.1.set(self.1.get() + 1);
            assert!(self.1.get() <= at_limit::CHANGES, "for ever");
            let max = Size::Bytes((10 + u64::from(self.1.get() % 2)) * UNIT);
            let changed = |limits: &mut LimitSet| limits.set(Selector::All, Key::Max, max);
            self.0.write_limits(changed).expect("written");
            false
        }

        fn witness(&self) -> &dyn Witness {
            &NoWitness
        }
    }

    let place = Place::new();
    let group = place.group("lab", &[(Key::Max, 10)]);
    let (one, other) = (place.join("lab"), place.join("lab"));
    charge(&other, 8).expect("room");
    let restless = Restless(&group, Cell::new(0));
    let refused = one.on().charge(6 * UNIT, &restless, Insistence::Full);
    let refused = refused.expect_err("the request fits under none of these limits");
    assert_eq!((refused.charged, refused.max), (8 * UNIT, 10 * UNIT));
    assert_eq!(
        (restless.1.get(), units(&one)),
        (at_limit::CHANGES, vec![0])
    );
}

fn waits_begun(group: &Group) -> usize {
    kinds(group)
        .iter()
        .filter(|kind| **kind == EventKind::Wait)
        .count()
}

#[test]
fn above_high_members_are_asked_for_unused_memory_before_growth() {
    let place = Place::new();
    let group = place.group("lab", &[(Key::Max, 10), (Key::High, 6)]);
    let member = place.join("lab");
    let request = |units: u64| {
        let pressure = Poor::default();
        let granted = member
            .on()
            .charge(units * UNIT, &pressure, Insistence::Full);
        (granted.is_ok(), pressure.0.get())
    };
    assert_eq!(request(6), (true, 0));
    assert!(
        !member.on().try_charge_ahead(UNIT, &()),
        "`try_charge` refuses memory above `high`"
    );
    assert_eq!((kinds(&group), member.0.is_asked()), (vec![], false));
    assert_eq!(request(1), (true, 1));
    assert!(member.0.is_asked());
    let events = happened(&group);
    assert_eq!((events.len(), events[0].kind), (1, EventKind::High));
    assert_eq!(
        (events[0].charged, events[0].max, events[0].bytes),
        (6 * UNIT, 6 * UNIT, UNIT)
    );
    assert_eq!(request(1), (true, 1), "still");
    assert!(!request(9).0);
    // A limit `high` that is not below `max` has no effect.
    let place = Place::new();
    let group = place.group("lab", &[(Key::Max, 10), (Key::High, 10)]);
    let member = place.join("lab");
    charge(&member, 10).expect("room");
    charge(&member, 1).expect_err("full");
    assert_eq!(kinds(&group), []);
}

/// Starts a bystander: another process that joins the group `lab` and charges `units` units there.
fn bystander(place: &Place, units: u64) -> Running {
    let mut command = std::process::Command::new(std::env::current_exe().expect("known"));
    command
        .args(["--exact", "tests::role_of_a_bystander", "--nocapture"])
        .env("BYSTANDER_ROOT", place.0.path())
        .env("BYSTANDER_UNITS", units.to_string())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = Running::start(&mut command);
    // Borrow the pipe so that it stays open: the child's test harness writes to it after a minute.
    let out = child.stdout.as_mut().expect("piped");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(out));
    let is_in = |line: std::io::Result<String>| line.expect("read").contains("#in the group");
    assert!(lines.any(is_in), "the bystander has joined");
    child
}

/// The work of a bystander process: charges, and waits until it is killed or its input ends.
#[test]
fn role_of_a_bystander() {
    let [Some(root), Some(units)] = ["BYSTANDER_ROOT", "BYSTANDER_UNITS"].map(std::env::var_os)
    else {
        return;
    };
    let root = Root::at(root).expect("a root");
    let member = Member::join(&root, "lab").expect("joined");
    let device = member.device(GPU, CAPACITY).expect("room");
    let units: u64 = units.to_string_lossy().parse().expect("a number");
    device.charge_unchecked(units * UNIT);
    println!("#in the group");
    let _ = std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new());
}

fn is_running(child: &mut std::process::Child) -> bool {
    child.try_wait().expect("asked").is_none()
}

#[test]
fn kill_largest_kills_the_largest_process_unless_it_is_the_requester() {
    let place = Place::new();
    let group = place.group("lab", &[(Key::Max, 10)]);
    let member = place.join("lab");
    let mut small = bystander(&place, 1);
    let mut large = bystander(&place, 4);
    let large_pid = large.id();
    charge(&member, 3).expect("room");
    charge(&member, 5).expect_err("no process is killed");
    group
        .write_limits(|set| set.options.oom = Oom::KillLargest)
        .expect("written");
    // No process is killed for a request that can never fit, or for a caller that has another way
    // to get memory.
    charge(&member, 11).expect_err("never");
    let gentle = member
        .on()
        .charge(5 * UNIT, &Poor::default(), Insistence::Reclaiming);
    assert!(gentle.is_err());
    assert!(is_running(&mut small) && is_running(&mut large));
    // Take the input first: `wait` would close it, and the bystander would end by itself.
    let _input = large.stdin.take();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            large.wait().expect("killed");
        });
        charge(&member, 5).expect("the kill made room");
    });
    let killed: Vec<_> = happened(&group)
        .into_iter()
        .filter(|what| what.kind == EventKind::Kill)
        .collect();
    assert!(!killed.is_empty() && killed.iter().all(|what| what.process.pid == large_pid));
    assert_eq!((killed[0].bytes, killed[0].max), (4 * UNIT, 10 * UNIT));
    // The process that makes the request is now the largest one of the group.
    charge(&member, 5).expect_err("refused");
    assert!(is_running(&mut small));
}

#[test]
fn a_process_is_not_among_the_unnamed_members_that_it_signals() {
    let place = Place::new();
    let group = place.group("lab", &[]);
    let member = place.join("lab");
    charge(&member, 1).expect("no limit");
    let other = bystander(&place, 1);
    let ledger = group.ledger().expect("readable");
    let mut processes = ledger.processes(&NoWitness);
    for process in &mut processes {
        // No process can have this pid.
        process.identity.pid = u32::MAX;
    }
    // Treat every process as a member. No signal is sent in this test.
    let everybody = |_: &_, pids: &[u32]| pids.iter().map(|_| Ok(true)).collect();
    let targets = Targets::of(&ledger, &everybody).expect("a ledger");
    let (_, unnamed, _) = targets.all(&processes);
    let is_there = |pid: u32| unnamed.iter().any(|target| target.pid == pid);
    assert!(is_there(other.id()) && !is_there(std::process::id()));
}
