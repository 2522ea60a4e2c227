//! The verbs `suspend` and `resume` at random, several at once, among killed and stopped programs,
//! changed limits and killed commands.
//!
//! The limit is never passed. No program outside the group uses the GPU, so no process is lost. In
//! the end all programs come back, and their charges are theirs alone.

use std::process::Command;
use std::time::{Duration, Instant};

use gpulimit_ledger::EventKind;
use gpulimit_programs::world::{self, GROUP, MIB, Session, World};

use crate::judge::Judge;
use crate::tempest::{one_of, setting};
use gpulimit_support::{Random, eventually, patience, random};

const CAP: u64 = 600 * MIB;
const PROGRAMS: usize = 5;
/// Commands at once.
const COMMANDS: usize = 3;

fn verb(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.bare(&world::controller());
    command.args(arguments);
    command
}

/// Starts a program that allocates and frees in two threads.
fn start(world: &World) -> Session {
    loop {
        let mut program = world.start();
        // The group may be full at the moment.
        if program.say("start") == "0 0" {
            work(&mut program);
            return program;
        }
    }
}

fn work(program: &mut Session) {
    let lines = "alloc a 60M\nmany b 10 3M\nfree-many b\nfree a";
    program.tell(&format!("threads 2 {{\nrepeat 300 {{\n{lines}\n}}\n}}"));
}

/// Begins a random verb.
fn begin(world: &World, random: &mut Random, programs: &[Session]) -> Session {
    let pid = programs[random.usize(..programs.len())].pid().to_string();
    let arguments: &[&str] = match random.usize(..12) {
        0..3 => &["suspend", GROUP, "--timeout", "1s"],
        3..5 => &["suspend", "--pid", &pid, "--timeout", "1s"],
        5 => &["suspend", "--pid", &pid, "--freeze"],
        6..9 => &["resume", GROUP, "--timeout", "2s"],
        9 => &["resume", "--pid", &pid, "--timeout", "1s"],
        10 => &["ps"],
        _ => &["gc"],
    };
    Session::start(verb(world, arguments))
}

#[test]
fn suspensions_among_kills_stops_and_limits_lose_nobody() {
    let mut random = random();
    let capacity = (CAP + 256 * MIB).to_string();
    let world = World::with(
        CAP,
        &[
            ("GPULIMIT_SIM_CAPACITY", &*capacity),
            ("GPULIMIT_SIM_CONTEXT_BYTES", "10485760"),
            ("GPULIMIT_SIM_KILL_LAG_MS", "10"),
            ("GPULIMIT_SIM_CHECKPOINT", "none"),
            ("GPULIMIT_SIM_STEP", "5000000"),
        ],
    );
    let mut programs: Vec<Session> = (0..PROGRAMS).map(|_| start(&world)).collect();
    let judge = Judge::watch(&world, CAP, 500);
    let mut commands: Vec<Session> = Vec::new();
    let (mut ran, mut killed) = (0, 0);
    let count = |kind| world.ledger().event_count(kind);
    let moved = || [EventKind::Suspend, EventKind::Resume].map(count);
    let length = Duration::from_secs(2 * setting("SECONDS", 1));
    let began = Instant::now();
    // A slow machine gets its share of events, too.
    while began.elapsed() < length || ran < 20 || moved().contains(&0) {
        assert!(
            began.elapsed() < length + patience(),
            "{ran} commands, {:?}",
            moved()
        );
        let at = random.usize(..PROGRAMS);
        match random.usize(..20) {
            0..9 if commands.len() < COMMANDS => {
                commands.push(begin(&world, &mut random, &programs));
            }
            9..11 if !commands.is_empty() => {
                commands.swap_remove(random.usize(..commands.len())).kill();
                killed += 1;
            }
            11..13 => programs[at].signal(libc::SIGSTOP),
            13..16 => programs
                .iter()
                .for_each(|program| program.signal(libc::SIGCONT)),
            16 => {
                // The group has room, so the new program does not wait for suspended ones only.
                std::mem::replace(&mut programs[at], world.start()).kill();
                if programs[at].say("start") == "0 0" {
                    work(&mut programs[at]);
                }
            }
            17 => world.set(one_of(&mut random, &[CAP, CAP, CAP / 2])),
            _ => std::thread::sleep(Duration::from_millis(random.u64(..40))),
        }
        let (ended, running): (Vec<_>, Vec<_>) = commands
            .into_iter()
            .partition(|command| command.has_ended());
        commands = running;
        for command in ended {
            ran += 1;
            let (status, errors) = command.end();
            assert!(
                status.code().is_some_and(|code| code < 2),
                "{status:?}: {errors}"
            );
            assert!(!errors.contains("panicked"), "{errors}");
        }
    }
    commands.into_iter().for_each(Session::kill);
    world.set(CAP);
    programs
        .iter()
        .for_each(|program| program.signal(libc::SIGCONT));
    // The programs hold room for a moment only, except what they need in the end.
    let mut said = String::new();
    let resumed = eventually(|| {
        let output = world::finish(verb(&world, &["resume", GROUP, "--timeout", "10s"]));
        said = world::text(&output.stderr);
        output.status.success()
    });
    assert!(resumed, "{said}");
    for program in &mut programs {
        // The end of the work, or of the start.
        program.tell("sleep 0");
        while !program.line().starts_with("sleep") {}
        let _ = program.say("start");
        program.expect(&[("alloc probe 20M", "0"), ("free probe", "0")]);
    }
    let verdict = judge
        .end()
        .unwrap_or_else(|objection| panic!("{objection}"));
    let [down, up] = moved();
    println!("  {ran} commands, {killed} killed, {down} down, {up} up: {verdict:?}");
    assert_eq!(count(EventKind::Lost), 0);
    world.bury();
    assert_eq!(world.usage(0).suspended, 0);
    world.judge(CAP);
    for program in programs {
        program.end();
    }
    world.judge_end(CAP);
}
