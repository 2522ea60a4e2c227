//! The rule for one component of a group's name, such as `alice` in `alice/job7`, and the names
//! that no output shows.

/// Largest length of one component of a group's name, in bytes.
pub const LONGEST: usize = 64;

/// The directory of a root whose entries have secret names: whoever knows such a name can use the
/// job that it is for.
pub const SECRET: &str = ".secret";

/// Returns whether a text can be one component of a group's name: `[A-Za-z0-9._-]{1,64}`, not
/// starting with `.` or `-`.
pub fn is_part(part: &str) -> bool {
    (1..=LONGEST).contains(&part.len())
        && part.bytes().all(|c| is_good(&c))
        && !part.starts_with(['.', '-'])
}

fn is_good(c: &u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-')
}

/// Removes [`SECRET`] and the names in it from the paths in a text, and returns the text's new
/// length. Allocates no memory.
pub fn hide_secrets(text: &mut [u8]) -> usize {
    let (mut kept, mut at) = (0, 0);
    while let Some(byte) = text.get(at).copied() {
        let secret = text.get(at..).and_then(|rest| rest.strip_prefix(b"/"));
        let secret = secret.and_then(|rest| rest.strip_prefix(SECRET.as_bytes()));
        if let Some(name) = secret.and_then(|rest| rest.strip_prefix(b"/")) {
            at += SECRET.len() + 2 + name.iter().take_while(|c| is_good(c)).count();
            continue;
        }
        if let Some(place) = text.get_mut(kept) {
            *place = byte;
        }
        (kept, at) = (kept + 1, at + 1);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_names_are_taken_out_of_paths() {
        for (text, shown) in [
            ("", ""),
            ("/run/.secret", "/run/.secret"),
            (
                "no /run/.secret/run-1-2.0f/run-1-2: x",
                "no /run/run-1-2: x",
            ),
            ("'/run/.secret/a.0f' '/.secret/b.1'", "'/run' ''"),
            ("/a/.secret/b.0/.secret/c.1", "/a"),
        ] {
            let mut bytes = text.as_bytes().to_vec();
            let length = hide_secrets(&mut bytes);
            assert_eq!(&bytes[..length], shown.as_bytes());
        }
    }
}
