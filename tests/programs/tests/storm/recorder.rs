//! The history of a group beside an independent sampler, while processes come, work, are stopped
//! and are killed, and while the limit changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpulimit_ledger::{DeviceIndex, Ledger, NoWitness, Period, Resolution};
use gpulimit_programs::world::{self, MIB, World};

use crate::crowd::{Nursery, signal};
use crate::tempest::{one_of, setting};
use gpulimit_support::{Random, patience, random, wait_until};

const CAP: u64 = 3_000 * MIB;
const CONTEXT: &str = "10485760";
/// The pause between two looks of the sampler.
const EVERY: Duration = Duration::from_millis(10);
/// A longer pause, for which the busy machine kept the sampler from looking, in milliseconds.
const BLIND: u64 = 50;
/// The history can be this much late, in milliseconds: it uses the kernel's coarse clock, and on a
/// busy machine a process may have to wait before it records a change.
const LATE: u64 = 100;

/// One look of the sampler.
struct Sample {
    /// The time before the look and the time after it, in milliseconds since 1970.
    before: u64,
    after: u64,
    /// Usage in bytes, as `gpulimit show` defines it.
    used: u64,
    /// Charged bytes of living processes.
    living: u64,
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_millis() as u64
}

/// Returns the bytes that are charged to living processes.
fn living(ledger: &Ledger, device: DeviceIndex) -> u64 {
    let processes = ledger.processes(&NoWitness);
    let living = processes.iter().filter(|process| process.alive);
    living.map(|process| process.on(device).charged).sum()
}

/// Looks at the ledger until `stop`. Memory that moves between members during a look can count
/// twice, so a look counts only if the next one sees the same.
fn sampler(
    ledger: Arc<Ledger>,
    device: DeviceIndex,
    looks: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<Vec<Sample>> {
    std::thread::spawn(move || {
        let mut samples = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let before = now();
            let look = || {
                let usage = ledger.usage(device);
                (usage.charged - usage.idle.min(usage.charged), usage.charged)
            };
            let (used, charged) = look();
            let living = living(&ledger, device);
            if look() == (used, charged) {
                samples.push(Sample {
                    before,
                    after: now(),
                    used,
                    living,
                });
                looks.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(EVERY);
        }
        samples
    })
}

/// Returns a program that holds some memory for a while, again and again.
fn program(numbers: &mut Random) -> String {
    let sizes = ["3M", "9M", "20000", "33M", "700000", "120M"];
    let [first, second, third] = [(); 3].map(|()| one_of(numbers, &sizes));
    let [short, long] = [20 + numbers.usize(..60), 60 + numbers.usize(..200)];
    format!(
        "start\nrepeat 1000 {{\nalloc a {first}\nsleep {short}\nasync b {second}\nsleep {long}\n\
         free a\nsleep {short}\nfree-async b\nsync\nalloc c {third}\nsleep {long}\nfree c\n}}\n"
    )
}

/// Returns the largest usage that the history shows between the two times, in bytes. The usage of a
/// second without a change is that of the last change before.
fn largest(history: &[Period], from: u64, to: u64) -> Option<u64> {
    let begun = history
        .iter()
        .rposition(|period| period.start <= from / 1_000);
    let usage = history[begun.unwrap_or(0)..]
        .iter()
        .take_while(|period| period.start <= to / 1_000)
        .filter_map(|period| period.usage);
    usage.map(|usage| usage.max).max()
}

#[test]
fn the_history_misses_no_peak_and_the_bill_adds_up() {
    let mut numbers = random();
    let knobs = [
        ("GPULIMIT_SIM_CONTEXT_BYTES", CONTEXT),
        ("GPULIMIT_SIM_KILL_LAG_MS", "30"),
    ];
    let world = World::with(CAP, &knobs);
    // The first program enters the GPU into the ledger.
    let first = world.on_gpu();
    let ledger = world.ledger();
    let device = ledger.devices()[0].index;
    assert!(ledger.records(device));
    let stop = Arc::new(AtomicBool::new(false));
    let looks = Arc::new(AtomicUsize::new(0));
    let samples = sampler(Arc::clone(&ledger), device, looks.clone(), stop.clone());
    let looks = || looks.load(Ordering::Relaxed);
    let mut nursery = Nursery::open(&world, world::GROUP);
    let length = Duration::from_secs(setting("SECONDS", 6).min(300));
    let began = Instant::now();
    let mut stopped = Vec::new();
    let (mut killed, mut changes) = (0, 0);
    // A slow machine gets its share of looks and kills, too.
    while began.elapsed() < length || killed == 0 || looks() < 50 {
        assert!(began.elapsed() < length + patience(), "{} looks", looks());
        let living = nursery.living();
        match numbers.usize(..10) {
            0..5 if living.len() < 24 => drop(nursery.spawn(&program(&mut numbers))),
            5..7 if living.len() > 8 => {
                signal(one_of(&mut numbers, &living), libc::SIGKILL);
                killed += 1;
            }
            7 if !living.is_empty() => {
                let pid = one_of(&mut numbers, &living);
                signal(pid, libc::SIGSTOP);
                stopped.push(pid);
            }
            8 => {
                world.set(CAP - numbers.u64(..1_000) * MIB);
                changes += 1;
            }
            _ => stopped.drain(..).for_each(|pid| signal(pid, libc::SIGCONT)),
        }
        nursery.reap();
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(nursery);
    world.set(CAP);
    first.end_quietly();
    world.bury();
    world.settle();
    let before = looks();
    wait_until("looks at the end", || looks() > before + 1);
    stop.store(true, Ordering::Relaxed);
    let samples = samples.join().expect("the sampler");

    let history = ledger.history(device, Resolution::Seconds);
    for sample in &samples {
        let shown = largest(&history, sample.before - LATE, sample.after);
        assert!(
            shown.is_some_and(|shown| shown >= sample.used),
            "at {} ms: {} used, the history shows {shown:?}: {history:?}",
            sample.before,
            sample.used
        );
    }
    let peak = |of: &dyn Fn(&Period) -> u64| history.iter().map(of).max().unwrap_or(0);
    let shown = peak(&|period| period.usage.map_or(0, |usage| usage.max));
    assert!(shown <= CAP, "{shown}: the limit was never passed");
    for resolution in [Resolution::Minutes, Resolution::Quarters] {
        let coarse = ledger.history(device, resolution);
        let usage = coarse.iter().filter_map(|period| period.usage);
        assert_eq!(
            usage.map(|usage| usage.max).max(),
            Some(shown),
            "{resolution:?}"
        );
    }

    // The area below the samples, by the trapezoid rule, in byte-milliseconds.
    let sampled: u128 = samples
        .windows(2)
        .map(|two| {
            let time = u128::from(two[1].before - two[0].before);
            time * u128::from(two[0].living + two[1].living) / 2
        })
        .sum();
    // Nothing is known of the time between two looks, except the limit.
    let blind = samples.windows(2).map(|two| two[1].before - two[0].before);
    let blind: u64 = blind.filter(|time| *time > BLIND).sum();
    let unseen = u128::from(blind) * u128::from(CAP) / 1_000;
    let bills = ledger.bills();
    let sure: u128 = bills.iter().map(|bill| bill.byte_seconds).sum();
    let most: u128 = sure + bills.iter().map(|bill| bill.uncertain).sum::<u128>();
    let off = |bill: u128| bill as f64 / (sampled as f64 / 1_000.0) - 1.0;
    let (below, above) = (off(sure), off(most));
    println!(
        "{} samples, {blind} ms not seen, {killed} killed, {changes} changes of the limit, \
         peak {} MiB, bill {:.2} to {:.2} % off",
        samples.len(),
        shown / MIB,
        below * 100.0,
        above * 100.0
    );
    let figures = format!("{sure} to {most}, sampled {sampled}, unseen {unseen}");
    assert!(off(sure.saturating_sub(unseen)) < 0.01, "{figures}");
    assert!(off(most + unseen) > -0.01, "{figures}");
    assert!(
        off(sure + unseen) > -0.75,
        "the sure bill has most: {figures}"
    );
}
