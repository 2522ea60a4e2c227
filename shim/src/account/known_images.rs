//! The memory needs of compressed code images that programs have loaded before.
//!
//! The needs of an image depend on its bytes alone, and to decompress it takes longer than all else
//! that the library does at the start of a program. So they are stored in the root, under a
//! cryptographic digest of the bytes: no program can make an image that is taken for another one.

use gpulimit_group::{ImageKey, Undisturbed};
use sha2::{Digest, Sha256};

use crate::account::Process;
use crate::image::{Known, Needs, Packed};

/// Smaller images are decompressed each time. This takes no longer than to open a file and to
/// compute the digest. Size after decompression, bytes.
const LEAST: u64 = 128 << 10;

/// The stored memory needs of images, for this process.
pub struct KnownImages(pub &'static Process);

impl Known for KnownImages {
    fn needs(&self, image: &Packed<'_>, read: &mut dyn FnMut() -> Needs) -> Needs {
        let Ok(member) = self.0.member() else {
            return read();
        };
        if image.decompressed() < LEAST {
            return read();
        }
        let _undisturbed = Undisturbed::new();
        let key = key(image);
        if let Some(words) = member.known_image(&key) {
            return from_words(words);
        }
        let needs = read();
        if !needs.unknown {
            member.remember_image(&key, to_words(needs));
        }
        needs
    }
}

fn key(image: &Packed<'_>) -> ImageKey {
    let mut digest = Sha256::new();
    for fact in image.facts {
        digest.update(fact.to_le_bytes());
    }
    digest.update(image.bytes);
    digest.finalize().into()
}

fn to_words(needs: Needs) -> [u64; 4] {
    let flags = u64::from(needs.device_malloc)
        | u64::from(needs.device_assert) << 1
        | u64::from(needs.device_printf) << 2;
    [needs.variables, needs.least, needs.managed, flags]
}

fn from_words([variables, least, managed, flags]: [u64; 4]) -> Needs {
    let is_set = |bit: u32| flags >> bit & 1 == 1;
    Needs {
        variables,
        least,
        managed,
        device_malloc: is_set(0),
        device_assert: is_set(1),
        device_printf: is_set(2),
        unknown: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_needs_are_read_back() {
        for bits in 0..8 {
            let needs = Needs {
                variables: 1 << 40,
                least: 12,
                managed: 7,
                device_malloc: bits & 1 != 0,
                device_assert: bits & 2 != 0,
                device_printf: bits & 4 != 0,
                unknown: false,
            };
            assert_eq!(from_words(to_words(needs)), needs);
        }
    }

    #[test]
    fn the_key_depends_on_every_fact_and_every_byte() {
        let image = |facts, bytes| key(&Packed { facts, bytes });
        let same = image([1, 2, 3, 4, 5], b"abc");
        assert_eq!(same, image([1, 2, 3, 4, 5], b"abc"));
        for at in 0..5 {
            let mut facts = [1, 2, 3, 4, 5];
            facts[at] += 1;
            assert_ne!(same, image(facts, b"abc"));
        }
        assert_ne!(same, image([1, 2, 3, 4, 5], b"abd"));
        assert_ne!(same, image([1, 2, 3, 4, 5], b"abc\0"));
    }
}
