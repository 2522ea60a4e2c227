//! Programs whose threads call, all the time, the functions that crash or fail in a checkpointed
//! process (tests/driver/README.md, "Checkpoints").

use std::fs;
use std::time::Duration;

use gpulimit_ledger::{Calls, NoWitness};
use gpulimit_programs::world::{GROUP, HOUR, MIB, Session, World};
use gpulimit_support::{side_by_side, wait_until};

use crate::signals::await_errand;
use crate::{CAP, Looker, await_line, begin, done, figures, finish, goes_on, holder, shown, verb};

/// The lines that each thread repeats: a call of one of the functions, and a call that frees what
/// the first one has made.
const LOOPS: [&str; 14] = [
    "query work",
    "query",
    "sync work",
    "sync",
    "sync-context primary-0",
    "query-event mark",
    "sync-event mark",
    "elapsed mark mark",
    "async a 1M work\nfree-async a work",
    "async-from b pool 1M work\nfree-async b work",
    "module code 4096\nunload code",
    "info",
    "name 0",
    "attribute 13 0",
];

/// Suspends and resumes a program with these arguments and a thread for each of [`LOOPS`]. Every
/// call of the threads succeeds.
#[track_caller]
fn suspend_busy_program(arguments: &[&str], knobs: &[(&str, &str)]) {
    let world = World::with(CAP, knobs);
    let mut program = world.start_with(arguments);
    program.expect(&[
        ("start", "0 0"),
        ("stream work", "0"),
        ("event mark work", "0"),
        ("pool pool 0", "0"),
    ]);
    let end = world.file("end");
    // Each round of a thread ends with a file of the thread.
    let marks: Vec<_> = (0..LOOPS.len())
        .map(|at| world.file(&at.to_string()))
        .collect();
    for (lines, mark) in LOOPS.iter().zip(&marks) {
        let [end, mark] = [&end, mark].map(|path| path.display());
        let block = format!("aside {{\nuntil {end} {{\n{lines}\ntouch {mark}\n}}\n}}");
        program.expect(&[(&block, "0")]);
    }
    let go_on = || {
        for mark in &marks {
            let _ = std::fs::remove_file(mark);
        }
        wait_until("all threads go on", || {
            marks.iter().all(|mark| mark.exists())
        });
    };
    let pid = program.pid().to_string();
    for _ in 0..5 {
        go_on();
        done(&world, &["suspend", "--pid", &pid]);
        // Without this pause some threads may not call anything meanwhile.
        std::thread::sleep(Duration::from_millis(20));
        if program.has_ended() {
            panic!("the program died: {:?}", program.end());
        }
        done(&world, &["resume", "--pid", &pid]);
    }
    go_on();
    std::fs::write(&end, "").expect("written");
    let answers = program.say("await");
    for (answer, lines) in answers.split(", ").zip(LOOPS) {
        let only = answer
            .strip_prefix("0:")
            .and_then(|count| count.parse().ok());
        assert!(
            only.is_some_and(|count: u64| count > 0),
            "{lines}: {answer}"
        );
    }
    goes_on(&mut program);
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn calls_wait_while_a_process_is_suspended() {
    suspend_busy_program(&[], &[]);
    // The variants for the per-thread default stream.
    suspend_busy_program(&["--ptsz"], &[]);
}

/// Each call takes a while from its begin to the driver's look at the process, so there are always
/// some under way when a suspension begins.
#[test]
fn calls_under_way_wait_while_a_process_is_suspended() {
    let functions = [
        "cuCtxSynchronize",
        "cuCtxSynchronize_v2",
        "cuDeviceGetAttribute",
        "cuDeviceGetName",
        "cuEventElapsedTime",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuMemAllocAsync",
        "cuMemAllocFromPoolAsync",
        "cuMemGetInfo_v2",
        "cuModuleUnload",
        "cuStreamQuery",
        "cuStreamSynchronize",
    ];
    let latency = functions.map(|function| format!("{function}:8000000"));
    suspend_busy_program(&[], &[("GPULIMIT_SIM_LATENCY", &latency.join(","))]);
}

/// Another tool brings the memory back, and nobody runs a command of gpulimit.
#[test]
fn held_calls_go_on_after_another_tool_has_resumed_the_program() {
    let world = World::new(CAP);
    let mut program = holder(&world, "500M");
    let mut looker = Looker::new(&world);
    let before = figures(&world);
    done(&world, &["suspend", GROUP]);
    program.tell("query");
    program.waits();
    assert_eq!(looker.say("restore-process", &program), "0");
    // The tool has not unlocked the program yet, and its lock is left alone.
    program.waits_on();
    done(&world, &["gc"]);
    assert_eq!(looker.state(&program), "0 1");
    assert_eq!(figures(&world), before, "charged by whoever looks");
    assert_eq!(looker.say("unlock-process", &program), "0");
    assert_eq!(program.answer(), "0");
    assert_eq!(figures(&world), before, "charged before the call goes on");
    goes_on(&mut program);
    world.judge(CAP);
    program.end();
}

/// The program charges its memory before it asks for more, also if it has not waited at the gate.
#[test]
fn a_program_that_another_tool_has_resumed_gets_what_it_asks_for() {
    let world = World::new(CAP);
    let mut program = holder(&world, "1000M");
    let mut looker = Looker::new(&world);
    let before = figures(&world).0;
    done(&world, &["suspend", GROUP]);
    assert_eq!(looker.say("restore-process", &program), "0");
    assert_eq!(looker.say("unlock-process", &program), "0");
    program.expect(&[("alloc b 100M", "0")]);
    assert_eq!(figures(&world), (before + 100 * MIB, 0));
    assert!(!world.ledger().has_suspended(), "what `ps` shows");
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

/// The memory of a suspended program is charged once another tool has brought it back, whoever
/// looks, also if others have its room by then.
#[test]
fn whoever_finds_a_program_resumed_by_another_tool_charges_it() {
    for verb in ["gc", "resume", "resume that waits"] {
        let world = World::new(CAP);
        let mut program = holder(&world, "2500M");
        let mut looker = Looker::new(&world);
        let own = figures(&world).0;
        done(&world, &["suspend", GROUP]);
        let mut other = holder(&world, "2500M");
        let pid = program.pid().to_string();
        let resume = ["resume", "--pid", &pid, "--timeout", "1h"];
        let mut bring_back = || {
            assert_eq!(looker.say("restore-process", &program), "0");
            assert_eq!(looker.say("unlock-process", &program), "0");
        };
        let only = [verb];
        if verb == "resume that waits" {
            let actor = begin(&world, &resume);
            await_line(&world, 1);
            bring_back();
            actor.signal(libc::SIGTERM);
            assert!(!actor.end().0.success());
        } else {
            bring_back();
            let by_pid = verb == "resume";
            done(&world, if by_pid { &resume[..] } else { &only });
        }
        let (charged, suspended) = figures(&world);
        assert_eq!((charged, suspended), (2 * own, 0), "{verb}");
        program.expect(&[("query", "0")]);
        for program in [&mut program, &mut other] {
            let answer = program.say("alloc b 100M");
            assert!(answer.starts_with('2'), "{verb}: {answer}");
        }
        other.expect(&[("free a", "0")]);
        goes_on(&mut program);
        for program in [program, other] {
            program.end();
        }
    }
}

/// A command that is killed at any time leaves no program waiting, unless the program's memory is
/// on the host. Nobody runs another command.
#[test]
fn a_program_goes_on_after_a_killed_command() {
    let deaths = [
        ("suspend", "cuCheckpointProcessLock:before"),
        ("suspend", "cuCheckpointProcessLock:after"),
        ("suspend", "cuCheckpointProcessCheckpoint:before"),
        ("resume", "cuCheckpointProcessRestore:after"),
        ("resume", "cuCheckpointProcessUnlock:after"),
    ];
    side_by_side(deaths, |(name, order)| {
        let world = World::new(CAP);
        let mut program = holder(&world, "300M");
        let before = figures(&world);
        if name == "resume" {
            done(&world, &["suspend", GROUP]);
        }
        let mut dying = verb(&world, &[name, GROUP]);
        dying.env("GPULIMIT_SIM_KILL", order);
        assert_eq!(finish(dying).status, None, "{order}");
        world.bury();
        program.expect(&[("query", "0"), ("sync", "0")]);
        goes_on(&mut program);
        assert_eq!(figures(&world), before, "{order}");
        // The mark of the command stays until a verb that changes something ends its work.
        assert_eq!(shown(&world, &program)["state"], "abandoned", "{order}");
        done(&world, &["gc"]);
        assert_eq!(shown(&world, &program)["state"], "running", "{order}");
        program.end();
        world.judge_end(CAP);
    });
}

/// A long wait of one thread for the GPU stops no other call while `suspend` waits for it, and
/// nothing waits any more when `suspend` is killed.
#[test]
fn a_long_wait_for_the_gpu_stops_no_query() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    program.expect(&[("stream work", "0"), ("event mark work", "0")]);
    let machine = world.machine();
    machine.knob("latency", &format!("cuStreamSynchronize:{HOUR}"));
    let [end, seen] = ["end", "seen"].map(|name| world.file(name));
    let [until, touch] = [&end, &seen].map(|path| path.display());
    let queries = format!("aside {{\nuntil {until} {{\nquery-event mark\ntouch {touch}\n}}\n}}");
    program.expect(&[("aside {\nsync work\n}", "0"), (&queries, "0")]);
    let ledger = world.ledger();
    let own = ledger.processes(&NoWitness)[0].identity;
    let waits = || ledger.calls_under_way(&own, Calls::Waits) == 1;
    wait_until("the wait is under way", waits);
    let actor = begin(&world, &["suspend", GROUP, "--timeout", "1h"]);
    await_errand(&world);
    let go_on = || {
        for _ in 0..100 {
            let _ = std::fs::remove_file(&seen);
            wait_until("the queries go on", || seen.exists());
        }
    };
    go_on();
    // A wait of another thread is held back for a moment only, and many queries pass before it.
    wait_until("queries pass a wait that is held back", || {
        program.tell("sync-event mark");
        let mut passed = 0;
        while passed < 100 {
            if let Some(answer) = program.printed() {
                assert!(answer.ends_with("= 0"), "{answer}");
                return false;
            }
            passed += u32::from(std::fs::remove_file(&seen).is_ok());
        }
        program.answer() == "0"
    });
    actor.kill();
    program.expect(&[("sync-event mark", "0")]);
    go_on();
    std::fs::write(&end, "").expect("written");
    machine.knob("latency", "0");
    assert!(program.say("await").starts_with("0:1, 0:"));
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}

/// Starts `suspend` while a call of the program is under way that does not end.
fn suspend_during_a_call(world: &World, program: &mut Session) -> Session {
    program.expect(&[("stream work", "0")]);
    world
        .machine()
        .knob("latency", &format!("cuStreamQuery:{HOUR}"));
    program.expect(&[("aside {\nquery work\n}", "0")]);
    let actor = begin(world, &["suspend", GROUP, "--timeout", "1h"]);
    await_errand(world);
    actor
}

#[test]
fn a_process_that_is_stopped_during_the_wait_for_a_call_goes_on() {
    let world = World::new(CAP);
    let mut program = holder(&world, "500M");
    let actor = suspend_during_a_call(&world, &mut program);
    program.signal(libc::SIGSTOP);
    actor.signal(libc::SIGTERM);
    let (status, said) = actor.end();
    assert!(!status.success(), "{said}");
    program.signal(libc::SIGCONT);
    world.machine().knob("latency", "0");
    program.expect(&[("await", "0:1"), ("query work", "0")]);
    goes_on(&mut program);
    assert_eq!(shown(&world, &program)["state"], "running");
    program.end();
    world.judge_end(CAP);
}

#[test]
fn the_next_program_of_a_process_is_left_alone() {
    let world = World::new(CAP);
    let mut program = holder(&world, "500M");
    let actor = suspend_during_a_call(&world, &mut program);
    program.expect(&[("exec", "0"), ("start", "0 0"), ("alloc a 100M", "0")]);
    let (status, said) = actor.end();
    assert!(!status.success() && said.contains("have ended"), "{said}");
    world.machine().knob("latency", "0");
    program.expect(&[("query", "0")]);
    assert_eq!(shown(&world, &program)["state"], "running");
    program.end();
    world.judge_end(CAP);
}

/// Begins to suspend the group, until the driver is asked to lock the program.
fn suspend_until_the_lock(world: &World) -> Session {
    let lock = format!("cuCheckpointProcessLock:{HOUR}");
    world.machine().knob("latency", &lock);
    let actor = begin(world, &["suspend", GROUP, "--timeout", "1h"]);
    await_errand(world);
    // A second thread watches the call of the driver.
    let threads = format!("/proc/{}/task", actor.pid());
    let asks = || fs::read_dir(&threads).is_ok_and(|threads| threads.count() == 2);
    wait_until("the driver is asked", asks);
    actor
}

/// The driver knows the process by its pid, so it locks the next program.
#[test]
fn the_next_program_of_a_process_does_not_stay_locked() {
    for has_same_slot in [false, true] {
        let world = World::new(CAP);
        let mut program = holder(&world, "500M");
        let actor = suspend_until_the_lock(&world);
        program.expect(&[("exec", "0")]);
        if has_same_slot {
            world.bury();
        }
        program.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
        world.machine().knob("latency", "0");
        let (status, said) = actor.end();
        let expected = "have ended or called exec";
        assert!(!status.success() && said.contains(expected), "{said}");
        assert_eq!(Looker::new(&world).state(&program), "0 0");
        goes_on(&mut program);
        assert_eq!(shown(&world, &program)["state"], "running");
        program.end();
        world.judge_end(CAP);
    }
}

/// NVML lists the former program's memory when the command looks, and not any more when it acts:
/// no figure would tell `resume` that the process is suspended.
#[test]
fn a_program_without_memory_is_not_suspended() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "3600000")]);
    let mut program = holder(&world, "500M");
    let total = format!("0 {CAP}");
    program.expect(&[("exec", "0"), ("init", "0"), ("total 0", &total)]);
    let actor = suspend_until_the_lock(&world);
    world.machine().knob("kill-lag-ms", "0");
    let is_free = || world.machine().gpus()[0].holders.is_empty();
    wait_until("the former program's memory is free", is_free);
    world.machine().knob("latency", "0");
    let (status, said) = actor.end();
    assert!(status.success(), "{said}");
    assert_eq!(Looker::new(&world).state(&program), "0 0");
    program.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    program.end();
    world.judge_end(CAP);
}

/// Threads of a suspended process run on, so one of them can become another program.
#[test]
fn a_suspended_process_that_becomes_another_program_is_charged_for_that_one_alone() {
    let world = World::new(CAP);
    let mut program = holder(&world, "2500M");
    done(&world, &["suspend", GROUP]);
    assert!(figures(&world).1 > 2500 * MIB);
    program.expect(&[("exec", "0")]);
    // No command cleans the former program's slot.
    wait_until("nothing is suspended any more", || figures(&world).1 == 0);
    // Commands that look for suspended processes leave the former program's memory alone.
    done(&world, &["resume", GROUP]);
    // Room for the memory of the former program would not be left.
    program.expect(&[("start", "0 0"), ("alloc a 2500M", "0")]);
    world.judge(CAP);
    assert_eq!(shown(&world, &program)["state"], "running");
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}

/// The driver lists the former program's memory for longer than the new program waits for it, so
/// the process has two slots.
#[test]
fn a_process_that_has_become_another_program_is_suspended_once() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "600")]);
    let mut program = holder(&world, "500M");
    program.expect(&[("exec", "0"), ("start", "0 0"), ("alloc a 100M", "0")]);
    for verb in ["suspend", "resume"] {
        let said = done(&world, &[verb, GROUP]);
        assert_eq!(said.out.lines().count(), 1, "{said:?}");
    }
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}
