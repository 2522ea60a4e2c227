//! Decides which entries of a ledger the controller believes, where users can write the ledger.

use crate::machine::{accounts, nvml::Driver};
use gpulimit_base::device::DeviceId;
use gpulimit_group::effective_user;
use gpulimit_ledger::{Bill, DeviceEntry, DeviceIndex, Ledger};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

/// The most users of a shared ledger that are believed, for each GPU.
const MOST: usize = 251;

/// The users who can write a ledger.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Writers {
    /// Root or the caller only.
    Trusted,
    /// This user and root.
    One(u32),
    /// Several users.
    Several,
}

impl Writers {
    /// Returns the users who can write a ledger; several if its file cannot be asked.
    fn of(ledger: &Ledger) -> Self {
        match ledger.metadata() {
            Ok(about) if about.mode() & 0o022 == 0 => match about.uid() {
                uid if uid == 0 || uid == effective_user() => Self::Trusted,
                uid => Self::One(uid),
            },
            _ => Self::Several,
        }
    }
}

/// Returns the GPUs that a group has used.
///
/// A user can write any GPU into a ledger. So root believes those that NVML lists or that the root
/// of groups has `seen` before; others, who see their own groups, believe all, as without NVML.
pub fn devices<'a>(
    ledger: &Ledger,
    driver: Option<&Driver>,
    seen: impl FnOnce() -> &'a [DeviceId],
) -> Vec<DeviceEntry> {
    let mut devices = ledger.devices();
    if let (Some(driver), 0) = (driver, effective_user())
        && !devices.iter().all(|device| driver.lists_gpu(device.id))
        && Writers::of(ledger) != Writers::Trusted
    {
        let seen = seen();
        devices.retain(|device| driver.lists_gpu(device.id) || seen.contains(&device.id));
    }
    devices
}

/// Returns what the users of a group have used over time, by user and GPU.
///
/// A user can write any user's number into a ledger. So a ledger that one user writes has bills of
/// this user and of root, and a shared one those of users whom the machine knows, the largest
/// [`MOST`] for each GPU. All others are one bill without a user. In a shared ledger a member can
/// still change the bill of a known user. While the user database does not answer, its users are
/// among the others.
pub fn bills(ledger: &Ledger) -> Vec<Bill> {
    let writers = Writers::of(ledger);
    let mut all = ledger.bills();
    all.sort_by_key(|bill| std::cmp::Reverse(bill.byte_seconds.saturating_add(bill.uncertain)));
    let mut named: BTreeMap<DeviceIndex, usize> = BTreeMap::new();
    let mut others: BTreeMap<DeviceIndex, Bill> = BTreeMap::new();
    all.retain(|bill| {
        let count = named.entry(bill.device).or_default();
        let is_believed = bill.uid.is_some_and(|uid| match writers {
            Writers::Trusted => true,
            Writers::One(owner) => uid == owner || uid == 0,
            Writers::Several => *count < MOST && accounts::known_name(uid).is_some(),
        });
        match is_believed {
            true => *count += 1,
            false => {
                let sum = others.entry(bill.device).or_insert(Bill {
                    uid: None,
                    byte_seconds: 0,
                    uncertain: 0,
                    ..*bill
                });
                sum.byte_seconds = sum.byte_seconds.saturating_add(bill.byte_seconds);
                sum.uncertain = sum.uncertain.saturating_add(bill.uncertain);
            }
        }
        is_believed
    });
    all.extend(others.into_values());
    all.sort_by_key(|bill| (bill.uid, bill.device));
    all
}
