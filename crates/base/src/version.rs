//! The versions of gpulimit's file formats. Builds work together if their formats are equal,
//! whatever their release versions.
//!
//! Each file contains its format's version, and a build refuses other versions. A program can
//! compare two builds by these constants before a file is refused.

/// Version of the ledger's format: the ledger's layout, and the protocol of the processes that use
/// the ledger.
pub const LEDGER: u64 = format(3);
/// Version of the format of a limits file: the file's layout.
pub const LIMITS: u64 = format(3);
/// Version of the text format of the rules.
pub const RULES: u64 = format(1);

/// Returns the version of a file format. A build with the feature `other-formats`, for tests of
/// mixed versions, has other version numbers.
const fn format(number: u64) -> u64 {
    if cfg!(feature = "other-formats") {
        number + 1_000
    } else {
        number
    }
}

/// The version of this build, followed by its [`formats`] in parentheses:
/// `0.1.0 (ledger 3, limits 3, rules 1)`. The text is padded with zero bytes.
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

/// Returns the version in [`BYTES`] as a text.
pub fn text() -> String {
    let text = BYTES.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Returns the versions of this build's file formats: `ledger 3, limits 3, rules 1`.
pub fn formats() -> String {
    format!("ledger {}, limits {}, rules {}", LEDGER, LIMITS, RULES)
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
    }
}
