//! Measures what a charge and its uncharge cost in a ledger with different numbers of live slots.
//! Run: `cargo run --release -p gpulimit-benches --bin ledger`.

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_ledger::{Ledger, Level, NoWitness, Pressure, Slot, Witness, charge, uncharge};
use std::error::Error;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Alone;

impl Pressure for Alone {
    fn reclaim(&self, _: gpulimit_ledger::DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        &NoWitness
    }
}

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(format!("/dev/shm/gpulimit-bench-{}", std::process::id()));
    let _scratch = Scratch(path.clone());
    Ledger::create(&path, 0o600)?;
    let ledger = Arc::new(Ledger::open(&path)?);
    let device = ledger.device(DeviceId::gpu([7; 16]), 80 << 30)?;
    let me = Identity::of_self();
    let mut slots: Vec<Slot> = Vec::new();
    println!("live slots   charge + uncharge   charged()  refusals: first   median     claim");
    for live in [1, 8, 64, 256, 1024, 4000] {
        let (before, started) = (slots.len(), Instant::now());
        while slots.len() < live {
            slots.push(ledger.claim(&me, "")?);
        }
        let claims = started.elapsed() / (live - before) as u32;
        let level = |max| Level {
            slot: &slots[0],
            device,
            max,
            protection: None,
            keeps_low: false,
        };
        let level_40g = [level(40 << 30)];
        let rounds = 4_000_000 / (live as u32 + 10);
        let mut best = f64::MAX;
        for _ in 0..5 {
            let started = Instant::now();
            for _ in 0..rounds {
                let _ = black_box(charge(black_box(&level_40g), 2 << 20, &Alone));
                uncharge(black_box(&level_40g), 2 << 20);
            }
            best = best.min(started.elapsed().as_nanos() as f64 / f64::from(rounds));
        }
        let started = Instant::now();
        for _ in 0..rounds {
            black_box(ledger.charged(black_box(device)));
        }
        let read = started.elapsed().as_nanos() as f64 / f64::from(rounds);
        let others: Vec<_> = slots[1..]
            .iter()
            .map(|slot| {
                [Level {
                    slot,
                    device,
                    max: u64::MAX,
                    protection: None,
                    keeps_low: false,
                }]
            })
            .collect();
        for other in &others {
            let _ = charge(other, 4096, &Alone);
        }
        let full = [level(2 << 20)];
        let _ = charge(&[level(u64::MAX)], 2 << 20, &Alone);
        // The first refusal checks the owners of all slots; refusals in the next second need not.
        let mut refusals = [Duration::ZERO; 21];
        for refusal in &mut refusals {
            let started = Instant::now();
            let _ = black_box(charge(black_box(&full), 4096, &Alone));
            *refusal = started.elapsed();
        }
        let first = refusals[0];
        refusals.sort();
        let median = refusals[refusals.len() / 2];
        uncharge(&[level(u64::MAX)], 2 << 20);
        for other in &others {
            uncharge(other, 4096);
        }
        println!(
            "{live:>10} {best:>16.1} ns {read:>8.1} ns {first:>16.1?} {median:>8.1?} {claims:>9.1?}"
        );
    }
    Ok(())
}
