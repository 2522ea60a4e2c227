//! The size of a CUDA context, and whether NVML lists the processes of nested PID namespaces. Both
//! are stored in the root, in one small file per GPU.
//!
//! The driver does not report this size, so a process measures it. With a stored size, a process
//! can charge a context before it makes the context. What is stored is only a hint, so failing to
//! write the file is not an error.

use super::directory::Directory;
use gpulimit_base::device::DeviceId;
use gpulimit_base::held_signals;
use gpulimit_base::text_file;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// The largest plausible size of a context, in bytes. A larger number is ignored.
const MOST: u64 = 64 << 30;

/// The most bytes that a file may have. gpulimit writes fewer; longer files are ignored.
const LONGEST: u64 = 64;

const PREFIX: &str = ".context-";

/// The word after the size if NVML lists the processes of nested PID namespaces.
const NESTED: &str = " nested";

/// The content of the file of a GPU.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Known {
    /// The size of a context in bytes; 0 if unknown.
    pub bytes: u64,
    /// Whether NVML has listed a process in a nested PID namespace by its pid there.
    pub lists_nested: bool,
}

impl Known {
    fn of(text: &str) -> Option<Self> {
        let text = text.trim();
        let size = text.strip_suffix(NESTED);
        Some(Self {
            bytes: size.unwrap_or(text).parse().ok()?,
            lists_nested: size.is_some(),
        })
    }
}

fn file(root: &Path, device: &DeviceId) -> PathBuf {
    root.join(format!("{PREFIX}{device}"))
}

/// Reads what is known about this GPU.
pub(super) fn read(root: &Path, device: &DeviceId) -> Known {
    let bytes = text_file::read(&file(root, device), LONGEST).unwrap_or_default();
    let known = std::str::from_utf8(&bytes).ok().and_then(Known::of);
    known.filter(|it| it.bytes <= MOST).unwrap_or_default()
}

/// Stores what is known about this GPU. Replaces a whole file at once, and no file with other
/// content.
pub(super) fn write(root: &Path, device: &DeviceId, known: Known) {
    // A failure to store the hint is ignored; the next measurement tries again.
    let _ = replace(root, device, known);
}

fn replace(root: &Path, device: &DeviceId, known: Known) -> io::Result<()> {
    let Known {
        bytes,
        lists_nested,
    } = known;
    let nested = if lists_nested { NESTED } else { "" };
    let root = Directory::open(root)?;
    let name = format!("{PREFIX}{device}");
    let draft = format!("{name}.{}", std::process::id());
    if !is_hint(&root, &name)? || !is_hint(&root, &draft)? {
        return Err(ErrorKind::AlreadyExists.into());
    }
    // A killed process with the same pid may have left this draft.
    let _ = root.remove_file(&draft);
    let written = root
        .create_file(&draft, 0o644)
        .and_then(|mut file| held_signals::during(|| writeln!(file, "{bytes}{nested}")))
        .and_then(|()| root.rename(&draft, &name));
    if written.is_err() {
        let _ = root.remove_file(&draft);
    }
    written
}

/// Returns whether a file in the root is a draft that [`write`] has made.
pub(super) fn is_draft(root: &Directory, name: &str) -> bool {
    let rest = name.strip_prefix(PREFIX);
    let pid = rest.and_then(|rest| Some(rest.rsplit_once('.')?.1));
    pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|c| c.is_ascii_digit()))
        && is_hint(root, name).unwrap_or(false)
}

/// Returns whether `write` may use this name: the file is missing, is empty, or holds a hint.
fn is_hint(root: &Directory, name: &str) -> io::Result<bool> {
    let mut text = String::new();
    match root.open_file(name, false) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        file => file?.take(LONGEST).read_to_string(&mut text)?,
    };
    Ok(text.trim().is_empty() || Known::of(&text).is_some())
}

/// Copies the stored sizes of contexts from this root into another root.
pub(super) fn copy(root: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(PREFIX) && entry.file_type()?.is_file() {
            // Skip a stored size that another process removes or replaces meanwhile.
            let _ = fs::copy(entry.path(), to.join(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_base::device::DeviceKind;
    use gpulimit_support::Scratch;

    #[test]
    fn stored_sizes_are_read_back_and_damaged_ones_ignored() {
        let scratch = Scratch::new();
        let root = scratch.at("root");
        fs::create_dir(&root).unwrap();
        let device = DeviceId {
            uuid: [7; 16],
            kind: DeviceKind::Gpu,
        };
        let known = |bytes, lists_nested| Known {
            bytes,
            lists_nested,
        };
        assert_eq!(read(&root, &device), known(0, false));
        write(&root, &device, known(543_162_368, true));
        assert_eq!(read(&root, &device), known(543_162_368, true));
        write(&root, &device, known(5, false));
        assert_eq!(read(&root, &device), known(5, false));
        for damaged in ["", "-1", "18446744073709551615", "many", "5 many"] {
            fs::write(file(&root, &device), damaged).unwrap();
            assert_eq!(read(&root, &device), known(0, false), "{damaged}");
        }
        assert_eq!(
            fs::read_dir(&root).unwrap().count(),
            1,
            "no other file is left in the root"
        );
        // Files with these names exist that gpulimit did not write. They must not be replaced.
        let draft = format!("{PREFIX}{device}.{}", std::process::id());
        for name in [format!("{PREFIX}{device}"), draft] {
            let path = root.join(&name);
            for theirs in ["notes", "12 of them"] {
                fs::write(&path, theirs).unwrap();
                write(&root, &device, known(6, false));
                assert_eq!(fs::read_to_string(&path).unwrap(), theirs, "{name}");
            }
            fs::remove_file(&path).unwrap();
            let outside = scratch.at("theirs");
            fs::write(&outside, "7").unwrap();
            std::os::unix::fs::symlink(&outside, &path).unwrap();
            write(&root, &device, known(6, false));
            assert_eq!(fs::read_link(&path).unwrap(), outside, "{name}");
            assert_eq!(fs::read_to_string(&outside).unwrap(), "7");
            fs::remove_file(&path).unwrap();
            fs::remove_file(&outside).unwrap();
        }
    }
}
