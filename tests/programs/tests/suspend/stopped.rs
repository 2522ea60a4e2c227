//! Processes that are stopped, or that the driver does not let go, in the middle of a command. None
//! is lost, and the command tells in what state it leaves each.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, Freezer, GROUP, HOUR, Session, World};
use serde_json::Value;

use crate::signals::await_errand;
use crate::{CAP, Done, Looker, done, figures, finish, goes_on, holder, run, shown, verb};

const RESTORE: &str = "cuCheckpointProcessRestore";

/// Runs a verb, and does something when the driver has done the function for the first process and
/// has not answered yet. `state` is the state of that process then.
fn interrupted(
    world: &World,
    programs: &[Session],
    arguments: &[&str],
    (function, state): (&str, &str),
    then: impl FnOnce(usize),
) -> Done {
    let mut looker = Looker::new(world);
    world.machine().knob("delay", &format!("{function}:{HOUR}"));
    let command = verb(world, arguments);
    let actor = thread::spawn(move || finish(command));
    let mut first = None;
    assert!(world::eventually(|| {
        first = (programs.iter()).position(|program| looker.state(program) == state);
        first.is_some()
    }));
    then(first.expect("a process"));
    world.machine().knob("delay", "0");
    actor.join().expect("it ends")
}

#[test]
fn a_process_that_is_stopped_while_the_driver_works_is_named() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    let mut looker = Looker::new(&world);
    let delay = format!("cuCheckpointProcessCheckpoint:{HOUR}");
    world.machine().knob("delay", &delay);
    let mut command = verb(&world, &["suspend", GROUP]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut actor = command.spawn().expect("started");
    assert!(world::eventually(|| looker.state(&program) == "0 2"));
    stop(&program);
    let mut said = String::new();
    let errors = actor.stderr.take().expect("piped");
    BufReader::new(errors).read_line(&mut said).expect("read");
    assert!(
        said.contains("has been stopped, and the driver waits for it"),
        "{said}"
    );
    go_on(&program);
    world.machine().knob("delay", "0");
    assert!(actor.wait().is_ok_and(|status| status.success()));
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    program.end();
}

fn stop(program: &Session) {
    program.signal(libc::SIGSTOP);
    assert!(world::eventually(|| program.is_stopped()));
}

fn go_on(program: &Session) {
    program.signal(libc::SIGCONT);
    assert!(world::eventually(|| !program.is_stopped()));
}

/// Returns what the JSON of a run says about the state of a program.
#[track_caller]
fn told(done: &Done, program: &Session) -> Value {
    let json = done.json();
    let mut processes = json["processes"].as_array().expect("a list").iter();
    let entry = processes.find(|entry| entry["pid"] == program.pid());
    entry.expect("an entry")["state"].clone()
}

fn end(world: &World, programs: impl IntoIterator<Item = Session>) {
    for mut program in programs {
        goes_on(&mut program);
        program.end();
    }
    assert_eq!(world.events(EventKind::Lost).len(), 0);
    world.judge_end(CAP);
}

#[test]
fn a_process_that_is_stopped_during_a_resume_stays_suspended() {
    let world = World::new(CAP);
    let programs = [holder(&world, "300M"), holder(&world, "300M")];
    done(&world, &["suspend", GROUP]);
    let mut first = 0;
    let arguments = ["resume", GROUP, "--json"];
    let up = interrupted(&world, &programs, &arguments, (RESTORE, "0 1"), |at| {
        first = at;
        stop(&programs[1 - at]);
    });
    let (back, down) = (&programs[first], &programs[1 - first]);
    up.expect_failure("is stopped (SIGSTOP or a debugger)");
    let pid = down.pid();
    let remedy = format!("stays suspended: `gpulimit resume --pid {pid}` brings it back");
    up.expect_failure(&remedy);
    assert_eq!(told(&up, back), "running");
    assert_eq!(told(&up, down), "suspended");
    assert_eq!(shown(&world, down)["state"], "suspended");
    let resumed = world.events(EventKind::Resume);
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    assert_eq!(resumed[0].what.process.pid, back.pid());
    // It is refused before anything is touched.
    run(&world, &["resume", GROUP]).expect_failure("is stopped (SIGSTOP or a debugger)");
    go_on(down);
    done(&world, &["resume", "--pid", &pid.to_string()]);
    world.judge(CAP);
    end(&world, programs);
}

/// A process that waits for its turn is stopped: none comes back without it.
#[test]
fn a_process_that_is_stopped_while_resume_waits_keeps_all_suspended() {
    let world = World::new(CAP);
    let programs = [holder(&world, "800M"), holder(&world, "800M")];
    done(&world, &["suspend", GROUP]);
    let before = figures(&world);
    let other = holder(&world, "2000M");
    let command = verb(&world, &["resume", GROUP]);
    let actor = thread::spawn(move || finish(command));
    await_errand(&world);
    stop(&programs[1]);
    other.end();
    let up = actor.join().expect("it ends");
    up.expect_failure("is stopped (SIGSTOP or a debugger)");
    for program in &programs {
        let line = format!("process {} (gpu-script): suspended", program.pid());
        assert!(up.out.contains(&line), "{up:?}");
        assert_eq!(shown(&world, program)["state"], "suspended");
    }
    assert_eq!(figures(&world), before);
    go_on(&programs[1]);
    done(&world, &["resume", GROUP]);
    end(&world, programs);
}

/// A tool may stop a process for a moment, as strace and debuggers do.
#[test]
fn a_process_that_is_stopped_again_and_again_is_never_lost() {
    let world = World::new(CAP);
    let program = holder(&world, "300M");
    let mut looker = Looker::new(&world);
    let run = |arguments: &[&str]| {
        let command = verb(&world, arguments);
        let actor = thread::spawn(move || finish(command));
        while !actor.is_finished() {
            program.signal(libc::SIGSTOP);
            program.signal(libc::SIGCONT);
        }
        actor.join().expect("it ends")
    };
    for _ in 0..40 {
        run(&["suspend", GROUP]);
        let up = run(&["resume", GROUP]);
        assert!(!up.errors.contains("lost"), "{up:?}");
    }
    go_on(&program);
    done(&world, &["resume", GROUP]);
    assert_eq!(looker.state(&program), "0 0");
    world.judge(CAP);
    end(&world, [program]);
}

#[test]
fn a_process_that_stays_locked_fails_the_command() {
    let world = World::new(CAP);
    let programs = [holder(&world, "300M"), holder(&world, "300M")];
    let mut looker = Looker::new(&world);
    done(&world, &["suspend", GROUP]);
    let machine = world.machine();
    machine.knob("fail", "cuCheckpointProcessUnlock:999@1");
    let up = run(&world, &["resume", GROUP, "--json"]);
    machine.knob("fail", "none");
    up.expect_failure("cannot unlock process");
    up.expect_failure("the driver answers 999");
    let state = |program: &Session| told(&up, program);
    let (locked, back): (Vec<_>, Vec<_>) =
        (programs.iter()).partition(|program| state(program) == "locked");
    assert_eq!((locked.len(), back.len()), (1, 1), "{up:?}");
    assert_eq!(state(back[0]), "running");
    let pid = locked[0].pid();
    up.expect_failure(&format!(
        "process {pid} (gpu-script) is left half-done, its calls of CUDA wait: `gpulimit resume \
         --pid {pid}` lets it go on, or `kill -9 {pid}` ends it"
    ));
    assert_eq!(looker.state(locked[0]), "0 1");
    assert_eq!(figures(&world).1, 0, "the memory is back");
    done(&world, &["resume", "--pid", &pid.to_string()]);
    assert_eq!(world.events(EventKind::Resume).len(), 2);
    // One that is stopped before it is unlocked.
    done(&world, &["suspend", GROUP]);
    let pids = programs.each_ref().map(|program| program.pid().to_string());
    done(&world, &["resume", "--pid", &pids[1]]);
    let up = interrupted(
        &world,
        &programs,
        &["resume", "--pid", &pids[0], "--json"],
        (RESTORE, "0 1"),
        |_| stop(&programs[0]),
    );
    up.expect_failure("is stopped (SIGSTOP or a debugger)");
    up.expect_failure("lets it go on once it runs again");
    assert_eq!(told(&up, &programs[0]), "locked");
    go_on(&programs[0]);
    done(&world, &["gc"]);
    world.judge(CAP);
    end(&world, programs);
}

/// `suspend` cannot unlock a process that is stopped.
#[test]
fn suspend_names_what_it_leaves_locked() {
    let world = World::new(CAP);
    let programs = [holder(&world, "300M"), holder(&world, "300M")];
    let before = figures(&world);
    let mut first = 0;
    let lock = ("cuCheckpointProcessLock", "0 1");
    let down = interrupted(&world, &programs, &["suspend", GROUP], lock, |at| {
        first = at;
        stop(&programs[at]);
    });
    down.expect_failure("is stopped (SIGSTOP or a debugger)");
    let pid = programs[first].pid();
    let left = format!(
        "process {pid} (gpu-script) is left half-done, its calls of CUDA wait: `gpulimit resume \
         --pid {pid}` lets it go on once it runs again"
    );
    down.expect_failure(&left);
    // Nor can `gc`.
    let cleaned = done(&world, &["gc"]);
    assert!(cleaned.errors.contains(&left), "{cleaned:?}");
    go_on(&programs[first]);
    done(&world, &["resume", "--pid", &pid.to_string()]);
    assert_eq!(figures(&world), before);
    end(&world, programs);
}

/// `docker pause` freezes the control group of a container.
#[test]
fn a_process_of_a_frozen_cgroup_is_refused_by_name() {
    let Some(freezer) = Freezer::new() else {
        return;
    };
    let world = World::new(CAP);
    let programs = [holder(&world, "300M"), holder(&world, "300M")];
    let mut looker = Looker::new(&world);
    done(&world, &["suspend", GROUP]);
    let before = figures(&world);
    freezer.hold(&programs[1]);
    freezer.set(true);
    let refused = run(&world, &["resume", GROUP]);
    let pid = programs[1].pid();
    refused.expect_failure(&format!(
        "process {pid} (gpu-script): the process's cgroup is frozen: thaw the process's cgroup"
    ));
    for program in &programs {
        assert_eq!(looker.state(program), "0 2");
        assert_eq!(shown(&world, program)["state"], "suspended");
    }
    assert_eq!(figures(&world), before);
    freezer.set(false);
    done(&world, &["resume", GROUP]);
    end(&world, programs);
}
