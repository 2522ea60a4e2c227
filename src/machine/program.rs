//! Programs as files: whether they can load the library.

use super::elf::Kind;
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The bytes of a script that the kernel reads to find its interpreter.
const FIRST_LINE: u64 = 256;
/// How many interpreters in a row the kernel starts.
const NESTED: usize = 5;

/// Returns the file that `exec` starts for this name: the path itself, or a file in `PATH`.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let is_program = |path: &PathBuf| {
        let about = path.metadata();
        about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(is_program)
}

/// Returns the file that the kernel loads for a program: the program itself, or the interpreter
/// that its first line names.
pub fn loaded(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut path = path.to_owned();
    for _ in 0..NESTED {
        let mut file = open(&path)?;
        let mut line = Vec::new();
        file.by_ref().take(FIRST_LINE).read_to_end(&mut line)?;
        let Some(line) = line.strip_prefix(b"#!") else {
            file.rewind()?;
            return Ok((path, file));
        };
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
        let mut words = words.filter(|word| !word.is_empty()).map(OsStr::from_bytes);
        path = PathBuf::from(words.next().unwrap_or_default());
        // `env` starts the program that follows its options and variables.
        if path.file_name() == Some(OsStr::new("env")) {
            let is_program = |word: &&OsStr| {
                !word.as_bytes().contains(&b'=') && !word.as_bytes().starts_with(b"-")
            };
            path = words.find(is_program).and_then(find).unwrap_or(path);
        }
    }
    Err(io::Error::other("its interpreter is a script, too"))
}

/// Opens a regular file. Another kind of file could block.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = options.read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("the file is not a regular file")),
    }
}

/// Returns why a program of this kind cannot load the library, and what helps; `None` if it can.
pub fn unable(kind: &Kind) -> Option<(String, &'static str)> {
    Some(match kind {
        Kind::Static => (
            "the program is linked statically and loads no libraries".into(),
            "link the program dynamically; CUDA programs are dynamic, because they load \
             libcuda.so.1",
        ),
        Kind::Other(what) => (
            format!("the program is {what} and cannot load the library"),
            "limits apply only to 64-bit programs for this machine's processor",
        ),
        Kind::Dynamic(linker) if kind.is_musl() => (
            format!("the program is linked to musl ({linker}), and the library needs glibc"),
            "use an image with glibc; NVIDIA's driver libraries need glibc, too",
        ),
        Kind::Dynamic(_) => return None,
    })
}
