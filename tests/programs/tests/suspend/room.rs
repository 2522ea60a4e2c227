//! The room for what comes back: in the group, and on the GPU.

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, CONTEXT, GROUP, HOUR, MIB, Session, World};

use crate::{CAP, Looker, await_line, begin, done, figures, goes_on, holder, run, shown, verb};

/// Returns a world whose GPU has no more than the group.
fn tight() -> World {
    let capacity = (CAP + 64 * MIB).to_string();
    World::with(CAP, &[("GPULIMIT_SIM_CAPACITY", &capacity)])
}

#[test]
fn a_full_group_makes_resume_wait() {
    let world = World::new(CAP);
    let mut programs = [holder(&world, "800M"), holder(&world, "800M")];
    done(&world, &["suspend", GROUP]);
    let before = figures(&world);
    let mut other = holder(&world, "2000M");
    let taken = figures(&world).0 - before.0;
    let late = run(&world, &["resume", GROUP, "--timeout", "300ms"]);
    late.expect_failure("no room for the");
    assert!(late.errors.contains("raise its limit"), "{late:?}");
    assert_eq!(
        figures(&world),
        (before.0 + taken, before.1),
        "all stay suspended"
    );
    for program in &programs {
        assert_eq!(shown(&world, program)["state"], "suspended");
    }
    let actor = begin(&world, &["resume", GROUP]);
    await_line(&world, 1);
    other.expect(&[("free a", "0")]);
    let (status, errors) = actor.end();
    assert!(status.success(), "{errors}");
    programs.iter_mut().for_each(goes_on);
    world.judge(CAP);
    for program in programs.into_iter().chain([other]) {
        program.end();
    }
    world.judge_end(CAP);
}

/// The dead member's memory would make room later.
#[test]
fn the_time_for_a_resume_also_bounds_the_wait_for_a_dead_member() {
    let world = World::new(CAP);
    let mut program = holder(&world, "1500M");
    done(&world, &["suspend", GROUP]);
    world.machine().knob("kill-lag-ms", "25000");
    holder(&world, "2000M").kill();
    let late = run(&world, &["resume", GROUP, "--timeout", "300ms"]);
    late.expect_failure("no room for the");
    assert_eq!(shown(&world, &program)["state"], "suspended");
    world.machine().knob("kill-lag-ms", "0");
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn what_comes_back_leaves_keep_free() {
    let world = tight();
    world.settings(&["keep_free=256M"]);
    let mut program = holder(&world, "800M");
    done(&world, &["suspend", GROUP]);
    let mut stranger = Session::start(world.bare(world::program()));
    let left = CAP + 64 * MIB - 2 * CONTEXT - (800 + 200) * MIB;
    let takes = format!("alloc a {left}");
    stranger.expect(&[("start", "0 0"), (&takes, "0")]);
    let late = run(&world, &["resume", GROUP, "--timeout", "300ms"]);
    late.expect_failure("with 256.0 MiB left free (keep_free)");
    assert_eq!(shown(&world, &program)["state"], "suspended");
    stranger.expect(&[("free a", "0")]);
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    stranger.end_quietly();
    program.end();
    world.judge_end(CAP + 64 * MIB);
}

/// The room that others leave on their way to the host is theirs: it is not granted to a request
/// whose own process is on the host, and who comes back finds it.
#[test]
fn a_request_that_waits_gets_no_room_while_its_process_is_suspended() {
    let world = World::new(CAP);
    world.settings(&["on_limit=wait", "wait_timeout=1h"]);
    let mut first = holder(&world, "1800M");
    let mut second = world.on_gpu();
    // A process in line looks what its pools could give back.
    second.expect(&[("async pool 2M", "0"), ("free-async pool", "0")]);
    second.tell("alloc a 1800M");
    await_line(&world, 1);
    let takes_long = format!("cuCheckpointProcessCheckpoint:{HOUR}");
    world.machine().knob("delay", &takes_long);
    let actor = begin(&world, &["suspend", GROUP]);
    await_line(&world, 0);
    world.machine().knob("delay", "0");
    let (status, errors) = actor.end();
    assert!(status.success(), "{errors}");
    second.waits_on();
    assert_eq!(figures(&world).0, 0, "nothing is charged");
    done(&world, &["resume", GROUP]);
    await_line(&world, 1);
    first.expect(&[("free a", "0")]);
    assert_eq!(second.answer(), "0");
    world.judge(CAP);
    for program in [first, second] {
        program.end();
    }
    world.judge_end(CAP);
}

/// The suspension makes room for the request while its process goes to the host, too: it does not
/// keep that room.
#[test]
fn a_request_of_a_suspended_process_is_not_recorded_as_granted() {
    let world = World::new(CAP);
    world.settings(&["on_limit=wait", "wait_timeout=1h"]);
    let mut first = holder(&world, "1800M");
    let mut second = world.on_gpu();
    second.tell("alloc a 1800M");
    await_line(&world, 1);
    done(&world, &["suspend", GROUP]);
    second.waits_on();
    assert_eq!(world.events(EventKind::Granted).len(), 0);
    done(&world, &["resume", GROUP]);
    await_line(&world, 1);
    first.expect(&[("free a", "0")]);
    assert_eq!(second.answer(), "0");
    assert_eq!(world.events(EventKind::Granted).len(), 1);
    first.end();
    second.end();
    world.judge_end(CAP);
}

/// Waiting for room that can never be there would keep room from others.
#[test]
fn a_set_beyond_the_limit_does_not_wait() {
    let world = World::new(CAP);
    let mut programs = [holder(&world, "600M"), holder(&world, "600M")];
    done(&world, &["suspend", GROUP]);
    world.set(CONTEXT + 1000 * MIB);
    let refused = run(&world, &["resume", GROUP]);
    refused.expect_failure("more than its limit");
    for program in &mut programs {
        done(&world, &["resume", "--pid", &program.pid().to_string()]);
        goes_on(program);
        done(&world, &["suspend", "--pid", &program.pid().to_string()]);
    }
    for program in programs {
        program.kill();
    }
    world.judge_end(CAP);
}

/// Returns a queue with two jobs below it that do not fit together.
fn queue() -> World {
    let world = World::new(CAP);
    world.settings(&["on_limit=wait", "wait_timeout=600s"]);
    for job in ["run-1-1", "run-2-1"] {
        world.below(job, &["max=3G"]);
    }
    world
}

fn start_in(world: &World, job: &str) -> Session {
    let mut command = world.limited(world::program());
    command.env("GPULIMIT_GROUP", format!("{GROUP}/{job}"));
    let mut program = Session::start(command);
    program.tell("start");
    program
}

#[test]
fn a_suspended_job_leaves_its_room_to_others_and_comes_back_when_its_limit_is_free() {
    let world = queue();
    let mut first = world.on_gpu_in("run-1-1");
    first.expect(&[("alloc a 800M", "0")]);
    let mut second = start_in(&world, "run-2-1");
    second.waits_on();
    done(&world, &["suspend", &format!("{GROUP}/run-1-1")]);
    assert_eq!(second.answer(), "0 0");
    // What comes back would fit, but not beside what is kept for the other job.
    let late = run(&world, &["resume", GROUP, "--timeout", "300ms"]);
    late.expect_failure("no room for the 3.0 GiB");
    let actor = begin(&world, &["resume", GROUP]);
    await_line(&world, 1);
    second.expect(&[("alloc a 1G", "0"), ("alloc b 1G", "0")]);
    second.end();
    let (status, errors) = actor.end();
    assert!(status.success(), "{errors}");
    let waits = world.events(EventKind::Wait).len();
    first.expect(&[("alloc b 1G", "0")]);
    let mut second = start_in(&world, "run-2-1");
    second.waits_on();
    first.expect(&[("alloc c 500M", "0")]);
    assert_eq!(world.events(EventKind::Wait).len(), waits + 1);
    first.end();
    assert_eq!(second.answer(), "0 0");
    second.end();
    world.judge_end(CAP);
}

#[test]
fn a_process_comes_back_into_the_room_that_another_one_of_its_job_keeps() {
    let world = queue();
    let mut pair = [(); 2].map(|()| world.on_gpu_in("run-1-1"));
    pair[0].expect(&[("alloc a 800M", "0")]);
    let pid = pair[0].pid().to_string();
    done(&world, &["suspend", "--pid", &pid]);
    let mut other = world.on_gpu();
    other.tell("alloc a 1G");
    other.waits_on();
    done(&world, &["resume", "--pid", &pid]);
    other.waits_on();
    pair.iter_mut().for_each(goes_on);
    for program in pair {
        program.end();
    }
    assert_eq!(other.answer(), "0");
    other.end();
    world.judge_end(CAP);
}

#[test]
fn jobs_whose_limits_do_not_fit_together_come_back_one_by_one() {
    let world = queue();
    let mut jobs = ["run-1-1", "run-2-1"].map(|job| {
        let program = world.on_gpu_in(job);
        done(&world, &["suspend", &format!("{GROUP}/{job}")]);
        program
    });
    let refused = run(&world, &["resume", GROUP, "--timeout", "30s"]);
    refused.expect_failure("6.0 GiB come back in group 'world'");
    refused.expect_failure("the whole limits of jobs counted, more than its limit of 4.0 GiB");
    for job in &mut jobs {
        let pid = job.pid().to_string();
        done(&world, &["resume", "--pid", &pid]);
        goes_on(job);
        done(&world, &["suspend", "--pid", &pid]);
    }
    for job in jobs {
        job.kill();
    }
    world.judge_end(CAP);
}

/// The GPU that is full comes after one with room.
#[test]
fn a_process_beyond_the_limit_of_its_second_gpu_does_not_wait() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_GPUS", "2")]);
    let mut program = holder(&world, "1000M");
    program.expect(&[("retain 1", "0"), ("current 1", "0"), ("alloc b 500M", "0")]);
    done(&world, &["suspend", GROUP]);
    // The command would wait for this one.
    let mut other = world.on_gpu();
    other.expect(&[("retain 1", "0"), ("current 1", "0")]);
    done(&world, &["set", GROUP, "--max", "600M", "--device", "1"]);
    let refused = run(&world, &["resume", GROUP, "--timeout", "5s"]);
    refused.expect_failure("1018.0 MiB come back in group 'world' on GPU 1");
    refused.expect_failure("more than its limit of 600.0 MiB: raise the limit, and resume");
    // As rounded figures both would read 1018.0 MiB.
    let less = (1018 * MIB - 4096).to_string();
    done(&world, &["set", GROUP, "--max", &less, "--device", "1"]);
    let refused = run(&world, &["resume", GROUP, "--timeout", "5s"]);
    refused.expect_failure(" B come back in group 'world' on GPU 1");
    refused.expect_failure(&format!("more than its limit of {less} B: raise the limit"));
    done(&world, &["set", GROUP, "--max", "2G", "--device", "1"]);
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    for program in [program, other] {
        program.end();
    }
    world.judge_end(CAP);
}

/// What `min` keeps for other groups is never there.
#[test]
fn a_process_that_min_of_another_group_keeps_out_does_not_wait() {
    let world = World::new(CAP);
    world.below("inner", &[]);
    let mut program = world.on_gpu_in("inner");
    program.expect(&[("alloc a 1000M", "0")]);
    done(&world, &["suspend", GROUP]);
    world.below("favoured", &["min=3G"]);
    let mut other = world.on_gpu_in("favoured");
    let refused = run(&world, &["resume", GROUP, "--timeout", "5s"]);
    refused
        .expect_failure("more than the 1.0 GiB that its limit of 4.0 GiB leaves beside what `min`");
    // The group's own processes may use what `min` keeps for it.
    done(&world, &["set", "world/inner", "min=2G"]);
    done(&world, &["set", "world/favoured", "min=2G"]);
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    goes_on(&mut other);
    for program in [program, other] {
        program.end();
    }
    world.judge_end(CAP);
}

/// A margin beyond what the process had is never free there.
#[test]
fn a_process_that_has_filled_the_gpu_comes_back() {
    let capacity = (CONTEXT + 1000 * MIB).to_string();
    for no_proc in ["0", "1"] {
        let knobs = [
            ("GPULIMIT_SIM_CAPACITY", &*capacity),
            ("GPULIMIT_SIM_NO_PROC", no_proc),
        ];
        let world = World::with(CAP, &knobs);
        let mut program = holder(&world, "1000M");
        done(&world, &["suspend", GROUP]);
        assert_eq!(world.machine().used(), 0);
        done(&world, &["resume", GROUP]);
        program.expect(&[("free a", "0")]);
        goes_on(&mut program);
        program.end();
        world.judge_end(CAP);
    }
}

#[test]
fn processes_that_do_not_fit_on_the_gpu_together_come_back_one_by_one() {
    let capacity = (CONTEXT + 1000 * MIB).to_string();
    let world = World::with(CAP, &[("GPULIMIT_SIM_CAPACITY", &capacity)]);
    let mut programs = [(); 2].map(|()| {
        let program = holder(&world, "1000M");
        done(&world, &["suspend", GROUP]);
        program
    });
    run(&world, &["resume", GROUP]).expect_failure("resume fewer processes at once");
    // Also while another program uses the GPU.
    let mut stranger = Session::start(world.bare(world::program()));
    stranger.expect(&[("start", "0 0")]);
    let refused = run(&world, &["resume", GROUP, "--timeout", "5s"]);
    refused.expect_failure("come back to GPU 0 (GPU-");
    refused.expect_failure("resume fewer processes at once");
    stranger.end();
    for program in &mut programs {
        let pid = program.pid().to_string();
        done(&world, &["resume", "--pid", &pid]);
        program.expect(&[("free a", "0"), ("alloc a 900M", "0")]);
        done(&world, &["suspend", "--pid", &pid]);
    }
    for program in programs {
        program.kill();
    }
    world.judge_end(CAP);
}

/// The command maps the room that it holds on the GPU.
#[test]
fn a_command_without_address_space_says_so() {
    let world = World::new(CAP);
    let mut program = holder(&world, "1000M");
    done(&world, &["suspend", GROUP]);
    let mut limited = world.bare("sh".as_ref());
    limited.args(["-c", "ulimit -v 160000; exec \"$0\" resume \"$1\""]);
    limited.arg(world::controller()).arg(GROUP);
    crate::finish(limited).expect_failure("ulimit -v");
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn a_gpu_that_a_stranger_has_filled_makes_resume_wait() {
    let world = tight();
    let mut program = holder(&world, "1000M");
    done(&world, &["suspend", GROUP]);
    let before = figures(&world);
    let mut stranger = Session::start(world.bare(world::program()));
    stranger.expect(&[("start", "0 0"), ("alloc a 2120M", "0")]);
    let late = run(&world, &["resume", GROUP, "--timeout", "300ms"]);
    late.expect_failure("has less than 1.5 GiB free, and 1.5 GiB are needed");
    assert!(
        late.errors.contains("all processes stay suspended"),
        "{late:?}"
    );
    assert_eq!(figures(&world), before);
    let actor = begin(&world, &["resume", GROUP]);
    assert!(world::eventually(|| world.usage(0).charged >= before.1));
    assert_eq!(shown(&world, &program)["state"], "resuming");
    for shows in [&["ps"][..], &["top", "--once"]] {
        let out = done(&world, shows).out;
        assert!(out.contains("waits for 1.5 GiB"), "{out}");
    }
    let other = run(&world, &["suspend", GROUP]);
    other.expect_failure(
        "another command suspends or resumes the process, or waits for room to resume it",
    );
    let command = shown(&world, &actor);
    assert_eq!(command["state"], "running", "{command}");
    assert_eq!(command["total"], before.1, "{command}");
    stranger.expect(&[("free a", "0")]);
    let (status, errors) = actor.end();
    assert!(status.success(), "{errors}");
    goes_on(&mut program);
    stranger.end();
    world.bury();
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

/// A group need not count contexts. The restore needs their room all the same, also where NVML
/// lists no processes, as in containers.
#[test]
fn room_is_found_for_contexts_that_are_not_charged() {
    for blind in ["0", "1"] {
        for suspend in [suspended, killed_at_work] {
            let world = tight();
            world.machine().knob("no-proc", blind);
            world.settings(&["count_context=no"]);
            needs_what_it_had(&world, CONTEXT, |_| {}, suspend);
        }
    }
    let world = tight();
    world.settings(&["count_context=no"]);
    let free = |program: &mut Session| program.expect(&[("free a", "0")]);
    needs_what_it_had(&world, CONTEXT, free, suspended);
}

/// Where NVML lists no processes, what the driver takes for streams is not charged.
#[test]
fn room_is_found_for_streams_that_are_not_charged() {
    let world = tight();
    world.machine().knob("no-proc", "1");
    let take = |program: &mut Session| {
        for number in 0..512 {
            program.expect(&[(&format!("stream s{number}"), "0")]);
        }
    };
    needs_what_it_had(&world, 200 * MIB, take, suspended);
}

fn suspended(world: &World) {
    done(world, &["suspend", GROUP]);
}

/// Suspends by a command that dies when the memory is on the host.
fn killed_at_work(world: &World) {
    let mut dying = verb(world, &["suspend", GROUP]);
    dying.env("GPULIMIT_SIM_KILL", "cuCheckpointProcessCheckpoint:after");
    assert_eq!(crate::finish(dying).status, None);
    done(world, &["gc"]);
}

/// Suspends a program with memory, of which at least `more` is not charged, and fills the GPU up to
/// half of that: `resume` must wait.
fn needs_what_it_had(
    world: &World,
    more: u64,
    take: impl FnOnce(&mut Session),
    suspend: fn(&World),
) {
    let mut program = holder(world, "1000M");
    take(&mut program);
    let had = world.machine().used();
    let charged = figures(world).0;
    assert!(charged + more <= had, "{charged} of {had}");
    suspend(world);
    let mut stranger = Session::start(world.bare(world::program()));
    stranger.expect(&[("start", "0 0")]);
    let left = CAP + 64 * MIB - world.machine().used();
    let taken = (left - charged - more / 2) / MIB;
    stranger.expect(&[(&format!("alloc a {taken}M"), "0")]);
    let late = run(world, &["resume", GROUP, "--timeout", "300ms"]);
    late.expect_failure("are needed");
    stranger.expect(&[("free a", "0")]);
    done(world, &["resume", GROUP]);
    goes_on(&mut program);
    stranger.end();
    program.end();
}

/// Where NVML lists no processes, memory that others free during a suspension looks like that of
/// the suspended process.
#[test]
fn what_others_free_meanwhile_is_needed_in_part_only() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_NO_PROC", "1")]);
    // Drivers from this version on report a step that is under way.
    world.machine().knob("driver-version", "13040");
    let mut program = holder(&world, "1000M");
    let mut stranger = Session::start(world.bare(world::program()));
    stranger.expect(&[("start", "0 0"), ("alloc a 70000M", "0")]);
    let mut looker = Looker::new(&world);
    world.machine().knob("step", HOUR);
    let actor = begin(&world, &["suspend", GROUP]);
    assert!(world::eventually(|| looker.state(&program) == "0 4"));
    stranger.expect(&[("free a", "0")]);
    world.machine().knob("step", "0");
    let (status, errors) = actor.end();
    assert!(status.success(), "{errors}");
    stranger.expect(&[("alloc a 70000M", "0")]);
    done(&world, &["resume", GROUP, "--timeout", "5s"]);
    goes_on(&mut program);
    stranger.end();
    program.end();
}

#[test]
fn a_lost_process_counts_nowhere_and_is_killed_on_demand() {
    let world = tight();
    let mut looker = Looker::new(&world);
    let first = holder(&world, "600M");
    let mut second = holder(&world, "600M");
    let third = holder(&world, "600M");
    done(&world, &["suspend", GROUP]);
    world.machine().knob("checkpoint", "restore-fails");
    let pid = first.pid().to_string();
    let lost = run(&world, &["resume", "--pid", &pid]);
    lost.expect_failure(&format!("process {pid} (gpu-script) is lost, its calls"));
    assert!(lost.out.contains(": lost, "), "{lost:?}");
    let third_pid = third.pid().to_string();
    run(&world, &["resume", "--pid", &third_pid]).expect_failure("is lost, its calls");
    world.machine().knob("checkpoint", "none");
    assert_eq!(world.events(EventKind::Lost).len(), 2);
    for program in [&first, &third] {
        assert_eq!(shown(&world, program)["state"], "lost");
        assert_eq!(looker.state(program), "0 2");
    }
    for verb in ["suspend", "resume"] {
        let again = run(&world, &[verb, "--pid", &pid]);
        again.expect_failure(&format!(
            "`gpulimit resume --pid {pid} --kill-lost` ends it"
        ));
    }
    assert!(world.usage(0).charged < 100 * MIB, "{:?}", world.usage(0));
    // The room that the lost ones would need is not held when another one comes back: the GPU has
    // just enough for that one.
    let mut member = holder(&world, "2300M");
    let up = run(&world, &["resume", GROUP]);
    assert_eq!(up.status, Some(1), "the lost ones are told: {up:?}");
    assert_eq!(looker.state(&second), "0 0", "{up:?}");
    goes_on(&mut second);
    member.expect(&[("free a", "0")]);
    // A process that is not lost, whatever its slot says, is not killed.
    let up = done_or_lost(&world, &["resume", GROUP, "--kill-lost"]);
    assert!(up.contains("is lost"), "{up}");
    assert_eq!(world.events(EventKind::Kill).len(), 2);
    goes_on(&mut second);
    for program in [first, third] {
        let (status, _) = program.end();
        assert!(!status.success(), "killed: {status:?}");
    }
    world.bury();
    world.judge(CAP);
    for program in [second, member] {
        program.end();
    }
    world.judge_end(CAP);
}

/// Returns the errors of a run, whatever its exit status is.
fn done_or_lost(world: &World, arguments: &[&str]) -> String {
    run(world, arguments).errors
}
