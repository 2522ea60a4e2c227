//! The names of signals.

/// The names of the signals that people send.
const NAMES: [(&str, i32); 14] = [
    ("TERM", libc::SIGTERM),
    ("KILL", libc::SIGKILL),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("HUP", libc::SIGHUP),
    ("STOP", libc::SIGSTOP),
    ("CONT", libc::SIGCONT),
    ("TSTP", libc::SIGTSTP),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ABRT", libc::SIGABRT),
    ("SEGV", libc::SIGSEGV),
    ("BUS", libc::SIGBUS),
    ("PIPE", libc::SIGPIPE),
];

/// Parses a signal, given as `TERM`, `SIGTERM` or `15`.
pub fn parse(text: &str) -> Result<i32, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let known = NAMES.iter().find(|(known, _)| *known == name);
    let number = || text.parse().ok().filter(|number| (1..=64).contains(number));
    known
        .map(|(_, number)| *number)
        .or_else(number)
        .ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            format!("unknown signal: expected 1 to 64, or {}", names.join(", "))
        })
}

/// Returns the name of a signal, such as `SIGTERM`. An unlisted signal is named by its number.
pub fn name(signal: i32) -> String {
    match NAMES.iter().find(|(_, number)| *number == signal) {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("signal {signal}"),
    }
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
