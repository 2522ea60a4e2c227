//! Random numbers that a failure can be repeated with.

pub use fastrand::Rng as Random;

/// Returns the seed of this run: `GPULIMIT_TEST_SEED`, by default 1. Prints it, so that a failed
/// test shows the number that repeats it.
pub fn seed() -> u64 {
    let seed = std::env::var("GPULIMIT_TEST_SEED").ok();
    let seed = seed.map_or(1, |text| {
        text.parse().expect("GPULIMIT_TEST_SEED is a number")
    });
    eprintln!("seed: GPULIMIT_TEST_SEED={seed}");
    seed
}

/// Returns a generator of random numbers that starts from [`seed`].
pub fn random() -> Random {
    Random::with_seed(seed())
}
