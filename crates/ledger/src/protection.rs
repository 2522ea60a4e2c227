//! Protection of child groups: memory that processes outside a child group must leave free, as far
//! as the child group has not charged it.
//!
//! The ledger of the parent group shows these charges, because each slot tells the child group of
//! its owner.

use super::atomic::Ordering;
use super::charge::{UNIT, granted};
use super::{DeviceIndex, Ledger};
use std::fmt;

/// Tells how much memory of a group is protected for its child groups.
pub trait Protection: fmt::Debug + Sync {
    /// Returns the uncharged protected bytes that this process must leave free for other child
    /// groups. If `low`, best-effort protection counts too.
    fn untaken(&self, ledger: &Ledger, device: DeviceIndex, low: bool) -> u64;
}

/// Returns a key for a group's name, to tell the child groups of one group apart. Never 0.
pub fn child_key(name: &str) -> u64 {
    // The hash function FNV-1a.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

impl Ledger {
    /// Returns how much of `bytes`, protected for `child` ([`child_key`]), is uncharged. Call
    /// before publishing a request, which then sees later charges.
    pub fn untaken(&self, device: DeviceIndex, child: u64, bytes: u64) -> u64 {
        bytes.saturating_sub(self.taken(device, child))
    }

    /// Returns the bytes that the members of `child` ([`child_key`]) have charged.
    pub fn taken(&self, device: DeviceIndex, child: u64) -> u64 {
        let slots = &self.content().slots;
        let taken: u64 = (0..self.high_water())
            .filter(|slot| slots[*slot].owner.child.load(Ordering::Relaxed) == child)
            .map(|slot| granted(self.word(slot, device).load(Ordering::Acquire)))
            .sum();
        taken * UNIT
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
            "undecided units of the group do not count"
        );
        assert_eq!(
            untaken(5 * UNIT),
            0,
            "the child group has charged more than is protected"
        );
        let elsewhere = scratch.untaken(scratch.other, child_key("alice"), UNIT);
        assert_eq!(elsewhere, UNIT, "charges on another device do not count");
    }
}
