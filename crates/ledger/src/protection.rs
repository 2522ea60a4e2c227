//! Protection of groups: memory that the growth of other groups must not take.
//!
//! Memory of a group may be protected for a child group. Every slot in the group's ledger tells
//! which child group contains the slot's owner. Therefore a process can compute from this ledger
//! alone how much memory the members of a child group have charged. All processes outside the child
//! group must leave the rest of its protected memory free.

use super::atomic::Ordering;
use super::charge::{UNIT, granted};
use super::{DeviceIndex, Ledger};
use std::fmt;

/// A source that tells how much memory is protected for the child groups of a group.
pub trait Protection: fmt::Debug + Sync {
    /// Some memory of the device is protected for child groups that do not contain this process.
    /// Returns the bytes of this memory that the members of those child groups have not charged
    /// yet. If `low` is true, the bytes include the best-effort protection `low`.
    fn untaken(&self, ledger: &Ledger, device: DeviceIndex, low: bool) -> u64;
}

/// Returns a key that identifies a group among all child groups of its parent group. The key is
/// never 0.
pub fn child_key(name: &str) -> u64 {
    // The hash function FNV-1a.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

impl Ledger {
    /// Returns the unused part of a child group's protected memory, in bytes. `bytes` of memory are
    /// protected for the child group, and `child` is its [`child_key`]. The result is `bytes` minus
    /// the bytes that the members of the child group have charged, and at least 0.
    ///
    /// Call this method before publishing a request. If units are granted to the child group
    /// afterwards, the request sees them in the sum over all slots.
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
