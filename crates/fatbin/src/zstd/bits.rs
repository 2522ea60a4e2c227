//! Numbers of a few bits, from the front of a stream and from its end.

/// From the front, the lowest bits first.
pub struct Forward<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Forward<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Forward { bytes, at: 0 }
    }

    /// So many bits, at most 16, without going on; zeros beyond the end.
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

    /// What lies behind the byte that has been begun; `None` where that is beyond the end.
    pub fn behind(self) -> Option<&'a [u8]> {
        self.bytes.get(self.at.div_ceil(8)..)
    }
}

/// From the end, the highest bits first; a one marks where it begins.
///
/// Beyond the front there are zeros, to any length: whoever reads looks at the end whether it was
/// too far.
pub struct Backward<'a> {
    bytes: &'a [u8],
    /// Of the eight bytes in hand; below zero before the front.
    at: isize,
    window: u64,
    /// Bits of them that have been read.
    used: u32,
}

impl<'a> Backward<'a> {
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
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

    /// Makes 56 bits ready.
    #[inline]
    pub fn refill(&mut self) {
        self.at -= (self.used / 8) as isize;
        self.used %= 8;
        self.window = self.load();
    }

    /// So many bits, less than 64 and no more than are ready, without going on.
    #[inline]
    pub fn peek(&self, count: u32) -> u64 {
        // In two steps: no bits are zero.
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

    /// How many bits are left; less than none where more were read.
    pub fn left(&self) -> isize {
        (self.at + 8) * 8 - self.used as isize
    }
}
