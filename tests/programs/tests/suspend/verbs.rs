//! What the verbs do, and what they and others show.

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, CONTEXT, GROUP, HOUR, MIB, Session, World};
use gpulimit_support::wait_until;

use crate::{CAP, Looker, await_line, begin, done, figures, goes_on, holder, run, shown};

#[test]
fn a_process_goes_down_and_comes_back() {
    let world = World::new(CAP);
    let mut looker = Looker::new(&world);
    let mut program = holder(&world, "2000M");
    let before = figures(&world).0;
    let pid = program.pid().to_string();
    let down = done(&world, &["suspend", GROUP]);
    let line = format!("{GROUP}: process {pid} (gpu-script): suspended, 2.5 GiB\n");
    assert_eq!(down.out, line, "{down:?}");
    assert_eq!(world.machine().used(), 0);
    assert_eq!(looker.state(&program), "0 2");
    let (charged, suspended) = figures(&world);
    assert!(suspended >= CONTEXT + 2000 * MIB && charged + suspended == before);
    // The verbs, the metrics and the events say so.
    let process = shown(&world, &program);
    assert_eq!(process["state"], "suspended", "{process}");
    assert_eq!(process["suspended"], suspended);
    let group = done(&world, &["show", GROUP, "--json"]).json()["groups"][0].clone();
    assert_eq!(group["gpus"][0]["suspended"], suspended, "{group}");
    assert!(done(&world, &["show", "--tree"]).out.contains(GROUP));
    done(&world, &["history", GROUP]);
    let event = world.events(EventKind::Suspend)[0].what;
    assert_eq!((event.process.pid, event.bytes), (program.pid(), suspended));
    // Once more changes nothing.
    let again = done(&world, &["suspend", GROUP]);
    assert_eq!(again.out, line, "{again:?}");
    assert_eq!(figures(&world), (charged, suspended));
    assert_eq!(world.events(EventKind::Suspend).len(), 1);
    // Others use the room. The program's call waits.
    let other = holder(&world, "1000M");
    program.tell("alloc b 50M");
    program.waits();
    drop(other.end());
    let up = done(&world, &["resume", "--pid", &pid]);
    assert!(up.out.contains(": running, 2.5 GiB"), "{up:?}");
    assert_eq!(program.answer(), "0");
    program.expect(&[("free b", "0")]);
    assert_eq!(looker.state(&program), "0 0");
    assert_eq!(world.usage(0).suspended, 0);
    assert_eq!(shown(&world, &program)["state"], "running");
    assert_eq!(world.events(EventKind::Resume)[0].what.bytes, suspended);
    world.bury();
    world.judge(CAP);
    let again = done(&world, &["resume", GROUP]);
    assert!(
        again.errors.contains("no process is suspended"),
        "{again:?}"
    );
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn a_set_of_two_groups_and_two_gpus() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_GPUS", "2")]);
    let below = world.below("inner", &["max=3G"]);
    let mut first = holder(&world, "1000M");
    let mut second = world.on_gpu_in("inner");
    second.expect(&[("alloc a 500M", "0"), ("retain 1", "0"), ("current 1", "0")]);
    second.expect(&[("alloc b 700M", "0")]);
    // These have no GPU memory, or have not started.
    let mut idle = world.start();
    idle.expect(&[("init", "0")]);
    let before: Vec<u64> = [0, 1].map(|gpu| world.usage(gpu).charged).into();
    let json = done(&world, &["suspend", GROUP, "--json"]).json();
    assert_eq!(json["schema"].as_u64(), Some(1), "{json}");
    let processes = json["processes"].as_array().expect("a list");
    for program in [&first, &second] {
        let entry = processes.iter().find(|entry| entry["pid"] == program.pid());
        let entry = entry.expect("an entry");
        assert_eq!(entry["state"], "suspended", "{entry}");
        assert_eq!(entry["command"], "gpu-script");
        assert!(
            entry["bytes"].as_u64() >= Some(CONTEXT + 1000 * MIB),
            "{entry}"
        );
    }
    for gpu in [0, 1] {
        assert_eq!(world.machine().gpu(gpu).used, 0);
        let usage = world.usage(gpu);
        assert_eq!(usage.charged + usage.suspended, before[gpu]);
    }
    let ledger = below.ledger().expect("a ledger");
    let suspended = |at: usize| ledger.usage(ledger.devices()[at].index).suspended;
    assert!((0..2).all(|at| suspended(at) > CONTEXT));
    goes_on_after_start(&mut idle);
    // One of them alone, and then the rest.
    let pid = second.pid().to_string();
    done(&world, &["resume", "--pid", &pid]);
    assert_eq!(shown(&world, &second)["state"], "running");
    assert_eq!(shown(&world, &first)["state"], "suspended");
    done(&world, &["resume", GROUP]);
    for program in [&mut first, &mut second] {
        goes_on(program);
    }
    assert_eq!((0..2).map(suspended).sum::<u64>(), 0);
    world.judge(CAP);
    for program in [first, second, idle] {
        program.end();
    }
    world.judge_end(CAP);
}

#[track_caller]
fn goes_on_after_start(program: &mut Session) {
    program.expect(&[("start", "0 0")]);
    goes_on(program);
}

/// A process that has only contexts has nothing charged where contexts do not count.
#[test]
fn contexts_that_do_not_count_go_down_and_come_back() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_GPUS", "2")]);
    world.settings(&["count_context=no"]);
    let below = world.below("inner", &["count_context=no"]);
    let mut looker = Looker::new(&world);
    let mut program = world.on_gpu_in("inner");
    program.expect(&[("retain 1", "0"), ("current 1", "0")]);
    let used = || [0, 1].map(|gpu| world.machine().gpu(gpu).used);
    assert_eq!((figures(&world), used()), ((0, 0), [CONTEXT; 2]));
    let pid = program.pid().to_string();
    // Twice, because the second time changes nothing.
    for _ in 0..2 {
        let down = done(&world, &["suspend", GROUP]);
        let line = format!("{GROUP}/inner: process {pid} (gpu-script): suspended\n");
        assert_eq!((&*down.out, &*down.errors), (&*line, ""));
        assert_eq!((looker.state(&program), used()), ("0 2".into(), [0; 2]));
        let process = shown(&world, &program);
        assert_eq!(process["state"], "suspended", "{process}");
        assert_eq!(process["driver"], 0, "{process}");
    }
    let ledger = below.ledger().expect("a ledger");
    let events = ledger.events(0).into_iter();
    let events = events.filter(|event| event.what.kind == EventKind::Suspend);
    assert_eq!(events.count(), 2, "one for each GPU");
    let said = run(&world, &["doctor", "--pid", &pid]).out;
    assert!(said.contains("suspended, with 1.0 GiB on the"), "{said}");
    done(&world, &["suspend", GROUP, "--freeze"]);
    assert_eq!(shown(&world, &program)["state"], "frozen");
    let up = done(&world, &["resume", GROUP]);
    assert!(up.out.ends_with(": running\n"), "{up:?}");
    assert_eq!(
        (looker.state(&program), used()),
        ("0 0".into(), [CONTEXT; 2])
    );
    assert_eq!(shown(&world, &program)["state"], "running");
    goes_on(&mut program);
    // Another tool resumes it.
    done(&world, &["suspend", GROUP]);
    assert_eq!(looker.say("restore-process", &program), "0");
    assert_eq!(looker.say("unlock-process", &program), "0");
    done(&world, &["resume", GROUP]);
    program.expect(&[("query", "0")]);
    done(&world, &["suspend", GROUP]);
    assert_eq!(looker.state(&program), "0 2");
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    // Without NVML's lists there is no sign of the contexts.
    world.machine().knob("no-proc", "1");
    let none = done(&world, &["suspend", GROUP]);
    assert!(none.errors.contains("NVML shows no memory"), "{none:?}");
    assert!(none.out.ends_with(": running\n"), "{none:?}");
    program.end();
}

#[test]
fn a_group_without_gpu_memory() {
    let world = World::new(CAP);
    let empty = done(&world, &["suspend", GROUP]);
    let text = format!("no process uses a GPU in group '{GROUP}'");
    assert!(empty.errors.contains(&text), "{empty:?}");
    let mut program = world.start();
    program.expect(&[("init", "0")]);
    // The program joins the group, and has no context yet.
    program.say("total 0");
    let left_out = done(&world, &["suspend", GROUP]);
    let text = format!(
        "process {} (gpu-script) runs on: it has no memory",
        program.pid()
    );
    assert!(left_out.errors.contains(&text), "{left_out:?}");
    assert!(left_out.out.ends_with(": running\n"), "{left_out:?}");
    done(&world, &["resume", GROUP]);
    goes_on_after_start(&mut program);
    run(&world, &["suspend", "--pid", "1"]).expect_failure("no process 1 in any group");
    program.end();
    world.judge_end(CAP);
}

/// A process that waits in line for its first context takes the room that the others leave, also if
/// it waits in the group above.
#[test]
fn a_process_that_waits_for_its_first_memory_is_named() {
    let world = World::new(CAP);
    world.settings(&["on_limit=wait", "wait_timeout=600s"]);
    world.below("inner", &[]);
    let name = format!("{GROUP}/inner");
    let mut first = world.on_gpu_in("inner");
    first.expect(&[("alloc a 3400M", "0")]);
    let mut command = world.limited(world::program());
    command.env("GPULIMIT_GROUP", &name);
    let mut second = Session::start(command);
    second.tell("start");
    await_line(&world, 1);
    let down = run(&world, &["suspend", &name]);
    let (one, two) = (first.pid(), second.pid());
    let text = format!("process {two} (gpu-script) runs on: it has no memory on a GPU, and waits");
    down.expect_failure(&text);
    let line = format!("{name}: process {one} (gpu-script): suspended, ");
    assert!(down.out.contains(&line), "{down:?}");
    assert_eq!(second.answer(), "0 0");
    // Now it has memory, so it is suspended with the other one.
    done(&world, &["suspend", &name]);
    assert_eq!(shown(&world, &second)["state"], "suspended");
    second.kill();
    done(&world, &["resume", &name]);
    goes_on(&mut first);
    first.end();
    world.judge_end(CAP);
}

#[test]
fn frozen_processes_are_continued_before_they_come_back() {
    let world = World::new(CAP);
    let mut programs = [holder(&world, "500M"), holder(&world, "500M")];
    let freeze = || {
        let json = done(&world, &["suspend", GROUP, "--freeze", "--json"]).json();
        let processes = json["processes"].as_array().expect("a list");
        assert!(
            processes.iter().all(|one| one["state"] == "frozen"),
            "{json}"
        );
    };
    let stopped = |program: &Session| world::eventually(|| program.is_stopped());
    freeze();
    assert!(programs.iter().all(stopped));
    assert_eq!(shown(&world, &programs[0])["state"], "frozen");
    let json = done(&world, &["suspend", GROUP, "--json"]).json();
    assert_eq!(json["processes"][0]["state"], "frozen", "{json}");
    done(&world, &["resume", GROUP]);
    programs.iter_mut().for_each(goes_on);
    // Without room they are stopped again.
    freeze();
    world.set(100 * MIB);
    run(&world, &["resume", GROUP, "--timeout", "100ms"]).expect_failure("its limit");
    assert!(programs.iter().all(stopped));
    assert_eq!(shown(&world, &programs[0])["state"], "frozen");
    world.set(CAP);
    // Somebody has continued one. The other was killed.
    programs[0].signal(libc::SIGCONT);
    assert!(world::eventually(|| !programs[0].is_stopped()));
    assert_eq!(shown(&world, &programs[0])["state"], "suspended");
    // Without room it stays as it was.
    world.set(100 * MIB);
    run(&world, &["resume", GROUP, "--timeout", "100ms"]).expect_failure("its limit");
    assert!(!programs[0].is_stopped() && programs[1].is_stopped());
    world.set(CAP);
    let [mut program, killed] = programs;
    killed.kill();
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    // Somebody has stopped one without gpulimit.
    done(&world, &["suspend", GROUP]);
    program.signal(libc::SIGSTOP);
    assert!(stopped(&program));
    let refused = run(&world, &["resume", GROUP]);
    refused.expect_failure("is stopped (SIGSTOP or a debugger)");
    program.signal(libc::SIGCONT);
    assert!(world::eventually(|| !program.is_stopped()));
    // Suspended ones can be frozen afterwards.
    freeze();
    assert!(stopped(&program));
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    let world = World::new(CAP);
    let program = holder(&world, "500M");
    done(&world, &["suspend", GROUP]);
    program.kill();
    world.bury();
    assert_eq!(figures(&world), (0, 0));
    done(&world, &["resume", GROUP]);
    world.judge_end(CAP);
}

/// The owner is killed while the driver moves its memory.
#[test]
fn an_owner_killed_during_a_step_does_not_stop_the_others() {
    for (first, step) in [
        ("suspend", "cuCheckpointProcessCheckpoint"),
        ("resume", "cuCheckpointProcessRestore"),
    ] {
        let world = World::new(CAP);
        let (victim, mut other) = (holder(&world, "500M"), holder(&world, "300M"));
        if first == "resume" {
            done(&world, &["suspend", GROUP]);
        }
        let before = (world.machine().used(), world.usage(0).suspended);
        world.machine().knob("delay", &format!("{step}:{HOUR}"));
        let actor = begin(&world, &[first, GROUP]);
        wait_until("the step", || match first {
            "suspend" => world.machine().used() < before.0,
            _ => world.usage(0).suspended < before.1,
        });
        victim.kill();
        world.machine().knob("delay", "0");
        let (status, errors) = actor.end();
        assert!(status.success(), "{first}: {errors}");
        if first == "suspend" {
            assert_eq!(shown(&world, &other)["state"], "suspended");
            done(&world, &["resume", GROUP]);
        }
        goes_on(&mut other);
        world.bury();
        world.judge(CAP);
        other.end();
        world.judge_end(CAP);
    }
}

/// Programs that are killed before their turn, or in it, were neither suspended nor resumed.
#[test]
fn processes_that_end_meanwhile_have_no_events() {
    let world = World::new(CAP);
    let delay = |step: &str| world.machine().knob("delay", step);
    let whose = |kind| -> Vec<u32> {
        let events = world.events(kind).into_iter();
        events.map(|event| event.what.process.pid).collect()
    };
    let [first, second] = [holder(&world, "300M"), holder(&world, "300M")];
    let pid = first.pid();
    delay(&format!("cuCheckpointProcessCheckpoint:{HOUR}"));
    let actor = begin(&world, &["suspend", GROUP]);
    let all = 2 * (CONTEXT + 300 * MIB);
    assert!(world::eventually(|| world.machine().used() < all));
    second.kill();
    delay("0");
    let (status, errors) = actor.end();
    assert!(status.success(), "{errors}");
    assert_eq!(whose(EventKind::Suspend), [pid], "{errors}");
    delay(&format!("cuCheckpointProcessRestore:{HOUR}"));
    let actor = begin(&world, &["resume", GROUP]);
    assert!(world::eventually(|| world.usage(0).suspended == 0));
    first.kill();
    delay("0");
    let (status, errors) = actor.end();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert_eq!(whose(EventKind::Resume), [0; 0], "{errors}");
    world.bury();
    world.judge_end(CAP);
}

#[test]
fn the_event_of_a_kill_has_what_is_on_the_host() {
    let world = World::new(CAP);
    let program = holder(&world, "300M");
    done(&world, &["suspend", GROUP]);
    let suspended = figures(&world).1;
    done(&world, &["kill", GROUP, "--signal", "KILL"]);
    let killed = world.events(EventKind::Kill)[0].what.bytes;
    assert!(killed >= suspended, "{killed} of {suspended}");
    program.kill();
    world.judge_end(CAP);
}

#[test]
fn a_suspension_of_ended_programs_alone_has_failed() {
    let world = World::new(CAP);
    let program = holder(&world, "300M");
    let before = world.machine().used();
    let delay = format!("cuCheckpointProcessCheckpoint:{HOUR}");
    world.machine().knob("delay", &delay);
    let actor = begin(&world, &["suspend", GROUP]);
    wait_until("the driver is at work", || world.machine().used() < before);
    program.kill();
    world.machine().knob("delay", "0");
    let (status, errors) = actor.end();
    let expected = "all processes have ended or called exec meanwhile; nothing was suspended";
    assert!(!status.success() && errors.contains(expected), "{errors}");
    world.bury();
    world.judge_end(CAP);
}
