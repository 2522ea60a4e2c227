//! Runs every fuzz target on its committed corpus and on random changes of that corpus.
//!
//! `GPULIMIT_FUZZ_ROUNDS` is the number of changes for each target; `GPULIMIT_TEST_SEED` selects
//! other changes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};

use gpulimit_fuzz_targets::{TARGETS, Target};
use gpulimit_support::{Random, patience, seed};

/// The largest number of bytes to which a changed fuzz input can grow.
const LONGEST: usize = 16 << 10;

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
    let mut below = |end: usize| random.usize(..end.max(1));
    let at = below(bytes.len() + 1);
    let end = (at + below(32) + 1).min(bytes.len());
    match below(9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << below(8),
        1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][below(5)],
        2 => bytes.insert(at, below(256) as u8),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        5 => bytes.truncate(at),
        6 => {
            let other = &seeds[below(seeds.len())];
            let from = below(other.len());
            bytes.truncate(at);
            bytes.extend(&other[from..]);
        }
        7 => bytes[at..end].fill([0, 0xff][below(2)]),
        _ => {
            let word = [0u64, 1, u64::MAX, 1 << 31, 1 << 63, i64::MAX as u64][below(6)];
            let end = (at + [2, 4, 8][below(3)]).min(bytes.len());
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
        let mut random = Random::with_seed(seed);
        for round in 0..seeds.len() as u64 + rounds {
            let mut input = seeds[round as usize % seeds.len()].clone();
            if round >= seeds.len() as u64 {
                for _ in 0..=random.usize(..6) {
                    change(&mut input, &seeds, &mut random);
                }
            }
            let _ = sender.send(Some(input.clone()));
            if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
                panic!("{name} breaks at {}", keep(name, &input));
            }
        }
        let _ = sender.send(None);
    });
    let mut last = Vec::new();
    loop {
        match inputs.recv_timeout(patience()) {
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
    let rounds = std::env::var("GPULIMIT_FUZZ_ROUNDS").ok();
    let rounds = rounds.map_or(10_000, |text| text.parse().expect("GPULIMIT_FUZZ_ROUNDS"));
    let seed = seed();
    std::thread::scope(|scope| {
        for (name, target) in TARGETS {
            // Each round of the target `ledger` creates a file of 17 MiB, so it gets fewer rounds.
            let rounds = if *name == "ledger" {
                rounds / 10
            } else {
                rounds
            };
            scope.spawn(move || run(name, *target, rounds, seed));
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
