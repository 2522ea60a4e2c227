//! The names of signals.

use signal_hook::low_level::signal_name;

/// The largest number of a signal.
const MOST: i32 = 64;

/// Parses a signal, given as `TERM`, `SIGTERM` or `15`.
pub fn parse(text: &str) -> Result<i32, &'static str> {
    let name = text.to_ascii_uppercase();
    let name = format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name));
    let known = (1..=MOST).find(|number| signal_name(*number) == Some(&name));
    known
        .or_else(|| {
            text.parse()
                .ok()
                .filter(|number| (1..=MOST).contains(number))
        })
        .ok_or("unknown signal: expected a name such as TERM, or a number from 1 to 64")
}

/// Returns the name of a signal, such as `SIGTERM`. An unlisted signal is named by its number.
pub fn name(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for text in ["TERM", "term", "SIGTERM", "15"] {
            assert_eq!(parse(text), Ok(libc::SIGTERM), "{text}");
        }
        assert_eq!(name(libc::SIGTERM), "SIGTERM");
        assert_eq!(name(42), "signal 42");
        for text in ["", "SIG", "0", "65", "-9", "TERMINATE"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
