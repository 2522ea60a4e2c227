//! Repetition of system calls that a signal interrupts.

use std::io::{self, ErrorKind};

/// Number of attempts before a system call is given up. Profilers may send thousands of signals a
/// second.
const TRIES: u32 = 1_000;

/// Repeats a system call that a signal interrupts, at most a thousand times. Then returns the error
/// `Interrupted`.
pub fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..TRIES {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
    call()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_call_is_repeated_up_to_a_bound() {
        let mut calls = 0;
        let mut call = |interrupted, end: io::Result<u32>| {
            calls = 0;
            let mut end = Some(end);
            let answer = again(|| {
                calls += 1;
                if calls > interrupted {
                    return end.take().expect("called once more");
                }
                Err(io::Error::from_raw_os_error(libc::EINTR))
            });
            (answer.map_err(|error| error.kind()), calls)
        };
        assert_eq!(call(0, Ok(7)), (Ok(7), 1));
        assert_eq!(call(3, Ok(7)), (Ok(7), 4));
        let denied = ErrorKind::PermissionDenied;
        assert_eq!(call(3, Err(denied.into())), (Err(denied), 4));
        let interrupted = Err(ErrorKind::Interrupted);
        assert_eq!(call(u32::MAX, Ok(7)), (interrupted, TRIES));
    }
}
