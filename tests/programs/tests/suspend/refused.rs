//! What is refused before anything is touched, and sets of which all processes go down or none.

use std::os::unix::process::CommandExt;
use std::process::Command;

use gpulimit_base::units::Size;
use gpulimit_group::{Access, Members};
use gpulimit_ledger::EventKind;
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::{self, GROUP, HOUR, MIB, Session, World};
use gpulimit_support::{is_root, wait_until};

use crate::others::diagnosed;
use crate::{CAP, Done, Looker, begin, done, figures, finish, goes_on, holder, run, shown, verb};

/// Asserts that suspending the group fails with this text, and changes nothing for the programs.
#[track_caller]
fn expect_refused(world: &World, programs: &mut [&mut Session], text: &str) -> Done {
    let before = figures(world);
    let refused = run(world, &["suspend", GROUP, "--timeout", "500ms"]);
    refused.expect_failure(text);
    assert_eq!(figures(world), before, "{refused:?}");
    let mut looker = Looker::new(world);
    for program in programs {
        assert_eq!(looker.state(program), "0 0", "{refused:?}");
        goes_on(program);
    }
    refused
}

#[test]
fn every_obstacle_is_named_and_nothing_is_touched() {
    let world = World::new(CAP);
    let (mut program, mut other) = (holder(&world, "300M"), holder(&world, "200M"));
    let all: &[(&str, &str, &str)] = &[
        (
            "managed m 10M",
            "free m",
            "): the process has managed memory (cuMemAllocManaged, __managed__ variables or a \
             managed pool): wait until that is over, or change the program",
        ),
        (
            "create c 2M 0\nexport 9 c",
            "close 9\nrelease c",
            "exported",
        ),
        (
            "stream s\ncapture s",
            "end-capture s\ndestroy-stream s",
            "captures a stream into a graph",
        ),
    ];
    for (begin, end, text) in all {
        for line in begin.lines() {
            assert!(program.say(line).starts_with('0'), "{line}");
        }
        let refused = run(&world, &["suspend", GROUP]);
        refused.expect_failure(text);
        assert!(
            refused.errors.contains("; nothing was suspended"),
            "{refused:?}"
        );
        for line in end.lines() {
            let _ = program.say(line);
        }
        goes_on(&mut other);
    }
    let lists = |value| world.machine().knob("all-lists", value);
    lists("1");
    expect_refused(&world, &mut [&mut program, &mut other], "client of MPS");
    lists("0");
    world.settings(&["suspended.max=600M"]);
    let text = "may have 600.0 MiB on the host (suspended.max)";
    expect_refused(&world, &mut [&mut program, &mut other], text);
    world.settings(&["suspended.max=max"]);
    let limited = std::process::Command::new("prlimit")
        .args(["--pid", &program.pid().to_string(), "--data=1000000:"])
        .status();
    assert!(limited.expect("started").success());
    expect_refused(
        &world,
        &mut [&mut program, &mut other],
        "does not fit into the host's memory",
    );
    let unlimited = std::process::Command::new("prlimit")
        .args(["--pid", &program.pid().to_string(), "--data=unlimited:"])
        .status();
    assert!(unlimited.expect("started").success());
    // A process that is stopped, and one that another program has locked.
    other.signal(libc::SIGSTOP);
    assert!(world::eventually(|| other.is_stopped()));
    let refused = run(&world, &["suspend", GROUP]);
    refused.expect_failure("the process is stopped");
    other.signal(libc::SIGCONT);
    let mut looker = Looker::new(&world);
    assert_eq!(looker.say("lock-process", &other), "0");
    let refused = run(&world, &["suspend", GROUP]);
    refused.expect_failure("another program has locked or suspended");
    assert_eq!(looker.state(&other), "0 1");
    assert_eq!(looker.say("unlock-process", &other), "0");
    assert_eq!(looker.state(&program), "0 0");
    for program in [program, other] {
        program.end();
    }
    world.judge_end(CAP);
}

#[test]
fn suspended_max_holds_at_every_level() {
    let world = World::new(CAP);
    world.below("inner", &["suspended.max=900M"]);
    let mut first = holder(&world, "300M");
    let mut second = world.on_gpu_in("inner");
    second.expect(&[("alloc a 300M", "0")]);
    done(&world, &["suspend", GROUP]);
    done(&world, &["resume", GROUP]);
    world.settings(&["suspended.max=1200M"]);
    let refused = expect_refused(&world, &mut [&mut first, &mut second], "suspended.max");
    assert!(
        refused.errors.contains(&format!("group '{GROUP}' may")),
        "{refused:?}"
    );
    // One after the other is too much as well.
    done(&world, &["suspend", "--pid", &first.pid().to_string()]);
    let refused = run(&world, &["suspend", "--pid", &second.pid().to_string()]);
    refused.expect_failure("MiB there");
    done(&world, &["resume", GROUP]);
    second.expect(&[("alloc b 200M", "0")]);
    world.settings(&["suspended.max=max"]);
    let inner = format!("group '{GROUP}/inner' may have 900.0 MiB");
    expect_refused(&world, &mut [&mut first, &mut second], &inner);
    for program in [first, second] {
        program.end();
    }
    world.judge_end(CAP);
}

/// Their slots are not cleaned yet: no other command has run.
#[test]
fn suspended_max_leaves_out_programs_that_are_gone() {
    let world = World::new(CAP);
    world.settings(&["suspended.max=1000M"]);
    let mut program = holder(&world, "300M");
    let pid = program.pid().to_string();
    for executes in [false, true] {
        let mut gone = holder(&world, "300M");
        done(&world, &["suspend", "--pid", &gone.pid().to_string()]);
        let next = match executes {
            true => {
                gone.expect(&[("exec", "0"), ("init", "0")]);
                Some(gone)
            }
            false => {
                gone.kill();
                None
            }
        };
        done(&world, &["suspend", "--pid", &pid]);
        done(&world, &["resume", "--pid", &pid]);
        next.map(Session::end);
        world.bury();
    }
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}

/// The key counts what `max` counts.
#[test]
fn suspended_max_leaves_out_contexts_that_do_not_count() {
    let world = World::new(CAP);
    world.settings(&["count_context=no", "suspended.max=400M"]);
    let mut program = holder(&world, "300M");
    done(&world, &["suspend", GROUP]);
    done(&world, &["resume", GROUP]);
    program.expect(&[("alloc b 200M", "0")]);
    expect_refused(&world, &mut [&mut program], "may have 400.0 MiB");
    program.end();
}

#[test]
fn two_commands_at_once_keep_to_suspended_max() {
    let world = World::new(CAP);
    world.settings(&["suspended.max=1500M"]);
    let programs = [holder(&world, "500M"), holder(&world, "500M")];
    let [first, second] = programs.each_ref().map(|program| program.pid().to_string());
    // The first command is in the middle of its copy when the second one looks.
    world.machine().knob("step", HOUR);
    let actor = begin(&world, &["suspend", "--pid", &first]);
    let is_under_way = || shown(&world, &programs[0])["state"] == "suspending";
    assert!(world::eventually(is_under_way));
    run(&world, &["suspend", "--pid", &second]).expect_failure("suspended.max");
    world.machine().knob("step", "0");
    let (status, errors) = actor.end();
    assert!(status.success(), "{errors}");
    assert_eq!(shown(&world, &programs[1])["state"], "running");
    done(&world, &["resume", GROUP]);
    for program in programs {
        program.end();
    }
    world.judge_end(CAP);
}

#[test]
fn one_process_that_cannot_go_keeps_all() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_CHECKPOINT", "none")]);
    let mut programs = [(); 3].map(|()| holder(&world, "200M"));
    let before = figures(&world);
    let mut looker = Looker::new(&world);
    // Work under way.
    let used = world.machine().used();
    world
        .machine()
        .knob("delay", &format!("cuMemAlloc_v2:{HOUR}"));
    programs[2].tell("alloc b 10M");
    assert!(world::eventually(|| world.machine().used() > used));
    let late = run(&world, &["suspend", GROUP, "--timeout", "100ms"]);
    late.expect_failure("has work on a GPU under way");
    late.expect_failure("or with a longer --timeout; nothing was suspended");
    for program in &programs {
        assert_eq!(looker.state(program), "0 0");
    }
    world.machine().knob("delay", "0");
    assert_eq!(programs[2].answer(), "0");
    programs[2].expect(&[("free b", "0")]);
    // The second checkpoint fails.
    let mut failing = verb(&world, &["suspend", GROUP]);
    failing.env("LD_PRELOAD", "");
    world
        .machine()
        .knob("fail", "cuCheckpointProcessCheckpoint:999@2");
    finish(failing).expect_failure("does not say why; nothing was suspended");
    world.machine().knob("fail", "none");
    for program in &mut programs {
        assert_eq!(looker.state(program), "0 0");
        goes_on(program);
    }
    assert_eq!(figures(&world), before);
    let state = "cuCheckpointProcessGetState:999";
    world.machine().knob("fail", state);
    let unknown = run(&world, &["suspend", GROUP]);
    unknown.expect_failure("does not say why; nothing was suspended");
    world.machine().knob("fail", "none");
    // One becomes unfit between the look and the lock.
    world
        .machine()
        .knob("latency", &format!("cuCheckpointProcessLock:{HOUR}"));
    let actor = begin(&world, &["suspend", GROUP]);
    let at_work = || {
        let processes = world.ledger().processes(&gpulimit_ledger::NoWitness);
        let errand =
            |process: &gpulimit_ledger::ProcessUsage| world.ledger().errand_of(&process.identity).0;
        processes
            .iter()
            .any(|process| errand(process) == gpulimit_ledger::Errand::Suspend)
    };
    assert!(world::eventually(at_work));
    programs[2].expect(&[("managed m 10M", "0")]);
    world.machine().knob("latency", "0");
    let (status, errors) = actor.end();
    assert!(
        !status.success() && errors.contains("managed pool); nothing was suspended"),
        "{errors}"
    );
    for program in &mut programs {
        assert_eq!(looker.state(program), "0 0");
        goes_on(program);
    }
    programs[2].expect(&[("free m", "0")]);
    world.judge(CAP);
    for program in programs {
        program.end();
    }
    world.judge_end(CAP);
}

/// The driver answers no question about a stopped process. If one is stopped while others are
/// locked, they do not wait for it.
#[test]
fn a_process_that_is_stopped_meanwhile_does_not_keep_others_locked() {
    let world = World::new(CAP);
    let mut programs = [(); 2].map(|()| holder(&world, "200M"));
    let before = figures(&world);
    let mut looker = Looker::new(&world);
    world
        .machine()
        .knob("delay", &format!("cuCheckpointProcessLock:{HOUR}"));
    let actor = begin(&world, &["suspend", GROUP]);
    assert!(world::eventually(|| looker.state(&programs[0]) == "0 1"));
    programs[1].signal(libc::SIGSTOP);
    world.machine().knob("delay", "0");
    let (status, errors) = actor.end();
    assert!(!status.success(), "{errors}");
    assert!(
        errors.contains("is stopped (SIGSTOP or a debugger)"),
        "{errors}"
    );
    assert_eq!(looker.state(&programs[0]), "0 0");
    goes_on(&mut programs[0]);
    programs[1].signal(libc::SIGCONT);
    done(&world, &["gc"]);
    assert_eq!(looker.state(&programs[1]), "0 0");
    assert!(world.ledger().abandoned().is_empty());
    assert_eq!(figures(&world), before);
    for mut program in programs {
        goes_on(&mut program);
        program.end();
    }
    world.judge_end(CAP);
}

/// A checkpoint that fails for ever leaves a process that can only be ended.
#[test]
fn a_process_that_the_driver_gives_up_is_lost() {
    let world = World::new(CAP);
    let program = holder(&world, "200M");
    world.machine().knob("checkpoint", "checkpoint-fails");
    let failed = run(&world, &["suspend", GROUP]);
    failed.expect_failure("the driver answers 999");
    assert!(!failed.errors.contains("nothing was"), "{failed:?}");
    world.machine().knob("checkpoint", "none");
    assert_eq!(world.events(EventKind::Lost).len(), 1);
    assert_eq!(crate::shown(&world, &program)["state"], "lost");
    run(&world, &["suspend", GROUP]).expect_failure("the driver has given up");
    assert!(
        world.usage(0).charged > 200 * MIB,
        "the memory is on the GPU"
    );
    let lost = run(&world, &["resume", GROUP]);
    lost.expect_failure("");
    assert!(
        lost.out.contains(": lost") && !lost.errors.contains("no process"),
        "{lost:?}"
    );
    assert!(lost.errors.contains("--kill-lost` ends it"), "{lost:?}");
    // Also while it is stopped.
    program.signal(libc::SIGSTOP);
    wait_until("the process is stopped", || program.is_stopped());
    let killed = run(&world, &["resume", GROUP, "--kill-lost"]);
    killed.expect_failure("");
    assert!(killed.out.contains(": killed"), "{killed:?}");
    world.bury();
    world.judge_end(CAP);
    drop(program);
}

#[test]
fn another_users_process_is_refused() {
    if !is_root() {
        return;
    }
    let world = World::new(CAP);
    let access = Access {
        owner: None,
        members: Members::All,
    };
    let limits = LimitSet::all(Size::Bytes(CAP));
    let created = world.root().create_for("shared", &limits, access);
    created.expect("created");
    let mut command = world.limited(world::program());
    command.env("GPULIMIT_GROUP", "shared");
    let mut program = Session::start(command);
    program.expect(&[("start", "0 0"), ("alloc a 200M", "0")]);
    let mut looker = Looker::new(&world);
    let as_stranger = |arguments: &[&str]| {
        let mut stranger = verb(&world, arguments);
        stranger.uid(40_001).gid(40_001).current_dir("/");
        finish(stranger)
    };
    for state in ["0 0", "0 2"] {
        for what in ["suspend", "resume"] {
            let refused = as_stranger(&[what, "shared"]);
            refused.expect_failure("cannot be proven to be a member: you may not read");
            refused.expect_failure("the process belongs to the user with id 0; run gpulimit as");
            assert_eq!(looker.state(&program), state);
        }
        as_stranger(&["suspend", GROUP]).expect_failure("you are not allowed to read");
        // These look only.
        as_stranger(&["ps"]);
        as_stranger(&["gc"]);
        assert_eq!(looker.state(&program), state);
        if state == "0 0" {
            done(&world, &["suspend", "shared"]);
        }
    }
    done(&world, &["resume", "shared"]);
    goes_on(&mut program);
    program.end();
}

/// Runs a command with another program around it.
pub fn around(wrapper: &[&str], inner: &Command) -> Command {
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(inner.get_program());
    command.args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// The driver does not find a process by its pid in another namespace. So its answers there say
/// nothing of the process, and `resume` must not believe them.
#[test]
fn a_process_of_a_container_comes_back_from_inside_only() {
    if !world::may_mount() {
        return;
    }
    let world = World::new(CAP);
    let limited = world.limited(world::program());
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc"];
    let mut program = Session::start(around(&unshare, &limited));
    program.expect(&[("start", "0 0"), ("alloc a 300M", "0")]);
    let children = format!("/proc/{0}/task/{0}/children", program.pid());
    let inner = std::fs::read_to_string(children).expect("readable");
    let enter = |command: &Command| {
        let enter = ["nsenter", "--target", inner.trim(), "--pid", "--mount"];
        finish(around(&enter, command))
    };
    let inside = |arguments: &[&str]| enter(&verb(&world, arguments));
    let down = inside(&["suspend", GROUP]);
    assert_eq!(down.status, Some(0), "{down:?}");
    let before = figures(&world);
    run(&world, &["resume", GROUP]).expect_failure("in another pid namespace");
    done(&world, &["ps"]);
    done(&world, &["gc"]);
    assert_eq!(figures(&world), before, "nothing was touched");
    let doctor = verb(&world, &[]);
    let remedy = "run `gpulimit resume --pid 1` in the container";
    diagnosed(doctor, inner.trim(), "is suspended", remedy);
    let up = inside(&["resume", GROUP]);
    assert_eq!(up.status, Some(0), "{up:?}");
    goes_on(&mut program);
    // A program of the host in the group, which is not seen from inside, keeps nothing.
    let other = holder(&world, "100M");
    let refused = inside(&["suspend", GROUP]);
    refused.expect_failure("or leave it out, and name the others with --pid");
    for (step, now) in [("before", "runs"), ("after", "is suspended")] {
        let order = format!("GPULIMIT_SIM_KILL=cuCheckpointProcessCheckpoint:{step}");
        let suspend = verb(&world, &["suspend", "--pid", "1"]);
        let died = enter(&around(&["env", &order], &suspend));
        assert_ne!(died.status, Some(0), "{died:?}");
        let doctor = verb(&world, &[]);
        diagnosed(doctor, inner.trim(), "was killed at work", remedy);
        let ended = inside(&["gc"]);
        let note = format!("process 1 (gpu-script) {now}: the command");
        assert!(ended.errors.contains(&note), "{ended:?}");
        assert!(world.ledger().abandoned().is_empty(), "{ended:?}");
    }
    let up = inside(&["resume", "--pid", "1"]);
    assert_eq!(up.status, Some(0), "{up:?}");
    goes_on(&mut program);
    other.end();
    program.end();
    world.judge_end(CAP);
}
