//! Parts of texts for people.

use gpulimit_base::name::hide_secrets;
use gpulimit_base::units::gib;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::Path;

/// Lists the first items, and the number of the others.
pub fn some(all: &[impl Display]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = all.iter().take(SHOWN).map(|one| one.to_string()).collect();
    match all.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Lists the first paths as [`some`] does, in quotes: other users may have chosen the names.
pub fn some_paths(all: &[impl AsRef<Path>]) -> String {
    let escaped = |path: &_| {
        format!(
            "'{}'",
            AsRef::<Path>::as_ref(path).to_string_lossy().escape_debug()
        )
    };
    some(&all.iter().map(escaped).collect::<Vec<_>>())
}

/// Formats two byte counts: in bytes, if they differ and would read the same.
pub fn apart(counts: [u64; 2]) -> [String; 2] {
    let texts = counts.map(|bytes| gib(bytes).to_string());
    match counts[0] != counts[1] && texts[0] == texts[1] {
        true => counts.map(|bytes| format!("{bytes} B")),
        false => texts,
    }
}

/// Returns a word as a shell reads it.
pub fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Returns a text without the secret names of jobs: see [`hide_secrets`].
pub fn without_secrets(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let length = hide_secrets(&mut bytes);
    bytes.truncate(length);
    String::from_utf8(bytes).unwrap_or_default()
}

/// Returns a path for printing, without secret names.
pub fn shown_path(path: &Path) -> String {
    without_secrets(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_differ_read_differently() {
        assert_eq!(apart([3 << 30, 2 << 30]), ["3.0 GiB", "2.0 GiB"]);
        assert_eq!(apart([2 << 30, 2 << 30]), ["2.0 GiB", "2.0 GiB"]);
        let close = ["2147487744 B", "2147483648 B"];
        assert_eq!(apart([(2 << 30) + 4096, 2 << 30]), close);
    }
}
