//! The versions of the file formats. Builds of gpulimit work together if they use the same formats
//! for the files that they share, whatever their release versions are.
//!
//! Each file contains the version of its format, and a build with another format refuses the file.
//! These constants let programs compare builds before that happens.

/// Format of a ledger: its layout, and the protocol of its users.
pub const LEDGER: u64 = format(2);
/// Format of a limits file: its layout.
pub const LIMITS: u64 = format(3);
/// Format of the text of the rules.
pub const RULES: u64 = format(1);

/// Returns a format's version. A build with the feature `other-formats`, for tests of mixed
/// versions, has other numbers.
const fn format(number: u64) -> u64 {
    if cfg!(feature = "other-formats") {
        number + 1_000
    } else {
        number
    }
}

/// The version of this build, followed by its [`formats`] in parentheses and by zeros: `0.1.0
/// (ledger 2, limits 3, rules 1)`.
///
/// The library exports this constant, so that other programs can read the version from the
/// library's file without loading it.
pub const BYTES: [u8; 128] = {
    let mut all = ([0; 128], 0);
    all = put(all, env!("CARGO_PKG_VERSION"));
    all = number(put(all, " (ledger "), LEDGER);
    all = number(put(all, ", limits "), LIMITS);
    all = number(put(all, ", rules "), RULES);
    put(all, ")").0
};

/// Appends a text. Compilation fails if no zero would remain at the end.
const fn put((mut bytes, mut end): ([u8; 128], usize), text: &str) -> ([u8; 128], usize) {
    let mut at = 0;
    while at < text.len() {
        assert!(end + 1 < bytes.len());
        bytes[end] = text.as_bytes()[at];
        (at, end) = (at + 1, end + 1);
    }
    (bytes, end)
}

/// Appends a number in decimal digits.
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

/// Returns [`BYTES`] as a text.
pub fn text() -> String {
    let text = BYTES.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Returns the formats of this build's files: `ledger 2, limits 3, rules 1`.
pub fn formats() -> String {
    format!("ledger {}, limits {}, rules {}", LEDGER, LIMITS, RULES)
}

/// Splits the [`text`] of a build into its version and its formats.
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
    }
}
