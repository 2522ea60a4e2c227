//! Installs the library on the node, where containers mount it from.

use gpulimit_base::text_file;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The library's file name.
pub const NAME: &str = "libgpulimit.so";
/// The directory of the library inside containers.
pub const INSIDE: &str = "/usr/local/lib/gpulimit";
/// The file that names the library, so that every program loads it.
pub const PRELOAD: &str = "ld.so.preload";

/// Returns the places to search: beside this program, and where packages put the library.
pub fn places() -> Vec<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let directory = program.parent().unwrap_or(Path::new("/"));
    let prefix = directory.parent().unwrap_or(Path::new("/"));
    vec![
        directory.join(NAME),
        prefix.join("lib/gpulimit").join(NAME),
        prefix.join("lib").join(NAME),
        // This program and the library may be built with different cargo profiles.
        prefix.join("release").join(NAME),
    ]
}

/// Copies the library, and the file that names it, into a directory of the node. Running containers
/// keep the files that they have mounted.
///
/// Returns both files, open. While they are open, the kernel grants no write lease on them
/// (`F_SETLEASE`), with which a container could block the start of programs in all other
/// containers.
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

/// Replaces a file as a whole, with these permissions. A file with the same content is kept.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // Containers have these files open. A lease on one (`F_SETLEASE`) would block a plain open
    // here, so such a file is replaced.
    if text_file::read(path, bytes.len() as u64).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.new"));
    let replaced = fs::write(&draft, bytes)
        .and_then(|()| fs::set_permissions(&draft, Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&draft, path));
    if replaced.is_err() {
        // The write may have failed because the file system is full.
        let _ = fs::remove_file(&draft);
    }
    replaced
}
