//! An allocator that counts.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which counts the bytes that are in use.
#[derive(Debug, Default)]
pub struct Counting(AtomicUsize);

impl Counting {
    /// Returns an allocator that has given out nothing.
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Returns the bytes in use, by all threads.
    pub fn in_use(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

// SAFETY: every call goes to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        self.0.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}
