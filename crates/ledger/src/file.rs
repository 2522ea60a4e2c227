//! The ledger as a file. A ledger is created completely or not at all, and checked before it is
//! mapped.

use super::layout::{self, FILE_SIZE, MAGIC, preface};
use super::lock::{self, Description};
use super::map::Mapping;
use super::{LedgerError, os};
use gpulimit_base::file_system::Unsuitable;
use gpulimit_base::{held_signals, version};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The identity of a file.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// The path of a ledger, and the identity of the file at this path when the ledger was opened.
pub(super) struct Place {
    pub path: PathBuf,
    id: FileId,
}

/// Returns how ledger files are opened.
pub(super) fn options(write: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    // O_NOFOLLOW prevents following another user's symbolic link. O_NONBLOCK prevents waiting for
    // the other end of a pipe. The standard library adds O_CLOEXEC.
    options
        .read(true)
        .write(write)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}

/// Creates a complete ledger file with the permissions `mode`, unless the file exists. Fails on a
/// file system that drops locks.
///
/// The complete file gets its final name by link(2). If the process dies before that, a temporary
/// file named `.NAME.<pid>.<n>.new` is left behind.
pub(super) fn create(path: &Path, mode: u32, lasting: bool) -> Result<(), LedgerError> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let error = |error| LedgerError::io_with_room(path, "create", error);
    let (temporary, file) = draft(path, serial).map_err(error)?;
    let filled = held_signals::during(|| fill(&file, mode, lasting)).and_then(|()| {
        let other = options(true).open(&temporary)?;
        lock::are_kept(file, &other)
    });
    let made = filled.and_then(|kept| kept.then(|| name(&temporary, path)).transpose());
    // If the temporary name cannot be removed, it stays as a harmless second name of the ledger.
    let _ = fs::remove_file(&temporary);
    match made.map_err(error)? {
        Some(()) => Ok(()),
        None => Err(LedgerError::FileSystem(Unsuitable::loses_locks(path))),
    }
}

/// Number of temporary names that are tried for a new ledger. The first name is nearly always free.
const DRAFTS: u32 = 1_000;

/// Creates a temporary file in the ledger's directory. The pid alone does not suffice, because
/// other pid namespaces may reuse it.
fn draft(path: &Path, mut serial: impl FnMut() -> u64) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let pid = std::process::id();
    for _ in 0..DRAFTS {
        let temporary = path.with_file_name(format!(".{name}.{pid}.{}.new", serial()));
        match options(true).create_new(true).mode(0o600).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    // Every tried name exists, or the file system falsely reports that it exists.
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Gives the finished temporary file the ledger's name, unless another file already has that name.
fn name(temporary: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(temporary, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Returns a number for a temporary file name, a different one at each call in this process.
fn serial() -> u64 {
    use super::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let boot_ms = os::boot_ms();
    boot_ms << 16 | NEXT.fetch_add(1, Ordering::Relaxed) & 0xffff
}

fn fill(file: &File, mode: u32, lasting: bool) -> io::Result<()> {
    file.set_len(FILE_SIZE)?;
    os::reserve(file, 0, size_of::<layout::Header>() as u64)?;
    let mut bytes = [0; size_of::<[u64; 8]>()];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(preface()) {
        *bytes = word.to_ne_bytes();
    }
    file.write_all_at(&bytes, 0)?;
    let lasting = u64::from(lasting).to_ne_bytes();
    file.write_all_at(&lasting, offset_of!(layout::Header, lasting) as u64)?;
    // The mode is set after the file was created, because open(2) applies the umask.
    file.set_permissions(Permissions::from_mode(mode))
}

/// Opens any file at the path of a ledger, only to query its file locks.
pub(super) fn describe(path: &Path) -> io::Result<Description> {
    options(false).open(path)
}

/// Opens, checks and maps a ledger file.
pub(super) fn open(path: &Path, write: bool) -> Result<(Place, Mapping), LedgerError> {
    let (place, mapping, _) = mapped(path, write, Mapping::new)?;
    Ok((place, mapping))
}

/// Opens, checks and maps a ledger file for a short look. Also returns the open file.
pub(super) fn look(path: &Path, write: bool) -> Result<(Place, Mapping, Description), LedgerError> {
    mapped(path, write, Mapping::brief)
}

/// Reads at most 128 words of an open ledger file.
pub(super) fn read_words(file: &Description, offset: u64, words: &mut [u64]) -> io::Result<()> {
    let mut bytes = [0; 1024];
    let bytes = &mut bytes[..8 * words.len()];
    file.read_exact_at(bytes, offset)?;
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(())
}

fn mapped(
    path: &Path,
    write: bool,
    map: impl Fn(&File, bool) -> io::Result<Mapping>,
) -> Result<(Place, Mapping, Description), LedgerError> {
    let file = options(write)
        .open(path)
        .map_err(|error| LedgerError::io(path, "open", error))?;
    let metadata = file
        .metadata()
        .map_err(|error| LedgerError::io(path, "open", error))?;
    // The preface in the mapping saves reading it from the file. Other files are not mapped.
    let map = || map(&file, write).map_err(|error| LedgerError::io(path, "map", error));
    let has_size = metadata.is_file() && metadata.len() == FILE_SIZE;
    let mapping = match has_size.then(map).transpose()? {
        Some(mapping) if mapping.content().header.preface.is_whole() => mapping,
        _ => {
            check(&file, &metadata, path)?;
            map()?
        }
    };
    let place = Place {
        path: path.to_owned(),
        id: FileId::of(&metadata),
    };
    Ok((place, mapping, file))
}

fn check(file: &File, metadata: &fs::Metadata, path: &Path) -> Result<(), LedgerError> {
    if !metadata.is_file() {
        return Err(LedgerError::damaged(path, "the file is not a regular file"));
    }
    let mut bytes = [0; size_of::<[u64; 8]>()];
    file.read_exact_at(&mut bytes, 0)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => LedgerError::damaged(path, "the file was cut short"),
            _ => LedgerError::io(path, "read", error),
        })?;
    let mut found = [0; 8];
    for (word, bytes) in found.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    if found[0] != MAGIC {
        return Err(LedgerError::damaged(path, "the file is not a ledger"));
    }
    if found[1] != version::ledger() {
        return Err(LedgerError::Version {
            path: path.to_owned(),
            found: found[1],
            expected: version::ledger(),
        });
    }
    if found != preface() {
        return Err(LedgerError::damaged(
            path,
            "the header of the file has wrong sizes",
        ));
    }
    if metadata.len() != FILE_SIZE {
        return Err(LedgerError::damaged(
            path,
            "the length of the file does not match its header",
        ));
    }
    Ok(())
}

impl Place {
    /// Returns the device number and the inode number of the file.
    pub(super) fn file_id(&self) -> (u64, u64) {
        (self.id.device, self.id.inode)
    }

    /// Opens the ledger file once more, with a new open file description.
    pub(super) fn open(&self, write: bool) -> Result<Description, LedgerError> {
        let replaced = || LedgerError::Replaced {
            path: self.path.clone(),
        };
        let io = |error: io::Error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => replaced(),
            _ => LedgerError::io(&self.path, "open", error),
        };
        let file = options(write).open(&self.path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if FileId::of(&metadata) == self.id {
            Ok(file)
        } else {
            Err(replaced())
        }
    }

    /// Returns whether the path still leads to the opened file. After an error other than a missing
    /// path, the answer is true.
    pub(super) fn is_current(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(metadata) => FileId::of(&metadata) == self.id,
            Err(error) => !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;

    #[test]
    fn a_ledger_is_created_complete_and_once() {
        let folder = Scratch::new();
        let path = folder.at("ledger");
        create(&path, 0o642, false).expect("made");
        let about = fs::metadata(&path).expect("there");
        assert_eq!((about.len(), about.mode() & 0o7777), (FILE_SIZE, 0o642));
        assert!(
            about.blocks() * 512 >= size_of::<layout::Header>() as u64,
            "space for the header is reserved"
        );
        create(&path, 0o600, false).expect("there already");
        let again = fs::metadata(&path).expect("there");
        assert_eq!((again.ino(), again.mode()), (about.ino(), about.mode()));
        assert_eq!(
            fs::read_dir(&folder.0).expect("listed").count(),
            1,
            "no draft"
        );
        assert!(open(&path, true).is_ok() && open(&path, false).is_ok());
        let nowhere = folder.at("missing/ledger");
        assert!(matches!(
            create(&nowhere, 0o600, false),
            Err(LedgerError::Io { .. })
        ));
    }

    #[test]
    fn threads_that_create_a_ledger_at_once_make_one() {
        let folder = Scratch::new();
        let path = folder.at("ledger");
        std::thread::scope(|scope| {
            let makers = [0; 8].map(|_| scope.spawn(|| create(&path, 0o600, false)));
            for maker in makers {
                maker.join().expect("thread").expect("made or there");
            }
        });
        assert_eq!(fs::read_dir(&folder.0).expect("listed").count(), 1);
        assert!(open(&path, true).is_ok());
    }

    #[test]
    fn a_draft_gets_the_ledgers_name_only_if_it_is_free() {
        let folder = Scratch::new();
        let path = folder.at("ledger");
        let (first, _) = draft(&path, || 5).expect("made");
        let mut serials = [5, 5, 6].into_iter();
        let (second, _) = draft(&path, || serials.next().expect("no more")).expect("made");
        assert!(first != second && serials.next().is_none());
        let made = fs::metadata(&first).expect("there").ino();
        name(&first, &path).expect("free");
        name(&second, &path).expect("had already");
        assert_eq!(fs::metadata(&path).expect("there").ino(), made);
        name(&folder.at("missing"), &folder.at("other")).expect_err("no draft");
    }

    #[test]
    fn drafts_get_different_numbers() {
        let numbers: std::collections::BTreeSet<_> = (0..1_000).map(|_| serial()).collect();
        assert_eq!(numbers.len(), 1_000);
        // A later process may get the same pid. Its numbers differ: each number contains the time.
        assert!(serial() >> 16 >= os::boot_ms() - 60_000);
    }

    #[test]
    fn other_files_are_not_opened_as_a_ledger() {
        let folder = Scratch::new();
        let path = folder.at("ledger");
        let why = |write| match open(&path, write).map(drop) {
            Err(LedgerError::Damaged { what, .. }) => what.to_owned(),
            Err(LedgerError::Version { found, .. }) => format!("version {found}"),
            Err(LedgerError::Io { action, .. }) => format!("io: {action}"),
            Err(other) => other.to_string(),
            Ok(()) => "opened".into(),
        };
        assert_eq!(why(false), "io: open", "no file");
        fs::write(&path, [0; 63]).expect("written");
        assert_eq!(why(false), "the file was cut short");
        fs::write(&path, [0; 64]).expect("written");
        assert_eq!(why(false), "the file is not a ledger");
        let write = |words: [u64; 8], len| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            fs::write(&path, bytes).expect("written");
            let file = options(true).open(&path).expect("there");
            file.set_len(len).expect("cut");
        };
        let changed = |at: usize, value| {
            let mut words = preface();
            words[at] = value;
            words
        };
        write(changed(1, version::ledger() + 1), FILE_SIZE);
        assert_eq!(why(false), format!("version {}", version::ledger() + 1));
        for (at, word) in preface().iter().enumerate().skip(2) {
            write(changed(at, word + 1), FILE_SIZE);
            assert_eq!(why(false), "the header of the file has wrong sizes");
        }
        for len in [FILE_SIZE - 1, FILE_SIZE + 1] {
            write(preface(), len);
            assert_eq!(
                why(true),
                "the length of the file does not match its header"
            );
        }
        write(preface(), FILE_SIZE);
        assert_eq!(why(true), "opened");
        fs::rename(&path, folder.at("elsewhere")).expect("moved");
        std::os::unix::fs::symlink("elsewhere", &path).expect("linked");
        assert_eq!(why(false), "io: open", "a link");
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        assert_eq!(why(false), "the file is not a regular file");
        fs::remove_dir(&path).expect("removed");
        let fifo = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(fifo.expect("mkfifo").success());
        assert_eq!(
            why(false),
            "the file is not a regular file",
            "opening a pipe does not wait for a writer"
        );
    }

    #[test]
    fn a_place_detects_that_its_file_was_replaced() {
        let folder = Scratch::new();
        let path = folder.at("ledger");
        create(&path, 0o600, false).expect("made");
        let (place, _mapping) = open(&path, true).expect("opened");
        assert!(place.is_current() && place.open(false).is_ok());
        let is_replaced = || matches!(place.open(true), Err(LedgerError::Replaced { .. }));
        let kept = folder.at("kept");
        fs::rename(&path, &kept).expect("moved");
        assert!(
            !place.is_current() && is_replaced(),
            "the ledger file is gone"
        );
        create(&path, 0o600, false).expect("made anew");
        assert!(!place.is_current() && is_replaced(), "another file");
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(&kept, &path).expect("linked");
        assert!(
            !place.is_current() && is_replaced(),
            "a symbolic link is at the path"
        );
        fs::rename(&kept, &path).expect("moved back");
        assert!(place.is_current() && !is_replaced());
        fs::remove_dir_all(&folder.0).expect("removed");
        assert!(
            !place.is_current() && is_replaced(),
            "the ledger's directory is gone"
        );
        fs::write(&folder.0, "").expect("written");
        assert!(
            !place.is_current() && is_replaced(),
            "a file is in the directory's place"
        );
        fs::remove_file(&folder.0).expect("removed");
    }
}
