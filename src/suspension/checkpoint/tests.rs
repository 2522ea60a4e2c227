//! The simulated driver is loaded by a child process that runs [`obeys`] again.

use super::{Checkpoints, Placeholder, Status};
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};
use std::env;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::Duration;

const ROLE: &str = "GPULIMIT_CHECKPOINT_TEST";
const GIB: u64 = 1 << 30;
const DENIED: &str = "304";
const WRONG_STATE: &str = "401";

/// In a child process: obeys the commands on standard input.
#[test]
fn obeys() {
    if env::var_os(ROLE).is_none() {
        return;
    }
    let checkpoints = match Checkpoints::load() {
        Ok(checkpoints) => checkpoints,
        Err(missing) => {
            println!("load = {missing}");
            return;
        }
    };
    println!("load = done");
    let device = checkpoints.gpus.gpus()[0].id;
    let mut placeholder: Option<Placeholder<'_>> = None;
    for line in io::stdin().lines() {
        let line = line.expect("readable");
        let mut words = line.split(' ');
        let verb = words.next().expect("a verb");
        let number: u64 = words
            .next()
            .map_or(0, |word| word.parse().expect("a number"));
        let pid = number as u32;
        let code = |done: Result<(), Status>| done.err().map_or(0, |status| status.0).to_string();
        let figure = |bytes: Option<u64>| bytes.expect("NVML answers").to_string();
        let answer = match verb {
            "state" => format!("{:?}", checkpoints.state(pid)),
            "lock" => code(checkpoints.lock(pid, Duration::from_secs(60))),
            "lock-short" => code(checkpoints.lock(pid, Duration::ZERO)),
            "checkpoint" => code(checkpoints.checkpoint(pid)),
            "restore" => code(checkpoints.restore(pid)),
            "unlock" => code(checkpoints.unlock(pid)),
            "lists" => format!("{:?}", checkpoints.gpus.lists(pid)),
            "used" => figure(checkpoints.gpus.used_by(pid, &device)),
            "free" => figure(checkpoints.gpus.free(&device)),
            "hold" => match checkpoints.hold(&device, number) {
                Ok(held) => placeholder.insert(held).bytes().to_string(),
                Err(status) => format!("error {status}"),
            },
            "drop" => format!("{:?}", placeholder.take().map(drop)),
            _ => panic!("unknown command {line}"),
        };
        println!("{verb} = {answer}");
    }
}

/// Starts a child process that obeys. Returns what it says of the driver.
fn start(world: &World, variables: &[(&str, &Path)]) -> (Session, String) {
    let mut command = world.bare(&env::current_exe().expect("a path"));
    command
        .args([
            "--exact",
            "suspension::checkpoint::tests::obeys",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, "1")
        .envs(variables.iter().copied());
    let mut actor = Session::start(command);
    // The test runner prints an empty line and the number of tests.
    let _ = (actor.line(), actor.line());
    let loaded = actor.answer();
    (actor, loaded)
}

struct Scene {
    world: World,
    program: Session,
    actor: Session,
}

impl Scene {
    /// Starts a program with a context and 100 MiB, and a process that obeys.
    fn new(knobs: &[(&str, &str)]) -> Self {
        let world = World::without_group(knobs);
        let mut program = Session::start(world.bare(world::program()));
        program.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
        let (actor, loaded) = start(&world, &[]);
        assert_eq!(loaded, "done");
        Self {
            world,
            program,
            actor,
        }
    }

    fn knob(&self, failures: &str) {
        self.world.machine().knob("checkpoint", failures);
    }

    /// Sends commands about the program, and asserts the answers.
    #[track_caller]
    fn expect(&mut self, dialogue: &[(&str, &str)]) {
        let pid = self.program.pid();
        for (verb, answer) in dialogue {
            self.actor.expect(&[(&format!("{verb} {pid}"), answer)]);
        }
    }

    #[track_caller]
    fn ask(&mut self, verb: &str, number: impl Display) -> u64 {
        let answer = self.actor.numbers(&format!("{verb} {number}"));
        answer[0]
    }
}

#[test]
fn a_process_moves_to_the_host_and_back() {
    let mut scene = Scene::new(&[]);
    let used = (CONTEXT + 100 * MIB).to_string();
    let free = scene.ask("free", 0);
    scene.expect(&[
        ("lists", "Some(true)"),
        ("used", &used),
        ("state", "Ok(Running)"),
        ("checkpoint", WRONG_STATE),
        ("restore", WRONG_STATE),
        ("unlock", WRONG_STATE),
        ("lock", "0"),
        ("lock", WRONG_STATE),
        ("state", "Ok(Locked)"),
        ("checkpoint", "0"),
        ("state", "Ok(Checkpointed)"),
        ("lists", "Some(false)"),
        ("used", "0"),
        ("unlock", WRONG_STATE),
    ]);
    assert!(scene.ask("free", 0) >= free + CONTEXT + 100 * MIB);
    scene.expect(&[
        ("restore", "0"),
        ("state", "Ok(Locked)"),
        ("unlock", "0"),
        ("state", "Ok(Running)"),
        ("used", &used),
    ]);
    scene.program.expect(&[("free a", "0")]);
    scene.actor.expect(&[
        ("state 4194305", "Err(Status(304))"),
        ("lock 4194305", DENIED),
    ]);
}

#[test]
fn a_lock_ends_when_its_time_is_over() {
    // With this knob, a lock waits also for calls that began before the first lock.
    let mut scene = Scene::new(&[("GPULIMIT_SIM_CHECKPOINT", "none")]);
    scene
        .world
        .machine()
        .knob("latency", &format!("cuMemAlloc_v2:{}", world::HOUR));
    scene.program.tell("alloc b 100M");
    // The call may not have begun.
    let pid = scene.program.pid();
    let is_busy = || {
        let answer = scene.actor.say(&format!("lock-short {pid}"));
        if answer == "0" {
            scene.actor.expect(&[(&format!("unlock {pid}"), "0")]);
        }
        answer == Status::NOT_READY.0.to_string()
    };
    assert!(world::eventually(is_busy));
    scene.expect(&[("state", "Ok(Running)")]);
}

#[test]
fn the_driver_refuses_before_anything_is_touched() {
    let mut scene = Scene::new(&[]);
    scene.knob("denied");
    scene.expect(&[("lock", DENIED), ("state", "Err(Status(304))")]);
    scene.knob("mps");
    scene.expect(&[("lock", "801"), ("state", "Ok(Running)")]);
    scene.knob("none");
    scene.program.expect(&[("managed b 10M", "0")]);
    scene.expect(&[
        ("lock", "0"),
        ("checkpoint", "801"),
        ("state", "Ok(Locked)"),
        ("unlock", "0"),
    ]);
    scene.program.expect(&[("free b", "0"), ("free a", "0")]);
}

#[test]
fn a_checkpoint_that_fails_says_so() {
    let mut scene = Scene::new(&[]);
    scene.knob("checkpoint-fails");
    scene.expect(&[
        ("lock", "0"),
        ("checkpoint", "999"),
        ("state", "Ok(Failed)"),
    ]);
}

#[test]
fn a_restore_that_fails_cannot_be_repeated() {
    for knob in ["restore-fails", "none"] {
        let mut scene = Scene::new(&[("GPULIMIT_SIM_CAPACITY", "4294967296")]);
        scene.expect(&[("lock", "0"), ("checkpoint", "0")]);
        scene.knob(knob);
        let mut stranger = Session::start(scene.world.bare(world::program()));
        let error = if knob == "none" {
            stranger.expect(&[("start", "0 0")]);
            let _ = stranger.say("fill f 2M");
            Status::OUT_OF_MEMORY
        } else {
            Status::INVALID_VALUE
        };
        scene.expect(&[("restore", &error.0.to_string())]);
        scene.knob("none");
        drop(stranger);
        scene.expect(&[
            ("restore", DENIED),
            ("state", "Ok(Checkpointed)"),
            ("unlock", WRONG_STATE),
        ]);
    }
}

#[test]
fn a_placeholder_takes_what_it_is_asked_for_and_not_more() {
    let mut scene = Scene::new(&[("GPULIMIT_SIM_CONTEXT_BYTES", "400000000")]);
    let before = scene.world.machine().used();
    let free = scene.ask("free", 0);
    for bytes in [
        0,
        1,
        300_000_000,
        500 * MIB,
        500 * MIB - 1,
        3 * GIB + 5,
        40 * GIB,
    ] {
        scene.world.machine().reset_peak();
        let held = scene.ask("hold", bytes);
        assert_eq!(scene.world.machine().used(), before + held);
        assert!(held <= bytes, "{held} of {bytes}");
        if bytes < 400_000_000 {
            assert_eq!(held, 0);
        } else {
            assert!(held + 2 * MIB > bytes, "{held} of {bytes}");
            assert!(scene.world.machine().peak() <= before + bytes);
        }
        scene.actor.expect(&[("drop 0", "Some(())")]);
        assert_eq!(scene.world.machine().used(), before);
        assert_eq!(scene.ask("free", 0), free);
    }
    assert!(scene.ask("hold", GIB) > 0);
    scene.actor.expect(&[("drop 0", "Some(())")]);
    assert_eq!(scene.world.machine().used(), before);
}

#[test]
fn a_placeholder_without_room_holds_nothing() {
    let mut scene = Scene::new(&[]);
    let before = scene.world.machine().used();
    let free = scene.ask("free", 0);
    let answer = scene.actor.say(&format!("hold {}", free + GIB));
    assert!(
        answer.starts_with("error 2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        "{answer}"
    );
    assert_eq!(scene.world.machine().used(), before);
    scene
        .world
        .machine()
        .knob("fail", "cuDevicePrimaryCtxRetain:999");
    let answer = scene.actor.say("hold 1073741824");
    assert!(answer.starts_with("error 999"), "{answer}");
    assert_eq!(scene.world.machine().used(), before);
}

/// In such a container NVML does not list this process, so its context has no known size.
#[test]
fn a_placeholder_without_figures_holds_nothing() {
    let mut scene = Scene::new(&[("GPULIMIT_SIM_NO_PROC", "1")]);
    let before = scene.world.machine().used();
    assert_eq!(scene.ask("hold", GIB), 0);
    assert_eq!(scene.world.machine().used(), before);
}

#[test]
fn hidden_and_reordered_gpus_are_found() {
    let knobs = [("GPULIMIT_SIM_GPUS", "2"), ("GPULIMIT_SIM_REVERSED", "1")];
    let world = World::without_group(&knobs);
    let (mut actor, loaded) = start(&world, &[("CUDA_VISIBLE_DEVICES", Path::new("0"))]);
    assert_eq!(loaded, "done");
    let held = actor.numbers("hold 1073741824")[0];
    assert!(held > CONTEXT);
    assert_eq!(world.machine().gpu(0).used, held);
    assert_eq!(world.machine().gpu(1).used, 0);
}

#[test]
fn what_is_missing_is_named() {
    let world = World::without_group(&[]);
    let with = |folder: &str| start(&world, &[("LD_LIBRARY_PATH", &world.file(folder))]).1;
    for name in ["cuCheckpointProcessGetState", "cuCheckpointProcessRestore"] {
        world::older("libcuda.so.1", name, &world.file("old"));
        let said = with("old");
        assert!(said.contains(name) && said.contains("570"), "{said}");
    }
    std::fs::create_dir(world.file("empty")).expect("made");
    std::fs::write(world.file("empty/libcuda.so.1"), "").expect("written");
    let said = with("empty");
    assert!(said.starts_with("cannot load the CUDA driver"), "{said}");
    world.machine().knob("fail", "cuInit:999");
    let (_, said) = start(&world, &[]);
    assert!(said.starts_with("cuInit fails with 999"), "{said}");
}

#[test]
fn a_status_says_its_name_and_meaning() {
    let shown = Status::NOT_READY.to_string();
    assert_eq!(shown, "600 (CUDA_ERROR_NOT_READY): the time is over");
    assert_eq!(Status(12_345).to_string(), "12345");
}
