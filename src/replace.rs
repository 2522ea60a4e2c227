//! Files that are replaced as a whole.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Gives the name `path` to a new file with this content and exactly this mode, which is `draft`
/// until it is whole. Who has the old one open or mapped keeps it.
pub fn replace(path: &Path, draft: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let written = write(draft, bytes, mode).and_then(|()| fs::rename(draft, path));
    if written.is_err() {
        // A draft that cannot be removed either is in the way of nobody.
        let _ = fs::remove_file(draft);
    }
    written
}

fn write(draft: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // Of one who was killed.
    match fs::remove_file(draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}
