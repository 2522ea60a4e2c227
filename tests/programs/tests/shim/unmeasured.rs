//! NVML, which measures the driver's own memory, may fail, and a program may end it. What cannot be
//! measured is charged by estimate until it can.

use gpulimit_programs::world::{BLOCK, CONTEXT, MIB, Session, World, program};
use gpulimit_support::wait_until;

const CAP: u64 = 4096 * MIB;

/// The functions of NVML that a measurement calls.
const CALLS: [&str; 3] = [
    "nvmlInit_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetComputeRunningProcesses_v3",
];

/// Commands that take or free memory of the driver.
const COMMANDS: [&str; 16] = [
    "init",
    "retain 0",
    "current 0",
    "stream s",
    "repeat 40 {\nstream t\n}",
    "module code 6M",
    "kernels small 0 long",
    "get-function small",
    "launch small s",
    "kernels large 4096",
    "launch large s",
    "many-arrays a 5 100,0,0,1,1",
    "destroy-arrays a",
    "context c 0 v2",
    "destroy c",
    "current 0",
];

/// Waits until the charge is what the driver holds: a later call has measured again.
fn is_corrected(world: &World, program: &mut Session) {
    wait_until("the charge is corrected", || {
        program.expect(&[("alloc probe 2M", "0"), ("free probe", "0")]);
        world.machine().used().abs_diff(world.counted(0)) <= BLOCK
    });
    world.judge(CAP);
}

#[test]
fn no_failure_of_nvml_leaves_memory_uncharged() {
    for call in CALLS {
        // Each call fails, or one of the first ones.
        for number in 0..6 {
            let fail = format!("{call}:999@{number}");
            let first = (96 * MIB).to_string();
            let knobs = [
                ("GPULIMIT_SIM_FAIL", &*fail),
                ("GPULIMIT_SIM_FIRST_LAUNCH_BYTES", &first),
            ];
            let world = World::with(CAP, &knobs);
            let mut program = world.start();
            for command in COMMANDS {
                let answer = program.say(command);
                assert!(answer.starts_with('0'), "{fail}: {command}: {answer}");
                let (used, usage) = (world.machine().used(), world.usage(0));
                assert!(
                    usage.charged >= used,
                    "{fail}: {command}: {used}, {usage:?}"
                );
            }
            world.machine().knob("fail", "none");
            is_corrected(&world, &mut program);
            program.end_quietly();
            world.judge_end(CAP);
        }
    }
}

#[test]
fn small_arrays_that_were_not_measured_are_charged_until_the_driver_frees_them() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    world.machine().knob("fail", &format!("{}:999", CALLS[2]));
    // The driver packs the arrays into one block, and each is charged as one.
    program.expect(&[("many-arrays a 5 100,0,0,1,1", "0 5")]);
    world.machine().knob("fail", "none");
    // Measures: the driver has less than the named arrays.
    program.expect(&[("many-arrays b 1 100,0,0,1,1", "0 1")]);
    program.expect(&[("destroy-arrays a", "0")]);
    let (used, usage) = (world.machine().used(), world.usage(0));
    assert!(usage.charged >= used, "{used}, {usage:?}");
    world.judge(CAP);
    program.end_quietly();
    world.judge_end(CAP);
}

#[test]
fn what_cannot_be_measured_is_refused_where_it_could_pass_the_limit() {
    for call in CALLS {
        let cap = CONTEXT + 200 * MIB;
        let world = World::with(cap, &[("GPULIMIT_SIM_FAIL", &format!("{call}:999"))]);
        let mut program = world.on_gpu();
        let streams = program.say("repeat 500 {\nstream s\n}");
        assert!(streams.contains(" 2:"), "{call}: {streams}");
        assert!(world.machine().peak() <= cap, "{call}");
        world.machine().knob("fail", "none");
        // A request at the limit measures again: the estimates were too high.
        wait_until("there is room", || program.say("stream s") == "0");
        program.end();
        world.judge_end(cap);
    }
}

#[test]
fn estimates_do_not_add_up_where_nvml_lists_no_process() {
    // As in many containers: NVML answers, but no later measurement corrects an estimate.
    let world = World::new(CAP);
    world.machine().knob("no-proc", "1");
    let mut program = world.on_gpu();
    let before = world.usage(0).charged;
    program.expect(&[("repeat 1000 {\nstream s\n}", "0:1000")]);
    assert!(world.usage(0).charged < before + 100 * MIB);
    program.end();
}

#[test]
fn a_program_that_nvml_does_not_list_does_not_measure_at_every_block() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_NO_PROC", "1")]);
    let mut command = world.limited(program());
    // The program dies if it asks for the list half as often as it takes and frees blocks.
    let death = "nvmlDeviceGetComputeRunningProcesses_v3:before@500";
    command.env("GPULIMIT_SIM_KILL", death);
    let mut program = Session::start(command);
    let blocks = "repeat 500 {\nalloc a 4M\nfree a\n}";
    program.expect(&[("start", "0 0"), (blocks, "0:1000")]);
    program.end();
}

#[test]
fn a_program_that_ends_nvml_once_too_often_is_measured() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("stream s", "0"),
        ("nvml-shutdown", "0"),
        ("repeat 200 {\nstream s\n}", "0:200"),
    ]);
    world.judge(CAP);
    program.end_quietly();
    // The child has the starts of its parent, and one of its own.
    let mut program = world.start();
    assert_eq!(program.numbers("nvml 0")[2], CAP);
    let [done, go] = ["done", "go"].map(|name| world.file(name));
    program.tell(&format!(
        "background {{\nstart\nstream s\nrepeat 3 {{\nnvml-shutdown\n}}\n\
         repeat 200 {{\nstream s\n}}\ntouch {}\nwait {}\n}}",
        done.display(),
        go.display()
    ));
    wait_until("the child is done", || done.exists());
    world.judge(CAP);
    std::fs::write(go, "").expect("written");
    program.end();
    world.judge_end(CAP);
}
