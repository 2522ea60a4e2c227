//! A program that another process locks, moves off the GPU and back (`cuCheckpointProcess…`) stays
//! charged for all memory that it will have again.

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};

use crate::shared_memory::export;

const CAP: u64 = 4096 * MIB;
const HELD: u64 = CONTEXT + 2000 * MIB;

/// Starts the process that checkpoints the others; the process has no limit of its own.
fn tool(world: &World) -> Session {
    let mut tool = Session::start(world.bare(world::program()));
    tool.expect(&[("init", "0")]);
    tool
}

#[track_caller]
fn do_steps(tool: &mut Session, steps: &[&str], program: &Session) {
    for step in steps {
        let command = format!("{step}-process {}", program.pid());
        assert_eq!(tool.say(&command), "0", "{step}");
    }
}

#[test]
fn memory_of_a_checkpointed_program_stays_charged() {
    let world = World::new(CAP);
    let (mut program, mut other) = (world.on_gpu(), world.on_gpu());
    program.expect(&[("alloc a 2000M", "0")]);
    world.judge(CAP);
    let before = world.usage(0).charged;
    let mut tool = tool(&world);
    let state = format!("process-state {}", program.pid());
    let pid = program.pid();
    tool.expect(&[
        (&format!("checkpoint-process {pid}"), "401"),
        (&format!("unlock-process {pid}"), "401"),
        (&state, "0 0"),
        (&format!("restore-thread {pid}"), &format!("0 {pid}")),
        ("lock-process 1", "3"),
    ]);
    do_steps(&mut tool, &["lock", "checkpoint"], &program);
    assert_eq!(tool.say(&state), "0 2");
    let listed = |pid| {
        let holders = world.machine().gpu(0).holders;
        holders.iter().any(|holder| holder.pid == pid)
    };
    assert!(!listed(program.pid()), "the driver has forgotten it");
    assert_eq!(world.machine().used(), CONTEXT);
    assert_eq!(world.usage(0).charged, before);
    // Other members cannot use this memory, even after `gc` and the cleaning up by members.
    let mut command = world.bare(&world::controller());
    command.arg("gc");
    assert!(world::finish(command).status.success());
    world.bury();
    let filled = other.say("fill f 50M");
    assert!(filled.starts_with("2 "), "{filled}");
    let (used, room) = (world.machine().used(), CAP - HELD);
    assert!(used <= room, "{used} of {room}");
    assert!(used + 50 * MIB + 16 * MIB > room, "{used} of {room}");
    do_steps(&mut tool, &["restore"], &program);
    world.judge(CAP);
    assert!(listed(program.pid()));
    do_steps(&mut tool, &["unlock"], &program);
    assert_eq!(tool.say(&state), "0 0");
    program.expect(&[
        ("alloc b 100M", "2"),
        ("free a", "0"),
        ("alloc b 100M", "0"),
    ]);
    world.judge(CAP);
    for session in [program, other, tool] {
        session.end();
    }
    world.judge_end(CAP);
}

#[test]
fn calls_of_a_locked_program_wait_without_blocking_others() {
    let world = World::new(CAP);
    let (mut program, mut other) = (world.on_gpu(), world.on_gpu());
    program.expect(&[("alloc a 1000M", "0")]);
    let mut tool = tool(&world);
    do_steps(&mut tool, &["lock"], &program);
    program.tell("alloc b 500M");
    program.waits();
    do_steps(&mut tool, &["checkpoint"], &program);
    // The request of the locked program is charged while it waits.
    let filled = other.say("fill f 50M");
    assert!(filled.starts_with("2 "), "{filled}");
    other.expect(&[("free-many f", "0"), ("alloc c 500M", "0")]);
    do_steps(&mut tool, &["restore", "unlock"], &program);
    assert_eq!(program.answer(), "0");
    world.judge(CAP);
    for session in [program, other, tool] {
        session.end();
    }
    world.judge_end(CAP);
}

#[test]
fn a_program_killed_while_checkpointed_leaves_no_charge() {
    let world = World::new(CAP);
    let (mut program, mut other) = (world.on_gpu(), world.on_gpu());
    program.expect(&[("alloc a 2000M", "0")]);
    let mut tool = tool(&world);
    do_steps(&mut tool, &["lock", "checkpoint"], &program);
    drop(program);
    other.expect(&[("alloc b 3000M", "0")]);
    world.bury();
    world.judge(CAP);
    other.end();
    tool.end();
    world.judge_end(CAP);
}

/// The library does not know what a member has that the driver does not list: shared memory that
/// the member may hold stays charged, unless the GPU was seen to free it.
#[test]
fn shared_memory_is_uncharged_while_a_program_is_checkpointed() {
    let world = World::new(CAP);
    let [mut program, mut owner, mut importer] = std::array::from_fn(|_| world.on_gpu());
    program.expect(&[("alloc a 100M", "0")]);
    let before = world.counted(0);
    let mut tool = tool(&world);
    do_steps(&mut tool, &["lock", "checkpoint"], &program);
    owner.expect(&[("create a 300M", "0")]);
    export(&mut owner, "a");
    owner.expect(&[("close fd-a", "0"), ("release a", "0")]);
    assert_eq!(world.counted(0), before);
    let handle = world.file("handle").display().to_string();
    owner.expect(&[
        ("alloc b 300M", "0"),
        (&format!("ipc-get {handle} b"), "0"),
        ("free b", "0"),
    ]);
    assert_eq!(world.counted(0), before);
    // The last holder of the memory frees it; that process was never charged for it.
    owner.expect(&[("create c 300M", "0")]);
    let path = export(&mut owner, "c");
    importer.expect(&[
        (&format!("import-from c {path}"), "0"),
        ("reserve range 300M", "0"),
        ("map range 0 c 300M", "0"),
        ("release c", "0"),
    ]);
    owner.expect(&[("close fd-c", "0"), ("release c", "0")]);
    assert_eq!(world.counted(0), before + 300 * MIB);
    importer.expect(&[("unmap range 0 300M", "0")]);
    assert_eq!(world.counted(0), before);
    do_steps(&mut tool, &["restore", "unlock"], &program);
    world.judge(CAP);
    for session in [program, owner, importer, tool] {
        session.end_quietly();
    }
    world.judge_end(CAP);
}
