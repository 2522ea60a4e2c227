//! Blocks that are charged in advance, so that a small allocation finds its possible new block
//! already paid for.
//!
//! One is taken before the call, and put back when the allocation fell into a block that was held:
//! two writes to a word that threads which allocate at the same time do not share. Where two do
//! share it, who comes second charges a block for the length of his call.

use std::sync::atomic::{AtomicU8, Ordering};

const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
const TAKEN: u8 = 2;

/// At most as many idle blocks has a process on a device.
const SPARES: usize = 8;

/// The spare blocks of a device.
#[derive(Default)]
pub struct Spares([Spare; SPARES]);

impl Spares {
    /// That of the calling thread, and of some others.
    #[inline]
    pub fn own(&self) -> &Spare {
        &self.0[place()]
    }

    /// One of another thread's, taken; `None` when there is none.
    pub fn take_any(&self) -> Option<&Spare> {
        self.0.iter().find(|spare| spare.take())
    }

    /// Takes them all, for good. Returns how many there were.
    pub fn take_all(&self) -> u64 {
        let taken = self.0.iter().filter(|spare| spare.take());
        taken.map(Spare::consume).count() as u64
    }
}

/// Threads are told apart by where their stacks lie, which takes no look at thread-local memory.
/// The same thread has the same place while its stack does not grow by megabytes, and loses nothing
/// when it gets another one.
#[inline]
fn place() -> usize {
    const STACK: u32 = 21;
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let here = 0u8;
    let stack = (&raw const here).addr() as u64 >> STACK;
    (stack.wrapping_mul(GOLDEN) >> (u64::BITS - SPARES.ilog2())) as usize
}

/// A spare block, in a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
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

    /// A block that is charged and needed no more becomes the spare. False when there is one
    /// already.
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

    #[test]
    fn a_thread_has_its_own_and_threads_differ() {
        let spares = Spares::default();
        let own = |spares: &Spares| std::ptr::from_ref(spares.own()).addr();
        assert_eq!(own(&spares), own(&spares));
        let places: std::collections::HashSet<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..64).map(|_| scope.spawn(|| own(&spares))).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|place| place.expect("a thread")).collect()
        });
        assert!(places.len() > 1, "all of 64 threads share one");
        assert!(places.iter().all(|place| {
            spares
                .0
                .iter()
                .any(|spare| std::ptr::from_ref(spare).addr() == *place)
        }));
    }
}
