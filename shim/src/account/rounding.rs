//! The size of a physical block of device memory, and rounding to multiples.

/// The size in bytes of the physical blocks of which `cuMemAlloc` memory consists. Blocks are
/// aligned to their size (measured).
pub const BLOCK: u64 = 2 << 20;

/// Returns `bytes` rounded up to a multiple of `step`, which is a power of two. Saturates on
/// overflow.
pub const fn round_up(bytes: u64, step: u64) -> u64 {
    match bytes.checked_add(step - 1) {
        Some(sum) => sum & !(step - 1),
        None => !(step - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_up_saturates_at_a_multiple() {
        for (bytes, rounded) in [
            (0, 0),
            (1, BLOCK),
            (BLOCK, BLOCK),
            (BLOCK + 1, 2 * BLOCK),
            (u64::MAX, u64::MAX - (BLOCK - 1)),
        ] {
            assert_eq!(round_up(bytes, BLOCK), rounded, "{bytes}");
        }
    }
}
