//! Fuzzing of code images, as programs pass them to the driver: reading an image never panics,
//! always ends, and takes a bounded amount of memory.

use crate::numbers::Numbers;
use gpulimit_fatbin::{lz4, needs_of_bytes, zstd};

pub fn any(bytes: &[u8]) {
    for capabilities in [&[][..], &[90], &[75, 80, 120]] {
        let needs = needs_of_bytes(bytes, &|| capabilities.to_vec(), &());
        assert_eq!(needs, needs_of_bytes(bytes, &|| capabilities.to_vec(), &()));
    }
}

/// Splits the fuzz input into the decompressed size that it states, and compressed data.
fn stated(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut numbers = Numbers(bytes);
    let size = usize::from(numbers.half()?) | usize::from(numbers.byte()?) << 16;
    Some((size & 0xf_ffff, numbers.0))
}

pub fn lz4(bytes: &[u8]) {
    if let Some((size, packed)) = stated(bytes) {
        let decoded = lz4::decode(packed, size);
        let other = lz4_flex::block::decompress(packed, size);
        if let (Some(decoded), Ok(other)) = (&decoded, &other) {
            assert_eq!(decoded, other);
        }
        assert!(decoded.is_none_or(|decoded| decoded.len() == size));
    }
    let packed = lz4_flex::block::compress(bytes);
    assert_eq!(lz4::decode(&packed, bytes.len()).as_deref(), Some(bytes));
}

pub fn zstd(bytes: &[u8]) {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    if let Some((size, packed)) = stated(bytes) {
        let decoded = zstd::decode(packed, size);
        assert!(decoded.is_none_or(|decoded| decoded.len() == size));
    }
    let packed = compress_to_vec(bytes, CompressionLevel::Fastest);
    assert_eq!(zstd::decode(&packed, bytes.len()).as_deref(), Some(bytes));
}
