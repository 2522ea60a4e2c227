//! Protection of child groups: memory that processes outside a child group must leave free, as far
//! as the child group has not charged it.
//!
//! The ledger of the parent group shows these charges, because each slot tells the child group of
//! its owner.

use super::atomic::Ordering;
use super::charge::{UNIT, granted};
use super::{DeviceIndex, Ledger};

/// Tells how much memory of a group is protected for its child groups.
pub trait Protection: Sync {
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

/// Number of child groups whose charges one scan of the slots adds up.
const SHARES: usize = 128;

/// The memory that is protected for one child group on a device, charged or not, in bytes.
#[derive(Copy, Clone, Debug)]
pub struct Share {
    /// The child group: see [`child_key`].
    pub child: u64,
    /// The memory that `min` protects.
    pub min: u64,
    /// The memory that `min` or `low` protects.
    pub low: u64,
}

impl Ledger {
    /// Returns how many bytes of these shares are uncharged, by `min` or by `low`. The shares are
    /// in the order of their child groups. Call before publishing a request, which then sees later
    /// charges. Scans the slots once for each `SHARES` shares.
    pub fn untaken(&self, device: DeviceIndex, shares: &[Share], low: bool) -> u64 {
        let slots = &self.content().slots;
        let mut untaken = 0_u64;
        for shares in shares.chunks(SHARES) {
            let mut taken = [0; SHARES];
            for (slot, page) in slots.iter().enumerate().take(self.high_water()) {
                let units = granted(self.word(slot, device).load(Ordering::Acquire));
                let child = page.owner.child.load(Ordering::Relaxed);
                if units > 0
                    && let Ok(at) = shares.binary_search_by_key(&child, |share| share.child)
                {
                    taken[at] += units * UNIT;
                }
            }
            for (share, taken) in shares.iter().zip(taken) {
                let bytes = if low { share.low } else { share.min };
                untaken = untaken.saturating_add(bytes.saturating_sub(taken));
            }
        }
        untaken
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
        let share = |name: &str, units| Share {
            child: child_key(name),
            min: units * UNIT,
            low: 2 * units * UNIT,
        };
        let untaken = |device, shares: &[Share]| {
            let mut shares = shares.to_vec();
            shares.sort_by_key(|share| share.child);
            scratch.untaken(device, &shares, false) / UNIT
        };
        let alices = |units| untaken(scratch.device, &[share("alice", units)]);
        assert_eq!((alices(10), untaken(scratch.device, &[])), (10, 0));
        member("bob", 5, 0);
        assert_eq!(alices(10), 10, "another group's charge");
        member("alice", 3, 1);
        member("alice", 4, 0);
        assert_eq!(alices(10), 4, "undecided units of the group do not count");
        assert_eq!(
            alices(5),
            0,
            "the child group has charged more than is protected"
        );
        let all = [share("alice", 10), share("bob", 7), share("carol", 20)];
        assert_eq!(untaken(scratch.device, &all), 4 + 2 + 20);
        assert_eq!(
            untaken(scratch.other, &all),
            37,
            "charges on another device do not count"
        );
        // One scan adds up the charges of some of the groups only.
        let names = (0..2 * SHARES + 1).map(|number| number.to_string());
        let many: Vec<_> = names.map(|name| share(&name, 3)).chain(all).collect();
        member("7", 1, 0);
        assert_eq!(
            untaken(scratch.device, &many),
            3 * (2 * SHARES as u64 + 1) - 1 + 4 + 2 + 20
        );
        assert_eq!(
            scratch.untaken(scratch.device, &[share("alice", 4)], true),
            2 * UNIT,
            "`low` protects 8"
        );
        let endless = Share {
            min: u64::MAX,
            ..share("alice", 0)
        };
        let all = untaken(scratch.other, &[endless, share("carol", 7)]);
        assert_eq!(all, u64::MAX / UNIT);
    }
}
