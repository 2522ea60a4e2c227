//! Reads fuzz input as a sequence of numbers.

/// The unread bytes.
pub struct Numbers<'a>(pub &'a [u8]);

impl Numbers<'_> {
    /// Returns the next byte of the fuzz input; `None` at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns the next two bytes of the fuzz input as a number.
    pub fn half(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_le_bytes(*first))
    }

    /// Returns the next eight bytes of the fuzz input as a number.
    pub fn long(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }
}
