//! Arguments of the 32-bit functions from before CUDA 3.2, as C callers pass them: the upper half
//! of a register has arbitrary bits.

use super::Answer;

/// Returns a number in the lower half of a register, with other bits in the upper half.
pub fn dirty(value: usize) -> usize {
    value & 0xffff_ffff | 0x5a5a_5a5a << 32
}

/// A place of four bytes for a result.
#[repr(C)]
pub struct Narrow {
    value: u32,
    /// Bytes after the result, which the function must not write.
    beyond: u32,
}

impl Narrow {
    const BEYOND: u32 = 0xa5a5_a5a5;

    /// Makes a place that contains 0.
    pub fn new() -> Narrow {
        Narrow {
            value: 0,
            beyond: Narrow::BEYOND,
        }
    }

    /// Returns the address of the result.
    pub fn place(&mut self) -> usize {
        std::ptr::from_mut(self) as usize
    }

    /// Returns the result; fails if the function wrote more than four bytes.
    pub fn value(&self) -> Answer<u64> {
        if self.beyond == Narrow::BEYOND {
            Ok(self.value.into())
        } else {
            Err("more than four bytes were written".to_owned())
        }
    }
}
