//! Measures what a charge and its uncharge cost in a ledger with different numbers of live slots,
//! without a history and with one. In the ledger with a history, all members keep idle bytes.
//! Run: `cargo run --release -p gpulimit-benches --bin ledger`.

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_ledger::{
    DeviceIndex, Idle, Ledger, LedgerError, Level, NoWitness, Pressure, Slot, Witness, charge,
    charge_ahead, uncharge,
};
use gpulimit_support::Scratch;
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Alone;

impl Pressure for Alone {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        &NoWitness
    }
}

/// Counts the bytes that a member keeps in reserve.
struct Reserve<'a>(&'a Slot, DeviceIndex);

impl Reserve<'_> {
    const BYTES: u64 = 4 << 20;
}

impl Idle for Reserve<'_> {
    fn add(&self) {
        self.0.publish_idle(self.1, Self::BYTES);
    }

    fn remove(&self) {}
}

/// Makes a ledger with a device.
fn ledger(
    create: fn(&Path, u32) -> Result<(), LedgerError>,
) -> Result<(Scratch, Arc<Ledger>, DeviceIndex), LedgerError> {
    let scratch = Scratch::in_memory();
    let path = scratch.at("ledger");
    create(&path, 0o600)?;
    let ledger = Arc::new(Ledger::open(&path)?);
    let device = ledger.device(DeviceId::gpu([7; 16]), 80 << 30)?;
    Ok((scratch, ledger, device))
}

fn level(slot: &Slot, device: DeviceIndex, max: u64) -> Level<'_> {
    Level {
        slot,
        device,
        max,
        protection: None,
        keeps_low: false,
        uncovered: None,
    }
}

/// Returns the mean time of a charge and its uncharge in nanoseconds.
fn pair(path: &[Level<'_>], rounds: u32) -> f64 {
    let started = Instant::now();
    for _ in 0..rounds {
        let _ = black_box(charge(black_box(path), 2 << 20, &Alone));
        uncharge(black_box(path), 2 << 20);
    }
    started.elapsed().as_nanos() as f64 / f64::from(rounds)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (_scratch, ledger, device) = ledger(Ledger::create)?;
    let (_recorded_scratch, recorded, recorded_device) = self::ledger(Ledger::create_with_history)?;
    let me = Identity::of_self();
    let mut slots: Vec<Slot> = Vec::new();
    let mut recorded_slots: Vec<Slot> = Vec::new();
    println!(
        "live slots   charge + uncharge   recorded   charged()  refusals: first   median     claim"
    );
    for live in [1, 8, 64, 256, 1024, 4000] {
        let (before, started) = (slots.len(), Instant::now());
        while slots.len() < live {
            slots.push(ledger.claim(&me, "")?);
        }
        let claims = started.elapsed() / (live - before) as u32;
        while recorded_slots.len() < live {
            let slot = recorded.claim(&me, "")?;
            let path = [level(&slot, recorded_device, u64::MAX)];
            let reserve = Reserve(&slot, recorded_device);
            let _ = charge_ahead(&path, Reserve::BYTES, &Alone, &reserve);
            recorded_slots.push(slot);
        }
        let path = [level(&slots[0], device, 40 << 30)];
        let recorded_path = [level(&recorded_slots[0], recorded_device, 40 << 30)];
        let rounds = 4_000_000 / (live as u32 + 10);
        let [mut best, mut best_recorded] = [f64::MAX; 2];
        for _ in 0..5 {
            best = best.min(pair(&path, rounds));
            best_recorded = best_recorded.min(pair(&recorded_path, rounds));
        }
        let started = Instant::now();
        for _ in 0..rounds {
            black_box(ledger.charged(black_box(device)));
        }
        let read = started.elapsed().as_nanos() as f64 / f64::from(rounds);
        let others: Vec<_> = slots[1..]
            .iter()
            .map(|slot| [level(slot, device, u64::MAX)])
            .collect();
        for other in &others {
            let _ = charge(other, 4096, &Alone);
        }
        let full = [level(&slots[0], device, 2 << 20)];
        let unlimited = [level(&slots[0], device, u64::MAX)];
        let _ = charge(&unlimited, 2 << 20, &Alone);
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
        uncharge(&unlimited, 2 << 20);
        for other in &others {
            uncharge(other, 4096);
        }
        println!(
            "{live:>10} {best:>16.1} ns {best_recorded:>7.1} ns {read:>8.1} ns {first:>16.1?} \
             {median:>8.1?} {claims:>9.1?}"
        );
    }
    Ok(())
}
