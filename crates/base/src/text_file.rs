//! Reading of small files in a directory in which other users may create files. A read never waits
//! for another process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads a regular file of at most `longest` bytes. Does not follow a symbolic link.
///
/// # Errors
/// - `InvalidData`: the file is longer or not regular.
/// - Any error of the system.
pub fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let file = OpenOptions::new()
        .read(true)
        // Another user may have put a FIFO at the path. Without O_NONBLOCK, opening the FIFO would
        // wait for a writer.
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => wrong("the file is a symbolic link"),
            _ => error,
        })?;
    if !file.metadata()?.is_file() {
        return Err(wrong("the file is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::take(file, longest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        return Err(wrong("the file is too long"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_short_regular_files_are_read() {
        let scratch = Scratch::new();
        let at = |name: &str| scratch.at(name);
        let why = |name: &str| read(&at(name), 4).expect_err(name).to_string();
        fs::write(at("short"), "four").expect("written");
        assert_eq!(read(&at("short"), 4).expect("read"), b"four");
        fs::write(at("long"), "fives").expect("written");
        assert_eq!(why("long"), "the file is too long");
        symlink("short", at("link")).expect("linked");
        assert_eq!(why("link"), "the file is a symbolic link");
        let made = std::process::Command::new("mkfifo")
            .arg(at("fifo"))
            .status();
        assert!(made.is_ok_and(|status| status.success()));
        assert_eq!(why("fifo"), "the file is not a regular file");
        assert_eq!(why("."), "the file is not a regular file");
        let missing = read(&at("missing"), 4).expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
