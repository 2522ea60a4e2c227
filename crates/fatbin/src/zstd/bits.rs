//! Readers of bit streams: one reads from the front, one from the end.

/// A reader of a bit stream from the front, lowest bits first.
pub struct Forward<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Forward<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Forward { bytes, at: 0 }
    }

    /// Returns the next `count` bits, at most 16, without consuming them. Bits beyond the end are
    /// zeros.
    pub fn peek(&self, count: usize) -> usize {
        let byte = |number| {
            let byte = self.bytes.get(self.at / 8 + number);
            usize::from(byte.copied().unwrap_or(0))
        };
        let wide = byte(0) | byte(1) << 8 | byte(2) << 16;
        wide >> (self.at % 8) & ((1 << count) - 1)
    }

    pub fn skip(&mut self, count: usize) {
        self.at += count;
    }

    /// Returns the bytes after the last consumed bit; `None` if the reader has passed the end of
    /// the stream.
    pub fn behind(self) -> Option<&'a [u8]> {
        self.bytes.get(self.at.div_ceil(8)..)
    }
}

/// A reader of a bit stream from the end. Bits before the front are zeros, so check [`Self::left`]
/// after the last read.
pub struct Backward<'a> {
    bytes: &'a [u8],
    /// Offset in the stream of the eight bytes in `window`; negative if `window` begins before the
    /// front of the stream.
    at: isize,
    window: u64,
    /// Number of bits of `window` that the reader has consumed.
    used: u32,
}

impl<'a> Backward<'a> {
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        // The highest set bit of the last byte marks where the stream begins.
        let last = *bytes.last().filter(|last| **last != 0)?;
        let mut bits = Backward {
            bytes,
            at: bytes.len() as isize - 8,
            window: 0,
            used: last.leading_zeros() + 1,
        };
        bits.window = bits.load();
        Some(bits)
    }

    fn load(&self) -> u64 {
        let here = usize::try_from(self.at).ok();
        let eight = here.and_then(|at| self.bytes.get(at..)?.first_chunk());
        match eight {
            Some(eight) => u64::from_le_bytes(*eight),
            None => self.load_front(),
        }
    }

    #[cold]
    fn load_front(&self) -> u64 {
        let mut eight = [0; 8];
        for (number, byte) in eight.iter_mut().enumerate() {
            let at = usize::try_from(self.at + number as isize).ok();
            *byte = at.and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
        u64::from_le_bytes(eight)
    }

    /// Makes at least 56 bits of the stream available in `window`.
    #[inline]
    pub fn refill(&mut self) {
        self.at -= (self.used / 8) as isize;
        self.used %= 8;
        self.window = self.load();
    }

    /// Returns the next `count` bits without consuming them. `count` is below 64, and that many
    /// bits are available.
    #[inline]
    pub fn peek(&self, count: u32) -> u64 {
        // Shift twice: with a `count` of 0, a single shift would be by 64, which is not allowed.
        self.window.wrapping_shl(self.used) >> 1 >> (63 - count)
    }

    #[inline]
    pub fn skip(&mut self, count: u32) {
        self.used += count;
    }

    #[inline]
    pub fn read(&mut self, count: u32) -> u64 {
        let bits = self.peek(count);
        self.skip(count);
        bits
    }

    /// Returns the number of bits of the stream that are left; negative if more bits were read than
    /// the stream has.
    pub fn left(&self) -> isize {
        (self.at + 8) * 8 - self.used as isize
    }
}
