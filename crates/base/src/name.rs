//! What a part of a group's name may be, for those who make names and those who read them from
//! files.

/// Longest part of a name, in bytes.
pub const LONGEST: usize = 64;

/// Returns whether this can be one part of a name: `[A-Za-z0-9._-]{1,64}`, not starting with `.` or
/// `-`.
pub fn is_part(part: &str) -> bool {
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    (1..=LONGEST).contains(&part.len()) && part.bytes().all(good) && !part.starts_with(['.', '-'])
}
