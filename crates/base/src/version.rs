//! The versions of gpulimit's file formats. Builds work together if their formats are equal,
//! whatever their release versions.
//!
//! Each file contains its format's version, and a build refuses other versions. A program can
//! compare two builds by these numbers before a file is refused.

const LEDGER: u64 = 6;
const LIMITS: u64 = 4;
const RULES: u64 = 1;

/// Returns the version of the ledger's format: the ledger's layout, and the protocol of the
/// processes that use the ledger.
pub fn ledger() -> u64 {
    LEDGER + added()
}

/// Returns the version of the format of a limits file: the file's layout.
pub fn limits() -> u64 {
    LIMITS + added()
}

/// Returns the version of the text format of the rules.
pub fn rules() -> u64 {
    RULES + added()
}

/// Returns the number that is added to all versions. Tests of mixed versions set it, in builds with
/// `debug_assertions` and in no others, by the variable `GPULIMIT_DEBUG_FORMATS`.
#[inline(always)]
fn added() -> u64 {
    #[cfg(debug_assertions)]
    {
        use std::sync::atomic::{AtomicU64, Ordering};
        // No lock, since a process may have been forked while another thread held it.
        static READ: AtomicU64 = AtomicU64::new(u64::MAX);
        let read = READ.load(Ordering::Relaxed);
        if read != u64::MAX {
            return read;
        }
        let text = std::env::var("GPULIMIT_DEBUG_FORMATS").unwrap_or_default();
        let number = text.parse().unwrap_or(0);
        READ.store(number, Ordering::Relaxed);
        number
    }
    #[cfg(not(debug_assertions))]
    0
}

/// The version of this build, followed by the versions of its file formats in parentheses:
/// `0.1.0 (ledger 6, limits 4, rules 1)`. The text is padded with zero bytes.
///
/// `libgpulimit.so` exports this constant, to be read without loading the library.
pub const BYTES: [u8; 128] = {
    let mut all = ([0; 128], 0);
    all = put(all, env!("CARGO_PKG_VERSION"));
    all = number(put(all, " (ledger "), LEDGER);
    all = number(put(all, ", limits "), LIMITS);
    all = number(put(all, ", rules "), RULES);
    put(all, ")").0
};

/// Appends a text to the version's bytes. Compilation fails if no zero byte would remain at the
/// end.
const fn put((mut bytes, mut end): ([u8; 128], usize), text: &str) -> ([u8; 128], usize) {
    let mut at = 0;
    while at < text.len() {
        assert!(end + 1 < bytes.len());
        bytes[end] = text.as_bytes()[at];
        (at, end) = (at + 1, end + 1);
    }
    (bytes, end)
}

/// Appends a number in decimal digits to the version's bytes.
const fn number((mut bytes, mut end): ([u8; 128], usize), value: u64) -> ([u8; 128], usize) {
    let mut unit = 1;
    while value / unit >= 10 {
        unit *= 10;
    }
    while unit > 0 {
        assert!(end + 1 < bytes.len());
        bytes[end] = b'0' + (value / unit % 10) as u8;
        (unit, end) = (unit / 10, end + 1);
    }
    (bytes, end)
}

/// Returns the version of this build as a text, as in [`BYTES`].
pub fn text() -> String {
    format!("{} ({})", env!("CARGO_PKG_VERSION"), formats())
}

/// Returns the versions of this build's file formats: `ledger 6, limits 4, rules 1`.
pub fn formats() -> String {
    let [ledger, limits, rules] = [ledger(), limits(), rules()];
    format!("ledger {ledger}, limits {limits}, rules {rules}")
}

/// Splits the [`text`] of a build into the release version and the formats.
pub fn parts(text: &str) -> Option<(&str, &str)> {
    text.strip_suffix(')')?.split_once(" (")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_text_splits_into_version_and_formats() {
        let text = text();
        assert_eq!(
            parts(&text),
            Some((env!("CARGO_PKG_VERSION"), formats().as_str()))
        );
        assert_eq!(parts("0.1.0"), None);
        let bytes = BYTES.split(|byte| *byte == 0).next();
        assert_eq!(bytes, Some(text.as_bytes()));
    }
}
