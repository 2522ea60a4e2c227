//! Finds `libgpulimit.so`, and builds values of `LD_PRELOAD` with and without it.

mod load;

use super::elf;
use super::preload::{FILE, Preload};
use super::trust::Trusted;
use crate::words::failure::Failure;
use gpulimit_base::{proc, text_file, version};
use gpulimit_group::effective_user;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const NAME: &str = "libgpulimit.so";

/// The environment variable with the path of libgpulimit.so.
pub const VARIABLE: &str = "GPULIMIT_LIBRARY";

/// Returns the path of libgpulimit.so for `LD_PRELOAD`. Prefers the copy in /etc/ld.so.preload,
/// because two copies would charge memory twice.
pub fn find() -> Result<PathBuf, Failure> {
    let preload = Preload::read(Path::new(FILE)).ok();
    let mut places = preload.map_or_else(Vec::new, |preload| preload.state().copies);
    places.extend(self::places());
    first_of(places)
}

/// Returns the path of this program's own libgpulimit.so, whatever /etc/ld.so.preload names.
pub fn own() -> Result<PathBuf, Failure> {
    first_of(places())
}

fn first_of(places: Vec<PathBuf>) -> Result<PathBuf, Failure> {
    let given = env::var_os(VARIABLE).filter(|path| !path.is_empty());
    let (places, remedy) = match given {
        Some(path) => (
            vec![PathBuf::from(path)],
            "set GPULIMIT_LIBRARY to the path of the library, or unset this variable",
        ),
        None => (
            places,
            "build or install the library, or set GPULIMIT_LIBRARY to its path",
        ),
    };
    let Some(path) = places.iter().find(|path| path.is_file()) else {
        let tried: Vec<_> = places.iter().map(|path| path.to_string_lossy()).collect();
        return Err(Failure::new(format_args!(
            "cannot find {NAME} (tried {}): {remedy}",
            tried.join(", ")
        )));
    };
    let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    check(&path)?;
    Ok(path)
}

/// Returns the paths where libgpulimit.so may be: beside this program, in the directories of
/// packages, and in cargo's target directories.
fn places() -> Vec<PathBuf> {
    let program = env::current_exe().unwrap_or_default();
    let Some(directory) = program.parent() else {
        return Vec::new();
    };
    let mut places = vec![directory.join(NAME)];
    if let Some(prefix) = directory.parent() {
        // This program and libgpulimit.so may be built with different cargo profiles.
        let folders = ["lib/gpulimit", "lib", "release", "debug"];
        places.extend(folders.map(|folder| prefix.join(folder).join(NAME)));
    }
    places
}

/// Returns the library's version, read from its file. Refuses other file formats and, as root,
/// files that other users could change.
pub fn check(path: &Path) -> Result<String, Failure> {
    let separates = |c: &u8| matches!(c, b' ' | b':' | b'\t' | b'\n');
    if path.as_os_str().as_bytes().iter().any(separates) {
        return Err(Failure::new(format_args!(
            "the path of the library, '{}', has a space or a colon, which separate paths in \
             LD_PRELOAD: move the library, or set {VARIABLE} to a link whose path has neither",
            path.display()
        )));
    }
    if effective_user() == 0 {
        Trusted::of_this_program().check_new(path).map_err(|why| {
            Failure::new(format_args!(
                "{why}: as root, gpulimit opens only a library that other users cannot change; run \
                 `chown root` and `chmod go-w` on the library, or set {VARIABLE} to another library"
            ))
        })?;
    }
    let unfit = |why: &dyn std::fmt::Display| unfit(path, why);
    let bytes = read(path).map_err(|error| unfit(&error))?;
    let library = elf::Library::parse(&bytes).map_err(|why| unfit(&why))?;
    let text = library.version();
    let text = text.ok_or_else(|| unfit(&"the file is not libgpulimit.so"))?;
    match version::parts(&text) {
        Some((version, formats)) if formats == version::formats() => Ok(version.into()),
        _ => Err(Failure::new(format_args!(
            "{} has version {text}, which does not work with this gpulimit {}: install the same \
             version of both",
            path.display(),
            version::text()
        ))),
    }
}

/// Loads libgpulimit.so, to test whether a command can preload the library. After a failed preload,
/// the command would have no limit.
pub fn try_to_load(path: &Path) -> Result<(), Failure> {
    load::load(path).map_err(|why| unfit(path, &why))
}

fn unfit(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(format_args!(
        "cannot preload {}: {why}: build or install the library for this machine, or set \
         {VARIABLE} to another library",
        path.display()
    ))
}

/// Reads a regular file. Fails if the file is too large to be libgpulimit.so.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    /// More bytes than libgpulimit.so has with all debug information.
    const LONGEST: u64 = 1 << 30;
    text_file::read(&path.canonicalize()?, LONGEST)
}

/// Returns a value of `LD_PRELOAD` that names this library first and keeps the other entries,
/// except copies of the library.
pub fn preload(library: &Path, existing: Option<&OsStr>) -> OsString {
    let mut all = library.as_os_str().as_bytes().to_vec();
    for part in parts(existing).filter(|part| !is_library(part) && *part != library) {
        all.push(b':');
        all.extend_from_slice(part.as_os_str().as_bytes());
    }
    OsString::from_vec(all)
}

/// Returns a value of `ASAN_OPTIONS` by which a program with AddressSanitizer starts although its
/// runtime is not the first library. The preload defines none of the functions that the runtime
/// must be first for.
pub fn asan_options(existing: Option<&OsStr>) -> OsString {
    const FLAG: &[u8] = b"verify_asan_link_order";
    let mut all = existing.unwrap_or_default().as_bytes().to_vec();
    if !all.windows(FLAG.len()).any(|part| part == FLAG) {
        if !all.is_empty() {
            all.push(b':');
        }
        all.extend_from_slice(FLAG);
        all.extend_from_slice(b"=0");
    }
    OsString::from_vec(all)
}

/// Returns the value of `LD_PRELOAD` without the entries that name libgpulimit.so; `None` if there
/// is no such entry.
pub fn without(existing: Option<&OsStr>) -> Option<OsString> {
    let (copies, others): (Vec<&Path>, Vec<&Path>) =
        parts(existing).partition(|part| is_library(part));
    let others: Vec<&OsStr> = others.iter().map(|part| part.as_os_str()).collect();
    (!copies.is_empty()).then(|| others.join(OsStr::new(":")))
}

/// Returns the copies of libgpulimit.so that a value of `LD_PRELOAD` names.
pub fn copies_in(existing: &OsStr) -> Vec<PathBuf> {
    let copies = parts(Some(existing)).filter(|part| is_library(part));
    copies.map(Path::to_owned).collect()
}

fn parts(existing: Option<&OsStr>) -> impl Iterator<Item = &Path> {
    let existing = existing.map(OsStr::as_bytes).unwrap_or_default();
    existing
        .split(|c| matches!(c, b':' | b' '))
        .filter(|part| !part.is_empty())
        .map(|part| Path::new(OsStr::from_bytes(part)))
}

/// Returns whether this process has loaded the library.
pub fn is_loaded() -> bool {
    mapped(NAME).is_some()
}

/// Returns the path of a file that is mapped into this process and whose path contains `name`.
pub fn mapped(name: &str) -> Option<String> {
    let maps = proc::read("/proc/self/maps").ok()?;
    let found = paths(&maps).find(|path| path.contains(name));
    found.map(str::to_owned)
}

/// Returns the paths in the text of a memory map, `/proc/PID/maps`.
pub fn paths(maps: &str) -> impl Iterator<Item = &str> {
    maps.lines().filter_map(|line| line.get(line.find('/')?..))
}

/// Returns whether a path names a copy of libgpulimit.so, judging by the name of the file.
pub fn is_library(part: &Path) -> bool {
    part.file_name() == Some(OsStr::new(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_first_and_once_and_others_stay() {
        let library = Path::new("/lib/libgpulimit.so");
        let cases = [
            (None, "/lib/libgpulimit.so"),
            (Some(""), "/lib/libgpulimit.so"),
            (Some("/lib/libgpulimit.so"), "/lib/libgpulimit.so"),
            (Some("/a.so"), "/lib/libgpulimit.so:/a.so"),
            (
                Some("/old/libgpulimit.so:/a.so"),
                "/lib/libgpulimit.so:/a.so",
            ),
            (
                Some("/a.so /lib/libgpulimit.so:/b.so::"),
                "/lib/libgpulimit.so:/a.so:/b.so",
            ),
        ];
        for (existing, expected) in cases {
            assert_eq!(preload(library, existing.map(OsStr::new)), expected);
        }
    }

    #[test]
    fn the_library_is_removed_from_the_variable() {
        let without = |text: &str| without(Some(OsStr::new(text)));
        assert_eq!(without("/a.so"), None);
        assert_eq!(super::without(None), None);
        assert_eq!(without("/x/libgpulimit.so"), Some("".into()));
        assert_eq!(
            without("/a.so:/x/libgpulimit.so /b.so"),
            Some("/a.so:/b.so".into())
        );
    }

    #[test]
    fn paths_with_separators_are_refused() {
        for path in ["/a b/libgpulimit.so", "/a:b/libgpulimit.so"] {
            let error = check(Path::new(path)).expect_err(path).to_string();
            assert!(error.contains(path) && error.contains(VARIABLE), "{error}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        for (path, why) in [
            ("/nowhere", "No such file"),
            ("/proc/self/status", "not an ELF file"),
            ("/proc/self/exe", "not libgpulimit.so"),
        ] {
            let error = check(Path::new(path)).expect_err(path).to_string();
            assert!(error.contains(path) && error.contains(why), "{error}");
        }
    }
}
