//! The floors of a member: its smallest charge on a device in each period of five minutes of the
//! last hour. They tell which process makes the usage of its group grow.
//!
//! The member notes its charge before it changes it, as it does for its bill: a charge that fell
//! and rose again within one tick of the coarse clock is not seen. Devices whose numbers differ by
//! a multiple of four share their words, which name the device: a member that uses two such devices
//! has floors of neither.

use super::atomic::{AtomicU64, Ordering};
use super::charge::UNIT;
use super::layout::{FLOORS, Floors, LINE_DEVICES};
use super::{DeviceIndex, Ledger, history, os};

/// Length of a period in seconds.
const PERIOD: u64 = 300;
/// Bits for the period's number; the device's are above them.
const NUMBER_BITS: u32 = 27;

/// Returns the word of a device for a period, and the key that the word has then.
fn word(floors: &Floors, device: DeviceIndex, period: u64) -> (&AtomicU64, u64) {
    let ring = &floors[device.get() % LINE_DEVICES];
    let key = (device.get() / LINE_DEVICES) as u64;
    (&ring[period as usize % FLOORS], key << NUMBER_BITS | period)
}

/// Notes that a member had charged these units at a time, in seconds since 1970.
pub(super) fn note(floors: &Floors, device: DeviceIndex, second: u64, units: u64) {
    let (word, key) = word(floors, device, second / PERIOD);
    history::change(word, key, |known| {
        known.is_none_or(|known| units < known).then_some(units)
    });
}

/// Empties the floors of a slot.
pub(super) fn clear(floors: &Floors) {
    for word in floors.iter().flatten() {
        word.store(0, Ordering::Relaxed);
    }
}

impl Ledger {
    /// Returns the floors of the owner of a slot on a device: the begin of each known period, in
    /// seconds since 1970, and the bytes, oldest first. Only the words of a ledger with a history
    /// are written.
    pub fn floors(&self, slot: usize, device: DeviceIndex) -> Vec<(u64, u64)> {
        let now = os::wall_ms() / 1_000 / PERIOD;
        let floors = &self.content().slots[slot].floors;
        let periods = (now + 1).saturating_sub(FLOORS as u64)..=now;
        periods
            .filter_map(|period| {
                let (word, key) = word(floors, device, period);
                Some((period * PERIOD, history::value(word, key)? * UNIT))
            })
            .collect()
    }

    /// Returns when the charge of the owner of a slot on a device last changed, in seconds since
    /// 1970: the end of the last known period, or now in the present one.
    pub fn last_charge(&self, slot: usize, device: DeviceIndex) -> Option<u64> {
        let (begin, _) = self.floors(slot, device).pop()?;
        Some((begin + PERIOD).min(os::wall_ms() / 1_000))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_the_smallest_charge_of_one_device_and_period() {
        let floors: Floors = Default::default();
        let device = |index| DeviceIndex::new(index).expect("a device");
        let known = |index, second: u64| {
            let (word, key) = word(&floors, device(index), second / PERIOD);
            history::value(word, key)
        };
        let now = 1_800_000_000;
        for (later, units) in [(0, 7), (299, 5), (100, 9), (300, 8)] {
            note(&floors, device(1), now + later, units);
        }
        assert_eq!(known(1, now), Some(5));
        assert_eq!(known(1, now + 599), Some(8));
        assert_eq!(known(1, now + 600), None);
        // The ring is an hour long.
        note(&floors, device(1), now + 3_600, 20);
        assert_eq!([known(1, now), known(1, now + 3_600)], [None, Some(20)]);
        // The words of another device are not this device's.
        note(&floors, device(5), now + 3_600, 3);
        assert_eq!(
            [known(1, now + 3_600), known(5, now + 3_600)],
            [None, Some(3)]
        );
        note(&floors, device(1), now + 3_600, 30);
        assert_eq!(
            [known(1, now + 3_600), known(5, now + 3_600)],
            [Some(30), None]
        );
        clear(&floors);
        assert_eq!(known(1, now + 3_600), None);
    }
}
