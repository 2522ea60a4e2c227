//! Runs every fuzz target on its committed corpus and on random changes of that corpus.
//!
//! `GPULIMIT_FUZZ_ROUNDS` is the number of changes for each target; `GPULIMIT_FUZZ_SEED` selects
//! other changes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use gpulimit_fuzz_targets::{TARGETS, Target};

/// A fuzz input whose processing takes longer than this counts as a hang.
const PATIENCE: Duration = Duration::from_secs(120);
/// The largest number of bytes to which a changed fuzz input can grow.
const LONGEST: usize = 16 << 10;

/// A generator of random numbers that depend only on the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}")),
        Err(_) => otherwise,
    }
}

/// Returns the committed fuzz inputs of a target in a fixed order.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).expect("readable"))
        .collect()
}

/// Makes one random change to a fuzz input, of a kind that often breaks parsers.
fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let end = (at + random.below(32) + 1).min(bytes.len());
    match random.below(9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
        2 => bytes.insert(at, random.below(256) as u8),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        5 => bytes.truncate(at),
        6 => {
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len());
            bytes.truncate(at);
            bytes.extend(&other[from..]);
        }
        7 => bytes[at..end].fill([0, 0xff][random.below(2)]),
        _ => {
            let word = [0u64, 1, u64::MAX, 1 << 31, 1 << 63, i64::MAX as u64][random.below(6)];
            let end = (at + [2, 4, 8][random.below(3)]).min(bytes.len());
            bytes.splice(at..end, word.to_le_bytes());
        }
    }
    bytes.truncate(LONGEST);
}

/// Stores a fuzz input that broke a target, and returns the path of the stored file.
fn keep(name: &str, bytes: &[u8]) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("broken-{name}"));
    std::fs::write(&path, bytes).expect("written");
    path.display().to_string()
}

fn run(name: &'static str, target: Target, rounds: u64, seed: u64) {
    let seeds = seeds(name);
    assert!(!seeds.is_empty(), "no corpus for {name}");
    let (sender, inputs) = channel::<Option<Vec<u8>>>();
    let worker = std::thread::spawn(move || {
        let mut random = Random(seed);
        for round in 0..seeds.len() as u64 + rounds {
            let mut input = seeds[round as usize % seeds.len()].clone();
            if round >= seeds.len() as u64 {
                for _ in 0..=random.below(6) {
                    change(&mut input, &seeds, &mut random);
                }
            }
            let _ = sender.send(Some(input.clone()));
            if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
                panic!(
                    "GPULIMIT_FUZZ_SEED={seed}: {name} breaks at {}",
                    keep(name, &input)
                );
            }
        }
        let _ = sender.send(None);
    });
    let mut last = Vec::new();
    loop {
        match inputs.recv_timeout(PATIENCE) {
            Ok(Some(input)) => last = input,
            Ok(None) => break,
            Err(RecvTimeoutError::Timeout) => panic!("{name} hangs at {}", keep(name, &last)),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    worker.join().expect("nothing breaks");
}

#[test]
fn no_input_breaks_a_target() {
    let rounds = number("GPULIMIT_FUZZ_ROUNDS", 10_000);
    let seed = number("GPULIMIT_FUZZ_SEED", 1);
    std::thread::scope(|scope| {
        for (name, target) in TARGETS {
            // Each round of the target `ledger` creates a file of 17 MiB, so it gets fewer rounds.
            let rounds = if *name == "ledger" {
                rounds / 10
            } else {
                rounds
            };
            scope.spawn(move || {
                let start = std::time::Instant::now();
                run(name, *target, rounds, seed);
                let time = start.elapsed().as_secs_f32();
                println!("{name}: {rounds} changes in {time:.1} s");
            });
        }
    });
}

#[test]
fn every_fuzzer_has_a_target_and_a_corpus() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let names = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).expect("there");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("readable").path())
            .map(|path| {
                path.file_stem()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    };
    let targets: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names("fuzz_targets"), targets);
    assert_eq!(names("corpus"), targets);
}
