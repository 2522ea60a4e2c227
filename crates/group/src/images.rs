//! The memory needs of code images that programs have read, stored in the file `.images` of the
//! root.
//!
//! An answer that is too small would let a program pass its limit. So the file counts only if it
//! belongs to the owner of the root's directory, and this owner is root or the caller: users can
//! only deceive themselves, in a root whose limits they may change anyway.
//!
//! The file is a table of a fixed size. Each entry has a check word, so a damaged or half-written
//! entry counts as empty. A full bucket loses one of its entries. Failing to read or to write the
//! file is no error: the caller then reads the image.

use super::directory::Directory;
use super::{Member, user};
use gpulimit_base::held_signals;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The digest of an image.
pub type ImageKey = [u8; 32];

/// The name of the file in a root. The names of groups do not begin with a dot.
const NAME: &str = ".images";

/// The size of an entry in bytes: a key, three words, and a check word with a byte of flags.
const ENTRY: usize = 64;
/// The number of entries in which an image's answer may be.
const BUCKET: usize = 8;
/// The number of buckets.
const BUCKETS: usize = 512;
/// The most bytes of the file.
const SIZE: u64 = (BUCKETS * BUCKET * ENTRY) as u64;

type Bucket = [[u8; ENTRY]; BUCKET];

impl Member {
    /// Returns the stored answer about an image: four words, of which the last is below 256.
    pub fn known_image(&self, key: &ImageKey) -> Option<[u64; 4]> {
        recall(&self.root, key).ok()?
    }

    /// Stores the answer about an image for later programs, if the root is the caller's own.
    pub fn remember_image(&self, key: &ImageKey, answer: [u64; 4]) {
        let _ = held_signals::during(|| remember(&self.root, key, answer));
    }
}

/// Copies the stored answers from this root into another one of root's, if they can be believed.
pub(super) fn copy(root: &Path, to: &Path) -> io::Result<()> {
    let mut bytes = Vec::new();
    match Directory::open(root).and_then(|root| open(&root, false)) {
        Err(_) => return Ok(()),
        Ok(file) => file.take(SIZE).read_to_end(&mut bytes)?,
    };
    let copy = Directory::open(to)?.create_file(NAME, 0o644)?;
    copy.write_all_at(&bytes, 0)
}

fn recall(root: &Path, key: &ImageKey) -> io::Result<Option<[u64; 4]>> {
    let file = open(&Directory::open(root)?, false)?;
    Ok(read(&file, key)?
        .iter()
        .find_map(|entry| answer(entry, key)))
}

fn remember(root: &Path, key: &ImageKey, words: [u64; 4]) -> io::Result<()> {
    let directory = Directory::open(root)?;
    let about = directory.about()?;
    if about.uid() != user::effective() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let file = match open(&directory, true) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let is_private = about.mode() & 0o077 == 0;
            directory.create_file(NAME, if is_private { 0o600 } else { 0o644 })?
        }
        opened => opened?,
    };
    let bucket = read(&file, key)?;
    let is_free = |entry: &[u8; ENTRY]| answer(entry, &key_of(entry)).is_none();
    let place = (bucket.iter())
        .position(|entry| key_of(entry) == *key || is_free(entry))
        .unwrap_or(usize::from(key[key.len() - 1]) % BUCKET);
    file.write_all_at(&entry(key, words), offset(key) + (place * ENTRY) as u64)
}

/// Opens the file. Refuses a file that a user other than root and the caller could write.
fn open(directory: &Directory, write: bool) -> io::Result<File> {
    let file = directory.open_file(NAME, write)?;
    let (about, owner) = (file.metadata()?, directory.about()?.uid());
    let is_trusted = about.uid() == owner
        && (owner == 0 || owner == user::effective())
        && about.nlink() == 1
        && about.mode() & 0o022 == 0;
    match is_trusted {
        true => Ok(file),
        false => Err(ErrorKind::PermissionDenied.into()),
    }
}

/// Reads the bucket of a key. Bytes behind the end of the file are zeros.
fn read(file: &File, key: &ImageKey) -> io::Result<Bucket> {
    let mut bytes = [0; ENTRY * BUCKET];
    let mut at = 0;
    while at < bytes.len() {
        match file.read_at(&mut bytes[at..], offset(key) + at as u64)? {
            0 => break,
            count => at += count,
        }
    }
    let mut bucket = [[0; ENTRY]; BUCKET];
    for (entry, bytes) in bucket.iter_mut().zip(bytes.chunks_exact(ENTRY)) {
        entry.copy_from_slice(bytes);
    }
    Ok(bucket)
}

fn offset(key: &ImageKey) -> u64 {
    let number = usize::from(u16::from_le_bytes([key[0], key[1]])) % BUCKETS;
    (number * BUCKET * ENTRY) as u64
}

fn key_of(entry: &[u8; ENTRY]) -> ImageKey {
    let mut key = [0; 32];
    key.copy_from_slice(&entry[..32]);
    key
}

fn entry(key: &ImageKey, [first, second, third, flags]: [u64; 4]) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..32].copy_from_slice(key);
    for (place, word) in entry[32..].chunks_exact_mut(8).zip([first, second, third]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    entry[56] = flags as u8;
    let check = check(&entry);
    entry[57..].copy_from_slice(&check.to_le_bytes()[1..]);
    entry
}

/// Returns the answer of an entry; `None` if the entry is for another key or damaged.
fn answer(entry: &[u8; ENTRY], key: &ImageKey) -> Option<[u64; 4]> {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&entry[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let is_whole = check(entry) >> 8 == word(56) >> 8;
    (is_whole && key_of(entry) == *key)
        .then(|| [word(32), word(40), word(48), u64::from(entry[56])])
}

/// Returns a sum of an entry's key, words and flags. The seed is another one for each meaning of
/// the words, so that builds ignore entries of others.
fn check(entry: &[u8; ENTRY]) -> u64 {
    const SEED: u64 = 0x6770_756c_696d_0001;
    let mut sum = SEED;
    for byte in &entry[..57] {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        sum ^= sum >> 29;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn root(scratch: &Scratch) -> std::path::PathBuf {
        let root = scratch.at("root");
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o700)).unwrap();
        root
    }

    /// Returns a key of the first bucket.
    fn key(number: u8) -> ImageKey {
        let mut key = [number; 32];
        key[..2].fill(0);
        key
    }

    #[test]
    fn answers_are_stored_and_replaced() {
        let scratch = Scratch::new();
        let root = root(&scratch);
        assert!(recall(&root, &key(1)).is_err());
        for (number, words) in [
            (1, [5, 6, 7, 3]),
            (2, [u64::MAX, 0, 1, 255]),
            (1, [1, 2, 3, 0]),
        ] {
            remember(&root, &key(number), words).unwrap();
            assert_eq!(recall(&root, &key(number)).unwrap(), Some(words));
        }
        assert_eq!(recall(&root, &key(1)).unwrap(), Some([1, 2, 3, 0]));
        assert_eq!(recall(&root, &key(3)).unwrap(), None);
        assert_eq!(fs::metadata(root.join(NAME)).unwrap().mode() & 0o777, 0o600);
        // The last bucket is whole, too.
        let last = [255; 32];
        remember(&root, &last, [9, 9, 9, 9]).unwrap();
        assert_eq!(recall(&root, &last).unwrap(), Some([9, 9, 9, 9]));
        assert!(fs::metadata(root.join(NAME)).unwrap().len() <= SIZE);
    }

    #[test]
    fn a_full_bucket_loses_one_entry() {
        let scratch = Scratch::new();
        let root = root(&scratch);
        let most = BUCKET as u8 + 1;
        for number in 1..=most {
            remember(&root, &key(number), [number.into(), 0, 0, 0]).unwrap();
        }
        let left = (1..=most).filter(|number| recall(&root, &key(*number)).unwrap().is_some());
        assert_eq!(left.count(), BUCKET);
        assert!(recall(&root, &key(most)).unwrap().is_some());
    }

    #[test]
    fn damaged_entries_count_as_empty() {
        let scratch = Scratch::new();
        let root = root(&scratch);
        remember(&root, &key(1), [5, 6, 7, 3]).unwrap();
        let path = root.join(NAME);
        let whole = fs::read(&path).unwrap();
        for at in 0..ENTRY {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(recall(&root, &key(1)).unwrap(), None, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(recall(&root, &key(1)).unwrap(), None, "cut at {at}");
        }
        remember(&root, &key(1), [8, 8, 8, 1]).unwrap();
        assert_eq!(recall(&root, &key(1)).unwrap(), Some([8, 8, 8, 1]));
    }

    #[test]
    fn files_that_others_could_have_written_are_not_believed() {
        let scratch = Scratch::new();
        let root = root(&scratch);
        let path = root.join(NAME);
        remember(&root, &key(1), [0, 0, 0, 0]).unwrap();
        let theirs = scratch.at("theirs");
        let refused = |what: &str| {
            assert!(recall(&root, &key(1)).is_err(), "{what}");
            assert!(remember(&root, &key(1), [1, 1, 1, 1]).is_err(), "{what}");
        };
        for mode in [0o620, 0o602, 0o666] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            refused("the mode lets others write");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&path, &theirs).unwrap();
        refused("the file has two names");
        fs::remove_file(&path).unwrap();
        symlink(&theirs, &path).unwrap();
        refused("the file is behind a link");
        fs::remove_file(&path).unwrap();
        if user::effective() == 0 {
            fs::copy(&theirs, &path).unwrap();
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            refused("the file is another user's");
            std::os::unix::fs::chown(&root, Some(1), None).unwrap();
            refused("the directory is another user's");
        }
    }
}
