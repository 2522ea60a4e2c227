//! Entries of fat binaries that are compressed, as `nvcc --compress-mode` says: by LZ4 (`speed`,
//! and all before CUDA 12.8) or by zstd.

use super::{lz4, zstd};

/// How an entry is compressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    Lz4,
    Zstd,
}

impl Method {
    /// By the flags of an entry; `None` for one that is not compressed.
    pub fn of(flags: u64) -> Option<Method> {
        const LZ4: u64 = 0x2000;
        const ZSTD: u64 = 0x8000;
        match flags {
            _ if flags & LZ4 != 0 => Some(Method::Lz4),
            _ if flags & ZSTD != 0 => Some(Method::Zstd),
            _ => None,
        }
    }

    /// What is compressed in `packed`, if it is as large as stated.
    pub fn decode(self, packed: &[u8], stated: u64) -> Option<Vec<u8>> {
        /// The largest cubin of NVIDIA's own libraries has 105 MB. Larger ones than this are left
        /// to the measurement.
        const MOST: u64 = 512 << 20;
        /// Bytes that one byte of LZ4 and one of zstd (a block of 128 KiB in four) can stand for.
        const DENSEST: [u64; 2] = [256, 32 << 10];
        let size = usize::try_from(stated).ok()?;
        // A few bytes that say that they are many are not worth the memory.
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

    /// Repeats itself here and there, as code does.
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
    fn of_any_size() {
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
    fn of_absurd_sizes() {
        for method in METHODS {
            let packed = pack(method, b"text");
            for stated in [0, (512 << 20) + 1, 1 << 40, u64::MAX] {
                assert_eq!(method.decode(&packed, stated), None);
            }
        }
    }
}
