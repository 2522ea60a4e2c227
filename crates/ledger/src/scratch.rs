//! For tests: a ledger of their own, and members of it that are alive or dead as they say.

use super::atomic::Ordering;
use super::{DeviceIndex, Ledger, Level, Pressure, Slot, Witness, os};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

/// One unit of a word in bytes.
pub(super) const UNIT: u64 = super::charge::UNIT;
pub(super) const GPU: DeviceId = DeviceId::gpu([7; 16]);
pub(super) const OTHER_GPU: DeviceId = DeviceId::gpu([8; 16]);

/// A ledger that knows two devices, until drop.
pub(super) struct Scratch {
    path: PathBuf,
    ledger: Arc<Ledger>,
    pub device: DeviceIndex,
    pub other: DeviceIndex,
}

impl Scratch {
    pub fn new() -> Self {
        use std::sync::atomic::AtomicU32;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpulimit-unit-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        Ledger::create(&path, 0o600).expect("create");
        let ledger = Arc::new(Ledger::open(&path).expect("open"));
        // Not 0 and 1: what mixes them up with counts is found.
        for filler in 100..109 {
            ledger
                .device(DeviceId::gpu([filler; 16]), 1)
                .expect("device");
        }
        Self {
            device: ledger.device(GPU, 80 << 30).expect("device"),
            other: ledger.device(OTHER_GPU, 40 << 30).expect("device"),
            path,
            ledger,
        }
    }

    /// As a member with no write access has it.
    pub fn readonly(&self) -> Ledger {
        Ledger::open_readonly(&self.path).expect("open")
    }

    /// A slot of this process; it may have several.
    pub fn join(&self) -> Slot {
        self.ledger
            .claim(&Identity::of_self(), "")
            .expect("a free slot")
    }

    /// The slot of a process that is dead: named, and without a lock. It has charged so many units,
    /// the second number of them undecided.
    pub fn dead(&self, identity: &Identity, units: u64, undecided: u64) -> usize {
        let slot = self.ledger.high_water();
        let page = &self.content().slots[slot];
        page.owner.write(identity);
        page.owner.birth.store(os::boot_ms(), Ordering::Relaxed);
        self.word(slot, self.device)
            .store(units | undecided << 32, Ordering::Relaxed);
        let high_water = &self.content().header.signals.high_water;
        high_water.store(slot as u64 + 1, Ordering::Relaxed);
        slot
    }
}

impl Deref for Scratch {
    type Target = Arc<Ledger>;

    fn deref(&self) -> &Arc<Ledger> {
        &self.ledger
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A process that never was.
pub(super) fn stranger(pid: u32) -> Identity {
    Identity {
        // Above what Linux gives.
        pid: (1 << 23) + pid,
        ..Identity::of_self()
    }
}

/// The slot alone as the path of a charge.
pub(super) fn level(slot: &Slot, device: DeviceIndex, max: u64) -> Level<'_> {
    Level {
        slot,
        device,
        max,
        protection: None,
        keeps_low: false,
    }
}

/// A process that has nothing to give, and knows of the dead what this says.
pub(super) struct Knows(pub Option<bool>);

impl Witness for Knows {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: u64) -> Option<bool> {
        self.0
    }
}

impl Pressure for Knows {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        self
    }
}
