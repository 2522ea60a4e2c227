//! Arguments of the 32-bit functions of before CUDA 3.2, as C callers pass them: the upper half of
//! a register is whatever was there.

use super::Answer;

/// A number in the lower half of a register, with something in the upper one.
pub fn dirty(value: usize) -> usize {
    value & 0xffff_ffff | 0x5a5a_5a5a << 32
}

/// A place of four bytes for a result.
#[repr(C)]
pub struct Narrow {
    value: u32,
    /// What nobody has to write to.
    beyond: u32,
}

impl Narrow {
    const BEYOND: u32 = 0xa5a5_a5a5;

    /// With 0 in it.
    pub fn new() -> Narrow {
        Narrow {
            value: 0,
            beyond: Narrow::BEYOND,
        }
    }

    /// Its address.
    pub fn place(&mut self) -> usize {
        std::ptr::from_mut(self) as usize
    }

    /// What was put there; fails where more than that was written.
    pub fn value(&self) -> Answer<u64> {
        if self.beyond == Narrow::BEYOND {
            Ok(self.value.into())
        } else {
            Err("more than four bytes were written".to_owned())
        }
    }
}
