//! The library on the node, where containers get it from.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Its name.
pub const NAME: &str = "libgpulimit.so";
/// The directory that it is in, in containers.
pub const INSIDE: &str = "/usr/local/lib/gpulimit";
/// The file that has every program load it.
pub const PRELOAD: &str = "ld.so.preload";

/// Beside this program, or where packages put it from there.
pub fn places() -> Vec<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let directory = program.parent().unwrap_or(Path::new("/"));
    let prefix = directory.parent().unwrap_or(Path::new("/"));
    vec![
        directory.join(NAME),
        prefix.join("lib/gpulimit").join(NAME),
        prefix.join("lib").join(NAME),
        // A program of one cargo profile, the library of another.
        prefix.join("release").join(NAME),
    ]
}

/// Puts the library, and the file that names it, into a directory of the node. Containers that run keep the file that they have.
pub fn install(library: &Path, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let bytes = fs::read(library)?;
    if !bytes.starts_with(b"\x7fELF") {
        return Err(io::Error::other("it is no shared library"));
    }
    replace(&directory.join(NAME), &bytes, 0o755)?;
    let line = format!("{INSIDE}/{NAME}\n");
    replace(&directory.join(PRELOAD), line.as_bytes(), 0o644)
}

/// Replaces a file as a whole, with these permissions; one that is the same stays.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.new"));
    fs::write(&draft, bytes)?;
    fs::set_permissions(&draft, Permissions::from_mode(mode))?;
    fs::rename(&draft, path)
}
