//! Fuzzing of a ledger file that is damaged while it is used: the ledger's functions never panic,
//! they end, and no process is granted more than the limit.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_ledger::{
    Category, Ledger, Level, MAX_SLOTS, NoWitness, Slot, Witness, try_charge, uncharge,
};

use crate::numbers::Numbers;
use crate::scratch;

const CAPACITY: u64 = 80 << 30;
const MOST: u64 = 1 << 30;
const GPU: DeviceId = DeviceId::gpu([7; 16]);
/// Offsets of the members' words and of the slots in the ledger file.
const WORDS: u64 = 16 << 10;
const SLOTS: u64 = WORDS + (1 << 20);

/// A witness that says that the driver holds no memory of dead processes.
struct Gone;

impl Witness for Gone {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        Some(false)
    }
}

pub fn any(bytes: &[u8]) {
    let path = scratch::path("ledger");
    Ledger::create(&path, 0o600).expect("made");
    let file = File::options().write(true).open(&path).expect("there");
    let ledger = Arc::new(Ledger::open(&path).expect("open"));
    let slot = ledger.claim(&Identity::of_self(), "").expect("a slot");
    let device = ledger.device(GPU, CAPACITY).expect("a device");
    let level = [Level {
        slot: &slot,
        device,
        max: MOST,
        protection: None,
        keeps_low: false,
        uncovered: None,
    }];
    let mut held = 0;
    let mut numbers = Numbers(bytes);
    let mut more: Vec<Slot> = Vec::new();
    while let (Some(kind), Some(at), Some(value)) = (numbers.byte(), numbers.half(), numbers.long())
    {
        let write = |offset: u64| {
            file.write_all_at(&value.to_ne_bytes(), offset)
                .expect("written");
        };
        let at = u64::from(at);
        match kind % 14 {
            // Damages the ledger's header after its preface (the part that is only checked when the
            // ledger is opened).
            0 => write(64 + at % ((WORDS - 64) / 8) * 8),
            1 => write(WORDS + at % 64 * 8),
            2 => write(WORDS + at % (1 << 17) * 8),
            3 => write(SLOTS + at % 1024 * 8),
            4 => write(SLOTS + at % MAX_SLOTS as u64 * 4096 + value % 512 * 8),
            5 => {
                let size = (value % MOST + 1).next_multiple_of(4096);
                if try_charge(&level, size) {
                    held += size;
                    slot.publish(device, Category::Linear, held);
                    assert!(held <= MOST, "granted {held} of {MOST}");
                }
            }
            6 => {
                uncharge(&level, held);
                held = 0;
            }
            7 => drop(ledger.clean(&Gone)),
            8 => drop(ledger.clean(&NoWitness)),
            9 => {
                let _ = (ledger.usage(device), ledger.charged(device));
                let _ = (ledger.devices(), ledger.has_live(), ledger.has_waiters());
            }
            10 => drop(ledger.processes(&Gone)),
            11 => drop(ledger.events(value)),
            12 => more.extend(ledger.claim(&Identity::of_self(), "below")),
            // Damages the ledger's preface: opening such a file must be refused, because it is not
            // a ledger.
            _ => {
                write(at % 8 * 8);
                assert_eq!(Ledger::open(&path).is_ok(), is_whole(&path));
            }
        }
    }
}

fn is_whole(path: &std::path::Path) -> bool {
    let other = scratch::path("whole");
    Ledger::create(&other, 0o600).expect("made");
    let preface = |path| {
        let mut bytes = [0; 64];
        let file = File::open(path).expect("there");
        file.read_exact_at(&mut bytes, 0).expect("readable");
        bytes
    };
    preface(path) == preface(&other)
}
