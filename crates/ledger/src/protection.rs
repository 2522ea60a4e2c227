//! Protection of groups: memory that the growth of other groups must not take.
//!
//! Every slot in the ledger of a level tells which group directly below the level contains the
//! slot's owner. A process can therefore compute, from the words of the level's ledger alone, how
//! much of its protected memory each of these groups has not taken yet. All processes outside such
//! a group must leave that much memory free.

use super::atomic::Ordering;
use super::charge::{UNIT, granted};
use super::{DeviceIndex, Ledger};
use std::fmt;

/// A source that tells how much memory is protected at a level for the groups directly below that
/// level.
pub trait Protection: fmt::Debug + Sync {
    /// Returns the bytes of the device that are protected for groups that do not contain this
    /// process, and that those groups have not taken yet. If `low` is true, the bytes include the
    /// best-effort protection `low`.
    fn untaken(&self, ledger: &Ledger, device: DeviceIndex, low: bool) -> u64;
}

/// Returns a key that identifies a group among the groups directly below the same parent group;
/// never 0.
pub fn child_key(name: &str) -> u64 {
    // The hash function FNV-1a.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

impl Ledger {
    /// Returns how many of the `bytes` that are protected for a group directly below this group the
    /// members of that group have not taken yet. `child` is the [`child_key`] of that group.
    ///
    /// Call before publishing a request: units that are granted to the protected group later are
    /// seen in the sum over all slots.
    pub fn untaken(&self, device: DeviceIndex, child: u64, bytes: u64) -> u64 {
        let slots = &self.content().slots;
        let taken: u64 = (0..self.high_water())
            .filter(|slot| slots[*slot].owner.child.load(Ordering::Relaxed) == child)
            .map(|slot| granted(self.word(slot, device).load(Ordering::Acquire)))
            .sum();
        bytes.saturating_sub(taken * UNIT)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scratch::{Scratch, stranger};

    #[test]
    fn different_groups_have_different_keys() {
        let letters = ('a'..='z').chain('0'..='9').map(String::from);
        let mut names: Vec<_> = [String::new()].into_iter().chain(letters).collect();
        for at in 1..37 {
            let pairs: Vec<_> = names[1..37]
                .iter()
                .map(|last| format!("{}{last}", names[at]))
                .collect();
            names.extend(pairs);
        }
        let keys: std::collections::BTreeSet<_> =
            names.iter().map(|name| child_key(name)).collect();
        assert!(keys.len() == names.len() && !keys.contains(&0));
    }

    #[test]
    fn untaken_protection_is_what_the_groups_members_have_not_charged() {
        let scratch = Scratch::new();
        let member = |name, units, undecided| {
            let slot = scratch.dead(&stranger(1), units, undecided);
            let owner = &scratch.content().slots[slot].owner;
            owner.child.store(child_key(name), Ordering::Relaxed);
        };
        let untaken = |bytes| scratch.untaken(scratch.device, child_key("alice"), bytes);
        assert_eq!(untaken(10 * UNIT), 10 * UNIT);
        member("bob", 5, 0);
        assert_eq!(untaken(10 * UNIT), 10 * UNIT, "another group's charge");
        member("alice", 3, 1);
        member("alice", 4, 0);
        assert_eq!(
            untaken(10 * UNIT),
            4 * UNIT,
            "undecided units do not count as taken"
        );
        assert_eq!(untaken(5 * UNIT), 0, "the group has charged more");
        let elsewhere = scratch.untaken(scratch.other, child_key("alice"), UNIT);
        assert_eq!(elsewhere, UNIT, "charges on another device do not count");
    }
}
