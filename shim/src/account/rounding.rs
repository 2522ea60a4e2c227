//! The physical block, and whole numbers of it.

/// Physical memory of `cuMemAlloc` comes in blocks of this many bytes, aligned to it (measured, all
/// sizes).
pub const BLOCK: u64 = 2 << 20;

/// `bytes` rounded up to a multiple of `step` (a power of two); saturates.
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
    fn what_is_rounded_up_stays_a_multiple() {
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
