//! Watches a simulated machine and a ledger from outside, as often as possible:
//! `gpu-judge LEDGER CAP MICROSECONDS`.
//!
//! At every look, the first GPU's used bytes must be at most CAP, and the bytes granted by the
//! ledger at least those given by the driver. The exception is shared memory that its exporter has
//! released: its new holder is charged late, within the bounds that ARCHITECTURE.md names. The
//! driver's figure carries the number of its last operation. If the number is the same before and
//! after the ledger was read, no memory was taken or freed in between, and the two can be compared
//! although they were not read at once. The judge prints `looking` when it begins, and ends with a
//! look after the end of standard input; then it prints the number of looks, the number of looks
//! that could be compared, and the least and the most by which the ledger was ahead. A look that
//! finds a mistake is the last one, and the exit status is 1.

use std::io::Read;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use gpulimit_base::device::DeviceId;
use gpulimit_ledger::Ledger;
use gpulimit_sim::machine::{BLOCK, Machine};
use gpulimit_sim::{device, grant, shared};

static OVER: AtomicBool = AtomicBool::new(false);

/// The figures of all looks.
#[derive(Default)]
struct Seen {
    looks: u64,
    compared: u64,
    ahead: Option<(u64, u64)>,
}

/// Returns a sum of charges that two readings in a row agree on. A reading can miss a charge that
/// moves from one slot to another meanwhile, as that of shared memory does.
fn steady(read: impl Fn() -> u64) -> u64 {
    let mut last = read();
    loop {
        match read() {
            same if same == last => return same,
            other => last = other,
        }
    }
}

fn watch(path: &str, cap: u64, pause: Duration) -> Result<Seen, String> {
    let machine = Machine::get().map_err(|error| error.to_string())?;
    let ledger = Ledger::open_readonly(path.as_ref()).map_err(|error| error.to_string())?;
    let id: Result<DeviceId, _> = device::full_name(machine, 0).parse();
    let id = id.map_err(|_| "no UUID")?;
    let mut seen = Seen::default();
    let mut is_last = false;
    println!("looking");
    while !is_last {
        is_last = OVER.load(Relaxed);
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        seen.looks += 1;
        let before = machine.devices[0].word.load(SeqCst);
        let granted = ledger
            .find_device(&id)
            .map(|gpu| steady(|| ledger.charged(gpu)));
        // This is read after the ledger, since a process frees memory before it uncharges it.
        let unowned = shared::unowned(machine, 0);
        let used = (grant::used(machine, 0) * BLOCK).saturating_sub(unowned);
        let still = machine.devices[0].word.load(SeqCst) == before;
        // If memory is shared, some may have left its exporter between the two looks.
        let is_shared = machine.births.load(SeqCst) > 0;
        if used > cap && (still || !is_shared) {
            return Err(format!("{used} bytes used of {cap}"));
        }
        let Some(granted) = granted.filter(|_| still) else {
            continue;
        };
        seen.compared += 1;
        let Some(ahead) = granted.checked_sub(used) else {
            let holders = gpulimit_sim::process::holders(machine);
            let holders = holders.iter().map(|one| (one.pid, one.held[0], one.dying));
            return Err(format!(
                "{used} bytes used beside {unowned} that have left, {granted} granted: {:?}\n{:#?}",
                holders.collect::<Vec<_>>(),
                ledger.processes(&gpulimit_ledger::NoWitness)
            ));
        };
        let (least, most) = seen.ahead.unwrap_or((ahead, ahead));
        seen.ahead = Some((least.min(ahead), most.max(ahead)));
    }
    Ok(seen)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, cap, pause] = arguments.as_slice() else {
        eprintln!("usage: gpu-judge LEDGER CAP MICROSECONDS");
        return ExitCode::from(2);
    };
    let (Ok(cap), Ok(pause)) = (cap.parse(), pause.parse()) else {
        eprintln!("gpu-judge: numbers: {cap:?}, {pause:?}");
        return ExitCode::from(2);
    };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        OVER.store(true, SeqCst);
    });
    match watch(path, cap, Duration::from_micros(pause)) {
        Ok(seen) => {
            let (least, most) = seen.ahead.unwrap_or_default();
            println!("{} {} {least} {most}", seen.looks, seen.compared);
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            println!("{wrong}");
            ExitCode::FAILURE
        }
    }
}
