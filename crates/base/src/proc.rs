//! Files of `/proc`, which hold what users chose: names of programs, mounts and control groups, of
//! any bytes but few.

use std::fs;
use std::io;
use std::path::Path;

/// Reads such a file. What is no UTF-8 is replaced: whoever has such a name is looked at like
/// everybody else.
///
/// # Errors
/// Whatever the system says.
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let text = String::from_utf8(fs::read(path)?);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_hides_nothing() {
        fs::write("/proc/thread-self/comm", b"a\xff)\n").expect("named");
        let text = read("/proc/thread-self/status").expect("read");
        assert!(text.starts_with("Name:\ta\u{fffd})\\n\n"), "{text}");
        assert!(text.contains("\nUid:\t"), "{text}");
        assert!(read("/proc/0/status").is_err());
    }
}
