//! The rule for one component of a group's name, such as `alice` in `alice/job7`.

/// Largest length of one component of a group's name, in bytes.
pub const LONGEST: usize = 64;

/// Returns whether a text can be one component of a group's name: `[A-Za-z0-9._-]{1,64}`, not
/// starting with `.` or `-`.
pub fn is_part(part: &str) -> bool {
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    (1..=LONGEST).contains(&part.len()) && part.bytes().all(good) && !part.starts_with(['.', '-'])
}
