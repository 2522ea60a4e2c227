//! Hash maps and sets whose keys come from the driver: addresses, blocks, handles.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map that hashes with [`Mix`].
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;
/// A hash set that hashes with [`Mix`].
pub type Set<K> = HashSet<K, BuildHasherDefault<Mix>>;

/// A hasher that multiplies by a constant. It suits keys that the driver chooses, but not keys that
/// an attacker can choose.
#[derive(Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    // Without `write_usize` and `write_isize`, handles and the discriminants of enums would be
    // hashed byte by byte.
    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline]
    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_blocks_hash_far_apart() {
        let hash = |block| {
            let mut hasher = Mix::default();
            hasher.write_u64(block);
            hasher.finish()
        };
        // Hash tables use the lowest and the highest bits of a hash. Both must differ between
        // neighbouring blocks of a shard.
        let hashes: Vec<_> = (0..1024).map(|at| hash(0x3f_8000_0000 + at * 64)).collect();
        for bits in [|hash: u64| hash & 1023, |hash: u64| hash >> 54] {
            let places: Set<_> = hashes.iter().map(|hash| bits(*hash)).collect();
            assert!(places.len() > 512, "{}", places.len());
        }
    }

    #[test]
    fn numbers_of_every_width_and_pairs_of_them_hash_apart() {
        let hash = |write: &dyn Fn(&mut Mix)| {
            let mut hasher = Mix::default();
            write(&mut hasher);
            hasher.finish()
        };
        let wide = hash(&|hasher| hasher.write_u64(5));
        assert_eq!(hash(&|hasher| hasher.write_u32(5)), wide);
        assert_eq!(hash(&|hasher| hasher.write(&[5])), wide);
        // Handles are hashed in one step, because most calls look up a handle.
        assert_eq!(hash(&|hasher| hasher.write_usize(5)), wide);
        assert_eq!(hash(&|hasher| hasher.write_isize(5)), wide);
        let pairs = (0..4096).map(|at| {
            hash(&|hasher| {
                hasher.write_u64(at / 64);
                hasher.write_u64(at % 64);
            })
        });
        assert_eq!(pairs.collect::<Set<_>>().len(), 4096);
    }
}
