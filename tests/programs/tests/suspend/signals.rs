//! Commands that are told to stop, and several at once.

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, CONTEXT, GROUP, HOUR, MIB, Session, World};

use crate::{CAP, Looker, await_line, begin, done, figures, goes_on, holder, shown};

/// Waits until an actor has written that it is at work on a process.
pub fn await_errand(world: &World) {
    let ledger = world.ledger();
    let at_work = || {
        let processes = ledger.processes(&gpulimit_ledger::NoWitness);
        let mut errands = processes
            .iter()
            .map(|process| ledger.errand_of(&process.identity).0);
        errands.any(|errand| errand != gpulimit_ledger::Errand::None)
    };
    assert!(world::eventually(at_work));
}

/// Waits until a process has begun to handle the signals that it was sent.
fn await_handler(actor: &Session) {
    let status = format!("/proc/{}/status", actor.pid());
    let has_none = || {
        let status = std::fs::read_to_string(&status).expect("a process");
        let mut lines = status.lines();
        lines.any(|line| line.strip_prefix("ShdPnd:\t") == Some("0000000000000000"))
    };
    assert!(world::eventually(has_none));
}

#[test]
fn suspend_that_is_told_to_stop_undoes_its_work() {
    let world = World::new(CAP);
    let mut programs = [holder(&world, "300M"), holder(&world, "200M")];
    let mut looker = Looker::new(&world);
    let before = figures(&world);
    let steps = ["cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint"];
    for (step, signal) in steps.into_iter().zip([libc::SIGINT, libc::SIGTERM]) {
        world.machine().knob("delay", &format!("{step}:{HOUR}"));
        let actor = begin(&world, &["suspend", GROUP]);
        await_errand(&world);
        actor.signal(signal);
        await_handler(&actor);
        world.machine().knob("delay", "0");
        let (status, errors) = actor.end();
        assert_eq!(status.code(), Some(1), "{step}: {errors}");
        assert!(
            errors.contains("interrupted: the processes are as they were"),
            "{errors}"
        );
        for program in &mut programs {
            assert_eq!(looker.state(program), "0 0", "{step}");
            goes_on(program);
        }
        assert_eq!(figures(&world), before);
    }
    world.judge(CAP);
    for program in programs {
        program.end();
    }
    world.judge_end(CAP);
}

/// Another program takes the room of a process that is down already.
#[test]
fn suspend_that_cannot_undo_its_work_names_what_stays_suspended() {
    let capacity = (2 * CONTEXT + 600 * MIB).to_string();
    let world = World::with(CAP, &[("GPULIMIT_SIM_CAPACITY", &capacity)]);
    let mut programs = [holder(&world, "300M"), holder(&world, "200M")];
    let mut looker = Looker::new(&world);
    world
        .machine()
        .knob("delay", &format!("cuCheckpointProcessCheckpoint:{HOUR}"));
    let actor = begin(&world, &["suspend", GROUP]);
    let used = 2 * CONTEXT + 500 * MIB;
    assert!(world::eventually(|| world.machine().used() < used));
    let mut stranger = Session::start(world.bare(world::program()));
    stranger.expect(&[("start", "0 0"), ("alloc a 300M", "0")]);
    actor.signal(libc::SIGINT);
    await_handler(&actor);
    world.machine().knob("delay", "0");
    let (status, errors) = actor.end();
    assert_eq!(status.code(), Some(1), "{errors}");
    let mut of = |program: &Session| looker.state(program) == "0 2";
    let (down, up): (Vec<_>, Vec<_>) = programs.iter_mut().partition(|program| of(program));
    assert_eq!((down.len(), up.len()), (1, 1), "{errors}");
    let pid = down[0].pid();
    let named = format!("stays suspended: `gpulimit resume --pid {pid}` brings it back");
    assert!(errors.contains(&named), "{errors}");
    let events = world.events(EventKind::Suspend);
    let whose: Vec<u32> = events.iter().map(|event| event.what.process.pid).collect();
    assert_eq!(whose, [pid], "{errors}");
    assert!(
        errors.contains("not all processes are as they were before"),
        "{errors}"
    );
    stranger.end();
    done(&world, &["resume", GROUP]);
    for program in &mut programs {
        goes_on(program);
    }
    world.judge(CAP);
    for program in programs {
        program.end();
    }
    world.judge_end(CAP);
}

#[test]
fn resume_that_is_told_to_stop_leaves_all_suspended_or_resumed() {
    let world = World::new(CAP);
    let mut programs = [holder(&world, "300M"), holder(&world, "200M")];
    let mut looker = Looker::new(&world);
    done(&world, &["suspend", GROUP]);
    let before = figures(&world);
    // It waits in line.
    let mut member = holder(&world, "3000M");
    let actor = begin(&world, &["resume", GROUP]);
    await_line(&world, 1);
    await_errand(&world);
    actor.signal(libc::SIGINT);
    let (status, errors) = actor.end();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("interrupted: the processes are as they were"),
        "{errors}"
    );
    for program in &programs {
        assert_eq!(looker.state(program), "0 2");
        assert_eq!(shown(&world, program)["state"], "suspended");
    }
    member.expect(&[("free a", "0")]);
    assert_eq!(figures(&world).1, before.1);
    // From the first restore on, all come back.
    world
        .machine()
        .knob("delay", &format!("cuCheckpointProcessRestore:{HOUR}"));
    let actor = begin(&world, &["resume", GROUP]);
    assert!(world::eventually(|| world.usage(0).suspended < before.1));
    actor.signal(libc::SIGTERM);
    await_handler(&actor);
    world.machine().knob("delay", "0");
    let (status, errors) = actor.end();
    assert!(status.success(), "{errors}");
    for program in &mut programs {
        assert_eq!(looker.state(program), "0 0");
        goes_on(program);
    }
    world.judge(CAP);
    for program in programs.into_iter().chain([member]) {
        program.end();
    }
    world.judge_end(CAP);
}

#[test]
fn two_actors_at_once_leave_nothing_half_done() {
    let world = World::new(CAP);
    let mut programs = [holder(&world, "300M"), holder(&world, "200M")];
    let mut looker = Looker::new(&world);
    let first = programs[0].pid().to_string();
    let pairs: [[&[&str]; 2]; 3] = [
        [&["suspend", GROUP], &["suspend", GROUP]],
        [&["suspend", GROUP], &["resume", GROUP]],
        [&["resume", GROUP], &["resume", "--pid", &first]],
    ];
    world.machine().knob("step", "50000000");
    for pair in pairs {
        if pair[0][0] == "resume" {
            done(&world, &["suspend", GROUP]);
        }
        let actors = pair.map(|arguments| begin(&world, arguments));
        for actor in actors {
            let (status, errors) = actor.end();
            assert!(
                status.success() || errors.contains("another command suspends or resumes"),
                "{pair:?}: {errors}"
            );
        }
        let states: Vec<String> = programs
            .iter()
            .map(|program| looker.state(program))
            .collect();
        assert!(
            states
                .iter()
                .all(|state| ["0 0", "0 2"].contains(&&**state)),
            "{states:?}"
        );
        done(&world, &["resume", GROUP]);
        programs.iter_mut().for_each(goes_on);
    }
    assert_eq!(world.usage(0).suspended, 0);
    world.judge(CAP);
    for program in programs {
        program.end();
    }
    world.judge_end(CAP);
}

/// Two commands that bring back different processes of a group do not wait for each other for ever.
#[test]
fn two_resumes_share_the_room() {
    let world = World::new(CAP);
    let mut programs: Vec<Session> = Vec::new();
    for _ in 0..4 {
        let program = holder(&world, "1000M");
        done(&world, &["suspend", "--pid", &program.pid().to_string()]);
        programs.push(program);
    }
    let pids: Vec<String> = programs
        .iter()
        .map(|program| program.pid().to_string())
        .collect();
    let member = holder(&world, "2800M");
    let actors = [[0, 1], [2, 3]].map(|[one, two]| {
        begin(
            &world,
            &[
                "resume",
                "--pid",
                &pids[one],
                "--pid",
                &pids[two],
                "--timeout",
                "1h",
            ],
        )
    });
    await_line(&world, 2);
    member.end();
    // There is room for two.
    let mut first = None;
    assert!(world::eventually(|| {
        let running = |program: &Session| shown(&world, program)["state"] == "running";
        first = [[0, 1], [2, 3]]
            .into_iter()
            .find(|pair| pair.iter().all(|at| running(&programs[*at])));
        first.is_some()
    }));
    for at in first.expect("one pair") {
        goes_on(&mut programs[at]);
        programs[at].signal(libc::SIGKILL);
    }
    for actor in actors {
        let (status, errors) = actor.end();
        assert!(status.success(), "{errors}");
    }
    programs.into_iter().for_each(|program| drop(program.end()));
    world.bury();
    world.judge_end(CAP);
}
