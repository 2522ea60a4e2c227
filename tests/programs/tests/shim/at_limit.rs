//! A request that does not fit at the limit: other members give memory back, the request waits, or
//! a process is killed.

use std::os::unix::fs::MetadataExt;

use gpulimit_ledger::{Category, Cause, EventKind, NoWitness};
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World, eventually};

/// Sends a request that has to wait, and checks that it still waits after more looks at the ledger.
#[track_caller]
fn waits(world: &World, program: &mut Session, request: &str) {
    let waiting = || world.events(EventKind::Wait).len();
    let before = waiting();
    program.tell(request);
    assert!(eventually(|| waiting() > before), "{request}");
    program.waits_on();
}

/// Makes a group whose requests wait, with room for two contexts and 600 MiB.
fn waiting(more: &[&str]) -> (World, u64) {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.settings(&["on_limit=wait"]);
    world.settings(more);
    (world, cap)
}

#[test]
fn a_request_waits_until_memory_comes_back() {
    let (world, cap) = waiting(&[]);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 500M", "0")]);
    waits(&world, &mut other, "alloc b 300M");
    world.judge(cap);
    holder.expect(&[("free a", "0")]);
    assert_eq!(other.answer(), "0");
    assert_eq!(world.events(EventKind::Wait).len(), 1);
    assert_eq!(world.events(EventKind::Granted).len(), 1);
    assert_eq!(world.events(EventKind::Refusal).len(), 0);
    let usage = world.usage(0);
    assert_eq!(usage.waits, 1);
    assert!(usage.waited_ms > 0, "{usage:?}");
    world.judge(cap);
    holder.end_quietly();
    other.end_quietly();
    world.judge_end(cap);
}

#[test]
fn every_kind_of_request_waits() {
    let (world, cap) = waiting(&[]);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    other.expect(&[
        ("graph g", "0"),
        ("alloc-node n g 200M", "0"),
        ("free-node g n", "0"),
        ("instantiate e g", "0"),
    ]);
    for (request, release) in [
        ("alloc b 200M", "free b"),
        ("many b 300 1M", "free-many b"),
        ("create b 200M 0", "release b"),
        ("managed b 200M", "free b"),
        ("array b 8192,8192,0,32,1", "destroy-array b"),
        ("async b 200M", "free-async b"),
        ("launch-graph e", "sync"),
    ] {
        holder.expect(&[("alloc a 500M", "0")]);
        waits(&world, &mut other, request);
        holder.expect(&[("free a", "0")]);
        let answer = other.answer();
        assert!(answer.starts_with('0'), "{request}: {answer}");
        let answer = other.say(release);
        assert!(answer.starts_with('0'), "{release}: {answer}");
        other.expect(&[("sync", "0"), ("trim-graphs", "0")]);
        other.expect(&[("default-pool p 0", "0"), ("trim p 0", "0")]);
    }
    world.judge(cap);
    drop((holder, other));
    world.judge_end(cap);
}

#[test]
fn the_time_to_wait_is_bounded() {
    let (world, cap) = waiting(&["wait_timeout=300ms"]);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 500M", "0")]);
    other.expect(&[("alloc b 300M", "2"), ("alloc c 50M", "0")]);
    assert_eq!(world.events(EventKind::Wait).len(), 1);
    assert_eq!(world.events(EventKind::Refusal).len(), 1);
    world.judge(cap);
    drop((holder, other));
    world.judge_end(cap);
}

/// libfaketime and libfakeroot show the program another clock and another user.
#[test]
fn clocks_and_users_of_other_preloads_change_nothing() {
    let lies = world::library("frozen_clock", &["-ldl"]);
    let preloads = [&world::shim(), &lies].map(|path| path.display().to_string());
    let user = std::fs::metadata("/proc/self").expect("/proc").uid();
    for preloads in [preloads.join(":"), preloads[1].clone() + ":" + &preloads[0]] {
        let (world, cap) = waiting(&["wait_timeout=300ms"]);
        let mut holder = world.on_gpu();
        holder.expect(&[("alloc a 500M", "0")]);
        let mut command = world.limited(world::program());
        command.env("LD_PRELOAD", preloads);
        let mut other = Session::start(command);
        other.expect(&[("start", "0 0"), ("alloc b 300M", "2")]);
        assert_eq!(world.events(EventKind::Refusal).len(), 1);
        let members = world.ledger().processes(&NoWitness);
        assert_eq!(members.len(), 2);
        assert!(members.iter().all(|member| member.identity.uid == user));
        world.judge(cap);
        drop((holder, other));
        world.judge_end(cap);
    }
}

#[test]
fn a_signal_ends_the_wait() {
    let (world, cap) = waiting(&[]);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 500M", "0")]);
    assert_eq!(other.say("catch 10"), "0");
    other.tell("alloc b 300M");
    assert!(eventually(|| !world.events(EventKind::Wait).is_empty()));
    other.waits_on();
    other.signal(10);
    assert_eq!(other.answer(), "2");
    world.judge(cap);
    let trail = world.ledger().trail(0);
    let last = trail.last().expect("the refusal");
    assert_eq!(
        (last.event.what.kind, last.cause),
        (EventKind::Refusal, Some(Cause::Signal))
    );
    let (_, errors) = other.end();
    assert!(errors.contains(". A signal ended its wait"), "{errors}");
    drop(holder);
    world.judge_end(cap);
}

/// The dead member's memory would make room later.
#[test]
fn a_signal_ends_the_wait_of_a_first_context_for_a_dead_member() {
    let (world, cap) = waiting(&[]);
    world.machine().knob("kill-lag-ms", "25000");
    let mut holder = world.on_gpu();
    holder.expect(&[("alloc a 700M", "0")]);
    holder.kill();
    let mut other = Session::start(world.limited(world::program()));
    other.expect(&[("catch 10", "0"), ("init", "0")]);
    other.tell("retain 0");
    other.waits_on();
    other.signal(10);
    assert_eq!(other.answer(), "2");
    world.machine().knob("kill-lag-ms", "0");
    other.end();
    world.judge_end(cap);
}

#[test]
fn the_first_waiting_request_is_served_first() {
    let (world, cap) = {
        let cap = 3 * CONTEXT + 600 * MIB;
        let world = World::new(cap);
        world.settings(&["on_limit=wait"]);
        (world, cap)
    };
    let (mut holder, mut first, mut second) = (world.on_gpu(), world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 150M", "0"), ("alloc b 400M", "0")]);
    waits(&world, &mut first, "alloc c 400M");
    waits(&world, &mut second, "alloc d 100M");
    // There is room for the second request now, but the first one comes before it.
    holder.expect(&[("free a", "0")]);
    second.waits_on();
    holder.expect(&[("free b", "0")]);
    assert_eq!(first.answer(), "0");
    assert_eq!(second.answer(), "0");
    let granted = world.events(EventKind::Granted);
    let order: Vec<u32> = granted.iter().map(|event| event.what.process.pid).collect();
    assert_eq!(order, [first.pid(), second.pid()]);
    world.judge(cap);
    drop((holder, first, second));
    world.judge_end(cap);
}

#[test]
fn a_later_request_queues_behind_a_waiting_one() {
    let cap = 3 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.settings(&["on_limit=wait"]);
    let (mut holder, mut first, mut late) = (world.on_gpu(), world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 400M", "0")]);
    waits(&world, &mut first, "alloc c 400M");
    // This request would fit, but queues behind the first.
    waits(&world, &mut late, "alloc d 100M");
    holder.expect(&[("free a", "0")]);
    assert_eq!(first.answer(), "0");
    assert_eq!(late.answer(), "0");
    world.judge(cap);
    drop((holder, first, late));
    world.judge_end(cap);
}

/// The small array fits into a block that is held already.
#[test]
fn a_request_served_from_a_held_block_does_not_wait() {
    let (world, cap) = waiting(&[]);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    holder.expect(&[("array first 1,0,0,1,1", "0"), ("alloc a 500M", "0")]);
    other.tell("alloc b 300M");
    assert!(eventually(|| !world.events(EventKind::Wait).is_empty()));
    holder.expect(&[("array second 1,0,0,1,1", "0"), ("free a", "0")]);
    assert_eq!(other.answer(), "0");
    world.judge(cap);
    drop((holder, other));
    world.judge_end(cap);
}

#[test]
fn a_stopped_or_dead_waiter_does_not_block_the_line() {
    let cap = 4 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.settings(&["on_limit=wait"]);
    let mut holder = world.on_gpu();
    let (mut stopped, mut dead, mut third) = (world.on_gpu(), world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 500M", "0")]);
    waits(&world, &mut stopped, "alloc b 300M");
    waits(&world, &mut dead, "alloc b 300M");
    waits(&world, &mut third, "alloc b 300M");
    stopped.signal(libc::SIGSTOP);
    assert!(eventually(|| stopped.is_stopped()));
    dead.kill();
    holder.expect(&[("free a", "0")]);
    assert_eq!(third.answer(), "0");
    third.expect(&[("free b", "0")]);
    stopped.signal(libc::SIGCONT);
    assert_eq!(stopped.answer(), "0");
    drop((holder, stopped, third));
    world.judge_end(cap);
}

#[test]
fn memory_of_a_killed_process_ends_the_wait() {
    let (world, cap) = waiting(&[]);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 500M", "0")]);
    waits(&world, &mut other, "alloc b 300M");
    holder.kill();
    assert_eq!(other.answer(), "0");
    world.judge(cap);
    assert!(!world.events(EventKind::Reap).is_empty());
    drop(other);
    world.judge_end(cap);
}

#[test]
fn a_raised_limit_ends_the_wait() {
    let (world, cap) = waiting(&[]);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 500M", "0")]);
    waits(&world, &mut other, "alloc b 300M");
    world.set(cap + 300 * MIB);
    assert_eq!(other.answer(), "0");
    holder.expect(&[("free a", "0")]);
    drop((holder, other));
    world.judge_end(cap + 300 * MIB);
}

#[test]
fn a_request_that_can_never_fit_does_not_wait() {
    let (world, cap) = waiting(&["wait_timeout=1000h"]);
    let mut alone = world.on_gpu();
    // The first request exceeds the limit; the last exceeds what is left while no other member
    // could give memory back.
    alone.expect(&[
        ("alloc a 2G", "2"),
        ("alloc b 900M", "0"),
        ("alloc c 900M", "2"),
    ]);
    assert_eq!(world.events(EventKind::Wait).len(), 0);
    world.judge(cap);
    drop(alone);
    world.judge_end(cap);
}

#[test]
fn two_requests_waiting_for_each_other_time_out() {
    let (world, cap) = waiting(&["wait_timeout=500ms"]);
    let (mut one, mut other) = (world.on_gpu(), world.on_gpu());
    one.expect(&[("alloc a 300M", "0")]);
    other.expect(&[("alloc a 250M", "0")]);
    one.tell("alloc b 300M");
    other.tell("alloc b 300M");
    assert_eq!((one.answer(), other.answer()), ("2".into(), "2".into()));
    world.judge(cap);
    drop((one, other));
    world.judge_end(cap);
}

/// Gives the process a pool with 320 MiB of unused reserve.
fn with_reserve(session: &mut Session) {
    session.expect(&[
        ("default-pool p 0", "0"),
        ("threshold p 4G", "0"),
        ("async a 320M", "0"),
        ("free-async a", "0"),
        ("sync", "0"),
    ]);
}

fn pools(world: &World) -> u64 {
    world.usage(0).by[Category::Pools as usize]
}

#[test]
fn other_members_give_back_unused_reserve() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    let (mut holder, mut other) = (world.on_gpu(), world.on_gpu());
    with_reserve(&mut holder);
    assert!(pools(&world) >= 320 * MIB);
    // The holder keeps working and sees the request for its reserve at its next call. On a slow
    // machine that call comes too late for the first request.
    holder.tell("repeat 1000000 {\nsleep 1\nsync\n}");
    assert!(eventually(|| other.say("alloc b 400M") == "0"));
    assert!(pools(&world) < 320 * MIB, "{}", pools(&world));
    world.judge(cap);
    drop((holder, other));
    world.judge_end(cap);
}

/// Such calls need no hook as long as nobody has asked.
#[test]
fn small_allocations_in_a_held_block_and_their_ends_give_back_unused_reserve() {
    let cap = CONTEXT + 600 * MIB;
    let world = World::new(cap);
    let mut holder = world.on_gpu();
    for name in ["held", "ended", "counted"] {
        holder.expect(&[(&*format!("alloc {name} 512"), "0")]);
    }
    for call in ["alloc more 512", "free ended"] {
        with_reserve(&mut holder);
        holder.expect(&[("alloc b 512", "0"), ("free b", "0")]);
        assert!(pools(&world) >= 320 * MIB, "nobody has asked");
        world.ledger().call_members();
        holder.expect(&[(call, "0")]);
        assert_eq!(pools(&world), 0, "{call}");
    }
    world.judge(cap);
    holder.end_quietly();
    world.judge_end(cap);
}

#[test]
fn reserve_protected_by_low_is_not_reclaimed() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.below("kept", &[&format!("low={}", CONTEXT + 500 * MIB)]);
    let (mut holder, mut other) = (world.on_gpu_in("kept"), world.on_gpu());
    with_reserve(&mut holder);
    let before = pools(&world);
    holder.tell("repeat 300 {\nsleep 1\nsync\n}");
    other.expect(&[("alloc b 400M", "2")]);
    assert_eq!(holder.answer(), "0:600");
    assert_eq!(pools(&world), before);
    world.judge(cap);
    drop((holder, other));
    world.judge_end(cap);
}

#[test]
fn growth_above_high_first_gives_up_the_reserve() {
    let cap = CONTEXT + 1000 * MIB;
    let world = World::new(cap);
    world.settings(&[&format!("high={}", CONTEXT + 600 * MIB)]);
    let mut program = world.on_gpu();
    with_reserve(&mut program);
    assert!(pools(&world) >= 320 * MIB);
    program.expect(&[("alloc b 100M", "0")]);
    assert!(pools(&world) >= 320 * MIB);
    assert_eq!(world.events(EventKind::High).len(), 0);
    program.expect(&[("alloc c 300M", "0")]);
    assert_eq!(pools(&world), 0);
    assert_eq!(world.events(EventKind::High).len(), 1);
    // `high` is not a limit: growth beyond it succeeds.
    program.expect(&[("alloc d 300M", "0")]);
    world.judge(cap);
    drop(program);
    world.judge_end(cap);
}

#[test]
fn kill_largest_kills_the_largest_process() {
    let cap = 3 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.settings(&["oom=kill-largest"]);
    let (mut largest, mut small, mut other) = (world.on_gpu(), world.on_gpu(), world.on_gpu());
    largest.expect(&[("alloc a 400M", "0")]);
    small.expect(&[("alloc a 100M", "0")]);
    other.expect(&[("alloc b 300M", "0")]);
    let killed = world.events(EventKind::Kill);
    assert_eq!(killed.len(), 1);
    assert_eq!(killed[0].what.process.pid, largest.pid());
    small.expect(&[("alloc c 10M", "0")]);
    world.judge(cap);
    let (status, _) = largest.end();
    assert!(!status.success());
    drop((small, other));
    world.judge_end(cap);
}

#[test]
fn kill_largest_refuses_the_largest_process_itself() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.settings(&["oom=kill-largest"]);
    let (mut largest, mut other) = (world.on_gpu(), world.on_gpu());
    other.expect(&[("alloc a 100M", "0")]);
    largest.expect(&[("alloc a 400M", "0"), ("alloc b 400M", "2")]);
    other.expect(&[("alloc b 10M", "0")]);
    assert_eq!(world.events(EventKind::Kill).len(), 0);
    world.judge(cap);
    drop((largest, other));
    world.judge_end(cap);
}

/// `min` keeps memory for a child group even after its processes have ended. So killing them makes
/// no room for others.
#[test]
fn kill_largest_kills_only_processes_whose_end_helps() {
    let cap = 3 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.settings(&["oom=kill-largest"]);
    world.below("kept", &[&format!("min={}", CONTEXT + 400 * MIB)]);
    let (mut kept, mut small, mut other) =
        (world.on_gpu_in("kept"), world.on_gpu(), world.on_gpu());
    kept.expect(&[("alloc a 300M", "0")]);
    small.expect(&[("alloc a 100M", "0")]);
    // Too much even after the end of all others, of which that of `kept` gives nothing.
    let too_much = format!("alloc b {}", CONTEXT + 250 * MIB);
    other.expect(&[(&too_much, "2")]);
    assert_eq!(world.events(EventKind::Kill).len(), 0);
    other.expect(&[("alloc b 250M", "0")]);
    let killed = world.events(EventKind::Kill);
    assert_eq!(killed.len(), 1);
    assert_eq!(killed[0].what.process.pid, small.pid());
    kept.expect(&[("alloc b 10M", "0")]);
    world.judge(cap);
    drop((kept, small, other));
    world.judge_end(cap);
}

#[test]
fn kill_largest_kills_nobody_if_a_group_above_refuses_all_the_same() {
    let cap = 3 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    let max = format!("max={}", 2 * CONTEXT + 400 * MIB);
    world.below("job", &[&max, "oom=kill-largest"]);
    let mut outsider = world.on_gpu();
    let (mut largest, mut other) = (world.on_gpu_in("job"), world.on_gpu_in("job"));
    outsider.expect(&[("alloc a 400M", "0")]);
    largest.expect(&[("alloc a 150M", "0")]);
    let request = format!("alloc b {}", CONTEXT + 300 * MIB);
    other.expect(&[(&request, "2")]);
    largest.expect(&[("alloc b 10M", "0")]);
    // With room above, the same request has the largest killed.
    outsider.expect(&[("free a", "0")]);
    other.expect(&[(&request, "0")]);
    world.judge(cap);
    let (status, _) = largest.end();
    assert!(!status.success());
    drop((outsider, other));
    world.judge_end(cap);
}

/// The event and the message name the asking process and the killed ones before any is killed,
/// since the asking process is among them.
#[test]
fn kill_group_kills_every_process() {
    let cap = 2 * CONTEXT + 600 * MIB;
    let world = World::new(cap);
    world.settings(&["oom=kill-group"]);
    let (mut one, mut other) = (world.on_gpu(), world.on_gpu());
    one.expect(&[("alloc a 400M", "0")]);
    let (holder, asker) = (one.pid(), other.pid());
    other.tell("alloc b 300M");
    assert!(eventually(|| world.machine().used() == 0));
    let asked = world.events(EventKind::Oom);
    let asked: Vec<_> = asked.iter().map(|event| event.what).collect();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!((asked[0].process.pid, asked[0].bytes), (asker, 300 * MIB));
    let killed = world.events(EventKind::Kill);
    let killed: Vec<_> = killed.iter().map(|event| event.what.process.pid).collect();
    assert_eq!(killed, [holder, asker]);
    for (killed, asked) in [(one, false), (other, true)] {
        let (status, errors) = killed.end();
        assert!(!status.success());
        let line = format!(
            "group world has no room for 300.0 MiB on GPU-46a9\u{2026}, requested by this \
             process ({asker}): killing pid {holder} (gpu-script), pid {asker} (gpu-script) \
             (oom=kill-group)"
        );
        assert_eq!(errors.contains(&line), asked, "{errors}");
    }
    world.judge_end(cap);
}

#[test]
fn count_context_no_leaves_contexts_uncharged() {
    let cap = 600 * MIB;
    let world = World::new(cap);
    world.settings(&["count_context=no"]);
    let (mut one, mut other) = (world.on_gpu(), world.on_gpu());
    one.expect(&[("alloc a 300M", "0")]);
    other.expect(&[("alloc a 280M", "0"), ("alloc b 100M", "2")]);
    let truth = world.machine().gpu(0);
    assert!(truth.peak <= cap + 2 * CONTEXT, "{truth:?}");
    assert!(truth.used >= 580 * MIB + 2 * CONTEXT, "{truth:?}");
    let usage = world.usage(0);
    assert!(usage.charged <= cap, "{usage:?}");
    drop((one, other));
    world.settle();
    assert_eq!(world.usage(0).charged, 0);
}
