//! Helpers for tests: a temporary ledger, with living and dead members.

use super::atomic::Ordering;
use super::{DeviceIndex, Ledger, LedgerError, Level, Pressure, Slot, Witness, os};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use std::cell::RefCell;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes per unit of a word.
pub(super) const UNIT: u64 = super::charge::UNIT;
pub(super) const GPU: DeviceId = DeviceId::gpu([7; 16]);
pub(super) const OTHER_GPU: DeviceId = DeviceId::gpu([8; 16]);

/// A temporary ledger with two devices, which is removed on drop.
pub(super) struct Scratch {
    path: PathBuf,
    #[expect(dead_code, reason = "removes the directory")]
    folder: gpulimit_support::Scratch,
    ledger: Arc<Ledger>,
    pub device: DeviceIndex,
    pub other: DeviceIndex,
}

impl Scratch {
    pub fn new() -> Self {
        Self::made(Ledger::create)
    }

    /// Returns a ledger that keeps a history.
    pub fn with_history() -> Self {
        Self::made(Ledger::create_with_history)
    }

    fn made(create: fn(&Path, u32) -> Result<(), LedgerError>) -> Self {
        let folder = gpulimit_support::Scratch::new();
        let path = folder.at("ledger");
        create(&path, 0o600).expect("create");
        let ledger = Arc::new(Ledger::open(&path).expect("open"));
        // The tested devices get indices above 1. A test then fails if the code confuses an index
        // with a count.
        for filler in 100..109 {
            ledger
                .device(DeviceId::gpu([filler; 16]), 1)
                .expect("device");
        }
        Self {
            device: ledger.device(GPU, 80 << 30).expect("device"),
            other: ledger.device(OTHER_GPU, 40 << 30).expect("device"),
            path,
            folder,
            ledger,
        }
    }

    /// Opens the ledger for reading only, as a process without write access does.
    pub fn readonly(&self) -> Ledger {
        Ledger::open_readonly(&self.path).expect("open")
    }

    /// Claims a slot for this process. In tests, a process may own several slots.
    pub fn join(&self) -> Slot {
        self.ledger
            .claim(&Identity::of_self(), "")
            .expect("a free slot")
    }

    /// Creates the slot of a dead process: an owner without a file lock. The process has charged
    /// `units`, including `undecided` units.
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

/// Returns the identity of a process that never existed, for tests.
pub(super) fn stranger(pid: u32) -> Identity {
    Identity {
        // This pid is higher than any pid that Linux assigns.
        pid: (1 << 23) + pid,
        ..Identity::of_self()
    }
}

/// Returns the single group in which a test charges. `max` is its limit in bytes.
pub(super) fn level(slot: &Slot, device: DeviceIndex, max: u64) -> Level<'_> {
    Level {
        slot,
        device,
        max,
        protection: None,
        keeps_low: false,
        uncovered: None,
    }
}

/// A test process without idle memory. The value answers whether the driver still holds memory of a
/// dead process.
pub(super) struct Knows(pub Option<bool>);

impl Witness for Knows {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
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

type Event = Box<dyn FnMut()>;

thread_local!(static EVENT: RefCell<Option<Event>> = const { RefCell::new(None) });

/// Lets something happen in each sleep of this thread, as if another process did it, until the
/// value is dropped.
pub(super) struct InSleep;

impl InSleep {
    #[must_use = "nothing happens any more when the value is dropped"]
    pub fn happens(event: impl FnMut() + 'static) -> Self {
        EVENT.set(Some(Box::new(event)));
        Self
    }
}

impl Drop for InSleep {
    fn drop(&mut self) {
        EVENT.take();
    }
}

/// Called at the begin of each sleep of the ledger's code.
pub(super) fn happens_in_a_sleep() {
    if let Some(mut event) = EVENT.take() {
        event();
        EVENT.set(Some(event));
    }
}
