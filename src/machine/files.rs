//! Reads the files that another process sees, and never executes them.
//!
//! The process's user may have put links, pipes or endless files there. So paths are resolved in
//! the process's root directory, only regular files are opened, and reads are bounded.

use super::{elf, inside};
use gpulimit_base::proc;
use gpulimit_group::{Lowered, Rights, effective_user};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The maximum size of a library file: far above that of libgpulimit.so or of any C library.
pub const LONGEST_LIBRARY: u64 = 256 << 20;

/// The files that a process sees, to be read with the rights of the process's user.
pub struct Files {
    root: OwnedFd,
    /// The file of the program that the process runs.
    program: OwnedFd,
    rights: Rights,
}

impl Files {
    /// Opens the root directory of a process. Fails if the caller is not allowed to access the
    /// process's files.
    pub fn of(pid: u32) -> io::Result<Self> {
        let directory = proc::directory(pid);
        let open = |name: &str, flags| {
            let path = directory.join(name);
            rustix::fs::open(path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        };
        Ok(Self {
            root: open("root", OFlags::DIRECTORY)?,
            program: open("exe", OFlags::empty())?,
            rights: rights(pid)?,
        })
    }

    /// Opens the root directory of a container that has not started.
    pub fn of_image(root: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())?;
        Ok(Self {
            program: root.try_clone()?,
            root,
            rights: rights(std::process::id())?,
        })
    }

    /// Gives this thread the user's file access rights until the result is dropped; `None` if no
    /// change is needed.
    pub fn lower(&self) -> io::Result<Option<Lowered>> {
        if effective_user() != 0 || self.rights.user == 0 {
            return Ok(None);
        }
        Lowered::to(&self.rights).map(Some)
    }

    /// Returns a path in `/proc` for a file. Links can lead to untrusted files: call
    /// [`Self::lower`] first.
    pub fn path(&self, inside: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()));
        root.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Returns the metadata of a file in the process's root directory.
    pub fn about(&self, path: &Path) -> io::Result<fs::Metadata> {
        let _lowered = self.lower()?;
        File::from(in_root(self.root.as_fd(), path)?).metadata()
    }

    /// Reads a regular file of at most `most` bytes. Files that report length 0, as in `/proc`,
    /// give no bytes.
    pub fn read(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let _lowered = self.lower()?;
        let found = in_root(self.root.as_fd(), path)?;
        read(found.as_fd(), most)
    }

    /// Checks that a dynamic linker of these files can load libgpulimit.so, whose content is
    /// `library`. `mapped`: the files that a process has mapped. The error says why it cannot.
    pub fn can_load(&self, library: &[u8], mapped: &[String]) -> Result<(), String> {
        /// The usual paths of the C library, for a process whose memory map does not name it.
        const PLACES: [&str; 6] = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib/aarch64-linux-gnu/libc.so.6",
            "/lib64/libc.so.6",
            "/usr/lib64/libc.so.6",
            "/usr/lib/libc.so.6",
            "/lib/libc.so.6",
        ];
        let needs = elf::Library::parse(library)?.needs();
        let is_libc = |path: &&String| path.ends_with("/libc.so.6") || path.contains("/libc-2.");
        let own = mapped.iter().filter(is_libc);
        let places = own.map(String::as_str).chain(PLACES);
        let mut found =
            places.filter_map(|place| self.read(Path::new(place), LONGEST_LIBRARY).ok());
        let Some(libc) = found.next() else {
            return Err("it has no glibc".into());
        };
        let has = elf::Library::parse(&libc)?.has();
        let lacks: Vec<&str> = needs.difference(&has).map(String::as_str).collect();
        match lacks[..] {
            [] => Ok(()),
            _ => Err(format!("its glibc lacks {}", lacks.join(", "))),
        }
    }

    /// Opens the file of the program that the process runs.
    pub fn program(&self) -> io::Result<File> {
        let _lowered = self.lower()?;
        regular(self.program.as_fd()).map(|(file, _)| file)
    }
}

/// Reads a file that was opened with `O_PATH`. Fails if it has more than `most` bytes.
fn read(found: BorrowedFd<'_>, most: u64) -> io::Result<Vec<u8>> {
    let (file, size) = regular(found)?;
    if size == 0 {
        return Ok(Vec::new());
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read, so bound the read.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("the file has more than {most} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// Opens a regular file by its `O_PATH` descriptor, and returns its length. Refuses other files,
/// because opening them can block.
fn regular(found: BorrowedFd<'_>) -> io::Result<(File, u64)> {
    let about = rustix::fs::fstat(found)?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        let why = "the file is not a regular file";
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = rustix::fs::open(again, flags, Mode::empty())?;
    Ok((file.into(), u64::try_from(about.st_size).unwrap_or(0)))
}

/// Opens a path in this root directory. Symbolic links stay inside; the magic links of `/proc` are
/// refused.
fn in_root(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match rustix::fs::openat2(root, path, flags, Mode::empty(), how) {
        // Linux before 5.6 has no `openat2`, and a container's seccomp filter may block it.
        Err(Errno::NOSYS | Errno::PERM) => inside::open(root, path),
        found => Ok(found?),
    }
}

/// Returns a process's rights to files: those of its real user and groups, also for a setuid
/// program. If the real user is root, the user is the process's `fsuid`.
fn rights(pid: u32) -> io::Result<Rights> {
    let status = proc::read(format!("/proc/{pid}/status"))?;
    let numbers = |key: &str| -> Vec<u32> {
        let words = proc::field(&status, key)
            .unwrap_or_default()
            .split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let ([real, _, _, user], [group, ..]) = (&numbers("Uid")[..], &numbers("Gid")[..]) else {
        return Err(ErrorKind::InvalidData.into());
    };
    Ok(Rights {
        user: if *real == 0 { *user } else { *real },
        group: *group,
        groups: numbers("Groups"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;
    use std::os::unix::fs::symlink;

    #[test]
    fn both_resolvers_stay_inside_and_open_regular_files_only() {
        let scratch = Scratch::new();
        let path = &scratch.0;
        let inside = path.join("root");
        fs::create_dir_all(inside.join("etc")).expect("made");
        fs::write(path.join("secret"), "outside").expect("written");
        fs::write(inside.join("etc/file"), "inside").expect("written");
        fs::write(inside.join("etc/empty"), "").expect("written");
        symlink(path.join("secret"), inside.join("absolute")).expect("linked");
        symlink("../secret", inside.join("relative")).expect("linked");
        symlink("/etc/file", inside.join("link")).expect("linked");
        let fifo = std::process::Command::new("mkfifo")
            .arg(inside.join("fifo"))
            .status();
        assert!(fifo.expect("mkfifo").success());
        File::create(inside.join("huge"))
            .and_then(|file| file.set_len(1 << 40))
            .expect("made");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(scratch.0.join("root"), flags, Mode::empty()).expect("opened");
        type Way = fn(BorrowedFd<'_>, &Path) -> io::Result<OwnedFd>;
        for (way, follows) in [(in_root as Way, true), (inside::open as Way, false)] {
            let read = |name: &str| {
                way(root.as_fd(), Path::new(name)).and_then(|found| read(found.as_fd(), 100))
            };
            for name in [
                "/etc/file",
                "etc/file",
                "/../etc/./file",
                "/etc/../../etc/file",
            ] {
                assert_eq!(read(name).expect(name), b"inside", "{name}");
            }
            assert_eq!(read("/etc/empty").expect("read"), b"");
            for name in [
                "absolute",
                "relative",
                "/../secret",
                "fifo",
                "huge",
                "etc",
                "missing",
            ] {
                assert!(read(name).is_err(), "{name}");
            }
            assert_eq!(read("link").is_ok(), follows);
        }
        // The magic links of `/proc` lead out of every root directory, so they are refused.
        let here = rustix::fs::open("/", flags, Mode::empty()).expect("opened");
        assert!(in_root(here.as_fd(), Path::new("/proc/self/cwd/.")).is_err());
    }
}
