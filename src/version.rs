//! Which builds of gpulimit work together: those that keep the files that they share in the same formats, whatever their versions are.
//!
//! Each file names its format, and who reads another one refuses it. This is for those who want to know before.

use crate::{ledger, limits, policy};

/// The number of a format. In a build for the tests of mixed versions it is another one.
pub(crate) const fn format(number: u64) -> u64 {
    if cfg!(feature = "other-formats") {
        number + 1_000
    } else {
        number
    }
}

/// The version of this build, and after it [`formats`] in parentheses: `0.1.0 (ledger 2, limits 3, rules 1)`.
pub fn text() -> String {
    format!("{} ({})", env!("CARGO_PKG_VERSION"), formats())
}

/// The formats of this build's files: `ledger 2, limits 3, rules 1`.
pub fn formats() -> String {
    format!(
        "ledger {}, limits {}, rules {}",
        ledger::VERSION,
        limits::FORMAT,
        policy::rules::FORMAT
    )
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
