//! Members that write what they like about themselves and others into the ledger.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use gpulimit_base::units::Size;
use gpulimit_group::{Access, Members};
use gpulimit_ledger::NoWitness;
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::{self, GROUP, MIB, Session, World};
use gpulimit_support::is_root;

use crate::{CAP, Looker, done, figures, goes_on, holder, run, shown};

/// Offsets in the ledger (`crates/ledger/src/layout.rs`).
const SLOTS: u64 = (16 << 10) + (2 << 20);
const SLOT: u64 = 8192;
const PID: u64 = 0;
const START: u64 = 16;
const OBSTACLES: u64 = 840;
const ERRAND: u64 = 848;
const GATE: u64 = 856;
const SUSPENDED: u64 = 4096 + 104;

/// A user who is not root.
const MALLORY: u32 = 40_001;
const FROZEN: u64 = 1 << 8;

/// Writes a word of a program's slot, and returns the old one.
fn write(world: &World, program: &Session, at: u64, word: u64) -> u64 {
    let processes = world.ledger().processes(&NoWitness);
    let is_it = |process: &&gpulimit_ledger::ProcessUsage| process.identity.pid == program.pid();
    let slot = processes.iter().find(is_it).expect("a member").slot as u64;
    write_at(&world.group().ledger_path(), slot * SLOT + at, word)
}

/// Any errand of any member: the next commands end it, and the members go on.
#[test]
fn forged_errands_do_no_harm() {
    let world = World::new(CAP);
    let mut looker = Looker::new(&world);
    let (mut forger, mut victim) = (holder(&world, "300M"), holder(&world, "300M"));
    let before = figures(&world).0;
    for errand in [1, 2, 3, FROZEN, FROZEN | 1, 255, u64::MAX] {
        for end in [
            &["gc"] as &[&str],
            &["resume", GROUP],
            &["resume", GROUP, "--kill-lost"],
        ] {
            for program in [&forger, &victim] {
                write(&world, program, ERRAND, errand);
            }
            let _ = run(&world, end);
            for program in [&mut forger, &mut victim] {
                assert_eq!(looker.state(program), "0 0", "{errand}, {end:?}");
                goes_on(program);
            }
        }
        assert_eq!(figures(&world).0, before);
        // The process can be suspended, whatever was written.
        let _ = run(&world, &["suspend", GROUP]);
        let _ = run(&world, &["resume", GROUP, "--kill-lost"]);
        for program in [&mut forger, &mut victim] {
            assert_eq!(looker.state(program), "0 0", "{errand}");
            goes_on(program);
            write(&world, program, ERRAND, 0);
        }
        assert_eq!(figures(&world), (before, 0), "{errand}");
    }
    // A suspended process that is said to be lost comes back.
    done(&world, &["suspend", GROUP]);
    write(&world, &victim, ERRAND, 3);
    let _ = run(&world, &["resume", GROUP]);
    assert_eq!(looker.state(&forger), "0 0");
    assert_eq!(shown(&world, &victim)["state"], "lost");
    done(&world, &["resume", GROUP, "--kill-lost"]);
    goes_on(&mut victim);
    for program in [forger, victim] {
        program.end();
    }
    world.judge_end(CAP);
}

/// A process without CUDA that says that a command was at work on it.
#[test]
fn an_errand_of_a_process_without_cuda_is_ended() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    let mut idle = world.start();
    idle.expect(&[("init", "0")]);
    done(&world, &["suspend", GROUP]);
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    for program in [program, idle] {
        program.end();
    }
    world.judge_end(CAP);
}

#[test]
fn forged_suspended_bytes_gain_nothing() {
    let world = World::new(CAP);
    let mut looker = Looker::new(&world);
    // Without a suspension, the bytes are charged: a member can also write the charge itself.
    for forged in [2 * MIB, 3000 * MIB, u64::MAX] {
        let mut program = holder(&world, "2000M");
        let before = figures(&world).0;
        for _ in 0..5 {
            write(&world, &program, SUSPENDED, forged);
            let up = run(&world, &["resume", GROUP, "--timeout", "200ms"]);
            assert_eq!(looker.state(&program), "0 0", "{up:?}");
            let usage = world.usage(0);
            assert!(usage.charged >= before, "{forged}: {usage:?}");
        }
        program.expect(&[("free a", "0")]);
        program.end();
    }
    let mut program = holder(&world, "2000M");
    let before = figures(&world).0;
    // During a suspension.
    for forged in [0, 2 * MIB, 3900 * MIB, u64::MAX] {
        done(&world, &["suspend", GROUP]);
        let own = write(&world, &program, SUSPENDED, forged);
        let _ = run(&world, &["resume", GROUP, "--timeout", "200ms"]);
        if looker.state(&program) == "0 2" {
            write(&world, &program, SUSPENDED, own);
            done(&world, &["resume", GROUP]);
        }
        assert_eq!(looker.state(&program), "0 0", "{forged}");
        // The program restores its charge.
        let goes_on = world::eventually(|| {
            let answer = program.say("alloc b 100M");
            (answer == "0").then(|| program.expect(&[("free b", "0")]));
            answer == "0" && figures(&world).0 >= before
        });
        assert!(goes_on, "{forged}");
        assert_eq!(world.usage(0).suspended, 0);
    }
    assert!(world.machine().peak() <= CAP);
    program.end();
    world.judge_end(CAP);
}

/// The program opens the gate by itself.
#[test]
fn a_forged_gate_delays_calls_and_no_more() {
    let world = World::new(CAP);
    let mut program = holder(&world, "300M");
    let before = figures(&world);
    for forged in [1, 2, 7, u64::from(u32::MAX)] {
        write(&world, &program, GATE, forged);
        program.expect(&[("sync", "0"), ("query", "0")]);
    }
    done(&world, &["suspend", GROUP]);
    done(&world, &["resume", GROUP]);
    goes_on(&mut program);
    assert_eq!(figures(&world), before);
    program.end();
    world.judge_end(CAP);
}

/// A slot that names another process: no process is touched that is not a member.
#[test]
fn slots_that_name_strangers_touch_nobody() {
    let world = World::new(CAP);
    let mut looker = Looker::new(&world);
    let mut program = holder(&world, "300M");
    let mut stranger = Session::start(world.bare(world::program()));
    stranger.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    let start = start_of(&stranger);
    let own = write(&world, &program, PID, stranger.pid().into());
    // The slot does not have its owner's pid any more, so the words are written by its number.
    let own_start = write_first(&world, START, start);
    write_first(&world, ERRAND, 1 | FROZEN);
    for end in [
        &["gc"] as &[&str],
        &["suspend", GROUP, "--freeze"],
        &["resume", GROUP, "--kill-lost"],
    ] {
        let _ = run(&world, end);
        assert_eq!(looker.state(&stranger), "0 0", "{end:?}");
        assert_eq!(looker.state(&program), "0 0", "{end:?}");
        goes_on(&mut stranger);
    }
    write_first(&world, ERRAND, 0);
    write_first(&world, PID, own);
    write_first(&world, START, own_start);
    goes_on(&mut program);
    for program in [stranger, program] {
        program.end();
    }
    world.judge_end(CAP);
}

/// Returns the start time of a process.
fn start_of(process: &Session) -> u64 {
    let path = format!("/proc/{}/stat", process.pid());
    let stat = std::fs::read_to_string(path).expect("readable");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let start = fields.split_whitespace().nth(19).expect("a time");
    start.parse().expect("a number")
}

/// Writes a word of the first slot, and returns the old one.
fn write_first(world: &World, at: u64, word: u64) -> u64 {
    write_at(&world.group().ledger_path(), at, word)
}

fn write_at(ledger: &Path, at: u64, word: u64) -> u64 {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(ledger);
    let file = file.expect("the ledger");
    let mut before = [0; 8];
    file.read_exact_at(&mut before, SLOTS + at).expect("read");
    file.write_all_at(&word.to_le_bytes(), SLOTS + at)
        .expect("written");
    u64::from_le_bytes(before)
}

/// A user's group names another group's process in its ledger, and root runs the verbs on it.
#[test]
fn root_touches_only_members_of_a_users_group() {
    if !is_root() {
        return;
    }
    let world = World::new(CAP);
    let access = Access {
        owner: Some(MALLORY),
        members: Members::Owner,
    };
    let limits = LimitSet::all(Size::Bytes(CAP));
    let created = world.root().create_for("mallory", &limits, access);
    let ledger = created.expect("created").group.ledger_path();
    let mut looker = Looker::new(&world);
    let mut victim = holder(&world, "300M");
    let before = figures(&world);
    let mut command = world.limited(world::program());
    command.env("GPULIMIT_GROUP", "mallory");
    command.uid(MALLORY).gid(MALLORY).current_dir("/");
    let mut member = Session::start(command);
    member.expect(&[("start", "0 0"), ("alloc a 100M", "0")]);
    // Root suspends the member as any other.
    done(&world, &["suspend", "mallory"]);
    assert_eq!(looker.state(&member), "0 2");
    done(&world, &["resume", "mallory"]);
    assert_eq!(looker.state(&member), "0 0");
    let start = start_of(&victim);
    for (at, word) in [
        (PID, victim.pid().into()),
        (START, start),
        (ERRAND, 1 | FROZEN),
    ] {
        write_at(&ledger, at, word);
    }
    write_at(&ledger, SUSPENDED, 300 * MIB);
    for verb in [
        &["gc"] as &[&str],
        &["suspend", "mallory", "--freeze"],
        &["resume", "mallory", "--kill-lost", "--timeout", "1s"],
    ] {
        write_at(&ledger, ERRAND, 1 | FROZEN);
        let _ = run(&world, verb);
        assert_eq!(looker.state(&victim), "0 0", "{verb:?}");
        goes_on(&mut victim);
        assert_eq!(figures(&world), before, "{verb:?}");
    }
    drop(member);
    victim.end();
    world.judge_end(CAP);
}

/// Obstacles that are written for another process refuse its suspension, and do no more.
#[test]
fn forged_obstacles_only_refuse() {
    let world = World::new(CAP);
    let (mut program, mut other) = (holder(&world, "300M"), holder(&world, "300M"));
    write(&world, &other, OBSTACLES, u64::MAX);
    run(&world, &["suspend", GROUP]).expect_failure("has opened memory of another process");
    write(&world, &other, OBSTACLES, 0);
    for program in [&mut program, &mut other] {
        goes_on(program);
    }
    for program in [program, other] {
        program.end();
    }
    world.judge_end(CAP);
}
