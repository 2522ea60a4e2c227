//! Replaces a file as a whole.

use crate::missing::found;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Writes a new file at `draft` with this mode, and renames it to `path`. Open files and mappings
/// keep the old content.
pub fn replace(path: &Path, draft: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let written = write(draft, bytes, mode).and_then(|()| fs::rename(draft, path));
    if written.is_err() {
        // If the draft cannot be removed now, the next call removes it.
        let _ = fs::remove_file(draft);
    }
    written
}

fn write(draft: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // Remove the draft of an earlier process that was killed.
    found(fs::remove_file(draft))?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}
