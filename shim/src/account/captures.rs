//! The captures of streams into graphs that are under way in this process.
//!
//! A table of words without a lock: a thread in the middle of a change harms neither a forked child
//! nor a signal handler.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::Context;

/// The most captures that are counted at a time.
const MOST: usize = 64;

/// One capture: its stream, and the context of that stream. The stream is 0 in an unused entry.
struct Entry {
    stream: AtomicUsize,
    context: AtomicUsize,
}

impl Entry {
    /// Removes the capture if it is one of `stream`.
    fn end(&self, stream: usize) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let ended = self.stream.compare_exchange(stream, 0, order, failed);
        stream != 0 && ended.is_ok()
    }
}

/// The captures of a process. A *stream* is a number that identifies the stream in the process; see
/// `handler/capture.rs`.
pub struct Captures([Entry; MOST]);

impl Default for Captures {
    fn default() -> Self {
        Captures(
            [const {
                Entry {
                    stream: AtomicUsize::new(0),
                    context: AtomicUsize::new(0),
                }
            }; MOST],
        )
    }
}

/// The place of a capture that [`Captures::begin`] has counted.
pub struct Begun<'a> {
    stream: usize,
    entry: Option<&'a Entry>,
}

impl Begun<'_> {
    /// Returns whether the capture is counted. More captures than there is room for are not.
    pub fn is_counted(&self) -> bool {
        self.entry.is_some()
    }

    /// Counts the capture no more, because the driver has refused to begin it. Returns false if
    /// another thread has removed it meanwhile.
    pub fn undo(self) -> bool {
        self.entry.is_none_or(|entry| entry.end(self.stream))
    }
}

impl Captures {
    /// Counts a capture of `stream`. Call before the driver begins the capture, so that no capture
    /// is ever missing.
    pub fn begin(&self, stream: usize, context: Context) -> Begun<'_> {
        let free = self.0.iter().find(|entry| {
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            let taken = entry.stream.compare_exchange(0, stream, order, failed);
            taken.is_ok()
        });
        if let Some(entry) = free {
            entry.context.store(context, Ordering::Release);
        }
        Begun {
            stream,
            entry: free,
        }
    }

    /// Returns whether a capture of `stream` is under way.
    pub fn has(&self, stream: usize) -> bool {
        let of = |entry: &Entry| entry.stream.load(Ordering::Acquire) == stream;
        self.0.iter().any(of)
    }

    /// Removes the captures of a stream that has ended its capture or was destroyed. Returns their
    /// number.
    pub fn end(&self, stream: usize) -> usize {
        self.0.iter().filter(|entry| entry.end(stream)).count()
    }

    /// Removes the captures of streams of a destroyed context. Returns their number.
    pub fn forget_context(&self, context: Context) -> usize {
        let is_of = |entry: &&Entry| entry.context.load(Ordering::Acquire) == context;
        let of = self.0.iter().filter(is_of).filter(|_| context != 0);
        of.filter(|entry| entry.stream.swap(0, Ordering::AcqRel) != 0)
            .count()
    }

    /// Returns the number of captures that are under way.
    pub fn count(&self) -> usize {
        let used = |entry: &&Entry| entry.stream.load(Ordering::Acquire) != 0;
        self.0.iter().filter(used).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_count_from_their_beginning_to_their_end() {
        let captures = Captures::default();
        captures.begin(16, 7);
        captures.begin(32, 8);
        assert!(captures.begin(48, 7).undo());
        assert_eq!(captures.count(), 2);
        assert!(captures.has(16) && !captures.has(48));
        assert_eq!(
            [captures.end(16), captures.end(16), captures.end(0)],
            [1, 0, 0]
        );
        assert_eq!(captures.count(), 1);
        let forgotten = [7, 0].map(|context| captures.forget_context(context));
        assert_eq!(forgotten, [0, 0]);
        assert_eq!(captures.count(), 1, "a capture of another context");
        assert_eq!(captures.forget_context(8), 1);
        let begun = captures.begin(16, 7);
        captures.end(16);
        captures.begin(32, 7);
        assert!(!begun.undo(), "its place has another capture");
        assert_eq!(captures.end(32), 1);
        assert_eq!(captures.count(), 0);
    }

    #[test]
    fn more_captures_than_there_is_room_for_are_not_counted() {
        let captures = Captures::default();
        for stream in 1..=MOST + 1 {
            let begun = captures.begin(stream, 7);
            assert_eq!(begun.is_counted(), stream <= MOST);
        }
        assert_eq!(captures.count(), MOST);
        assert!(captures.begin(MOST + 2, 7).undo());
        assert_eq!(captures.count(), MOST);
    }
}
