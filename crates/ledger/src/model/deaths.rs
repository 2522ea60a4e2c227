//! Scenarios in which any process may die or stop at any of its steps. Five rules must hold:
//!
//! - The driver never hands out more memory than the limit.
//! - Memory that a process has is always charged.
//! - A request is refused only if it does not fit, or if other processes block it for a second.
//! - A process does not change a living process's slot.
//! - All processes end.
//!
//! One process at a time is in the entrance of a device. No call is under way while a process whose
//! gate is closed is suspended.
//!
//! At the end, only charges of living processes may be left, and a new process must be able to
//! charge the rest of the limit.

use super::super::atomic::Ordering;
use super::super::charge;
use super::super::gate::Calls;
use super::super::level::{self, Level};
use super::super::{DeviceIndex, Slot, os};
use super::explorer::{Explored, explore};
use super::fault::{self, Fault};
use super::is_deep;
use super::scenario::Action::{
    Call, Claim, Clean, Depart, Enter, Give, GiveEarly, GiveIdle, HoldBack, Idle, Leave, Limit,
    Resume, Suspend, SuspendBoth, Take, TakeBy, Tell, Try,
};
use super::scenario::{Role, Scenario};

/// Largest number of states that a scenario may have; real scenarios stay below it.
const STATES: usize = 30_000_000;

fn explore_and_print(scenario: Scenario) -> Explored {
    let started = std::time::Instant::now();
    let explored = explore(scenario, STATES);
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    println!(
        "{name}: {} states, {} runs, {} complete runs ({:.1} s)",
        explored.states,
        explored.runs,
        explored.ends,
        started.elapsed().as_secs_f64()
    );
    explored
}

fn check(limits: &[u64], roles: Vec<Role>, deaths: u32) {
    check_scenario(Scenario::new(limits, roles, deaths));
}

fn check_scenario(scenario: Scenario) {
    if let Some(violation) = explore_and_print(scenario).violation {
        panic!("{violation}");
    }
}

#[test]
fn one_of_two_requests_for_the_last_bytes_is_granted() {
    let racer = || Role::member(0, &[Take(6), Give]);
    check(&[10], vec![racer(), racer()], 2);
}

#[test]
fn three_processes_at_the_limit() {
    let other = || Role::member(0, &[Try(4), Give]);
    let roles = vec![Role::member(0, &[Take(4)]), other(), other()];
    check(&[10], roles, u32::from(is_deep()));
}

#[test]
fn three_processes_at_the_limit_one_of_which_may_die() {
    let second = if is_deep() { Take(4) } else { Try(4) };
    let actions = [Take(4), second, Try(4)];
    check(
        &[10],
        actions.map(|action| Role::member(0, &[action])).into(),
        1,
    );
}

#[test]
fn a_charge_beside_a_return() {
    let roles = vec![Role::member(6, &[Give]), Role::member(4, &[Take(6)])];
    check(&[10], roles, 2);
}

#[test]
fn a_charge_beside_a_return_of_unused_units() {
    let roles = vec![Role::member(6, &[GiveIdle]), Role::member(4, &[Take(6)])];
    check(&[10], roles, 2);
}

#[test]
fn memory_that_moves_is_not_counted_twice() {
    let roles = vec![
        Role::member(0, &[Take(4)]),
        Role::member(6, &[Give]),
        Role::member(0, &[if is_deep() { Take(6) } else { Try(6) }]),
    ];
    check(&[10], roles, u32::from(is_deep()));
}

#[test]
fn two_processes_want_the_memory_of_a_dead_one() {
    let other = if is_deep() { Take(6) } else { Clean };
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Take(6)]).immortal(),
        Role::member(0, &[other]),
    ];
    check(&[10], roles, 2);
}

#[test]
fn a_request_beside_a_process_that_dies_in_a_request() {
    let roles = vec![
        Role::member(0, &[Take(6)]),
        Role::member(0, &[Take(6)]).immortal(),
    ];
    check(&[10], roles, 1);
}

#[test]
fn joining_processes_take_different_slots() {
    let roles = vec![
        Role::newcomer(&[Claim, if is_deep() { Take(6) } else { Try(6) }]),
        Role::newcomer(&[Claim, Take(6)]),
    ];
    check(&[10], roles, 1);
}

#[test]
fn a_process_joins_in_the_slot_of_a_dead_one() {
    let third = if is_deep() { Take(6) } else { Clean };
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::newcomer(&[Claim, Take(6)]),
        Role::member(0, &[third]).immortal(),
    ];
    check_scenario(Scenario::new(&[10], roles, 1 + u32::from(is_deep())).crowded(2));
}

#[test]
fn processes_join_after_a_death() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::newcomer(&[Claim, Try(6)]),
        Role::newcomer(&[Claim, Try(4)]).immortal(),
    ];
    check_scenario(Scenario::new(&[10], roles, 1 + u32::from(is_deep())).crowded(3));
}

#[test]
fn a_process_joins_in_the_slot_of_one_that_leaves() {
    let roles = vec![
        Role::member(2, &[Give, Leave]),
        Role::newcomer(&[Claim, Take(6)]),
        Role::member(0, &[Clean]).immortal(),
    ];
    check(&[10], roles, 1 + u32::from(is_deep()));
}

#[test]
fn without_nvml_the_grace_time_decides() {
    let roles = vec![
        Role::member(6, &[Take(2)]),
        Role::newcomer(&[Claim, Take(6)]),
    ];
    check_scenario(Scenario::new(&[10], roles, 1).without_nvml());
}

#[test]
fn all_levels_or_none() {
    let roles = vec![
        Role::member(0, &[Take(6)]).on(&[0, 1]),
        Role::member(0, &[Take(4)]).on(&[0]),
        Role::member(0, &[if is_deep() { Take(6) } else { Try(6) }])
            .on(&[1])
            .immortal(),
    ];
    check(&[10, 10], roles, u32::from(is_deep()));
}

#[test]
fn a_death_between_levels() {
    let roles = vec![
        Role::member(0, &[if is_deep() { Take(6) } else { Try(6) }]).on(&[0, 1]),
        Role::member(2, &[Take(6)]).on(&[0, 1]).immortal(),
    ];
    check(&[10, 10], roles, 1);
}

#[test]
fn a_limit_is_lowered_during_requests() {
    let roles = vec![
        Role::member(0, &[Take(3), Take(3)]),
        Role::member(0, &[Limit { book: 0, units: 4 }, Take(1)]),
    ];
    check(&[10], roles, 1);
}

// Suspensions. The process that suspends and resumes others may die before each of its steps, as
// may the process that it suspends.

#[test]
fn another_process_gets_the_room_of_a_suspended_one() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Suspend(0)]),
        Role::member(0, &[if is_deep() { Take(6) } else { Try(6) }]),
    ];
    check(&[10], roles, 1 + u32::from(is_deep()));
}

#[test]
fn a_resumed_process_has_its_room() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Suspend(0), Resume(0)]),
        Role::member(0, &[if is_deep() { Take(6) } else { Try(6) }]),
    ];
    check(&[10], roles, 1);
}

#[test]
fn a_suspended_process_charges_and_frees_meanwhile() {
    let actions = [Take(2), Give];
    let roles = vec![
        Role::member(6, &actions[usize::from(!is_deep())..]),
        Role::member(0, &[Suspend(0), Resume(0)]),
    ];
    check(&[10], roles, 2);
}

#[test]
fn a_suspended_process_wants_more() {
    let roles = vec![
        Role::member(6, &[if is_deep() { Take(2) } else { Try(2) }]),
        Role::member(0, &[Suspend(0), Resume(0)]),
    ];
    check(&[10], roles, 1 + u32::from(is_deep()));
}

#[test]
fn two_actors_for_one_process() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Suspend(0), Resume(0)]),
        Role::member(
            0,
            if is_deep() {
                &[Resume(0), Suspend(0)]
            } else {
                &[Resume(0)]
            },
        ),
    ];
    check(&[10], roles, 1);
}

#[test]
fn an_actor_finishes_what_a_dead_one_has_begun() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Suspend(0)]),
        Role::member(0, &[Suspend(0), Resume(0)]).immortal(),
    ];
    check(&[10], roles, 1);
}

#[test]
fn a_suspension_at_two_levels() {
    let roles = vec![
        Role::member(6, &[Idle]).on(&[0, 1]),
        Role::member(0, &[Suspend(0), Resume(0)]).on(&[0, 1]),
    ];
    check(&[10, 10], roles, 2);
}

fn two_suspended_together(fails: bool) -> Scenario {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Try(6)]),
        Role::member(0, &[SuspendBoth { fails }]),
    ];
    Scenario::new(&[10], roles, 1)
}

#[test]
fn both_of_two_processes_are_suspended() {
    check_scenario(two_suspended_together(false));
}

#[test]
fn a_suspension_that_fails_half_way_is_undone_in_its_own_room() {
    check_scenario(two_suspended_together(true));
}

/// Of processes that make their first contexts, one at a time is in the entrance, and no process
/// waits for a dead one.
fn first_contexts(take: fn(&Slot, DeviceIndex) -> bool, deaths: u32) -> Scenario {
    let role = || Role::member(0, &[Enter(take), Depart]);
    let roles = (0..2 + usize::from(is_deep())).map(|_| role());
    Scenario::new(&[10], roles.collect(), deaths)
}

#[test]
fn first_contexts_enter_one_at_a_time() {
    check_scenario(first_contexts(Slot::take_entrance, 1));
}

/// Two threads call, and an actor suspends their process in between. One of them has no line. The
/// actor may die.
fn calls_beside_an_actor(deaths: u32) -> Scenario {
    let thread = |calls| Role::member(0, &[Call(calls)]).immortal();
    let actor = Role::member(0, &[HoldBack]);
    let roles = vec![thread(Calls::Short), thread(Calls::Waits), actor];
    Scenario::new(&[10], roles, deaths)
}

#[test]
fn no_call_is_under_way_while_a_process_is_suspended() {
    check_scenario(calls_beside_an_actor(1));
}

/// A member tells the process to restore its charges meanwhile.
#[test]
fn no_call_is_under_way_while_a_told_process_is_suspended() {
    let thread = Role::member(0, &[Call(Calls::Short)]).immortal();
    let roles = [&[Tell][..], &[HoldBack]].map(|actions| Role::member(0, actions));
    check(&[10], [[thread].as_slice(), &roles].concat(), 1);
}

// Faulty systems and faulty processes. Each has one deliberate error, and the explorer must detect
// it.

#[track_caller]
fn assert_detected(fault: Fault, expected: &str, scenario: Scenario) {
    fault::set(fault);
    let explored = explore_and_print(scenario);
    let violation = explored.violation.expect("nothing was found");
    assert!(violation.starts_with(expected), "{violation}");
}

fn reused_slot() -> Scenario {
    let roles = vec![
        Role::newcomer(&[Claim, Take(6)]).immortal(),
        Role::member(6, &[Idle]),
        Role::member(0, &[Clean]).immortal(),
    ];
    Scenario::new(&[10], roles, 1).crowded(2)
}

#[test]
fn looking_before_publishing_is_detected() {
    fn wrong(levels: &[Level<'_>], n: u64) -> bool {
        let [level] = levels else { unreachable!() };
        let fits = charge::look(level).charged + n <= level.max / charge::UNIT;
        if fits {
            level::charge_unchecked(levels, n * charge::UNIT);
        }
        fits
    }
    let racer = || Role::member(0, &[TakeBy(6, wrong)]);
    assert_detected(
        Fault::None,
        "above the limit",
        Scenario::new(&[10], vec![racer(), racer()], 0),
    );
}

#[test]
fn refusing_after_one_look_is_detected() {
    fn wrong(levels: &[Level<'_>], n: u64) -> bool {
        let [level] = levels else { unreachable!() };
        let fits = charge::look(level).granted() + n <= level.max / charge::UNIT;
        if fits {
            level::charge_unchecked(levels, n * charge::UNIT);
        }
        fits
    }
    let roles = vec![
        Role::member(0, &[TakeBy(4, wrong)]),
        Role::member(6, &[Give]),
        Role::member(0, &[Take(6)]),
    ];
    assert_detected(
        Fault::None,
        "process 0 was refused",
        Scenario::new(&[10], roles, 0),
    );
}

#[test]
fn returning_before_the_driver_has_freed_is_detected() {
    let roles = vec![Role::member(6, &[GiveEarly]), Role::member(0, &[Take(6)])];
    assert_detected(
        Fault::None,
        "process 0 has 6 units that are not charged",
        Scenario::new(&[10], roles, 0),
    );
}

#[test]
fn deciding_levels_one_by_one_is_detected() {
    fn wrong(levels: &[Level<'_>], n: u64) -> bool {
        let passed = levels
            .iter()
            .take_while(|level| charge::attempt(std::slice::from_ref(*level), n, &()).is_ok())
            .count();
        if passed < levels.len() {
            charge::uncharge(&levels[..passed], n);
        }
        passed == levels.len()
    }
    let roles = vec![
        Role::member(0, &[TakeBy(6, wrong)]).on(&[0, 1]),
        Role::member(0, &[Take(6)]).on(&[0]),
    ];
    assert_detected(
        Fault::None,
        "process 1 was refused",
        Scenario::new(&[10, 4], roles, 0),
    );
}

#[test]
fn a_limit_from_before_the_request_is_detected() {
    fn wrong(levels: &[Level<'_>], n: u64) -> bool {
        let [level] = levels else { unreachable!() };
        let max = 10 * charge::UNIT;
        level::try_charge(&[Level { max, ..*level }], n * charge::UNIT)
    }
    let roles = vec![
        Role::member(0, &[Take(3), TakeBy(3, wrong)]),
        Role::member(0, &[Limit { book: 0, units: 4 }]),
    ];
    assert_detected(
        Fault::None,
        "above the limit",
        Scenario::new(&[10], roles, 0),
    );
}

#[test]
fn an_entrance_that_is_read_before_it_is_written_is_detected() {
    fn wrong(slot: &Slot, device: DeviceIndex) -> bool {
        let is_free = !slot.is_entrance_held(device);
        if is_free {
            let entrance = &slot.ledger().header().gpus[device.get()].entrance;
            let own = (slot.index() as u64 + 1) << 48 | (os::boot_ms() + 10_000);
            entrance.store(own, Ordering::SeqCst);
        }
        is_free
    }
    assert_detected(Fault::None, "process", first_contexts(wrong, 0));
}

#[test]
fn an_entrance_that_the_dead_hold_is_detected() {
    fn wrong(slot: &Slot, device: DeviceIndex) -> bool {
        let entrance = &slot.ledger().header().gpus[device.get()].entrance;
        let until = entrance.load(Ordering::SeqCst) & ((1 << 48) - 1);
        until <= os::boot_ms() && slot.take_entrance(device)
    }
    let expected = "process 1 waits for dead processes";
    assert_detected(Fault::None, expected, first_contexts(wrong, 1));
}

#[test]
fn a_forgotten_line_is_detected() {
    assert_detected(
        Fault::LineForgotten,
        "a call of process",
        calls_beside_an_actor(0),
    );
}

#[test]
fn a_missing_claim_lock_is_detected() {
    assert_detected(Fault::ClaimLockMissing, "process", reused_slot());
}

#[test]
fn an_unchecked_owner_lock_is_detected() {
    assert_detected(Fault::OwnerLockUnseen, "process", reused_slot());
}

#[test]
fn an_owner_lock_not_checked_again_under_the_claim_lock_is_detected() {
    assert_detected(Fault::SecondLookMissing, "process", reused_slot());
}

#[test]
fn a_slot_that_is_not_zeroed_is_detected() {
    assert_detected(Fault::NotZeroed, "", reused_slot());
}

#[test]
fn a_joining_process_missing_from_high_water_is_detected() {
    let newcomer = || Role::newcomer(&[Claim, Take(6)]);
    let scenario = Scenario::new(&[10], vec![newcomer(), newcomer()], 0);
    // Other processes do not see slots beyond `high_water`. Each process detects its own hidden
    // slot, and all its requests are refused.
    assert_detected(Fault::HighWaterMissing, "process 0 was refused", scenario);
}

#[test]
fn cleaning_before_the_driver_has_freed_is_detected() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Take(6)]).immortal(),
    ];
    let scenario = Scenario::new(&[10], roles, 1);
    assert_detected(
        Fault::DrainMissing,
        "process 0 has 6 units that are not charged",
        scenario,
    );
}

#[test]
fn a_charge_lowered_before_the_checkpoint_is_detected() {
    let roles = vec![Role::member(6, &[Idle]), Role::member(0, &[Suspend(0)])];
    assert_detected(
        Fault::LoweredEarly,
        "process 0 has 6 units that are not charged",
        Scenario::new(&[10], roles, 0),
    );
}

#[test]
fn a_charge_lowered_before_all_processes_are_down_is_detected() {
    assert_detected(
        Fault::LoweredEarly,
        "process 0 has 6 units that are not charged",
        two_suspended_together(true),
    );
}

#[test]
fn a_restore_before_the_charge_is_detected() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Suspend(0), Resume(0)]),
    ];
    assert_detected(
        Fault::RestoredEarly,
        "process 0 has 6 units that are not charged",
        Scenario::new(&[10], roles, 0),
    );
}

#[test]
fn actors_that_do_not_exclude_each_other_are_detected() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Suspend(0)]),
        Role::member(0, &[Resume(0)]),
    ];
    assert_detected(
        Fault::ActorLockMissing,
        "process 0 has 6 units that are not charged",
        Scenario::new(&[10], roles, 0),
    );
}
