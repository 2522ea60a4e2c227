//! Patterns in the administrator's rules: `*` matches any text, including `/`, and `?` matches any
//! one byte.

/// Returns whether the pattern matches the whole text, in at most `pattern.len() * text.len()`
/// steps.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // The position of the last `*` in the pattern, and the end of the text that this `*` matches.
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = text.get(read) {
        match (pattern.get(at), star) {
            (Some(b'*'), _) => {
                star = Some((at, read));
                at += 1;
            }
            (Some(wanted), _) if *wanted == b'?' || wanted == byte => {
                at += 1;
                read += 1;
            }
            (_, Some((place, reaches))) => {
                star = Some((place, reaches + 1));
                at = place + 1;
                read = reaches + 1;
            }
            (_, None) => return false,
        }
    }
    pattern
        .get(at..)
        .is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "/a/b", true),
            ("?", "", false),
            ("?", "a", true),
            ("?", "ab", false),
            ("/system.slice/*", "/system.slice/a/b.service", true),
            ("/system.slice/*", "/user.slice/a", false),
            ("*.service", "/a.service/b.service", true),
            ("*.service", "/a.service/b", false),
            ("/opt/*/bin/?ython*", "/opt/a/b/bin/python3", true),
            ("/opt/*/bin/?ython*", "/opt/a/bin/ython", false),
            ("a*b*c", "axxbxxbxxc", true),
            ("a*b*c", "axxbxxbxx", false),
            ("**", "x", true),
            ("a\\*", "a\\x", true),
            ("[a]", "a", false),
        ] {
            let found = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_with_many_stars_is_matched_in_bounded_time() {
        let pattern = "*a".repeat(256) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(4096).as_bytes()));
    }
}
