//! A program whose charge another process moves to its suspended bytes and back, while the driver
//! has its memory on the host.

use gpulimit_base::identity::Identity;
use gpulimit_base::units::gib;
use gpulimit_ledger::{Calls, Ledger, Level, Unmoved, hand_over, try_charge};
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};
use std::sync::Arc;

const CAP: u64 = 4096 * MIB;

/// The process that suspends and resumes a program: it makes the driver's calls, and this test
/// changes the figures.
struct Actor<'a> {
    world: &'a World,
    ledger: Arc<Ledger>,
    driver: Session,
}

impl<'a> Actor<'a> {
    fn new(world: &'a World) -> Actor<'a> {
        let mut driver = Session::start(world.bare(world::program()));
        driver.expect(&[("init", "0")]);
        Actor {
            world,
            ledger: world.ledger(),
            driver,
        }
    }

    fn identity(&self, program: &Session) -> Identity {
        let processes = self.ledger.processes(&gpulimit_ledger::NoWitness);
        let found = processes
            .iter()
            .find(|process| process.identity.pid == program.pid());
        found.expect("a member").identity
    }

    #[track_caller]
    fn drive(&mut self, steps: &[&str], program: &Session) {
        for step in steps {
            let command = format!("{step}-process {}", program.pid());
            assert_eq!(self.driver.say(&command), "0", "{step}");
        }
    }

    fn suspend(&mut self, program: &Session) -> u64 {
        let process = self.identity(program);
        let ledger = Arc::clone(&self.ledger);
        let _right = ledger.act_on(&process).expect("the only actor");
        let is_quiet = || ledger.calls_under_way(&process, Calls::Short) == 0;
        loop {
            let mark = ledger.close_gate(&process, Calls::Short);
            assert!(world::eventually(is_quiet));
            self.drive(&["lock"], program);
            if ledger.is_held_back(&process, mark) && is_quiet() {
                break;
            }
            // A thread has taken this actor for dead.
            self.drive(&["unlock"], program);
        }
        self.drive(&["checkpoint"], program);
        self.ledger.move_out(&process).expect("moved")
    }

    /// Charges the room, hands it over, and brings the memory back. Returns false without room.
    fn resume(&mut self, program: &Session) -> bool {
        let process = self.identity(program);
        let ledger = Arc::clone(&self.ledger);
        let _right = ledger.act_on(&process).expect("the only actor");
        let slot = self.ledger.claim(&Identity::of_self(), "").expect("a slot");
        let device = self.ledger.devices()[0].index;
        let bytes = self.ledger.suspended_of(&process, device);
        let path = [Level {
            slot: &slot,
            device,
            max: CAP,
            protection: None,
            keeps_low: false,
            uncovered: None,
        }];
        if !try_charge(&path, bytes) {
            return false;
        }
        match hand_over(&path, bytes, &process) {
            Ok(()) => {}
            // Requests of others are undecided. Leaving the group uncharges the room.
            Err(Unmoved::Contended) => return false,
            Err(error) => panic!("{error}"),
        }
        // The driver may free the memory of a killed process later than the ledger knows. A restore
        // without room could never be repeated.
        let has_room = || self.world.machine().used() + bytes <= CAP;
        assert!(world::eventually(has_room));
        self.drive(&["restore", "unlock"], program);
        ledger.open_gate(&process);
        true
    }
}

fn json(world: &World, verb: &str) -> serde_json::Value {
    let mut command = world.bare(&world::controller());
    command.args([verb, "--json"]);
    let output = world::finish(command);
    assert!(output.status.success(), "{}", world::text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A call that cannot be made without a lock has marked its thread by then.
#[test]
fn a_refused_asynchronous_allocation_is_not_under_way() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("async a 20M", "0"), ("sync", "0")]);
    let mut again = 0..CAP / (20 * MIB);
    let refused = again.find(|at| program.say(&format!("async b{at} 20M")) == "2");
    assert!(refused > Some(100), "the group is full: {refused:?}");
    let actor = Actor::new(&world);
    let process = actor.identity(&program);
    assert_eq!(actor.ledger.calls_under_way(&process, Calls::Short), 0);
    program.end();
}

#[test]
fn others_use_the_room_of_a_suspended_program() {
    let world = World::new(CAP);
    let (mut program, mut other) = (world.on_gpu(), world.on_gpu());
    program.expect(&[("alloc a 2000M", "0")]);
    let before = world.usage(0);
    let mut actor = Actor::new(&world);
    let moved = actor.suspend(&program);
    assert!(moved >= CONTEXT + 2000 * MIB, "{moved}");
    let usage = world.usage(0);
    assert_eq!(
        (usage.charged, usage.suspended),
        (before.charged - moved, moved)
    );
    // What is left of the program's charge is memory that it has charged ahead.
    world.judge(CAP);
    other.expect(&[("alloc b 3000M", "0")]);
    world.judge(CAP);
    assert!(!actor.resume(&program), "there is no room");
    other.expect(&[("free b", "0")]);
    assert!(actor.resume(&program));
    let usage = world.usage(0);
    assert_eq!(usage.suspended, 0);
    assert!(usage.charged >= before.charged, "{usage:?}");
    world.judge(CAP);
    other.expect(&[("alloc b 3000M", "2")]);
    program.expect(&[("free a", "0"), ("alloc a 100M", "0")]);
    world.judge(CAP);
    for session in [program, other, actor.driver] {
        session.end();
    }
    world.judge_end(CAP);
}

#[test]
fn the_verbs_show_a_suspended_program() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 100M", "0")]);
    let mut actor = Actor::new(&world);
    let shown = |verb: &str, at: &str| json(&world, verb)[at][0].clone();
    assert_eq!(shown("ps", "processes")["state"], "running");
    assert_eq!(shown("ps", "processes")["suspended"], 0);
    let moved = actor.suspend(&program);
    let process = shown("ps", "processes");
    assert_eq!(
        (&process["state"], &process["suspended"]),
        (&"suspended".into(), &moved.into())
    );
    assert_eq!(process["linear"], 0, "nothing is on the GPU");
    let gpu = &shown("show", "groups")["gpus"][0];
    assert_eq!(gpu["suspended"], moved);
    assert!(gpu["usage"].as_u64().expect("bytes") < 100 * MIB, "{gpu}");
    let mut command = world.bare(&world::controller());
    command.arg("ps");
    let table = world::text(&world::finish(command).stdout);
    assert!(
        table.contains("SUSPENDED") && table.contains("suspended"),
        "{table}"
    );
    let top = || {
        let mut command = world.bare(&world::controller());
        command.args(["top", "--once"]);
        world::text(&world::finish(command).stdout)
    };
    // The row of the group and that of the process.
    let state = format!("suspended {}", gib(moved));
    assert_eq!(top().matches(&state).count(), 2, "{}", top());
    assert!(actor.resume(&program));
    assert_eq!(shown("ps", "processes")["state"], "running");
    assert!(!top().contains("suspended"), "{}", top());
    // Nothing is left of a suspended program that is killed.
    actor.suspend(&program);
    drop(program);
    world.bury();
    assert_eq!(world.usage(0).suspended, 0);
    actor.driver.end();
    world.judge_end(CAP);
}

/// Figures that no checkpoint confirms: the program charges its memory before it gets more.
#[test]
fn a_suspension_that_the_driver_does_not_confirm_is_charged_again() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 2000M", "0")]);
    let before = world.usage(0).charged;
    let ledger = world.ledger();
    let process = Actor::new(&world).identity(&program);
    assert!(ledger.move_out(&process).is_ok());
    assert!(world.usage(0).charged < before - 2000 * MIB);
    let refused = program.say("alloc b 2000M");
    assert!(refused.starts_with('2'), "{refused}");
    let usage = world.usage(0);
    assert_eq!((usage.charged, usage.suspended), (before, 0));
    program.expect(&[("alloc b 100M", "0"), ("free a", "0")]);
    program.end();
    assert_eq!(ledger.move_out(&process), Err(Unmoved::Gone));
    world.judge_end(CAP);
}

#[test]
fn a_program_that_another_tool_resumes_is_charged_again() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 2000M", "0")]);
    let before = world.usage(0).charged;
    let mut actor = Actor::new(&world);
    actor.suspend(&program);
    actor.drive(&["restore", "unlock"], &program);
    let _ = program.say("alloc b 2M");
    let usage = world.usage(0);
    assert!(usage.charged >= before && usage.suspended == 0, "{usage:?}");
    program.end();
    actor.driver.end();
    world.judge_end(CAP);
}

/// A request that waits for room makes no call of the driver, so it does not hold up the lock.
/// While the program is suspended, the request neither takes the room that comes free nor stands in
/// line before others. It goes on when the program is back.
#[test]
fn a_waiting_request_of_a_suspended_program_waits_until_it_is_resumed() {
    let world = World::new(CAP);
    world.settings(&["on_limit=wait"]);
    let [mut program, mut other, mut third] = std::array::from_fn(|_| world.on_gpu());
    program.expect(&[("alloc a 300M", "0")]);
    other.expect(&[("alloc b 2000M", "0")]);
    program.expect(&[("aside {\nalloc c 1500M\n}", "0")]);
    let waits = || world.ledger().has_waiters();
    assert!(world::eventually(waits), "the request waits");
    let mut actor = Actor::new(&world);
    assert!(actor.suspend(&program) >= CONTEXT + 300 * MIB);
    assert!(
        world::eventually(|| !waits()),
        "the request leaves the line"
    );
    let before = world.usage(0).charged;
    other.expect(&[("free b", "0")]);
    third.expect(&[("alloc d 1900M", "0")]);
    assert!(world.usage(0).charged < before);
    assert!(actor.resume(&program));
    world.judge(CAP);
    third.expect(&[("free d", "0")]);
    program.expect(&[("await", "0:1")]);
    world.judge(CAP);
    for session in [program, other, third, actor.driver] {
        session.end();
    }
    world.judge_end(CAP);
}

/// A request that begins while the program is suspended must not take the room that the program
/// needs to come back: the request's call of the driver would wait for the program's return, and
/// the return for the room.
#[test]
fn a_suspended_program_does_not_take_the_room_for_its_own_return() {
    for request in ["alloc b 1500M", "async b 1500M", "create b 1500M 0"] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[("alloc a 2500M", "0")]);
        let mut actor = Actor::new(&world);
        actor.suspend(&program);
        let before = world.usage(0).charged;
        program.tell(request);
        program.waits();
        assert_eq!(world.usage(0).charged, before, "{request}");
        assert!(actor.resume(&program), "{request}");
        let answer = program.answer();
        assert!(answer.starts_with('2'), "{request}: {answer}");
        world.judge(CAP);
        program.expect(&[("free a", "0"), (request, "0")]);
        world.judge(CAP);
        program.end();
        actor.driver.end();
        world.judge_end(CAP);
    }
}

/// Programs that allocate and free all the time are suspended, resumed and killed. The GPU has no
/// more memory than the group, so a restore would fail if the group had given the room away.
#[test]
fn a_storm_of_suspensions_loses_no_program() {
    let capacity = CAP.to_string();
    let knobs = [
        ("GPULIMIT_SIM_CAPACITY", &*capacity),
        ("GPULIMIT_SIM_CHECKPOINT", "none"),
    ];
    let world = World::with(CAP, &knobs);
    let start = || {
        // The group may be full at the moment.
        let mut program = loop {
            let mut program = world.start();
            if program.say("start") == "0 0" {
                break program;
            }
        };
        // Not all programs fit at once.
        let lines = "alloc a 500M\nmany b 20 3M\nfree-many b\nfree a";
        program.tell(&format!(
            "threads 2 {{\nrepeat 1000000000 {{\n{lines}\n}}\n}}"
        ));
        program
    };
    let mut programs: Vec<(Session, bool)> = (0..3).map(|_| (start(), false)).collect();
    let mut actor = Actor::new(&world);
    let (mut suspensions, mut returns) = (0, 0);
    for round in 0..60 {
        let at = round * 7 % programs.len();
        let (program, suspended) = &mut programs[at];
        if round % 11 == 10 {
            // A running one and a suspended one alternate.
            *program = start();
            *suspended = false;
        } else if *suspended {
            *suspended = !actor.resume(program);
            returns += u32::from(!*suspended);
        } else {
            assert!(actor.suspend(program) >= CONTEXT);
            *suspended = true;
            suspensions += 1;
        }
        let used = world.machine().used();
        assert!(used <= CAP, "{used}");
    }
    assert!(suspensions > 10 && returns > 5, "{suspensions}, {returns}");
    // With all others gone there is room for each.
    let (mut away, running): (Vec<_>, Vec<_>) = programs.into_iter().partition(|(_, away)| *away);
    drop(running);
    world.bury();
    while let Some((program, _)) = away.pop() {
        assert!(world::eventually(|| actor.resume(&program)));
        let state = format!("process-state {}", program.pid());
        assert_eq!(actor.driver.say(&state), "0 0");
    }
    actor.driver.end();
    world.judge_end(CAP);
}

/// Returns the functions whose calls wait for a suspended process to come back, because the driver
/// does not make them wait.
fn gated() -> impl Iterator<Item = &'static str> {
    let table = include_str!("../../../../shim/src/table.rs");
    table.lines().filter_map(|line| {
        let (function, options) = line.split_once(" => ")?;
        let ways = ["gated", "as gate", "as wait"];
        let is_gated = ways.iter().any(|way| options.contains(way));
        let name = function.split_whitespace().nth(1)?.split('(').next();
        name.filter(|_| is_gated)
    })
}

#[test]
fn calls_that_must_not_begin_wait_until_the_program_is_back() {
    assert!(gated().count() > 20);
    for function in gated() {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[
            ("event event", "0"),
            ("alloc memory 4M", "0"),
            ("pool pool 0", "0"),
            ("module module 4096", "0"),
        ]);
        let mut actor = Actor::new(&world);
        actor.suspend(&program);
        program.tell(&format!("gated {function}"));
        program.waits();
        assert!(actor.resume(&program), "{function}");
        assert_eq!(program.answer(), "0", "{function}");
        program.end();
        world.judge_end(CAP);
    }
}
