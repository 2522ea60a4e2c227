//! What groups below a level are protected from: that the growth of others takes the memory that is
//! kept for them.
//!
//! Every slot of the level tells which group directly below it its owner is in, so one look at the
//! level's own words says how much of its protected memory each of these groups has not taken yet.
//! That much is out of reach for all others.

use super::atomic::Ordering;
use super::charge::{UNIT, granted};
use super::{DeviceIndex, Ledger};
use std::fmt;

/// Knows what is kept at a level for the groups directly below it.
pub trait Protection: fmt::Debug + Sync {
    /// Bytes of the device that are kept for groups that this process is in none of, and that they
    /// have not taken yet; `low` is what is kept as long as there is another way.
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

impl Ledger {
    /// Of `bytes` that are kept for the group directly below that `child` stands for
    /// ([`child_key`]), those that its members have not taken yet.
    ///
    /// To be read before a request is published: what is granted to them afterwards the sum over
    /// all slots sees.
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
    fn groups_have_keys_of_their_own() {
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
    fn what_a_group_has_not_taken_of_its_part_is_kept() {
        let scratch = Scratch::new();
        let member = |name, units, undecided| {
            let slot = scratch.dead(&stranger(1), units, undecided);
            let owner = &scratch.content().slots[slot].owner;
            owner.child.store(child_key(name), Ordering::Relaxed);
        };
        let untaken = |bytes| scratch.untaken(scratch.device, child_key("alice"), bytes);
        assert_eq!(untaken(10 * UNIT), 10 * UNIT);
        member("bob", 5, 0);
        assert_eq!(untaken(10 * UNIT), 10 * UNIT, "not hers");
        member("alice", 3, 1);
        member("alice", 4, 0);
        assert_eq!(
            untaken(10 * UNIT),
            4 * UNIT,
            "what is only asked for is not taken"
        );
        assert_eq!(untaken(5 * UNIT), 0, "she has more");
        let elsewhere = scratch.untaken(scratch.other, child_key("alice"), UNIT);
        assert_eq!(elsewhere, UNIT, "of another device");
    }
}
