//! The library on the node, where containers get it from.

use gpulimit_base::text_file;
use std::fs::{self, File, Permissions};
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

/// Puts the library, and the file that names it, into a directory of the node. Containers that run
/// keep the file that they have.
///
/// Answers with both, open: as long as they are, the kernel gives nobody a write lease
/// (`F_SETLEASE`), with which one container would make the programs of all others wait at their
/// start.
pub fn install(library: &Path, directory: &Path) -> io::Result<[File; 2]> {
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let bytes = fs::read(library)?;
    if !bytes.starts_with(b"\x7fELF") {
        return Err(io::Error::other("it is not a shared library"));
    }
    let line = format!("{INSIDE}/{NAME}\n");
    let (library, preload) = (directory.join(NAME), directory.join(PRELOAD));
    replace(&library, &bytes, 0o755)?;
    replace(&preload, line.as_bytes(), 0o644)?;
    Ok([File::open(library)?, File::open(preload)?])
}

/// Replaces a file as a whole, with these permissions; one that is the same stays.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // Containers have these files, and whoever has a lease on one (`F_SETLEASE`) makes a plain
    // reader wait: it is replaced.
    if text_file::read(path, bytes.len() as u64).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.new"));
    let replaced = fs::write(&draft, bytes)
        .and_then(|()| fs::set_permissions(&draft, Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&draft, path));
    if replaced.is_err() {
        // Of a full file system, for one.
        let _ = fs::remove_file(&draft);
    }
    replaced
}
