//! `gpulimit suspend` and `gpulimit resume` on the simulated driver. See tests/README.md.

mod calls;
mod deaths;
mod hostile;
mod others;
mod refused;
mod room;
mod signals;
mod stopped;
mod verbs;

use std::path::Path;
use std::process::Command;

use gpulimit_ledger::NoWitness;
use gpulimit_programs::world::{self, MIB, Session, World};
use gpulimit_support::wait_until;
use serde_json::Value;

/// The limit of a world's group.
const CAP: u64 = 4096 * MIB;

/// What a run of the controller has printed.
#[derive(Debug)]
struct Done {
    /// The exit status; `None` for a run that a signal has ended.
    status: Option<i32>,
    out: String,
    errors: String,
}

impl Done {
    /// Asserts that the run has failed with this text on standard error.
    #[track_caller]
    fn expect_failure(&self, text: &str) {
        assert!(self.status == Some(1), "{self:?}");
        assert!(self.errors.contains(text), "no {text:?}: {self:?}");
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

/// Returns a run of the controller.
fn verb(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.bare(&world::controller());
    command.args(arguments);
    command
}

fn finish(command: Command) -> Done {
    let output = world::finish(command);
    Done {
        status: output.status.code(),
        out: world::text(&output.stdout),
        errors: world::text(&output.stderr),
    }
}

fn run(world: &World, arguments: &[&str]) -> Done {
    finish(verb(world, arguments))
}

/// Runs the controller, which must succeed.
#[track_caller]
fn done(world: &World, arguments: &[&str]) -> Done {
    let done = run(world, arguments);
    assert_eq!(done.status, Some(0), "{arguments:?}: {done:?}");
    done
}

/// Runs a verb in the background. It does not ignore the signals that the starter of the tests
/// ignores.
fn begin(world: &World, arguments: &[&str]) -> Session {
    let mut command = world.bare(Path::new("env"));
    command.arg("--default-signal=INT,QUIT,HUP");
    command.arg(world::controller()).args(arguments);
    Session::start(command)
}

/// Returns what `ps` prints of a program.
#[track_caller]
fn shown(world: &World, program: &Session) -> Value {
    let json = done(world, &["ps", "--json"]).json();
    let processes = json["processes"].as_array().expect("a list").iter();
    let mut own = processes.filter(|process| process["pid"] == program.pid());
    own.next_back().expect("a member").clone()
}

/// A process that asks the driver about others.
struct Looker(Session);

impl Looker {
    fn new(world: &World) -> Looker {
        let mut driver = Session::start(world.bare(world::program()));
        driver.expect(&[("init", "0")]);
        Looker(driver)
    }

    /// Returns the driver's state of a program: `0 0`, or `304 -1` for a dead one.
    fn state(&mut self, program: &Session) -> String {
        self.say("process-state", program)
    }

    fn say(&mut self, command: &str, program: &Session) -> String {
        self.0.say(&format!("{command} {}", program.pid()))
    }
}

/// Waits until this many processes wait for room in the world's group.
#[track_caller]
fn await_line(world: &World, count: usize) {
    let in_line = || {
        let processes = world.ledger().processes(&NoWitness).into_iter();
        processes.filter(|process| process.waits.is_some()).count()
    };
    wait_until("processes in line", || in_line() == count);
}

/// Starts a program with this much linear memory.
fn holder(world: &World, size: &str) -> Session {
    let mut program = world.on_gpu();
    program.expect(&[(&format!("alloc a {size}"), "0")]);
    program
}

/// Asserts that a program runs: it frees and allocates.
#[track_caller]
fn goes_on(program: &mut Session) {
    program.expect(&[("alloc probe 2M", "0"), ("free probe", "0")]);
}

/// The figures of the world's group: the charge, without what is charged ahead, and the suspended
/// bytes.
fn figures(world: &World) -> (u64, u64) {
    let usage = world.usage(0);
    (usage.charged - usage.idle, usage.suspended)
}
