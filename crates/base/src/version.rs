//! Which builds of gpulimit work together: those that keep the files that they share in the same
//! formats, whatever their versions are.
//!
//! Each file names its format, and who reads another one refuses it. This is for those who want to
//! know before.

/// The layout of a ledger, and the protocol on it.
pub const LEDGER: u64 = format(2);
/// The layout of a limits file.
pub const LIMITS: u64 = format(3);
/// The text of the rules.
pub const RULES: u64 = format(1);

/// The number of a format. In a build for the tests of mixed versions it is another one.
const fn format(number: u64) -> u64 {
    if cfg!(feature = "other-formats") {
        number + 1_000
    } else {
        number
    }
}

/// The version of this build, and after it [`formats`] in parentheses:
/// `0.1.0 (ledger 2, limits 3, rules 1)`. Zeros follow.
///
/// The library exports this constant, so that its version can be read out of the file without
/// loading it.
pub const BYTES: [u8; 128] = {
    let mut all = ([0; 128], 0);
    all = put(all, env!("CARGO_PKG_VERSION"));
    all = number(put(all, " (ledger "), LEDGER);
    all = number(put(all, ", limits "), LIMITS);
    all = number(put(all, ", rules "), RULES);
    put(all, ")").0
};

/// Appends a text. A zero stays at the end, or it does not compile.
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

/// [`BYTES`] as a text.
pub fn text() -> String {
    let text = BYTES.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The formats of this build's files: `ledger 2, limits 3, rules 1`.
pub fn formats() -> String {
    format!("ledger {}, limits {}, rules {}", LEDGER, LIMITS, RULES)
}

/// The version and the formats in what [`text`] says of another build.
pub fn parts(text: &str) -> Option<(&str, &str)> {
    text.strip_suffix(')')?.split_once(" (")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_can_be_read() {
        let text = text();
        assert_eq!(
            parts(&text),
            Some((env!("CARGO_PKG_VERSION"), formats().as_str()))
        );
        assert_eq!(parts("0.1.0"), None);
    }
}
