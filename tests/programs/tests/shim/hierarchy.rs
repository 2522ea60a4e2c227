//! Nested groups: a request is charged at every level or at none, and a program sees the smallest
//! limit on the path.

use gpulimit_ledger::{Ledger, NoWitness};
use gpulimit_programs::world::{BLOCK, CONTEXT, MIB, Session, World, eventually};

/// Returns the bytes charged in a group below the world's group, on the only GPU.
fn charged(world: &World, below: &str) -> u64 {
    let group = world
        .root()
        .group(&format!("world/{below}"))
        .expect("there");
    let ledger = group.ledger().expect("readable");
    let device = ledger.devices().first().map(|device| device.index);
    device.map_or(0, |device| ledger.charged(device))
}

#[test]
fn the_level_without_room_refuses_and_is_named() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.below("a", &[&format!("max={}", CONTEXT + 400 * MIB)]);
    world.below("b", &[]);
    let mut a = world.on_gpu_in("a");
    let mut b = world.on_gpu_in("b");
    a.expect(&[("alloc x 300M", "0"), ("alloc y 200M", "2")]);
    b.expect(&[("alloc x 200M", "0"), ("alloc y 200M", "2")]);
    assert!(charged(&world, "a") >= CONTEXT + 300 * MIB);
    assert!(charged(&world, "b") >= CONTEXT + 200 * MIB);
    world.judge(cap);
    let holder = format!("pid {} (gpu-script) ", a.pid());
    let (_, errors) = a.end();
    assert!(
        errors.contains(" in world/a; most is used by pid"),
        "{errors}"
    );
    let (_, errors) = b.end();
    assert!(
        errors.contains(" in world; most is used by pid"),
        "{errors}"
    );
    // The line names the holders in the group that is full, and the command that explains it.
    assert!(errors.contains(&holder), "{errors}");
    let next = ". `gpulimit why` explains it\n";
    assert!(errors.ends_with(next), "{errors}");
    world.judge_end(cap);
    let group = world.root().group("world/a").expect("there");
    let ledger = Ledger::open(&group.ledger_path()).expect("opened");
    assert!(eventually(|| ledger.clean(&NoWitness).draining == 0));
    assert_eq!(charged(&world, "a"), 0);
}

#[test]
fn a_refused_request_is_uncharged_at_every_level() {
    let cap = 2 * CONTEXT + 300 * MIB;
    let world = World::new(cap);
    world.below("a", &[]);
    world.below("a/b", &[]);
    world.below("a/b/c", &[]);
    let mut deep = world.on_gpu_in("a/b/c");
    let mut other = world.on_gpu();
    deep.expect(&[("alloc x 200M", "0")]);
    let before: Vec<u64> = ["a", "a/b", "a/b/c"]
        .iter()
        .map(|below| charged(&world, below))
        .collect();
    assert_eq!(deep.say("repeat 50 {\nalloc y 200M\n}"), "2:50");
    let after: Vec<u64> = ["a", "a/b", "a/b/c"]
        .iter()
        .map(|below| charged(&world, below))
        .collect();
    assert_eq!(before, after);
    other.expect(&[("alloc x 50M", "0")]);
    world.judge(cap);
    drop((deep, other));
    world.judge_end(cap);
}

#[test]
fn a_request_is_charged_at_eight_levels() {
    let cap = CONTEXT + 100 * MIB;
    let world = World::new(cap);
    let mut name = String::new();
    for level in 1..8 {
        name = format!("{name}{}l{level}", if level == 1 { "" } else { "/" });
        world.below(&name, &[]);
    }
    let mut deep = world.on_gpu_in(&name);
    deep.expect(&[("alloc x 64M", "0"), ("alloc y 64M", "2"), ("free x", "0")]);
    assert!(charged(&world, &name) >= CONTEXT);
    world.judge(cap);
    let processes = world.ledger().processes(&NoWitness);
    assert_eq!(processes[0].below, name);
    drop(deep);
    world.judge_end(cap);
}

#[test]
fn the_view_shows_the_smallest_limit_on_the_path() {
    let cap = 3 * CONTEXT;
    let world = World::new(cap);
    world.below("a", &[&format!("max={}", CONTEXT + 800 * MIB)]);
    let mut a = world.on_gpu_in("a");
    let total = CONTEXT + 800 * MIB;
    let info = a.numbers("info");
    assert_eq!(info[2], total, "{info:?}");
    let mut b = world.on_gpu();
    // Less is left in the world's group now than in `a`.
    let left = cap - 2 * CONTEXT;
    b.expect(&[(&format!("alloc x {}", left - 100 * MIB), "0")]);
    let info = a.numbers("info");
    assert_eq!(info[2], total, "{info:?}");
    assert!(info[1] <= 100 * MIB, "{info:?}");
    world.judge(cap);
    drop((a, b));
    world.judge_end(cap);
}

fn fill(session: &mut Session) -> u64 {
    let answer = session.say("fill all 4M");
    let mut words = answer.split_whitespace();
    assert_eq!(words.next(), Some("2"), "{answer}");
    words.next().expect("a count").parse().expect("a number")
}

#[test]
fn other_groups_never_get_memory_kept_by_min() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.below("kept", &[&format!("min={}", CONTEXT + 400 * MIB)]);
    world.below("other", &[]);
    let mut other = world.on_gpu_in("other");
    let info = other.numbers("info");
    assert!(info[1] <= 200 * MIB, "{info:?}");
    // The other group gets everything except the `min` of the group without members.
    let got = 4 * MIB * fill(&mut other);
    assert!(got <= 200 * MIB, "{got}");
    assert!(got > 100 * MIB, "{got}");
    let mut kept = world.on_gpu_in("kept");
    kept.expect(&[("alloc x 380M", "0")]);
    // Beyond its `min` the group competes like any other.
    kept.expect(&[("alloc y 300M", "2")]);
    world.judge(cap);
    let (_, errors) = other.end();
    assert!(
        errors.contains(" for other groups; most is used by pid"),
        "{errors}"
    );
    drop(kept);
    world.judge_end(cap);
}

#[test]
fn min_holds_from_the_moment_it_is_set() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    let kept = world.below("kept", &[]);
    world.below("other", &[]);
    let mut other = world.on_gpu_in("other");
    other.expect(&[("alloc a 300M", "0"), ("free a", "0")]);
    let min = "min=1G".parse().expect("a setting");
    kept.write_limits(|limits| match min {
        gpulimit_limits::Setting::Size(key, size) => {
            limits
                .set_extent(gpulimit_limits::Selector::All, key, size, &[], false)
                .expect("a size");
        }
        _ => unreachable!("min is a size"),
    })
    .expect("written");
    other.expect(&[("alloc a 300M", "2")]);
    world.root().remove("world/kept").expect("empty");
    other.expect(&[("alloc a 300M", "0")]);
    world.judge(cap);
    drop(other);
    world.judge_end(cap);
}

#[test]
fn memory_protected_by_low_is_reclaimed_last() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.below("kept", &[&format!("low={}", CONTEXT + 400 * MIB)]);
    world.below("other", &[]);
    let mut other = world.on_gpu_in("other");
    // The group gives back its own unused reserve before it takes the memory that `low` protects.
    other.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p 4G", "0"),
        ("async a 256M", "0"),
        ("free-async a", "0"),
        ("sync", "0"),
    ]);
    let reserve = world.usage(0).by[gpulimit_ledger::Category::Pools as usize];
    assert!(reserve >= 256 * MIB, "{reserve}");
    let got = 4 * MIB * fill(&mut other);
    assert!(got + CONTEXT + 16 * MIB >= cap, "{got}");
    let reserve = world.usage(0).by[gpulimit_ledger::Category::Pools as usize];
    assert_eq!(reserve, 0);
    world.judge(cap);
    drop(other);
    world.judge_end(cap);
}

#[test]
fn a_group_with_a_running_program_cannot_be_removed() {
    let cap = CONTEXT + 300 * MIB;
    let world = World::new(cap);
    world.below("a", &[]);
    let mut a = world.on_gpu_in("a");
    a.expect(&[("alloc x 100M", "0")]);
    assert!(world.root().remove("world/a").is_err());
    assert!(world.root().remove("world").is_err());
    drop(a);
    world.settle();
    assert!(eventually(|| world.root().remove("world/a").is_ok()));
    assert!(world.usage(0).charged <= BLOCK);
}
