//! Reading of numbers in images: unsigned and little-endian.

/// The bytes of an image. Each method returns the number at byte `at`, or `None` beyond the end.
#[derive(Clone, Copy)]
pub struct File<'a>(pub &'a [u8]);

impl File<'_> {
    pub fn bytes<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    pub fn byte(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    pub fn half(self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    pub fn word(self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    pub fn long(self, at: usize) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    /// Reads a length or an offset of 32 bits. Also returns `None` if the number exceeds the
    /// address space.
    pub fn short_place(self, at: usize) -> Option<usize> {
        self.word(at)?.try_into().ok()
    }

    /// Reads a length or an offset of 64 bits. Also returns `None` if the number exceeds the
    /// address space.
    pub fn place(self, at: usize) -> Option<usize> {
        self.long(at)?.try_into().ok()
    }
}
