//! Open directories, and operations on their entries that need no path.
//!
//! A path can change between two system calls, but an open directory stays the directory that was
//! checked. Every name here is a single path component, and symbolic links are not followed. So
//! work in a directory never leads out of it.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

/// Flags for opening every file: follow no symbolic links, never wait for a pipe, get no
/// controlling terminal.
const CAREFUL: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// The magic number of FUSE in `statfs(2)`, from linux/magic.h.
const FUSE: u64 = 0x6573_5546;

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    file: File,
    path: PathBuf,
}

/// The properties of a directory's entry. For a symbolic link they are those of the link itself,
/// not of its target.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The user who owns the entry.
    pub owner: u32,
    /// The unix group of the entry.
    pub group: u32,
    /// The permission bits of the entry, with the set-id and sticky bits.
    pub mode: u32,
    /// The size in bytes.
    pub size: u64,
    /// The number of hard links.
    pub links: u64,
    /// The device and inode.
    pub id: (u64, u64),
}

/// The kinds of files that gpulimit tells apart.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, a device, a pipe or a socket.
    Other,
}

/// A file that [`Directory::begin_open`] opens.
pub enum Opening {
    /// The file had no lease, and is open.
    Done(File),
    /// A thread waits in `open` for the end of a lease on the file, and sends the result.
    Waiting(mpsc::Receiver<rustix::io::Result<OwnedFd>>),
}

impl Opening {
    /// Waits for the file, at most until `until`. Fails with `WouldBlock` if another program still
    /// has a lease on the file then.
    pub fn finish(self, until: Instant) -> io::Result<File> {
        match self {
            Self::Done(file) => Ok(file),
            Self::Waiting(opened) => {
                let left = until.saturating_duration_since(Instant::now());
                let opened = opened.recv_timeout(left);
                Ok(opened.map_err(|_| io::ErrorKind::WouldBlock)??.into())
            }
        }
    }
}

impl Directory {
    /// Opens the directory at this path. Fails with `NotADirectory` if the last component is not a
    /// directory, or is a symbolic link.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = CAREFUL | OFlags::DIRECTORY;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(not_directory)?;
        Ok(Self {
            file: file.into(),
            path: path.into(),
        })
    }

    /// Opens the directory called `name` in this directory, like [`Directory::open`].
    pub fn open_directory(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        let flags = CAREFUL | OFlags::DIRECTORY;
        let file = rustix::fs::openat(&self.file, &component(name)?, flags, Mode::empty());
        Ok(Self {
            file: file.map_err(not_directory)?.into(),
            path: self.path.join(name),
        })
    }

    /// Makes a directory with exactly this mode, and opens it. Fails with `AlreadyExists` if an
    /// entry of this name exists.
    pub fn create_directory(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<Self> {
        let name = name.as_ref();
        rustix::fs::mkdirat(&self.file, &component(name)?, Mode::RWXU)?;
        let made = match self.open_directory(name) {
            // The umask has taken the owner's own rights, without which the directory cannot be
            // opened.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let flags = CAREFUL | OFlags::PATH | OFlags::DIRECTORY;
                let made = rustix::fs::openat(&self.file, &component(name)?, flags, Mode::empty())?;
                let path = format!("/proc/self/fd/{}", made.as_raw_fd());
                fs::set_permissions(path, Permissions::from_mode(mode))?;
                self.open_directory(name)?
            }
            made => made?,
        };
        made.set_mode(mode)?;
        Ok(made)
    }

    /// Opens the regular file called `name` for reading, and with `write` also for writing. Errors:
    /// - `InvalidInput`: the entry is not a regular file.
    /// - `WouldBlock`: another program has a lease on the file.
    pub fn open_file(&self, name: impl AsRef<OsStr>, write: bool) -> io::Result<File> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let name = component(name.as_ref())?;
        let file = rustix::fs::openat(&self.file, &name, CAREFUL | access, Mode::empty());
        let file = File::from(file.map_err(|error| match error {
            Errno::AGAIN => leased(Path::new(OsStr::from_bytes(name.to_bytes()))),
            error => not_regular(error),
        })?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(not_regular(Errno::LOOP))
        }
    }

    /// Begins to open the regular file called `name` despite a lease (`F_SETLEASE`), for writing
    /// too if allowed.
    pub fn begin_open(&self, name: &OsStr) -> io::Result<Opening> {
        let (mut access, mut opened) = (OFlags::RDWR, self.open_file(name, true));
        let is_denied = |error: &io::Error| {
            let denied = [
                io::ErrorKind::PermissionDenied,
                io::ErrorKind::ReadOnlyFilesystem,
            ];
            denied.contains(&error.kind())
        };
        if opened.as_ref().is_err_and(is_denied) {
            (access, opened) = (OFlags::RDONLY, self.open_file(name, false));
        }
        match opened {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            opened => return opened.map(Opening::Done),
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::openat(&self.file, component(name)?, flags, Mode::empty())?;
        let place = File::from(place);
        // A blocking `open` of a pipe would wait for the pipe's other end.
        if !place.metadata()?.is_file() {
            return Err(not_regular(Errno::LOOP));
        }
        // Wait in one blocking `open`: between two calls, the lease's holder could take a new
        // lease. The wait may never end, so use a thread.
        let (done, opened) = mpsc::channel();
        thread::Builder::new().spawn(move || {
            let path = format!("/proc/self/fd/{}", place.as_raw_fd());
            let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY;
            // The send fails if the caller no longer waits for the file.
            let _ = done.send(rustix::fs::open(path, flags, Mode::empty()));
        })?;
        Ok(Opening::Waiting(opened))
    }

    /// Makes a file with exactly this mode, open for reading and writing. Fails with
    /// `AlreadyExists` where the name is taken.
    pub fn create_file(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        let flags = CAREFUL | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let name = component(name.as_ref())?;
        let file = rustix::fs::openat(&self.file, &name, flags, Mode::RUSR | Mode::WUSR)?;
        let file = File::from(file);
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(file)
    }

    /// Returns the properties of the entry called `name`; `None` where there is no such entry.
    pub fn entry(&self, name: impl AsRef<OsStr>) -> io::Result<Option<Entry>> {
        let name = component(name.as_ref())?;
        let about = match rustix::fs::statat(&self.file, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            about => about?,
        };
        Ok(Some(Entry {
            kind: match FileType::from_raw_mode(about.st_mode) {
                FileType::RegularFile => EntryKind::File,
                FileType::Directory => EntryKind::Directory,
                _ => EntryKind::Other,
            },
            owner: about.st_uid,
            group: about.st_gid,
            mode: about.st_mode & 0o7777,
            size: u64::try_from(about.st_size).unwrap_or(0),
            links: number(about.st_nlink),
            id: (number(about.st_dev), number(about.st_ino)),
        }))
    }

    /// Iterates over the names in the directory, unordered, from the start at each call, without
    /// `.` and `..`.
    pub fn names(&self) -> io::Result<impl Iterator<Item = io::Result<OsString>> + use<>> {
        let name = |entry: Result<rustix::fs::DirEntry, Errno>| match entry {
            Err(error) => Some(Err(error.into())),
            Ok(entry) => match entry.file_name().to_bytes() {
                b"." | b".." => None,
                name => Some(Ok(OsString::from_vec(name.to_vec()))),
            },
        };
        Ok(Dir::read_from(&self.file)?.filter_map(name))
    }

    /// Removes the entry called `name`, which is not a directory. Fails with `NotFound` where there
    /// is no such entry.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = component(name.as_ref())?;
        Ok(rustix::fs::unlinkat(&self.file, &name, AtFlags::empty())?)
    }

    /// Removes the empty directory called `name`. Fails with `NotFound` where there is no such
    /// entry.
    pub fn remove_directory(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = component(name.as_ref())?;
        Ok(rustix::fs::unlinkat(&self.file, &name, AtFlags::REMOVEDIR)?)
    }

    /// Renames the entry `from` to `to`, and replaces any file called `to`.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        let (from, to) = (component(from.as_ref())?, component(to.as_ref())?);
        Ok(rustix::fs::renameat(&self.file, &from, &self.file, &to)?)
    }

    /// Returns the owner, permissions and identity of the directory itself.
    pub fn about(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Returns whether the directory is on a file system in user space (FUSE).
    pub(super) fn is_on_fuse(&self) -> io::Result<bool> {
        Ok(number(rustix::fs::fstatfs(&self.file)?.f_type) == FUSE)
    }

    /// Returns whether the directory called `name` surely contains no directory, or does not exist.
    /// Faster than opening it. `plain` is the number of a device without a file system in user
    /// space, from an earlier call, or `None`.
    pub(super) fn is_empty_below(&self, name: &str, plain: &mut Option<u64>) -> bool {
        match self.entry(name) {
            Ok(None) => true,
            // The entry `..` of each directory in it is a link. Some file systems count no such
            // links, and say 1. A file system in user space can say anything.
            Ok(Some(entry)) if entry.kind == EntryKind::Directory && entry.links == 2 => {
                let device = Some(entry.id.0);
                if *plain != device
                    && self.about().is_ok_and(|about| Some(about.dev()) == device)
                    && matches!(self.is_on_fuse(), Ok(false))
                {
                    *plain = device;
                }
                *plain == device
            }
            _ => false,
        }
    }

    /// Changes the permissions of the directory itself.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Gives the directory itself to this user.
    pub fn set_owner(&self, owner: u32) -> io::Result<()> {
        fchown(&self.file, Some(owner), None)
    }

    /// Gives the directory itself to this unix group.
    pub fn set_group(&self, group: u32) -> io::Result<()> {
        fchown(&self.file, None, Some(group))
    }

    /// Returns the path by which the directory was opened, for messages. The path may lead to
    /// another directory by now.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns a name as a C string. Fails if the name is not a single path component.
fn component(name: &OsStr) -> io::Result<CString> {
    match name.as_bytes() {
        b"" | b"." | b".." => Err(io::ErrorKind::InvalidInput.into()),
        bytes if bytes.contains(&b'/') => Err(io::ErrorKind::InvalidInput.into()),
        bytes => Ok(CString::new(bytes)?),
    }
}

/// Turns `ELOOP` into `ENOTDIR`: for a symbolic link, the kernel may return either of them.
fn not_directory(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => Errno::NOTDIR.into(),
        error => error.into(),
    }
}

/// Builds the error for a link, directory, pipe, socket or device that is in the place of a regular
/// file.
fn not_regular(error: Errno) -> io::Error {
    match error {
        Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::NODEV => io::Error::new(
            io::ErrorKind::InvalidInput,
            "the entry is not a regular file: remove the entry if it is not needed",
        ),
        error => error.into(),
    }
}

/// Builds the error for a file that another program has a lease on.
pub(super) fn leased(path: &Path) -> io::Error {
    let file = path.file_name().unwrap_or_default().display();
    io::Error::new(
        io::ErrorKind::WouldBlock,
        format!(
            "another program has a lease (F_SETLEASE) on {file}: end that program, which \
             /proc/locks lists, or try again in a minute"
        ),
    )
}

/// Converts a field of `stat`, whose width and sign depend on the architecture.
fn number(field: impl TryInto<u64>) -> u64 {
    field.try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;
    use std::fs;
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::os::unix::net::UnixListener;

    fn opened() -> (Scratch, Directory) {
        let scratch = Scratch::new();
        let directory = Directory::open(&scratch.0).expect("opened");
        (scratch, directory)
    }

    #[track_caller]
    fn fails<T>(kind: ErrorKind, result: io::Result<T>) {
        assert_eq!(result.map(drop).map_err(|error| error.kind()), Err(kind));
    }

    #[test]
    fn a_name_is_one_component() {
        let (_scratch, here) = opened();
        for name in ["", ".", "..", "a/b", "/", "/tmp", "../a", "a\0b"] {
            fails(ErrorKind::InvalidInput, here.open_directory(name));
            fails(ErrorKind::InvalidInput, here.create_directory(name, 0o700));
            fails(ErrorKind::InvalidInput, here.open_file(name, false));
            fails(ErrorKind::InvalidInput, here.create_file(name, 0o600));
            fails(ErrorKind::InvalidInput, here.entry(name));
            fails(ErrorKind::InvalidInput, here.remove_file(name));
            fails(ErrorKind::InvalidInput, here.remove_directory(name));
            fails(ErrorKind::InvalidInput, here.rename(name, "a"));
            fails(ErrorKind::InvalidInput, here.rename("a", name));
        }
    }

    #[test]
    fn a_directory_in_a_directory_is_never_missed() {
        let (scratch, here) = opened();
        let mut plain = None;
        assert!(here.is_empty_below("sub", &mut plain), "it does not exist");
        let sub = here.create_directory("sub", 0o700).expect("made");
        fs::write(scratch.at("sub/file"), "").expect("written");
        // Some file systems do not count directories as links.
        let counts = sub.about().expect("there").nlink() == 2;
        for _ in 0..2 {
            assert_eq!(here.is_empty_below("sub", &mut plain), counts);
            assert_eq!(plain.is_some(), counts);
        }
        for name in ["a", "b"] {
            sub.create_directory(name, 0o700).expect("made");
            assert!(!here.is_empty_below("sub", &mut plain));
        }
        sub.remove_directory("a").expect("removed");
        assert!(!here.is_empty_below("sub", &mut plain));
        // A file system that is mounted there is another device, of which nothing is known.
        sub.remove_directory("b").expect("removed");
        let mut other = Some(u64::MAX);
        assert_eq!(here.is_empty_below("sub", &mut other), counts);
        assert!(!counts || other == plain);
        symlink(scratch.at("sub"), scratch.at("link")).expect("linked");
        assert!(!here.is_empty_below("link", &mut plain));
        assert!(!here.is_empty_below("a/b", &mut plain), "an invalid name");
    }

    #[test]
    fn links_are_never_followed() {
        let (scratch, here) = opened();
        let (other, _) = opened();
        fs::write(other.at("file"), "theirs").expect("written");
        symlink(&other.0, scratch.at("tree")).expect("linked");
        symlink(other.at("file"), scratch.at("link")).expect("linked");
        symlink(other.at("new"), scratch.at("dangling")).expect("linked");
        fails(ErrorKind::NotADirectory, here.open_directory("tree"));
        fails(
            ErrorKind::NotADirectory,
            Directory::open(&scratch.at("tree")),
        );
        fails(ErrorKind::InvalidInput, here.open_file("link", true));
        fails(
            ErrorKind::AlreadyExists,
            here.create_file("dangling", 0o600),
        );
        fails(
            ErrorKind::AlreadyExists,
            here.create_directory("dangling", 0o700),
        );
        fails(ErrorKind::NotADirectory, here.remove_directory("tree"));
        let link = here.entry("tree").expect("told").expect("there");
        assert_eq!(link.kind, EntryKind::Other);
        for name in ["tree", "link", "dangling"] {
            here.remove_file(name).expect("the link itself");
        }
        let left = fs::read_to_string(other.at("file")).expect("there");
        assert_eq!(left, "theirs");
        assert!(!other.at("new").exists());
    }

    #[test]
    fn only_regular_files_are_opened_and_without_waiting() {
        let (scratch, here) = opened();
        fs::create_dir(scratch.at("tree")).expect("made");
        let _socket = UnixListener::bind(scratch.at("socket")).expect("bound");
        let fifo = std::process::Command::new("mkfifo")
            .arg(scratch.at("fifo"))
            .status();
        assert!(fifo.expect("mkfifo").success());
        for name in ["tree", "socket", "fifo"] {
            fails(ErrorKind::InvalidInput, here.open_file(name, false));
            fails(ErrorKind::InvalidInput, here.open_file(name, true));
        }
        fails(ErrorKind::NotADirectory, here.open_directory("socket"));
        fails(ErrorKind::NotFound, here.open_file("missing", false));
    }

    #[test]
    fn new_files_have_their_modes_and_can_be_removed() {
        let (scratch, here) = opened();
        let below = here.create_directory("below", 0o711).expect("made");
        let mut file = below.create_file("file", 0o644).expect("made");
        file.write_all(b"text").expect("written");
        fails(
            ErrorKind::AlreadyExists,
            here.create_directory("below", 0o700),
        );
        fails(ErrorKind::AlreadyExists, below.create_file("file", 0o600));
        assert_eq!(below.about().expect("told").mode() & 0o7777, 0o711);
        let entry = below.entry("file").expect("told").expect("there");
        let about = fs::metadata(scratch.at("below/file")).expect("there");
        let expected = Entry {
            kind: EntryKind::File,
            owner: about.uid(),
            group: about.gid(),
            mode: 0o644,
            size: 4,
            links: 1,
            id: (about.dev(), about.ino()),
        };
        assert_eq!(entry, expected);
        below.rename("file", "other").expect("renamed");
        let mut text = String::new();
        let mut other = below.open_file("other", false).expect("opened");
        other.read_to_string(&mut text).expect("read");
        assert_eq!(text, "text");
        fails(ErrorKind::DirectoryNotEmpty, here.remove_directory("below"));
        fails(ErrorKind::NotFound, below.remove_file("file"));
        below.remove_file("other").expect("removed");
        below.set_mode(0o700).expect("changed");
        below.set_owner(about.uid()).expect("our own");
        below.set_group(about.gid()).expect("our own");
        here.remove_directory("below").expect("removed");
        assert_eq!(here.entry("below").expect("told"), None);
    }

    #[test]
    fn an_open_directory_stays_the_same_when_another_gets_its_path() {
        let (scratch, here) = opened();
        let first = here.create_directory("group", 0o700).expect("made");
        here.rename("group", "moved").expect("renamed");
        here.create_directory("group", 0o700).expect("made");
        first.create_file("file", 0o600).expect("made");
        assert!(scratch.at("moved/file").exists() && !scratch.at("group/file").exists());
    }

    #[test]
    fn each_listing_returns_all_names() {
        let (_scratch, here) = opened();
        for name in [".hidden", "file", "ü"] {
            here.create_file(name, 0o600).expect("made");
        }
        for _ in 0..2 {
            let names = here.names().expect("listed");
            let mut names: Vec<_> = names.map(|name| name.expect("a name")).collect();
            names.sort();
            assert_eq!(names, [".hidden", "file", "ü"]);
        }
    }
}
