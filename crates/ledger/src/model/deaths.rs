//! What the ledger promises when any of its processes may end at any step, or stop there.
//!
//! The judge of each play: memory is never above the limit, what a process has is always charged,
//! nobody is refused for nothing, nobody changes what a living other owns, everybody comes to an
//! end; and when all have, one cleaning leaves exactly what the living hold, and the rest can be
//! had.

use super::super::charge;
use super::super::level::{self, Level};
use super::explorer::{Explored, explore};
use super::fault::{self, Fault};
use super::is_deep;
use super::play::Act::{
    Claim, Clean, Give, GiveEarly, GiveIdle, Idle, Leave, Limit, Take, TakeBy, Try,
};
use super::play::{Play, Role};

/// More states than any play has.
const STATES: usize = 30_000_000;

fn tell(play: Play) -> Explored {
    let started = std::time::Instant::now();
    let explored = explore(play, STATES);
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    println!(
        "{name}: {} states, {} orders, {} ends ({:.1} s)",
        explored.states,
        explored.runs,
        explored.ends,
        started.elapsed().as_secs_f64()
    );
    explored
}

fn holds(limits: &[u64], roles: Vec<Role>, deaths: u32) {
    kept(Play::new(limits, roles, deaths));
}

fn kept(play: Play) {
    if let Some(violation) = tell(play).violation {
        panic!("{violation}");
    }
}

#[test]
fn of_two_that_race_for_the_last_bytes_one_gets_them() {
    let racer = || Role::member(0, &[Take(6), Give]);
    holds(&[10], vec![racer(), racer()], 2);
}

#[test]
fn three_at_the_edge() {
    let other = || Role::member(0, &[Try(4), Give]);
    let roles = vec![Role::member(0, &[Take(4)]), other(), other()];
    holds(&[10], roles, u32::from(is_deep()));
}

#[test]
fn three_at_the_edge_of_whom_one_may_die() {
    let second = if is_deep() { Take(4) } else { Try(4) };
    let acts = [Take(4), second, Try(4)];
    holds(&[10], acts.map(|act| Role::member(0, &[act])).into(), 1);
}

#[test]
fn a_charge_beside_a_return() {
    let roles = vec![Role::member(6, &[Give]), Role::member(4, &[Take(6)])];
    holds(&[10], roles, 2);
}

#[test]
fn a_charge_beside_a_return_of_what_was_not_used() {
    let roles = vec![Role::member(6, &[GiveIdle]), Role::member(4, &[Take(6)])];
    holds(&[10], roles, 2);
}

#[test]
fn memory_that_moves_is_not_counted_twice() {
    let roles = vec![
        Role::member(0, &[Take(4)]),
        Role::member(6, &[Give]),
        Role::member(0, &[if is_deep() { Take(6) } else { Try(6) }]),
    ];
    holds(&[10], roles, u32::from(is_deep()));
}

#[test]
fn two_who_want_what_a_dead_one_had() {
    let other = if is_deep() { Take(6) } else { Clean };
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Take(6)]).immortal(),
        Role::member(0, &[other]),
    ];
    holds(&[10], roles, 2);
}

#[test]
fn a_request_beside_one_that_dies_in_the_middle() {
    let roles = vec![
        Role::member(0, &[Take(6)]),
        Role::member(0, &[Take(6)]).immortal(),
    ];
    holds(&[10], roles, 1);
}

#[test]
fn newcomers_take_slots_of_their_own() {
    let roles = vec![
        Role::newcomer(&[Claim, if is_deep() { Take(6) } else { Try(6) }]),
        Role::newcomer(&[Claim, Take(6)]),
    ];
    holds(&[10], roles, 1);
}

#[test]
fn a_newcomer_in_the_slot_of_a_dead_one() {
    let third = if is_deep() { Take(6) } else { Clean };
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::newcomer(&[Claim, Take(6)]),
        Role::member(0, &[third]).immortal(),
    ];
    kept(Play::new(&[10], roles, 1 + u32::from(is_deep())).crowded(2));
}

#[test]
fn newcomers_after_a_death() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::newcomer(&[Claim, Try(6)]),
        Role::newcomer(&[Claim, Try(4)]).immortal(),
    ];
    kept(Play::new(&[10], roles, 1 + u32::from(is_deep())).crowded(3));
}

#[test]
fn a_newcomer_in_the_slot_of_one_that_leaves() {
    let roles = vec![
        Role::member(2, &[Give, Leave]),
        Role::newcomer(&[Claim, Take(6)]),
        Role::member(0, &[Clean]).immortal(),
    ];
    holds(&[10], roles, 1 + u32::from(is_deep()));
}

#[test]
fn without_nvml_the_grace_decides() {
    let roles = vec![
        Role::member(6, &[Take(2)]),
        Role::newcomer(&[Claim, Take(6)]),
    ];
    kept(Play::new(&[10], roles, 1).without_nvml());
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
    holds(&[10, 10], roles, u32::from(is_deep()));
}

#[test]
fn a_death_between_levels() {
    let roles = vec![
        Role::member(0, &[if is_deep() { Take(6) } else { Try(6) }]).on(&[0, 1]),
        Role::member(2, &[Take(6)]).on(&[0, 1]).immortal(),
    ];
    holds(&[10, 10], roles, 1);
}

#[test]
fn a_limit_that_is_lowered() {
    let roles = vec![
        Role::member(0, &[Take(3), Take(3)]),
        Role::member(0, &[Limit { book: 0, units: 4 }, Take(1)]),
    ];
    holds(&[10], roles, 1);
}

// Worlds and processes that are wrong in one way: each is found.

#[track_caller]
fn found(fault: Fault, expected: &str, play: Play) {
    fault::set(fault);
    let explored = tell(play);
    let violation = explored.violation.expect("nothing was found");
    assert!(violation.starts_with(expected), "{violation}");
}

fn heirs() -> Play {
    let roles = vec![
        Role::newcomer(&[Claim, Take(6)]).immortal(),
        Role::member(6, &[Idle]),
        Role::member(0, &[Clean]).immortal(),
    ];
    Play::new(&[10], roles, 1).crowded(2)
}

#[test]
fn to_look_before_publishing_is_found() {
    fn wrong(levels: &[Level<'_>], n: u64) -> bool {
        let [level] = levels else { unreachable!() };
        let fits = charge::look(level).charged + n <= level.max / charge::UNIT;
        if fits {
            level::charge_unchecked(levels, n * charge::UNIT);
        }
        fits
    }
    let racer = || Role::member(0, &[TakeBy(6, wrong)]);
    found(
        Fault::None,
        "above the limit",
        Play::new(&[10], vec![racer(), racer()], 0),
    );
}

#[test]
fn to_refuse_after_one_look_is_found() {
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
    found(
        Fault::None,
        "process 0 was refused",
        Play::new(&[10], roles, 0),
    );
}

#[test]
fn to_return_before_the_driver_has_freed_is_found() {
    let roles = vec![Role::member(6, &[GiveEarly]), Role::member(0, &[Take(6)])];
    found(
        Fault::None,
        "process 0 has 6 units that are not charged",
        Play::new(&[10], roles, 0),
    );
}

#[test]
fn levels_decided_one_by_one_are_found() {
    fn wrong(levels: &[Level<'_>], n: u64) -> bool {
        let passed = levels
            .iter()
            .take_while(|level| charge::attempt(std::slice::from_ref(*level), 0, n, &()).is_ok())
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
    found(
        Fault::None,
        "process 1 was refused",
        Play::new(&[10, 4], roles, 0),
    );
}

#[test]
fn to_know_the_limit_from_before_is_found() {
    fn wrong(levels: &[Level<'_>], n: u64) -> bool {
        let [level] = levels else { unreachable!() };
        let max = 10 * charge::UNIT;
        level::try_charge(&[Level { max, ..*level }], n * charge::UNIT)
    }
    let roles = vec![
        Role::member(0, &[Take(3), TakeBy(3, wrong)]),
        Role::member(0, &[Limit { book: 0, units: 4 }]),
    ];
    found(Fault::None, "above the limit", Play::new(&[10], roles, 0));
}

#[test]
fn a_missing_claim_lock_is_found() {
    found(Fault::ClaimLockMissing, "process", heirs());
}

#[test]
fn not_to_look_at_the_owner_lock_is_found() {
    found(Fault::OwnerLockUnseen, "process", heirs());
}

#[test]
fn not_to_look_again_under_the_claim_lock_is_found() {
    found(Fault::SecondLookMissing, "process", heirs());
}

#[test]
fn a_slot_that_is_not_zeroed_is_found() {
    found(Fault::NotZeroed, "", heirs());
}

#[test]
fn a_newcomer_that_nobody_looks_at_is_found() {
    let newcomer = || Role::newcomer(&[Claim, Take(6)]);
    let play = Play::new(&[10], vec![newcomer(), newcomer()], 0);
    // Each finds that it is hidden, and trusts nobody.
    found(Fault::HighWaterMissing, "process 0 was refused", play);
}

#[test]
fn to_clean_before_the_driver_has_freed_is_found() {
    let roles = vec![
        Role::member(6, &[Idle]),
        Role::member(0, &[Take(6)]).immortal(),
    ];
    let play = Play::new(&[10], roles, 1);
    found(
        Fault::DrainMissing,
        "process 0 has 6 units that are not charged",
        play,
    );
}
