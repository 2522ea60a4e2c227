//! One block that is charged in advance, so that a small allocation finds its possible new block already paid for.
//!
//! Taken before the call, put back when the allocation fell into a block that was held: two writes to a word of this process, nothing
//! shared. A second thread that comes meanwhile charges a block of its own.

use std::sync::atomic::{AtomicU8, Ordering};

const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
const TAKEN: u8 = 2;

/// The spare block of a device.
#[derive(Default)]
pub struct Spare(AtomicU8);

impl Spare {
    /// Takes it. False when there is none, or another thread has it.
    #[inline]
    pub fn take(&self) -> bool {
        self.0
            .compare_exchange(PRESENT, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Puts the taken one back.
    #[inline]
    pub fn put_back(&self) {
        self.0.store(PRESENT, Ordering::Release);
    }

    /// The taken one has become a block.
    #[inline]
    pub fn consume(&self) {
        self.0.store(ABSENT, Ordering::Release);
    }

    /// A block that is charged and needed no more becomes the spare. False when there is one already.
    #[inline]
    pub fn keep(&self) -> bool {
        self.0
            .compare_exchange(ABSENT, PRESENT, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let spare = Spare::default();
        assert!(!spare.take());
        assert!(spare.keep());
        assert!(!spare.keep());
        assert!(spare.take());
        assert!(!spare.take());
        assert!(!spare.keep(), "while it is out there is still one");
        spare.put_back();
        assert!(spare.take());
        spare.consume();
        assert!(spare.keep());
    }
}
