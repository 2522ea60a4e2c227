//! The limits of a group: a small file. Members map it read-only, and the group's administrator
//! changes it while programs run.

mod error;
mod extent;
mod keys;
mod layout;
mod map;

pub use error::LimitsError;
pub use extent::{Capacity, ExtentError};
pub use keys::{
    Bounds, Key, KeyError, OnLimit, Oom, OptionKey, Options, Setting, Values, is_near, names,
    parse_duration,
};
pub use layout::MAX_RULES;

use gpulimit_base::device::DeviceId;
use gpulimit_base::held_signals;
use gpulimit_base::units::{Extent, Size};
use gpulimit_base::version;
use layout::{MAGIC, SIZE};
use map::{Copied, Map};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// The GPUs that a rule of a group's limits is for.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Selector {
    /// Every GPU that has no rule of its own.
    All,
    /// One GPU or MIG instance.
    Device(DeviceId),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.pad("all"),
            Self::Device(id) => id.fmt(f),
        }
    }
}

/// The rules of a group's limits, one per selector, and the group's options.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LimitSet {
    /// The rules, each with its selector.
    pub rules: Vec<(Selector, Values)>,
    /// The options of the group: how the group treats requests at its limit.
    pub options: Options,
}

impl LimitSet {
    /// Returns limits with a single rule, which sets `max` for every GPU.
    pub fn all(max: Size) -> Self {
        let mut set = Self::default();
        set.set(Selector::All, Key::Max, max);
        set
    }

    /// Returns the size that the rule with exactly this selector sets for the key.
    pub fn get(&self, selector: Selector, key: Key) -> Option<Size> {
        let rule = self.rules.iter().find(|(rule, _)| *rule == selector);
        rule.and_then(|(_, values)| values.get(key))
    }

    /// Sets one key of the rule with this selector. Adds the rule if it does not exist.
    pub fn set(&mut self, selector: Selector, key: Key, size: Size) {
        match self.rules.iter_mut().find(|(rule, _)| *rule == selector) {
            Some((_, values)) => values.set(key, Some(size)),
            None => {
                let mut values = Values::default();
                values.set(key, Some(size));
                self.rules.push((selector, values));
            }
        }
    }

    /// Returns a key's size for a device. The device's own rule replaces the rule for all GPUs.
    pub fn for_device(&self, device: DeviceId, key: Key) -> Option<Size> {
        self.get(Selector::Device(device), key)
            .or_else(|| self.get(Selector::All, key))
    }

    /// Returns whether a rule protects memory for the group, with `low` or `min` above 0.
    pub fn protects(&self) -> bool {
        let kept = |(key, size): (Key, Size)| {
            matches!(key, Key::Low | Key::Min) && size.resolve(u64::MAX) > 0
        };
        self.rules.iter().any(|(_, values)| values.iter().any(kept))
    }
}

impl fmt::Display for LimitSet {
    /// Formats the limits as `max 4GiB`, or `max 4GiB, max 2GiB of GPU-…, on_limit wait`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (selector, values) in &self.rules {
            for (key, size) in values.iter() {
                write!(f, "{comma}{key} {size}")?;
                if let Selector::Device(id) = selector {
                    write!(f, " of {id}")?;
                }
                comma = ", ";
            }
        }
        if comma.is_empty() {
            f.write_str("no limit")?;
            comma = ", ";
        }
        for (key, value) in self.options.iter() {
            if Options::default().get(key) != value {
                write!(f, "{comma}{key} {value}")?;
            }
        }
        Ok(())
    }
}

impl LimitSet {
    /// Reads limits in the form that [`Display`](fmt::Display) writes.
    pub fn parse(text: &str) -> Option<Self> {
        let mut set = Self::default();
        for part in text.split(',').map(str::trim_start) {
            let mut words = part.split(' ');
            let (name, value) = (words.next()?, words.next()?);
            let selector = match (words.next(), words.next(), words.next()) {
                (None, ..) => Selector::All,
                (Some("of"), Some(gpu), None) => Selector::Device(gpu.parse().ok()?),
                _ => return None,
            };
            if (name, value) == ("no", "limit") {
                continue;
            }
            match format!("{name}={value}").parse().ok()? {
                Setting::Size(key, Extent::Size(size)) => set.set(selector, key, size),
                Setting::Size(_, Extent::AllBut(_)) => return None,
                Setting::Option(key, value) => set.options.set(key, &value).ok()?,
            }
        }
        Some(set)
    }
}

/// The limits file of a group, mapped for reading.
pub struct Limits {
    map: Map,
    path: PathBuf,
    /// The device number and inode of the mapped file.
    id: (u64, u64),
}

/// Describes the damage of a limits file that is too short.
const CUT_SHORT: &str = "cut short";
/// How long a writer of a limits file waits for another writer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Limits {
    /// Creates a limits file with the permissions `mode`, never half-written. Returns `false` if
    /// `path` exists; that file stays as it is.
    pub fn create(path: &Path, mode: u32, set: &LimitSet) -> Result<bool, LimitsError> {
        let failed = LimitsError::io("create", path);
        if set.rules.len() > MAX_RULES {
            return Err(LimitsError::Full { path: path.into() });
        }
        let (file, draft) = Draft::new(path).map_err(&failed)?;
        let write = |mut file: File| {
            // Write every page now. If a full file system lacked a page later, SIGBUS would end
            // every reader.
            held_signals::during(|| file.write_all(&layout::File::bytes(set)))?;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            match fs::hard_link(&draft.0, path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                linked => linked.map(|()| true),
            }
        };
        write(file).map_err(failed)
    }

    /// Returns whether a file that begins with these bytes is a limits file of any version of
    /// gpulimit.
    pub fn begins_with(head: [u8; 8]) -> bool {
        u64::from_ne_bytes(head) == MAGIC
    }

    /// Opens a limits file for reading.
    pub fn open(path: &Path) -> Result<Self, LimitsError> {
        let (map, id) = open(path, false)?;
        Ok(Self {
            map,
            path: path.into(),
            id,
        })
    }

    /// Returns all rules and options of a limits file. Reads the file once, which takes half the
    /// system calls of a mapping.
    pub fn read(path: &Path) -> Result<LimitSet, LimitsError> {
        let file = options(false).open(path).ok();
        // The file may change while it is read, or may be faulty. The mapping tells.
        let read = file.and_then(|file| Self::read_file(&file));
        read.map_or_else(|| Self::open(path)?.rules(), Ok)
    }

    /// Returns all rules and options of an open limits file. Returns `None` if the file is faulty
    /// or changes meanwhile.
    pub fn read_file(file: &File) -> Option<LimitSet> {
        let mut copy = Copied::empty();
        let is_whole = copy.fill(file)
            && copy.magic.load(Ordering::Relaxed) == MAGIC
            && copy.format.load(Ordering::Relaxed) == version::limits()
            && copy.size.load(Ordering::Relaxed) == SIZE as u64;
        is_whole.then(|| copy.rules())?
    }

    /// Returns whether the file at the path is no longer the mapped file, so that [`Limits::write`]
    /// would not change the mapping.
    pub fn is_unlinked(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(about) => (about.dev(), about.ino()) != self.id,
            Err(error) => matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ),
        }
    }

    /// Returns the path of the limits file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of changes to the limits so far. The call costs one load.
    pub fn generation(&self) -> u64 {
        self.map.generation()
    }

    /// Returns the limits and the protection on `device`, which has `capacity` bytes of memory.
    pub fn bounds(&self, device: &DeviceId, capacity: u64) -> Bounds {
        self.map.bounds(device, capacity).0
    }

    /// Returns the same as [`Limits::bounds`], and the generation of these limits.
    pub fn bounds_at(&self, device: &DeviceId, capacity: u64) -> (Bounds, u64) {
        self.map.bounds(device, capacity)
    }

    /// Returns the group's options: what the group does at its limit.
    pub fn options(&self) -> Options {
        self.map.options()
    }

    /// Returns all rules and options of the group.
    pub fn rules(&self) -> Result<LimitSet, LimitsError> {
        rules(&self.map, &self.path)
    }

    /// Returns the damage to the mapped limits file, if there is any. A damaged file allows no
    /// memory.
    pub fn damage(&self) -> Option<LimitsError> {
        if self.map.is_lost() {
            Some(LimitsError::damaged(&self.path, CUT_SHORT))
        } else {
            self.rules().err()
        }
    }

    /// Applies `change` as a whole to the limits file at `path`, and returns the new limits. Waits
    /// a bounded time for other writers.
    pub fn write(path: &Path, change: impl FnOnce(&mut LimitSet)) -> Result<LimitSet, LimitsError> {
        let (mapped, _) = open(path, true)?;
        let failed = LimitsError::io("lock", path);
        let lock = writers_lock(path)?;
        let start = Instant::now();
        while !map::try_lock(&lock).map_err(&failed)? {
            if start.elapsed() > PATIENCE {
                return Err(LimitsError::Busy { path: path.into() });
            }
            thread::sleep(Duration::from_millis(1));
        }
        let mut set = rules(&mapped, path)?;
        change(&mut set);
        if set.rules.len() > MAX_RULES {
            return Err(LimitsError::Full { path: path.into() });
        }
        mapped.replace(&set);
        if mapped.is_lost() {
            return Err(LimitsError::damaged(path, CUT_SHORT));
        }
        Ok(set)
    }
}

/// Opens the lock file of a limits file. The limits file itself is not locked, because every reader
/// could lock it.
fn writers_lock(path: &Path) -> Result<File, LimitsError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let path = path.with_file_name(format!(".{name}.lock"));
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path)
        .map_err(LimitsError::io("open", &path))
}

fn options(write: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    // If the path is a FIFO, `O_NONBLOCK` keeps `open` from waiting for the FIFO's writer.
    options
        .read(true)
        .write(write)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    options
}

/// Maps the limits file; returns the mapping, and the file's device number and inode.
fn open(path: &Path, write: bool) -> Result<(Map, (u64, u64)), LimitsError> {
    let failed = |what| LimitsError::io(what, path);
    let damaged = |why| LimitsError::damaged(path, why);
    let file = options(write).open(path).map_err(failed("open"))?;
    let about = file.metadata().map_err(failed("open"))?;
    if !about.is_file() {
        return Err(damaged("not a regular file"));
    }
    if about.len() < SIZE as u64 {
        return Err(damaged(CUT_SHORT));
    }
    let map = Map::of(&file, write).map_err(failed("map"))?;
    if map.magic.load(Ordering::Relaxed) != MAGIC {
        return Err(damaged("not a limits file"));
    }
    let found = map.format.load(Ordering::Relaxed);
    if found != version::limits() {
        return Err(LimitsError::Format {
            path: path.into(),
            found,
        });
    }
    if map.size.load(Ordering::Relaxed) != SIZE as u64 || about.len() != SIZE as u64 {
        return Err(damaged("wrong size"));
    }
    rules(&map, path)?;
    Ok((map, (about.dev(), about.ino())))
}

fn rules(map: &Map, path: &Path) -> Result<LimitSet, LimitsError> {
    let why = "the rules do not match their checksum";
    map.rules().ok_or_else(|| LimitsError::damaged(path, why))
}

/// A new file under a temporary name beside its final path. Dropping the value removes the
/// temporary name.
struct Draft(PathBuf);

impl Draft {
    fn new(path: &Path) -> io::Result<(File, Self)> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = std::process::id();
        for attempt in 0..1_000 {
            let draft = path.with_file_name(format!(".{name}.{pid}.{attempt}"));
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            match options.open(&draft) {
                // The name is taken, for example by a file of a killed process. Try the next name.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => return Ok((file, Self(draft))),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // A temporary file that cannot be removed does no harm, so the error is ignored.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;
    use std::os::unix::fs::{FileExt, symlink};
    use std::sync::atomic::AtomicBool;

    /// The place of the second bank, which holds the rules of a new limits file.
    const BANK: usize = 128 + 6272;
    const A: DeviceId = DeviceId::gpu([1; 16]);
    const B: DeviceId = DeviceId::mig([2; 16]);

    fn set() -> LimitSet {
        let mut set = LimitSet::all(Size::Percent(5000));
        set.set(Selector::Device(A), Key::Max, Size::Bytes(4 << 30));
        set.set(Selector::Device(A), Key::High, Size::Bytes(3 << 30));
        set.set(Selector::All, Key::Min, Size::Bytes(1 << 30));
        set.set(Selector::All, Key::KeepFree, Size::Percent(1000));
        set.options.on_limit = OnLimit::Wait;
        set.options.wait_timeout = Duration::from_secs(5);
        set.options.pressure_timeout = Duration::from_millis(1500);
        set.options.oom = Oom::KillGroup;
        set.options.count_context = false;
        set.options.suspended_max = Some(64 << 30);
        set
    }

    #[test]
    fn limits_are_read_in_the_form_in_which_they_are_written() {
        for limits in [set(), LimitSet::default(), LimitSet::all(Size::Max)] {
            assert_eq!(LimitSet::parse(&limits.to_string()), Some(limits));
        }
        for wrong in [
            "",
            "max",
            "max 4G of here",
            "max -1G",
            "max 4G;high 2G",
            "limit 4G",
        ] {
            assert!(LimitSet::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_new_file_has_its_rules_and_permissions() {
        let place = Scratch::new();
        assert!(Limits::create(&place.at("limits"), 0o644, &set()).expect("created"));
        let about = fs::metadata(place.at("limits")).expect("there");
        assert_eq!(about.permissions().mode() & 0o7777, 0o644);
        assert_eq!(about.len(), SIZE as u64);
        let limits = Limits::open(&place.at("limits")).expect("opened");
        assert_eq!(limits.rules().expect("rules"), set());
        assert_eq!(limits.bounds(&A, 80 << 30).max, 4 << 30);
        assert_eq!(limits.bounds(&B, 80 << 30).max, 40 << 30);
        let own = limits.bounds(&A, 80 << 30);
        assert_eq!((own.high, own.low, own.min), (3 << 30, 0, 1 << 30));
        assert_eq!(own.keep_free, Some(8 << 30));
        assert_eq!(limits.options(), set().options);
        assert_eq!(fs::read_dir(&place.0).expect("listed").count(), 1);
    }

    #[test]
    fn a_file_that_is_read_has_the_rules_of_the_mapped_file() {
        let place = Scratch::new();
        Limits::create(&place.at("limits"), 0o600, &set()).expect("created");
        for bytes in 1..6 {
            assert_eq!(Limits::read(&place.at("limits")).expect("read"), {
                let limits = Limits::open(&place.at("limits")).expect("opened");
                limits.rules().expect("rules")
            });
            let change = |set: &mut LimitSet| set.set(Selector::All, Key::Max, Size::Bytes(bytes));
            let written = Limits::write(&place.at("limits"), change).expect("written");
            assert_eq!(Limits::read(&place.at("limits")).expect("read"), written);
        }
    }

    #[test]
    fn no_rule_is_no_limit() {
        let place = Scratch::new();
        Limits::create(&place.at("limits"), 0o600, &LimitSet::default()).expect("created");
        let limits = Limits::open(&place.at("limits")).expect("opened");
        assert_eq!(limits.bounds(&A, 80 << 30).max, u64::MAX);
    }

    #[test]
    fn create_leaves_an_existing_file_as_it_is() {
        let place = Scratch::new();
        assert!(Limits::create(&place.at("limits"), 0o600, &set()).expect("created"));
        let other = LimitSet::all(Size::Max);
        assert!(!Limits::create(&place.at("limits"), 0o600, &other).expect("looked at"));
        let limits = Limits::open(&place.at("limits")).expect("opened");
        assert_eq!(limits.rules().expect("rules"), set());
    }

    #[test]
    fn a_change_reaches_processes_that_have_the_file_open() {
        let place = Scratch::new();
        Limits::create(&place.at("limits"), 0o600, &set()).expect("created");
        let limits = Limits::open(&place.at("limits")).expect("opened");
        for round in 1..5_u64 {
            let before = limits.generation();
            let change = |set: &mut LimitSet| {
                set.set(Selector::Device(A), Key::Max, Size::Bytes(round << 30))
            };
            let after = Limits::write(&place.at("limits"), change).expect("written");
            assert_eq!(
                after.for_device(A, Key::Max),
                Some(Size::Bytes(round << 30))
            );
            assert_ne!(limits.generation(), before);
            assert_eq!(limits.bounds(&A, 80 << 30).max, round << 30);
            assert_eq!(limits.rules().expect("rules"), after);
        }
    }

    #[test]
    fn readers_never_see_half_a_change() {
        let place = Scratch::new();
        let both = |set: &mut LimitSet, size: u64| {
            set.set(Selector::Device(A), Key::Max, Size::Bytes(size));
            set.set(Selector::Device(B), Key::Max, Size::Bytes(size));
        };
        let mut first = LimitSet::default();
        both(&mut first, 1);
        Limits::create(&place.at("limits"), 0o600, &first).expect("created");
        let limits = Limits::open(&place.at("limits")).expect("opened");
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for size in 0..5_000 {
                    Limits::write(&place.at("limits"), |set| both(set, size)).expect("written");
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let set = limits.rules().expect("rules");
                assert_eq!(set.for_device(A, Key::Max), set.for_device(B, Key::Max));
            }
        });
    }

    #[test]
    fn too_many_rules_change_nothing() {
        let place = Scratch::new();
        Limits::create(&place.at("limits"), 0o600, &set()).expect("created");
        let flood = |set: &mut LimitSet| {
            for i in 0..=MAX_RULES as u8 {
                set.set(
                    Selector::Device(DeviceId::gpu([i; 16])),
                    Key::Max,
                    Size::Max,
                );
            }
        };
        let error = Limits::write(&place.at("limits"), flood).expect_err("refused");
        assert!(matches!(error, LimitsError::Full { .. }), "{error}");
        let limits = Limits::open(&place.at("limits")).expect("opened");
        assert_eq!(limits.rules().expect("rules"), set());
    }

    #[test]
    fn a_file_that_is_not_a_limits_file_is_refused() {
        let place = Scratch::new();
        let path = place.at("limits");
        let refused = |why: &str| {
            let opened = Limits::open(&path).map(drop);
            for refused in [opened, Limits::read(&path).map(drop)] {
                let error = refused.expect_err(why).to_string();
                assert!(error.contains(why), "{error}");
                assert!(error.contains(&path.display().to_string()), "{error}");
            }
        };
        refused("No such file");
        fs::write(&path, "short").expect("written");
        refused("cut short");
        fs::write(&path, vec![0; SIZE]).expect("written");
        refused("not a limits file");
        fs::write(&path, [layout::File::bytes(&set()), vec![0; 64]].concat()).expect("written");
        refused("wrong size");
        let poke = |at: u64, value: u64| {
            fs::write(&path, layout::File::bytes(&set())).expect("written");
            let file = OpenOptions::new().write(true).open(&path).expect("opened");
            file.write_all_at(&value.to_ne_bytes(), at)
                .expect("written");
        };
        poke(8, 1);
        refused("has file format 1, but this gpulimit reads file format 4");
        poke(16, 12);
        refused("wrong size");
        poke(BANK as u64 + 128, 77);
        refused("do not match their checksum");
        poke(BANK as u64 + 128 + 24, 77);
        refused("do not match their checksum");
        poke(BANK as u64, u64::MAX);
        refused("do not match their checksum");
        fs::remove_file(&path).expect("removed");
        symlink("/etc/passwd", &path).expect("linked");
        refused("cannot open");
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("created");
        refused("not a regular file");
    }

    #[test]
    fn a_damaged_open_file_allows_no_memory() {
        let place = Scratch::new();
        Limits::create(&place.at("limits"), 0o600, &set()).expect("created");
        let limits = Limits::open(&place.at("limits")).expect("opened");
        let file = OpenOptions::new()
            .write(true)
            .open(place.at("limits"))
            .expect("opened");
        let good = layout::File::bytes(&set());
        // These offsets hold the count of changes, the number of rules, and the parts of a rule.
        let bank = BANK as u64;
        for at in [64, bank, bank + 128, bank + 128 + 24, bank + 128 + 32] {
            for value in [0, 2, 77, u64::MAX] {
                file.write_all_at(&value.to_ne_bytes(), at)
                    .expect("written");
                if fs::read(place.at("limits")).expect("readable") != good {
                    assert_eq!(limits.bounds(&B, 80 << 30).max, 0, "{value} at {at}");
                    assert!(limits.rules().is_err());
                }
                file.write_all_at(&good, 0).expect("written");
            }
        }
        assert_eq!(limits.bounds(&B, 80 << 30).max, 40 << 30);
    }

    #[test]
    fn suspended_max_is_read_as_it_was_written() {
        let place = Scratch::new();
        let path = place.at("limits");
        Limits::create(&path, 0o600, &set()).expect("created");
        for bytes in [Some(0), Some(u64::MAX), None, Some(5)] {
            Limits::write(&path, |set| set.options.suspended_max = bytes).expect("written");
            let read = Limits::read(&path).expect("read").options.suspended_max;
            assert_eq!(read, bytes);
        }
    }

    /// A later build may use the spare words without a new format.
    #[test]
    fn spare_words_change_nothing_and_are_in_the_checksum() {
        let place = Scratch::new();
        let path = place.at("limits");
        let mut bytes = layout::File::bytes(&set());
        let spare = BANK + 14 * 8;
        bytes[spare..spare + 8].copy_from_slice(&1u64.to_ne_bytes());
        fs::write(&path, &bytes).expect("written");
        assert!(Limits::read(&path).is_err());
    }

    #[test]
    fn a_stopped_writer_blocks_others_for_a_bounded_time() {
        let place = Scratch::new();
        Limits::create(&place.at("limits"), 0o600, &set()).expect("created");
        let held = writers_lock(&place.at("limits")).expect("opened");
        assert!(map::try_lock(&held).expect("asked"));
        let error = Limits::write(&place.at("limits"), |_| ()).expect_err("busy");
        assert!(matches!(error, LimitsError::Busy { .. }), "{error}");
    }
}
