//! Forked children are members of their own, and so is a new program in the same process.

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World, eventually};

const CAP: u64 = 4096 * MIB;

#[test]
fn a_child_forked_before_cuda_is_a_member_of_its_own() {
    let world = World::new(CAP);
    let mut program = world.start();
    let go = world.file("go").display().to_string();
    program.tell(&format!(
        "background {{\nstart\nalloc a 1000M\nwait {go}\nfree a\n}}"
    ));
    let mut lines = [program.line(), program.line(), program.line()];
    lines.sort();
    assert_eq!(
        lines,
        ["alloc a 1000M = 0", "background = 0", "start = 0 0"]
    );
    program.expect(&[("start", "0 0"), ("alloc b 1000M", "0")]);
    assert_eq!(world.machine().used(), 2 * CONTEXT + 2000 * MIB);
    world.judge(CAP);
    program.expect(&[("alloc c 1500M", "2")]);
    program.tell(&format!("touch {go}\njoin"));
    let mut lines = [
        program.line(),
        program.line(),
        program.line(),
        program.line(),
    ];
    lines.sort();
    assert_eq!(lines[1], "join = 0");
    program.expect(&[("alloc c 1500M", "0")]);
    world.bury();
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn a_child_forked_after_cuda_holds_nothing_of_its_parents() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 1000M", "0"), ("many b 100 1000", "0 100")]);
    // The child lives on for a while without CUDA, and exits without using CUDA.
    assert_eq!(program.say("fork {\nsleep 20\n}"), "0");
    assert_eq!(program.answer(), "0");
    world.judge(CAP);
    program.expect(&[
        ("free a", "0"),
        ("free-many b", "0"),
        ("alloc c 3000M", "0"),
    ]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// The driver keeps a dead process's memory while a child lives that it has forked.
#[test]
fn a_child_that_outlives_its_parent_keeps_the_parents_memory() {
    let world = World::new(CAP);
    let go = world.file("go").display().to_string();
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 3000M", "0")]);
    assert_eq!(program.say(&format!("background {{\nwait {go}\n}}")), "0");
    program.kill();
    let mut next = world.on_gpu();
    next.expect(&[("alloc a 3000M", "2")]);
    world.judge(CAP);
    std::fs::write(&go, "").expect("a file");
    assert!(eventually(|| world.machine().used() < 1000 * MIB));
    next.expect(&[("alloc a 3000M", "0")]);
    world.judge(CAP);
    next.end();
    world.judge_end(CAP);
}

#[test]
fn a_child_of_a_member_that_has_not_used_cuda_is_a_member_of_its_own() {
    // Asking NVML makes the parent a member; the child must not inherit any part of that
    // membership.
    let world = World::new(CAP);
    let mut program = world.start();
    let go = world.file("go").display().to_string();
    assert_eq!(program.numbers("nvml 0")[2], CAP);
    program.tell(&format!(
        "background {{\nstart\nalloc a 1000M\nwait {go}\n}}"
    ));
    let mut lines = [program.line(), program.line(), program.line()];
    lines.sort();
    assert_eq!(
        lines,
        ["alloc a 1000M = 0", "background = 0", "start = 0 0"]
    );
    program.expect(&[("start", "0 0"), ("alloc b 1000M", "0")]);
    world.judge(CAP);
    program.expect(&[("alloc c 1500M", "2")]);
    let members = world.ledger().processes(&gpulimit_ledger::NoWitness);
    assert_eq!(
        members.iter().filter(|member| member.alive).count(),
        2,
        "{members:?}"
    );
    std::fs::write(&go, "").expect("a file");
    program.end();
    world.judge_end(CAP);
}

#[test]
fn children_of_children_are_members_of_their_own() {
    let world = World::new(CAP);
    let mut program = world.start();
    program.tell("fork {\nfork {\nstart\nalloc a 3000M\n}\nstart\nalloc b 3000M\n}");
    let lines: Vec<_> = (0..6).map(|_| program.line()).collect();
    assert_eq!(
        lines,
        [
            "start = 0 0",
            "alloc a 3000M = 0",
            "fork = 0",
            "start = 0 0",
            "alloc b 3000M = 0",
            "fork = 0"
        ]
    );
    world.judge_end(CAP);
    program.end_quietly();
}

#[test]
fn a_new_program_in_the_same_process_starts_with_nothing() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "50")]);
    let mut program = world.on_gpu();
    program.expect(&[
        ("alloc a 3000M", "0"),
        ("exec", "0"),
        ("start", "0 0"),
        ("alloc a 3000M", "0"),
    ]);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn the_memory_from_before_exec_is_uncharged_before_the_first_context() {
    // There is room for both programs, so no request of the new one looks for room.
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("alloc a 2000M", "0"),
        ("exec", "0"),
        ("start", "0 0"),
        ("alloc a 100M", "0"),
    ]);
    let charged = world.usage(0).charged;
    assert!(charged < 2000 * MIB, "{charged}");
    world.judge(CAP);
    program.end_quietly();
}

#[test]
fn a_program_with_threads_can_fork() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.say("threads 4 {\nrepeat 50 {\nalloc a 1M\nfree a\n}\n}");
    program.tell("fork {\nrepeat 3 {\nsleep 1\n}\nexit 5\n}");
    assert_eq!(program.answer(), "0:3");
    assert_eq!(program.answer(), "5");
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

/// A child forked while another thread redirects the driver's symbols must not inherit a lock of
/// the parent.
#[test]
fn a_fork_during_redirection_of_symbols_inherits_no_lock() {
    let asks = world::library("asks", &[]).display().to_string();
    let world = World::new(2048 * MIB);
    let mut command = world.limited(&world::compile("redirected", &["-pthread", "-rdynamic"]));
    command.arg(asks);
    let mut program = Session::start(command);
    assert_eq!(program.line(), "child 0 2");
    assert_eq!(program.line(), "child's end 0, opened 1");
    let (status, said) = program.end();
    assert!(status.success(), "{status}: {said}");
    world.judge_end(2048 * MIB);
}
