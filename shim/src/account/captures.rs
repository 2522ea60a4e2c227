//! The captures of streams into graphs that are under way in this process.

use parking_lot::Mutex;

use crate::abi::Context;

/// The captures of a process: of each its stream, and the context of that stream. A *stream* is a
/// number that identifies the stream in the process; see `handler/capture.rs`.
#[derive(Default)]
pub struct Captures(Mutex<Vec<(usize, Context)>>);

impl Captures {
    /// Counts a capture of `stream`. Call before the driver begins the capture, so that no capture
    /// is ever missing.
    pub fn begin(&self, stream: usize, context: Context) {
        self.0.lock().push((stream, context));
    }

    /// Counts the capture no more, because the driver has refused to begin it. Returns false if
    /// another thread has removed it meanwhile.
    pub fn undo(&self, stream: usize, context: Context) -> bool {
        let mut captures = self.0.lock();
        let at = captures.iter().position(|one| *one == (stream, context));
        at.map(|at| captures.remove(at)).is_some()
    }

    /// Returns whether a capture of `stream` is under way.
    pub fn has(&self, stream: usize) -> bool {
        self.0.lock().iter().any(|(of, _)| *of == stream)
    }

    /// Removes the captures of a stream that has ended its capture or was destroyed. Returns their
    /// number.
    pub fn end(&self, stream: usize) -> usize {
        let gone = |(of, _): &mut (usize, Context)| *of == stream;
        self.0.lock().extract_if(.., gone).count()
    }

    /// Removes the captures of streams of a destroyed context. Returns their number.
    pub fn forget_context(&self, context: Context) -> usize {
        let gone = |(_, of): &mut (usize, Context)| context != 0 && *of == context;
        self.0.lock().extract_if(.., gone).count()
    }

    /// Returns the number of captures that are under way.
    pub fn count(&self) -> usize {
        self.0.lock().len()
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
        captures.begin(0, 7);
        assert!(captures.undo(0, 7), "the driver captures no default stream");
        assert_eq!(captures.count(), 2);
        assert!(captures.has(16) && !captures.has(0));
        assert_eq!(
            [captures.end(16), captures.end(16), captures.end(0)],
            [1, 0, 0]
        );
        assert_eq!(captures.count(), 1);
        let forgotten = [7, 0].map(|context| captures.forget_context(context));
        assert_eq!(forgotten, [0, 0]);
        assert_eq!(captures.count(), 1, "a capture of another context");
        assert_eq!(captures.forget_context(8), 1);
        captures.begin(16, 7);
        captures.end(16);
        captures.begin(32, 7);
        assert!(!captures.undo(16, 7), "another thread has removed it");
        assert_eq!(captures.end(32), 1);
        assert_eq!(captures.count(), 0);
    }
}
