//! Commands that die before and after every call of the driver. Another command ends their work.

use std::time::Duration;

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{GROUP, Session, World};

use crate::{CAP, Looker, done, figures, finish, goes_on, holder, verb};

/// The functions of the driver that the verbs call. Others, such as `cuDeviceGet`, come before
/// anything is touched, or beside one of these.
const OF_SUSPEND: [&str; 4] = [
    "cuCheckpointProcessGetState",
    "cuCheckpointProcessLock",
    "cuCheckpointProcessCheckpoint",
    "cuCheckpointProcessUnlock",
];
const OF_RESUME: [&str; 9] = [
    "cuCheckpointProcessGetState",
    "cuCheckpointProcessRestore",
    "cuCheckpointProcessUnlock",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDeviceGetCount",
];
/// The commands that end the work of a dead one.
const ENDING: [&[&str]; 3] = [&["gc"], &["suspend", GROUP], &["resume", GROUP]];

struct Scene {
    world: World,
    programs: [Session; 2],
    looker: Looker,
    charged: u64,
    turn: usize,
}

impl Scene {
    fn new() -> Scene {
        let world = World::new(CAP);
        let programs = [holder(&world, "300M"), holder(&world, "200M")];
        Scene {
            looker: Looker::new(&world),
            charged: figures(&world).0,
            programs,
            world,
            turn: 0,
        }
    }

    /// Asserts that every process runs or is suspended as a whole, and that its memory is charged
    /// once. Then all processes run.
    #[track_caller]
    fn end_work(&mut self, what: &str) {
        // The dead command's own memory and charge go away.
        self.world.bury();
        let end = ENDING[self.turn % ENDING.len()];
        self.turn += 1;
        let ended = done(&self.world, end);
        let usage = self.world.usage(0);
        let (charged, suspended) = figures(&self.world);
        assert_eq!(
            charged + suspended,
            self.charged,
            "{what}, {end:?}: {ended:?}"
        );
        let used = self.world.machine().used();
        assert!(used <= usage.charged, "{what}, {end:?}: {used}, {usage:?}");
        for program in &self.programs {
            let state = self.looker.state(program);
            assert!(
                ["0 0", "0 2"].contains(&&*state),
                "{what}, {end:?}: {state} {ended:?}"
            );
        }
        assert!(
            self.world.ledger().abandoned().is_empty(),
            "{what}, {end:?}"
        );
        done(&self.world, &["resume", GROUP]);
        for program in &mut self.programs {
            assert_eq!(self.looker.state(program), "0 0", "{what}, {end:?}");
            goes_on(program);
        }
        assert_eq!(figures(&self.world), (self.charged, 0), "{what}, {end:?}");
        self.world.judge(CAP);
    }

    /// Lets a verb die before and after each of its calls of these functions.
    fn kill_at(&mut self, arguments: &[&str], functions: &[&str]) {
        let mut deaths = 0;
        for function in functions {
            for when in ["before", "after"] {
                for call in 1.. {
                    if arguments[0] == "resume" {
                        done(&self.world, &["suspend", GROUP]);
                    }
                    let mut dying = verb(&self.world, arguments);
                    let order = format!("{function}:{when}@{call}");
                    dying.env("GPULIMIT_SIM_KILL", &order);
                    let died = finish(dying);
                    if died.status.is_some() {
                        // The verb has fewer calls.
                        assert_eq!(died.status, Some(0), "{order}: {died:?}");
                        done(&self.world, &["resume", GROUP]);
                        break;
                    }
                    deaths += 1;
                    self.end_work(&format!("{} died {order}", arguments[0]));
                }
            }
        }
        assert!(deaths >= 2 * functions.len(), "{deaths}");
    }

    fn end(self) {
        let Scene {
            world,
            programs,
            looker,
            ..
        } = self;
        drop(looker);
        for program in programs {
            let (status, errors) = program.end();
            assert!(status.success(), "{errors}");
        }
        world.judge_end(CAP);
    }
}

#[test]
fn suspend_dies_at_every_call() {
    let mut scene = Scene::new();
    scene.kill_at(&["suspend", GROUP], &OF_SUSPEND[..3]);
    // An undone suspension: the second checkpoint fails.
    scene.world.machine().knob("fail", "none");
    scene.end();
}

#[test]
fn resume_dies_at_every_call() {
    let mut scene = Scene::new();
    scene.kill_at(&["resume", GROUP], &OF_RESUME);
    scene.end();
}

/// A failed suspension is undone, and the command dies in the middle of that.
#[test]
fn suspend_dies_while_it_undoes_its_work() {
    let mut scene = Scene::new();
    let functions = [OF_SUSPEND[0], OF_SUSPEND[3], OF_RESUME[1]];
    for function in functions {
        for when in ["before", "after"] {
            let mut call = 1;
            loop {
                let machine = scene.world.machine();
                machine.knob("fail", "cuCheckpointProcessCheckpoint:999@2");
                let mut dying = verb(&scene.world, &["suspend", GROUP]);
                let order = format!("{function}:{when}@{call}");
                dying.env("GPULIMIT_SIM_KILL", &order);
                let died = finish(dying);
                machine.knob("fail", "none");
                if died.status.is_some() {
                    died.expect_failure("the driver answers 999");
                    break;
                }
                scene.end_work(&format!("undo died {order}"));
                call += 1;
            }
            assert!(call > 1, "{function} is called");
        }
    }
    scene.end();
}

/// Commands are killed at random times, also while the driver moves memory.
#[test]
fn commands_killed_at_any_time_leave_no_half_step() {
    let mut scene = Scene::new();
    scene.world.machine().knob("step", "10000000");
    let mut random = gpulimit_support::random();
    for round in 0..24 {
        let verb = if round % 2 == 0 { "suspend" } else { "resume" };
        if verb == "resume" {
            done(&scene.world, &["suspend", GROUP]);
        }
        let actor = crate::begin(&scene.world, &[verb, GROUP]);
        // The command is killed whatever it is doing then.
        std::thread::sleep(Duration::from_millis(random.u64(..150)));
        actor.kill();
        scene.end_work(&format!("{verb} killed in round {round}"));
    }
    scene.end();
}

/// Whatever ends the work of a dead command records what has become of the program.
#[test]
fn the_work_of_a_dead_command_has_its_event() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    let events = || [EventKind::Suspend, EventKind::Resume].map(|kind| world.events(kind).len());
    // Whether the program is down then, and how many events of both kinds tell of that.
    let deaths = [
        (
            "suspend",
            "cuCheckpointProcessCheckpoint:before",
            false,
            [0, 0],
        ),
        (
            "suspend",
            "cuCheckpointProcessCheckpoint:after",
            true,
            [1, 0],
        ),
        ("resume", "cuMemAlloc_v2:before", true, [0, 0]),
        ("resume", "cuCheckpointProcessUnlock:before", false, [0, 1]),
    ];
    for (name, order, is_down, more) in deaths {
        for end in ENDING {
            if name == "resume" {
                done(&world, &["suspend", GROUP]);
            }
            let before = events();
            let mut dying = verb(&world, &[name, GROUP]);
            dying.env("GPULIMIT_SIM_KILL", order);
            let died = finish(dying);
            assert_eq!(died.status, None, "{order}: {died:?}");
            world.bury();
            let ended = done(&world, end);
            let own = match (end[0], is_down) {
                ("suspend", false) => [1, 0],
                ("resume", true) => [0, 1],
                _ => [0, 0],
            };
            let expected = [0, 1].map(|kind| before[kind] + more[kind] + own[kind]);
            assert_eq!(events(), expected, "{order}, {end:?}: {ended:?}");
            done(&world, &["resume", GROUP]);
        }
    }
    goes_on(&mut program);
    program.end();
    world.judge_end(CAP);
}
