//! Spare blocks: 2 MiB blocks that are charged in advance. A spare block pays for a small
//! allocation that needs a new block.
//!
//! A thread takes its spare block before it calls the driver, and puts back a block that was not
//! needed. If two threads share a spare block, the second thread charges a further block.

use std::sync::atomic::{AtomicU8, Ordering};

const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
const TAKEN: u8 = 2;

/// The most spare blocks that a process has on one device.
const SPARES: usize = 8;

/// The spare blocks of this process on one device.
#[derive(Default)]
pub struct Spares([Spare; SPARES]);

impl Spares {
    /// Returns the spare block of the calling thread. Some other threads share it.
    #[inline]
    pub fn own(&self) -> &Spare {
        &self.0[place()]
    }

    /// Takes the spare block of any thread and returns it; `None` when there is none.
    pub fn take_any(&self) -> Option<&Spare> {
        self.0.iter().find(|spare| spare.take())
    }

    /// Removes all spare blocks. Returns how many there were.
    pub fn take_all(&self) -> u64 {
        let taken = self.0.iter().filter(|spare| spare.take());
        taken.map(Spare::consume).count() as u64
    }
}

/// Returns the index of the calling thread's spare block. The stack's address gives the index,
/// without thread-local memory.
#[inline]
fn place() -> usize {
    const STACK: u32 = 21;
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let here = 0u8;
    let stack = (&raw const here).addr() as u64 >> STACK;
    (stack.wrapping_mul(GOLDEN) >> (u64::BITS - SPARES.ilog2())) as usize
}

/// One spare block, in a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
pub struct Spare(AtomicU8);

impl Spare {
    /// Takes the spare block. Returns false when there is none, or when another thread has taken
    /// it.
    #[inline]
    pub fn take(&self) -> bool {
        self.0
            .compare_exchange(PRESENT, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Puts back the spare block that the caller has taken.
    #[inline]
    pub fn put_back(&self) {
        self.0.store(PRESENT, Ordering::Release);
    }

    /// Uses up the spare block that the caller has taken. The block now pays for a block of device
    /// memory.
    #[inline]
    pub fn consume(&self) {
        self.0.store(ABSENT, Ordering::Release);
    }

    /// Keeps a charged block as the spare block. Returns false if there is a spare block already.
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
    fn there_is_one_spare_at_a_time() {
        let spare = Spare::default();
        assert!(!spare.take());
        assert!(spare.keep());
        assert!(!spare.keep());
        assert!(spare.take());
        assert!(!spare.take());
        assert!(!spare.keep(), "a taken spare block can still come back");
        spare.put_back();
        assert!(spare.take());
        spare.consume();
        assert!(spare.keep());
    }

    #[test]
    fn a_thread_keeps_its_spare_and_threads_differ() {
        let spares = Spares::default();
        let own = |spares: &Spares| std::ptr::from_ref(spares.own()).addr();
        assert_eq!(own(&spares), own(&spares));
        let places: std::collections::HashSet<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..64).map(|_| scope.spawn(|| own(&spares))).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|place| place.expect("a thread")).collect()
        });
        assert!(places.len() > 1, "all 64 threads share one spare block");
        assert!(places.iter().all(|place| {
            spares
                .0
                .iter()
                .any(|spare| std::ptr::from_ref(spare).addr() == *place)
        }));
    }
}
