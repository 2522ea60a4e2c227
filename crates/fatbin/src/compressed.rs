//! Decompression of fat binary entries, which nvcc compresses with LZ4 or with zstd.

use super::{lz4, zstd};

/// The compression method of a fat binary entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    Lz4,
    Zstd,
}

impl Method {
    /// Returns the compression method that the flags of a fat binary entry name; `None` for an
    /// entry that is not compressed.
    pub fn of(flags: u64) -> Option<Method> {
        const LZ4: u64 = 0x2000;
        const ZSTD: u64 = 0x8000;
        match flags {
            _ if flags & LZ4 != 0 => Some(Method::Lz4),
            _ if flags & ZSTD != 0 => Some(Method::Zstd),
            _ => None,
        }
    }

    /// Decompresses `packed`. Returns `None` unless the result has the size that the entry states.
    pub fn decode(self, packed: &[u8], stated: u64) -> Option<Vec<u8>> {
        /// Largest decompressed size in bytes. For a larger entry, gpulimit measures the memory
        /// after loading.
        const MOST: u64 = 512 << 20;
        /// Largest number of bytes that one compressed byte can decompress to, in LZ4 and in zstd.
        const DENSEST: [u64; 2] = [256, 32 << 10];
        let size = usize::try_from(stated).ok()?;
        // A damaged entry can state a huge size. Reject such an entry before memory is allocated.
        let most = DENSEST[self as usize].saturating_mul(packed.len() as u64);
        if !(1..=MOST.min(most)).contains(&stated) {
            return None;
        }
        match self {
            Method::Lz4 => lz4::decode(packed, size),
            Method::Zstd => zstd::decode(packed, size),
        }
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    const METHODS: [Method; 2] = [Method::Lz4, Method::Zstd];

    fn pack(method: Method, content: &[u8]) -> Vec<u8> {
        match method {
            Method::Lz4 => lz4_flex::block::compress(content),
            Method::Zstd => compress_to_vec(content, CompressionLevel::Fastest),
        }
    }

    /// Returns test data that partly repeats itself, as machine code does.
    fn content(size: usize) -> Vec<u8> {
        (0..size)
            .map(|at| ((at / 7) * (at / 1000 + 1) % 251) as u8)
            .collect()
    }

    #[test]
    fn flags() {
        assert_eq!(Method::of(0x11), None);
        assert_eq!(Method::of(0x10_8011), Some(Method::Zstd));
        assert_eq!(Method::of(0x100_2011), Some(Method::Lz4));
    }

    #[test]
    fn decoding_works_for_all_sizes() {
        for method in METHODS {
            for size in [1, 5, 100, 4096, 200_000, 9 << 20] {
                let content = content(size);
                let packed = pack(method, &content);
                let decoded = method.decode(&packed, size as u64);
                assert!(decoded.as_ref() == Some(&content), "{method:?} {size}");
                for other in [size as u64 - 1, size as u64 + 1] {
                    assert_eq!(method.decode(&packed, other), None, "{method:?} {size}");
                }
            }
        }
    }

    #[test]
    fn absurd_sizes_are_rejected() {
        for method in METHODS {
            let packed = pack(method, b"text");
            for stated in [0, (512 << 20) + 1, 1 << 40, u64::MAX] {
                assert_eq!(method.decode(&packed, stated), None);
            }
        }
    }
}
