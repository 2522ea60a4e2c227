//! The output buffer of the LZ4 and zstd decoders, which has a fixed size and is written once from
//! front to back.

/// The step of short copies, in bytes. A short copy writes whole steps, so it may write too many
/// bytes.
pub const STEP: usize = 16;

/// The bytes that a decoder has written so far, and space for the bytes that are still missing.
pub struct Output {
    bytes: Vec<u8>,
    at: usize,
    size: usize,
}

impl Output {
    /// Returns an output buffer for `size` bytes; `None` if memory is short.
    pub fn new(size: usize) -> Option<Output> {
        let mut bytes = Vec::new();
        let room = size.checked_add(STEP)?;
        bytes.try_reserve_exact(room).ok()?;
        bytes.resize(room, 0);
        Some(Output { bytes, at: 0, size })
    }

    /// Returns the decoded bytes; `None` if fewer than the buffer's size were decoded.
    pub fn done(mut self) -> Option<Vec<u8>> {
        self.bytes.truncate(self.size);
        (self.at == self.size).then_some(self.bytes)
    }

    /// Returns the space for the next `count` bytes of output.
    fn next(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.size - self.at {
            return None;
        }
        let at = self.at;
        self.at += count;
        self.bytes.get_mut(at..at + count)
    }

    pub fn append(&mut self, bytes: &[u8]) -> Option<()> {
        self.next(bytes.len())?.copy_from_slice(bytes);
        Some(())
    }

    pub fn append_all(&mut self, byte: u8, count: usize) -> Option<()> {
        self.next(count)?.fill(byte);
        Some(())
    }

    /// Appends the first `count` bytes of `from`. At least `STEP` more bytes must follow them.
    #[inline]
    pub fn append_front(&mut self, from: &[u8], count: usize) -> Option<()> {
        if count > STEP {
            return self.append(from.get(..count)?);
        }
        if count > self.size - self.at {
            return None;
        }
        let step = from.first_chunk::<STEP>()?;
        *self.bytes.get_mut(self.at..)?.first_chunk_mut::<STEP>()? = *step;
        self.at += count;
        Some(())
    }

    /// Appends `count` bytes of earlier output, from `offset` bytes before the end. The bytes
    /// repeat if `count` exceeds `offset`.
    #[inline]
    pub fn repeat(&mut self, offset: usize, count: usize) -> Option<()> {
        if offset == 0 || offset > self.at || count > self.size - self.at {
            return None;
        }
        let (start, end) = (self.at - offset, self.at + count);
        if offset >= STEP {
            let (mut from, mut to) = (start, self.at);
            while to < end {
                let step = *self.bytes.get(from..)?.first_chunk::<STEP>()?;
                *self.bytes.get_mut(to..)?.first_chunk_mut::<STEP>()? = step;
                (from, to) = (from + STEP, to + STEP);
            }
        } else {
            // Each round copies the bytes of all earlier rounds, so the copied length doubles each
            // time.
            let bytes = self.bytes.get_mut(start..end)?;
            let mut there = offset;
            while there < bytes.len() {
                let some = there.min(bytes.len() - there);
                bytes.copy_within(..some, there);
                there += some;
            }
        }
        self.at = end;
        Some(())
    }
}
