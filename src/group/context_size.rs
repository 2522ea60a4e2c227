//! What a CUDA context takes on each GPU of this machine, as last measured by any member of any group below a root.
//!
//! The driver tells it to nobody. With the figure at hand a context can be charged before it is made, and need not be measured at once. One
//! small file per GPU; it is a hint: whatever it says is corrected by the next measurement, and failing to write it is no error.

use crate::device::DeviceId;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// No context takes more: a file that says so is damaged. Bytes.
const MOST: u64 = 64 << 30;

const PREFIX: &str = ".context-";

fn file(root: &Path, device: &DeviceId) -> PathBuf {
    root.join(format!("{PREFIX}{device}"))
}

/// Bytes; 0 unknown.
pub(super) fn read(root: &Path, device: &DeviceId) -> u64 {
    let text = fs::read_to_string(file(root, device)).unwrap_or_default();
    text.trim()
        .parse()
        .ok()
        .filter(|bytes| *bytes <= MOST)
        .unwrap_or(0)
}

/// Replaces the file as a whole, so that no reader finds half a number.
pub(super) fn write(root: &Path, device: &DeviceId, bytes: u64) {
    let path = file(root, device);
    let new = path.with_extension(std::process::id().to_string());
    // Left by a namesake; and never through a link that the owner of the root has put there.
    let _ = fs::remove_file(&new);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&new)
        .and_then(|mut file| writeln!(file, "{bytes}"));
    if written.is_err() || fs::rename(&new, &path).is_err() {
        let _ = fs::remove_file(&new);
    }
}

/// Lets another root know what this one does.
#[cfg(feature = "cli")]
pub(super) fn copy(root: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(PREFIX) && entry.file_type()?.is_file() {
            // Gone or replaced meanwhile: it is a hint.
            let _ = fs::copy(entry.path(), to.join(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceKind;

    #[test]
    fn remembers_and_distrusts() {
        let root =
            std::env::temp_dir().join(format!("gpulimit-context-size-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let device = DeviceId {
            uuid: [7; 16],
            kind: DeviceKind::Gpu,
        };
        assert_eq!(read(&root, &device), 0);
        write(&root, &device, 543_162_368);
        assert_eq!(read(&root, &device), 543_162_368);
        write(&root, &device, 5);
        assert_eq!(read(&root, &device), 5);
        for damaged in ["", "-1", "18446744073709551615", "many"] {
            fs::write(file(&root, &device), damaged).unwrap();
            assert_eq!(read(&root, &device), 0, "{damaged}");
        }
        assert_eq!(
            fs::read_dir(&root).unwrap().count(),
            1,
            "nothing else is left behind"
        );
        fs::remove_dir_all(&root).unwrap();
    }
}
