//! Installs libgpulimit.so on the node, in a directory that containers mount.

use gpulimit_base::{replace, text_file};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The library's file name.
pub const NAME: &str = "libgpulimit.so";
/// The directory of libgpulimit.so inside containers.
pub const INSIDE: &str = "/usr/local/lib/gpulimit";
/// The `ld.so.preload` file that makes every program of a container load libgpulimit.so.
pub const PRELOAD: &str = "ld.so.preload";

/// Returns the paths where the plugin looks for libgpulimit.so: beside this program, and where
/// packages install libraries.
pub fn places() -> Vec<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let directory = program.parent().unwrap_or(Path::new("/"));
    let prefix = directory.parent().unwrap_or(Path::new("/"));
    vec![
        directory.join(NAME),
        prefix.join("lib/gpulimit").join(NAME),
        prefix.join("lib").join(NAME),
        // A cargo target directory can have this program in `debug` and libgpulimit.so in
        // `release`.
        prefix.join("release").join(NAME),
    ]
}

/// Copies libgpulimit.so and its `ld.so.preload` file to the node. Returns both open, so that no
/// container can take a write lease.
pub fn install(library: &Path, directory: &Path) -> io::Result<[File; 2]> {
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let bytes = fs::read(library)?;
    if !bytes.starts_with(b"\x7fELF") {
        return Err(io::Error::other("the file is not a shared library"));
    }
    let line = format!("{INSIDE}/{NAME}\n");
    let (library, preload) = (directory.join(NAME), directory.join(PRELOAD));
    replace(&library, &bytes, 0o755)?;
    replace(&preload, line.as_bytes(), 0o644)?;
    Ok([File::open(library)?, File::open(preload)?])
}

/// Replaces a file as a whole, with these permissions. Keeps a file that already has this content.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // A lease of a container (`F_SETLEASE`) would block a normal `open`. `text_file::read` fails
    // instead.
    if text_file::read(path, bytes.len() as u64).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.new"));
    replace::replace(path, &draft, bytes, mode)
}
