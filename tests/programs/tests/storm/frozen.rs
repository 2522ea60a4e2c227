//! A member is stopped, as by a debugger, at every place of its work: no other process waits for it
//! longer than a second, which a request takes that stands behind one that is neither granted nor
//! refused.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use gpulimit_programs::world::{self, MIB, Session, World, finish};
use gpulimit_support::side_by_side;

use crate::tempest::setting;
use crate::tracer::{Stop, Tracer};

pub const KNOBS: &[(&str, &str)] = &[("GPULIMIT_SIM_CONTEXT_BYTES", "10485760")];

/// The work of other processes meanwhile, and the longest time that it took.
pub struct Others<'a> {
    world: &'a World,
    member: Session,
    longest: (Duration, String),
}

impl<'a> Others<'a> {
    pub fn new(world: &'a World) -> Others<'a> {
        // The controller is built before a process is stopped.
        world::controller();
        Others {
            member: world.on_gpu(),
            longest: Default::default(),
            world,
        }
    }

    fn timed(&mut self, what: String, work: impl FnOnce(&mut Self)) {
        let began = Instant::now();
        work(self);
        self.longest = self.longest.clone().max((began.elapsed(), what));
    }

    /// Returns the longest time that a step took, and the step.
    pub fn longest(&self) -> &(Duration, String) {
        &self.longest
    }

    /// A member that has room takes memory.
    pub fn member(&mut self, place: &str) {
        self.timed(format!("a member, {place}"), |others| {
            others.member.expect(&[
                ("alloc a 5M", "0"),
                ("create b 4M 0", "0"),
                ("release b", "0"),
                ("free a", "0"),
            ]);
        });
    }

    /// A process comes and goes.
    pub fn newcomer(&mut self, place: &str) {
        self.timed(format!("a newcomer, {place}"), |others| {
            let mut program = others.world.on_gpu();
            program.expect(&[("alloc a 5M", "0")]);
            program.end_quietly();
        });
    }

    /// The controller reads, changes and cleans up.
    pub fn controller(&mut self, place: &str) {
        for command in ["ps", "set world high=max", "gc"] {
            self.timed(format!("gpulimit {command}, {place}"), |others| {
                let mut controller = others.world.bare(&world::controller());
                controller.args(command.split(' '));
                let output = finish(controller);
                assert!(output.status.success(), "{command}, {place}: {output:?}");
            });
        }
    }
}

/// Stops a program at the beginning and the end of every system call, except those by which it
/// reads these lines and answers them.
fn stop_at_every_system_call(lines: &[&str]) {
    let world = World::with(2048 * MIB, KNOBS);
    world.on_gpu().end_quietly();
    let mut others = Others::new(&world);
    let mut victim = world.start();
    let tracer = Tracer::attach(victim.pid());
    // The last line lies beyond the lines under test, so that the program never waits for a line.
    let all: Vec<&str> = lines.iter().copied().chain(["exit 0"]).collect();
    victim.tell(&all.join("\n"));
    let (mut stops, stride) = (0, 1 + 12 / setting("SECONDS", 1));
    while let Stop::Call(call) = tracer.next_call() {
        // The calls on these two descriptors transfer the lines and answers.
        if call.is_read_of(0) || call.is_write_to(1) {
            continue;
        }
        stops += 1;
        let place = format!("at stop {stops}, system call {}", call.number);
        others.member(&place);
        if stops % stride == 0 {
            others.newcomer(&place);
        }
        if stops % (4 * stride) == 0 {
            others.controller(&place);
        }
    }
    for line in lines {
        let answer = victim.answer();
        assert!(answer.starts_with('0'), "{line}: {answer}");
    }
    tracer.detach();
    let (longest, what) = others.longest();
    println!("{lines:?}: {stops} stops, at most {longest:?}: {what}");
    assert!(stops > 10);
    drop(others);
    victim.end_quietly();
    world.judge_end(2048 * MIB);
}

#[test]
fn a_member_stopped_while_joining_blocks_no_other() {
    stop_at_every_system_call(&["start"]);
}

#[test]
fn a_member_stopped_at_any_system_call_blocks_no_other() {
    stop_at_every_system_call(&[
        "start",
        "alloc a 9M",
        "async b 3M",
        "module m 3M",
        "array c 300,200",
        "create d 4M 0",
        "context e 0 v4",
        "destroy e",
        "release d",
        "destroy-array c",
        "unload m",
        "free-async b",
        "sync",
        "free a",
    ]);
}

/// Stops a program at instructions of the library while it allocates and frees; at each stop a peer
/// requests `peer`.
fn stop_at_instructions(cap: u64, stride: u64, peer: &str, answers: RangeInclusive<u8>) {
    let world = World::with(cap, KNOBS);
    let mut peers = world.on_gpu();
    let mut victim = world.on_gpu();
    let lines = "alloc a 10M\nfree a";
    // The first round loads and links everything.
    victim.tell(lines);
    assert_eq!([victim.answer(), victim.answer()], ["0", "0"]);
    let times = 4;
    let tracer = Tracer::attach(victim.pid());
    let ours = tracer.code_of("libgpulimit.so");
    victim.tell(&vec![lines; times].join("\n"));
    let (mut stops, mut seen) = (0, 0);
    let mut longest = Duration::ZERO;
    let mut counts = [0; 3];
    // A pair of calls takes some thousand instructions of the library.
    while seen < 3000 * setting("SECONDS", 1).min(2) {
        tracer.step_in(&ours);
        seen += 1;
        if seen % stride != 0 {
            continue;
        }
        stops += 1;
        let began = Instant::now();
        let answer: u8 = peers.say(peer).parse().expect("a status");
        assert!(
            answers.contains(&answer),
            "{peer} at stop {stops}: {answer}"
        );
        peers.expect(&[("free a", "0")]);
        counts[usize::from(answer)] += 1;
        longest = longest.max(began.elapsed());
        assert!(
            world_peak_is_below(&world, stops, cap),
            "{:?}",
            world.machine().gpus()
        );
    }
    tracer.detach();
    println!(
        "{stops} of {seen} instructions of ours, granted {}, refused {}; at most {longest:?}",
        counts[0], counts[2]
    );
    for _ in 0..2 * times {
        victim.answer();
    }
    world.judge(cap);
    peers.end();
    victim.end();
    world.judge_end(cap);
}

/// Begins a request for memory of a dead process that the driver does not free: it waits for half a
/// minute, in a world of its own.
fn slow_request() -> (Session, World) {
    let lag = ("GPULIMIT_SIM_KILL_LAG_MS", "3600000");
    let world = World::with(200 * MIB, &[KNOBS, &[lag]].concat());
    let (mut asks, mut holder) = (world.on_gpu(), world.on_gpu());
    holder.expect(&[("alloc a 120M", "0")]);
    holder.kill();
    asks.tell("alloc a 100M");
    asks.waits();
    (asks, world)
}

/// Memory of a dead process is available to any process that needs it, or the request is refused
/// long before one that waits for such memory. No process waits for a stopped one that is cleaning
/// up.
#[test]
fn a_member_stopped_while_cleaning_up_blocks_no_other() {
    let cap = 200 * MIB;
    let lag = ("GPULIMIT_SIM_KILL_LAG_MS", "0");
    let world = World::with(cap, &[KNOBS, &[lag]].concat());
    let mut peer = world.on_gpu();
    let (mut stops, mut refused) = (1_usize, 0);
    // Each round stops at a later place of the request, until the request has fewer places.
    let stride = 24 / setting("SECONDS", 1).min(24) as usize;
    for wanted in (1..).step_by(stride) {
        if stops + stride < wanted {
            break;
        }
        let mut victim = world.on_gpu();
        let mut holder = world.on_gpu();
        holder.expect(&[("alloc a 120M", "0")]);
        holder.kill();
        let tracer = Tracer::attach(victim.pid());
        victim.tell("alloc a 100M\nfree a\nexit 0");
        stops = 0;
        while let Stop::Call(call) = tracer.next_call() {
            if call.is_read_of(0) || call.is_write_to(1) {
                continue;
            }
            stops += 1;
            if stops == wanted {
                break;
            }
        }
        let (mut slow, _world) = slow_request();
        let answer = peer.say("alloc a 100M");
        assert_eq!(slow.printed(), None, "answered before {wanted}");
        refused += u64::from(answer == "2");
        assert!(answer == "0" || answer == "2", "{answer}");
        peer.say("free a");
        tracer.detach();
        let answer = victim.answer();
        assert!(answer == "0" || answer == "2", "{answer}");
        drop(victim);
        assert!(
            world.machine().peak() <= cap,
            "{:?}",
            world.machine().gpus()
        );
    }
    println!("{stops} stops, refused at {refused}");
    assert!(stops > 5 && refused > 0);
    peer.end();
    world.judge_end(cap);
}

/// Steps a program that allocates and frees to the first instruction of the library at which the
/// condition holds.
fn step_until(tracer: &Tracer, mut so: impl FnMut() -> bool) {
    let ours = tracer.code_of("libgpulimit.so");
    // A pair of calls takes some thousand instructions.
    for _ in 0..10_000 {
        tracer.step_in(&ours);
        if so() {
            return;
        }
    }
    panic!("never so");
}

/// A member is stopped for a long time, with a request that is neither granted nor refused, or with
/// a granted request that the driver has not got yet: all other processes go on meanwhile, and then
/// the member does, too.
#[test]
fn a_member_stopped_for_long_blocks_no_other() {
    let cap = 1024 * MIB;
    let hold = Duration::from_secs(setting("HOLD", 3));
    side_by_side([true, false], |undecided| {
        let world = World::with(cap, KNOBS);
        let mut others = Others::new(&world);
        let mut victim = world.on_gpu();
        let lines = "alloc a 10M\nfree a";
        victim.tell(lines);
        assert_eq!([victim.answer(), victim.answer()], ["0", "0"]);
        let ledger = world.ledger();
        let device = ledger.devices()[0].index;
        let before = ledger.usage(device).charged;
        let tracer = Tracer::attach(victim.pid());
        victim.tell(lines);
        step_until(&tracer, || {
            let usage = ledger.usage(device);
            if undecided {
                usage.undecided >= 10 * MIB
            } else {
                usage.charged >= before + 10 * MIB
            }
        });
        let (began, mut rounds) = (Instant::now(), 0);
        while began.elapsed() < hold || rounds < 3 {
            rounds += 1;
            let place = format!("round {rounds}");
            others.member(&place);
            if rounds % 10 != 1 {
                continue;
            }
            others.newcomer(&place);
            others.controller(&place);
            // Memory of the dead process becomes free.
            let mut dies = world.on_gpu();
            dies.expect(&[("alloc a 600M", "0")]);
            dies.kill();
            others.timed(format!("who follows the dead, {place}"), |others| {
                let member = &mut others.member;
                member.expect(&[("alloc b 600M", "0"), ("free b", "0")]);
            });
        }
        let (longest, what) = &others.longest;
        println!(
            "held for {:?}, undecided: {undecided}; {rounds} rounds, at most {longest:?}: {what}",
            began.elapsed()
        );
        tracer.detach();
        assert_eq!([victim.answer(), victim.answer()], ["0", "0"]);
        world.judge(cap);
        drop(others);
        victim.end();
        world.judge_end(cap);
    });
}

fn world_peak_is_below(world: &World, stops: u64, cap: u64) -> bool {
    // Reading the peak starts a process.
    !stops.is_multiple_of(50) || world.machine().peak() <= cap
}

#[test]
fn a_member_stopped_in_a_charge_blocks_no_other() {
    stop_at_instructions(1024 * MIB, 1, "alloc a 20M", 0..=0);
}

#[test]
fn a_member_stopped_in_a_full_group_blocks_no_other() {
    // Two contexts and reserves; the victim's ten, or the peer's twenty.
    let cap = 2 * (10 + 4) * MIB + 26 * MIB;
    stop_at_instructions(
        cap,
        40 / setting("SECONDS", 1).min(20),
        "alloc a 20M",
        0..=2,
    );
}
