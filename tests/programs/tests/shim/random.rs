//! Random programs with correct and wrong calls. With room, they get the same answers under a limit
//! as without gpulimit; under a small limit they never get more than the limit. In the end no
//! charge is left.
//!
//! `GPULIMIT_RANDOM_PROGRAMS` is the number of programs, `GPULIMIT_TEST_SEED` the number of the
//! first one.

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World};
use gpulimit_support::{Random, seed};

const CAP: u64 = 60 << 30;
/// A limit with room for a context and little else.
const TIGHT: u64 = 700 * MIB;
const LENGTH: usize = 90;

fn one_of<'a>(numbers: &mut Random, choices: &[&'a str]) -> &'a str {
    choices[numbers.usize(..choices.len())]
}

/// Sizes that programs request, and sizes that make no sense.
const SIZES: &[&str] = &[
    "1",
    "512",
    "20000",
    "700000",
    "1M",
    "1048577",
    "2M",
    "2M+1",
    "3M",
    "33M",
    "100M",
    "0",
    "4096G",
    "9223372036854775808",
    "18446744073709551615",
];

/// Commands that take something, each with the command that gives it back; NAME and SIZE are
/// placeholders.
const KINDS: &[(&str, &str)] = &[
    ("alloc NAME SIZE", "free NAME"),
    ("alloc NAME SIZE", "free NAME"),
    ("pitch NAME SIZE 3", "free NAME"),
    ("managed NAME SIZE", "free NAME"),
    ("create NAME SIZE 0", "release NAME"),
    ("create NAME SIZE 9", "release NAME"),
    ("async NAME SIZE", "free-async NAME"),
    ("async NAME SIZE", "free NAME"),
    ("async-from NAME pool SIZE work", "free-async NAME work"),
    ("module NAME SIZE", "unload NAME"),
    ("library NAME SIZE", "unload-library NAME"),
];

const BETWEEN: &[&str] = &[
    "sync",
    "sync work",
    "event-sync",
    "trim pool 0",
    "trim pool 32M",
    "threshold pool max",
    "threshold pool 0",
    "total 7",
    "stream more",
    "alloc-nowhere 1M",
    "free-number 0",
    "free-number 77",
];

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}")),
        Err(_) => otherwise,
    }
}

/// Returns the numbers of the programs to run.
fn seeds() -> std::ops::Range<u64> {
    let first = seed();
    first..first + number("GPULIMIT_RANDOM_PROGRAMS", 24)
}

/// Returns the commands of the program with this number.
pub fn program(seed: u64) -> Vec<String> {
    let mut numbers = Random::with_seed(seed);
    let mut lines: Vec<String> = ["start", "stream work", "pool pool 0"]
        .map(str::to_owned)
        .into();
    let mut held: Vec<String> = Vec::new();
    for at in 0..LENGTH {
        match numbers.usize(..10) {
            0..5 => {
                let (take, give) = KINDS[numbers.usize(..KINDS.len())];
                // Managed memory beyond the limit is refused even if the GPU is larger, and modules
                // of terabytes would only test the PTX compiler.
                let sizes = match take.split(' ').next() {
                    Some("managed") => &SIZES[..12],
                    Some("module" | "library") => &SIZES[..11],
                    _ => SIZES,
                };
                let name = format!("n{at}");
                lines.push(
                    take.replace("NAME", &name)
                        .replace("SIZE", one_of(&mut numbers, sizes)),
                );
                held.push(give.replace("NAME", &name));
            }
            5..9 if !held.is_empty() => {
                let give = held.swap_remove(numbers.usize(..held.len()));
                lines.push(give.clone());
                // The free follows directly, before another allocation can get the same address.
                if numbers.usize(..6) == 0 {
                    lines.push(give);
                }
            }
            _ => lines.push(one_of(&mut numbers, BETWEEN).to_owned()),
        }
    }
    lines.extend(held);
    lines.extend(
        [
            "sync",
            "sync work",
            "destroy-pool pool",
            "default-pool p 0",
            "trim p 0",
            "sync",
        ]
        .map(str::to_owned),
    );
    lines
}

fn play(mut session: Session, lines: &[String]) -> (Session, Vec<String>) {
    let answers = lines
        .iter()
        .map(|line| format!("{line}: {}", session.say(line)))
        .collect();
    (session, answers)
}

#[test]
fn random_programs_get_the_same_answers_with_room() {
    for seed in seeds() {
        let lines = program(seed);
        let bare = World::without_group(&[]);
        let (plain, expected) = play(Session::start(bare.bare(world::program())), &lines);
        let world = World::new(CAP);
        let (program, answers) = play(world.start(), &lines);
        for (answer, expected) in answers.iter().zip(&expected) {
            // The library refuses a size larger than the GPU, with the driver's code.
            assert_eq!(answer, expected, "program {seed}");
        }
        assert_eq!(
            world.machine().used(),
            bare.machine().used(),
            "program {seed}"
        );
        assert!(
            world.machine().used() < CONTEXT + 8 * MIB,
            "program {seed} leaves something"
        );
        world.judge(CAP);
        drop(plain);
        program.end();
        world.judge_end(CAP);
    }
}

#[test]
fn random_programs_never_pass_a_small_limit() {
    for seed in seeds() {
        println!("program {seed}");
        let world = World::new(TIGHT);
        let (program, _) = play(world.start(), &program(seed));
        world.judge(TIGHT);
        let (status, errors) = program.end();
        assert!(status.success(), "program {seed}: {status:?} {errors}");
        world.judge_end(TIGHT);
    }
}
