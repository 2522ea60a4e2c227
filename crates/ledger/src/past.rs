//! Copies the history of a ledger into a new ledger without members.

use super::layout::{self, DeviceHistory, Header, Signals, UserBill};
use super::{DeviceIndex, Ledger, LedgerError, file};
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Offsets of the words that lead readers to slots and to events of the trail, which are not
/// copied: in a file in memory, reading a page that was never written takes memory.
const LEADS: [usize; 3] = [
    offset_of!(Header, signals) + offset_of!(Signals, high_water),
    offset_of!(Header, trail_head),
    offset_of!(Header, trail_reserved),
];

impl Ledger {
    /// Copies the devices with their peaks and counts, the history and the bills of users into a
    /// new ledger file. At most 64 KiB for each device and 144 KiB are written.
    pub fn copy_past(&self, path: &Path) -> Result<(), LedgerError> {
        let failed = |error| LedgerError::io_with_room(path, "write", error);
        let (from, to) = (self.place.open(false)?, file::options(true));
        let to = to.open(path).map_err(failed)?;
        let devices = DeviceIndex::all().filter(|device| self.records(*device));
        let length = size_of::<DeviceHistory>();
        let histories = devices.map(|device| (layout::history_offset(device.get()), length));
        let bills = size_of::<[UserBill; layout::USERS]>();
        let parts = [(0, size_of::<Header>()), (layout::users_offset(), bills)];
        for (at, length) in parts.into_iter().chain(histories) {
            let mut bytes = vec![0; length];
            from.read_exact_at(&mut bytes, at).map_err(failed)?;
            for lead in LEADS.into_iter().filter(|_| at == 0) {
                bytes[lead..lead + 8].fill(0);
            }
            to.write_all_at(&bytes, at).map_err(failed)?;
        }
        Ok(())
    }
}
