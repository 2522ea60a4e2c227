//! What groups below a level are protected from: that the growth of others takes the memory that is kept for them.
//!
//! Every slot of the level tells which group directly below it its owner is in, so one look at the level's own words says how much of its
//! protected memory each of these groups has not taken yet. That much is out of reach for all others.

use super::atomic::Ordering;
use super::charge::{UNIT, granted};
use super::layout::LINE_DEVICES;
use super::{DeviceIndex, Ledger};
use std::fmt;

/// Knows what is kept at a level for the groups directly below it.
pub trait Protection: fmt::Debug + Sync {
    /// Bytes of the device that are kept for groups that this process is in none of, and that they have not taken yet; `low` is what
    /// is kept as long as there is another way.
    fn untaken(&self, ledger: &Ledger, device: DeviceIndex, low: bool) -> u64;
}

/// Stands for a group among those directly below another one; never 0.
pub fn child_key(name: &str) -> u64 {
    // FNV-1a.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

/// Of `bytes` that are kept for the group directly below that `child` stands for, those that its members have not taken yet.
///
/// To be read before a request is published: what is granted to them afterwards the sum over all slots sees.
pub(super) fn untaken(ledger: &Ledger, device: DeviceIndex, child: u64, bytes: u64) -> u64 {
    let content = ledger.content();
    let words = &content.words[device.get() / LINE_DEVICES];
    let taken: u64 = (0..ledger.high_water())
        .filter(|slot| content.slots[*slot].owner.child.load(Ordering::Relaxed) == child)
        .map(|slot| {
            let line = &words[slot].0;
            granted(line[device.get() % LINE_DEVICES].load(Ordering::Acquire))
        })
        .sum();
    bytes.saturating_sub(taken * UNIT)
}
