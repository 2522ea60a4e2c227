//! What containers were given: a group each, a view of it that the container gets as its root of
//! groups, and a record of both.
//!
//! ```text
//! STATE/allocations/NAME        the record: which card, which units, how many bytes; survives a reboot, written first and removed last
//! ROOT/NAME/                    the group, on the node open to root alone
//! ROOT/.kubernetes/NAME/        the view: what is at /run/gpulimit in the container, read-only
//!     .rules                    puts every program there into the group, whatever its environment says
//!     NAME/limits, lock         the group's own files under further names
//!     NAME/ledger               that, too; the only one that is mounted writable
//! ```
//! Every allocation gets a name and files of its own, also of units that were given out before. The
//! ledger is open to the container's root, who may leave anything behind: another owner, no
//! permissions, a descriptor that some other pod keeps. None of that is used again.
//!
//! Every group is at the top. Below a common one, all containers could write that one's ledger, and
//! so stop each other.

use crate::library::replace;
use crate::units::{Share, Unit};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_group::{Access, Group, GroupError, Members, Root};
use gpulimit_ledger::{Ledger, LedgerError, NoWitness};
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_policy::rules::{self, Rules};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The directory of the views, in the root. No group can have this name.
const VIEWS: &str = ".kubernetes";
/// The directory of the records, in the state.
const RECORDS: &str = "allocations";
/// Kubelet allocates for the init containers of a pod and at once, from the same units, for the
/// others. Units that are given out again after so long have had another owner.
const SAME_POD: Duration = Duration::from_secs(60);
/// How long the start of the plugin waits in all for the end of leases (`F_SETLEASE`) on files of
/// groups: longer than the kernel, which ends a lease after 45 seconds by default.
const LEASES: Duration = Duration::from_secs(60);

/// All allocations of the node.
pub struct Allocations {
    root: Root,
    records: PathBuf,
    /// Since when kubelet has said of each, without a break, that no pod has any of its units.
    unused: BTreeMap<String, Instant>,
    /// When we made each.
    granted: BTreeMap<String, Instant>,
}

/// An allocation, as a container is given it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grant {
    /// The group.
    pub name: String,
    /// The view, on the node.
    pub view: PathBuf,
    /// The ledger in the view, on the node.
    pub ledger: PathBuf,
}

/// What is written down of an allocation.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    gpu: String,
    bytes: u64,
    units: Vec<u32>,
    /// Tells it from all others of the same units: when it was made, in nanoseconds.
    made: u64,
}

impl Record {
    fn card(&self) -> Result<DeviceId, Trouble> {
        self.gpu.parse().map_err(Trouble::new)
    }

    /// `k8s-1a2b3c4d-16GiB-0123456789abcdef`: the card, the size, and what no other allocation has.
    fn name(&self) -> String {
        let card = self.gpu.get(4..12).unwrap_or_default();
        format!("k8s-{card}-{}-{:016x}", Size::Bytes(self.bytes), self.made)
    }

    fn units(&self) -> impl Iterator<Item = Unit> + '_ {
        let card = self.card().ok();
        let unit = move |number: &u32| {
            Some(Unit {
                card: card?,
                number: *number,
            })
        };
        self.units.iter().filter_map(unit)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.gpu == other.gpu && self.units.iter().any(|unit| other.units.contains(unit))
    }

    /// So much of this card, and nothing of any other.
    fn limits(&self) -> Result<LimitSet, Trouble> {
        let mut limits = LimitSet::all(Size::Bytes(0));
        let card = Selector::Device(self.card()?);
        limits.set(card, Key::Max, Size::Bytes(self.bytes));
        Ok(limits)
    }
}

/// What went wrong, for people.
#[derive(Debug)]
pub struct Trouble(String);

impl Trouble {
    fn new(text: impl std::fmt::Display) -> Self {
        Self(text.to_string())
    }

    fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |error| Self(format!("{}: {error}", path.display()))
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<GroupError> for Trouble {
    fn from(error: GroupError) -> Self {
        Self::new(error)
    }
}

/// What became of the allocations that nobody has any longer.
#[derive(Debug, Default)]
pub struct Swept {
    /// Those that are gone.
    pub removed: Vec<String>,
    /// Why others are not.
    pub troubles: Vec<Trouble>,
}

impl Allocations {
    /// With groups in this root and records in this directory; both are made where they are not
    /// there.
    pub fn open(root: &Path, state: &Path) -> Result<Self, Trouble> {
        let root = Root::at(root)?;
        root.make()?;
        let records = state.join(RECORDS);
        make_directory(state, 0o755)?;
        make_directory(&records, 0o700)?;
        make_directory(&root.path().join(VIEWS), 0o700)?;
        Ok(Self {
            root,
            records,
            unused: BTreeMap::new(),
            granted: BTreeMap::new(),
        })
    }

    /// Makes an allocation, of files that nobody has had before. Others of the same units stay
    /// until they are swept away: of an init container, which runs before the container that gets
    /// its units, or of a pod that has ended.
    pub fn grant(&mut self, share: &Share, bytes: u64) -> Result<Grant, Trouble> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut record = Record {
            gpu: share.card.to_string(),
            bytes,
            units: share.numbers.clone(),
            // Until the year 2554.
            made: now.map_or(0, |since| since.as_nanos() as u64),
        };
        // Ends: there are not so many files as there are nanoseconds.
        while self.is_taken(&record.name()) {
            record.made += 1;
        }
        let name = record.name();
        self.granted.insert(name.clone(), Instant::now());
        let path = self.records.join(&name);
        let text = serde_json::to_vec(&record).map_err(Trouble::new)?;
        replace(&path, &text, 0o600).map_err(Trouble::at(&path))?;
        self.ensure(&name, &record, Instant::now())
            .inspect_err(|_| {
                // No container got this group. A sweep removes what this leaves.
                let _ = self.remove(&name, true);
            })
    }

    /// Whether anything has this name.
    fn is_taken(&self, name: &str) -> bool {
        let (group, view) = (self.root.path().join(name), self.view_of(name));
        [self.records.join(name), group, view]
            .iter()
            .any(|path| fs::symlink_metadata(path).is_ok())
    }

    fn view_of(&self, name: &str) -> PathBuf {
        self.root.path().join(VIEWS).join(name)
    }

    /// Makes groups and views that are written down and not there, as after a reboot. Those that
    /// are there stay as they are, and so do those that run in them. Says what could not be made.
    pub fn recover(&self) -> Result<Vec<Trouble>, Trouble> {
        let mut troubles = Vec::new();
        let mut records = self.records()?;
        // The first attempt makes all leases end at the same time.
        records.retain(|name, (record, _)| self.ensure(name, record, Instant::now()).is_err());
        let until = Instant::now() + LEASES;
        for (name, (record, _)) in records {
            if let Err(trouble) = self.ensure(&name, &record, until) {
                troubles.push(Trouble(format!("{name}: {trouble}")));
            }
        }
        Ok(troubles)
    }

    /// Removes allocations that nobody has any longer, and says which: those whose units were given
    /// out anew, whatever their ledgers say, and those without processes whose units kubelet has
    /// said for `keep` are in no pod. `in_use`: what it says now, and when it was asked: it knows
    /// nothing of what came after that. Says as well what could not be removed, and is tried again
    /// by the next sweep.
    pub fn sweep(
        &mut self,
        in_use: Option<(Instant, &BTreeMap<Unit, String>)>,
        keep: Duration,
    ) -> Result<Swept, Trouble> {
        let records = self.records()?;
        let is_used = |record: &Record, in_use: &BTreeMap<Unit, String>| {
            record.units().any(|unit| in_use.contains_key(&unit))
        };
        match in_use {
            None => self.unused.clear(),
            Some((asked, in_use)) => {
                self.granted.retain(|name, _| records.contains_key(name));
                self.unused.retain(|name, _| {
                    let record = records.get(name);
                    record.is_some_and(|(record, _)| !is_used(record, in_use))
                });
                for (name, (record, _)) in &records {
                    let known = self.granted.get(name).is_none_or(|time| *time < asked);
                    if known && !is_used(record, in_use) {
                        self.unused.entry(name.clone()).or_insert_with(Instant::now);
                    }
                }
            }
        }
        let mut swept = Swept::default();
        for (name, (record, time)) in &records {
            let replaced = records
                .values()
                .any(|(other, later)| *later > *time + SAME_POD && other.overlaps(record));
            let unused = self.unused.get(name);
            if !replaced && unused.is_none_or(|since| since.elapsed() < keep) {
                continue;
            }
            let state = match self.root.group(name) {
                Ok(group) => State::of(&group),
                Err(GroupError::Missing { .. }) => State::Idle,
                Err(_) => State::Spoilt,
            };
            let force = replaced || matches!(state, State::Spoilt);
            let wait = matches!(state, State::Busy) && !force;
            if wait {
                continue;
            }
            match self.remove(name, force) {
                Ok(()) => swept.removed.push(name.clone()),
                Err(trouble) => {
                    let why = format!("{name}: cannot be removed: {trouble}");
                    swept.troubles.push(Trouble(why));
                }
            }
        }
        Ok(swept)
    }

    /// The allocations, each with the first of its units.
    pub fn first_units(&self) -> Result<Vec<(String, Unit)>, Trouble> {
        let first = |(name, (record, _)): (String, (Record, SystemTime))| {
            Some((name, record.units().next()?))
        };
        Ok(self.records()?.into_iter().filter_map(first).collect())
    }

    /// What is written down, and since when. What is no record of ours is left alone.
    fn records(&self) -> Result<BTreeMap<String, (Record, SystemTime)>, Trouble> {
        let failed = Trouble::at(&self.records);
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(&self.records).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let read = || {
                let record: Record = serde_json::from_slice(&fs::read(entry.path()).ok()?).ok()?;
                let time = entry.metadata().ok()?.modified().ok()?;
                let name = entry.file_name().into_string().ok()?;
                (record.name() == name).then_some((name, (record, time)))
            };
            records.extend(read());
        }
        Ok(records)
    }

    /// The group and its view, made where they are not there. Waits until `until` for the end of
    /// leases on the group's files.
    fn ensure(&self, name: &str, record: &Record, until: Instant) -> Result<Grant, Trouble> {
        let limits = record.limits()?;
        let create = || self.root.create(name, &limits);
        let created = self.root.past_leases(name, until, create)?;
        let group = &created.group;
        // A container's programs may be of any user. Those of the node must not be among them.
        let private = Permissions::from_mode(0o700);
        fs::set_permissions(group.path(), private).map_err(Trouble::at(group.path()))?;
        let readable = Permissions::from_mode(0o644);
        fs::set_permissions(group.limits_path(), readable)
            .map_err(Trouble::at(&group.limits_path()))?;
        let access = Access {
            owner: None,
            members: Members::All,
        };
        group.past_leases(until, || group.give_access(access))?;
        self.view(group)
    }

    fn view(&self, group: &Group) -> Result<Grant, Trouble> {
        let view = self.view_of(group.name());
        let files = view.join(group.name());
        let grant = Grant {
            name: group.name().into(),
            ledger: files.join("ledger"),
            view,
        };
        // The whole root may have been removed.
        make_directory(&self.root.path().join(VIEWS), 0o700)?;
        make_directory(&grant.view, 0o755)?;
        make_directory(&files, 0o755)?;
        for name in ["limits", "lock", "ledger"] {
            link(&group.path().join(name), &files.join(name))?;
        }
        let everybody = Rules::everybody(group.name());
        let path = grant.view.join(rules::FILE);
        replace(&path, everybody.to_string().as_bytes(), 0o644).map_err(Trouble::at(&path))?;
        Ok(grant)
    }

    /// The group first: it says no where somebody runs in it. With `force` it is removed whatever
    /// is in its files: the directory is ours, and that is all it takes.
    fn remove(&self, name: &str, force: bool) -> Result<(), Trouble> {
        let group = self.root.path().join(name);
        match self.root.remove(name) {
            Ok(()) | Err(GroupError::Missing { .. }) => {}
            Err(_) if force => gone(&group, fs::remove_dir_all(&group))?,
            Err(error) => return Err(error.into()),
        }
        let (view, record) = (self.view_of(name), self.records.join(name));
        gone(&view, fs::remove_dir_all(&view))?;
        gone(&record, fs::remove_file(&record))
    }
}

/// What became of an attempt to remove something that may not be there.
fn gone(path: &Path, removed: io::Result<()>) -> Result<(), Trouble> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Trouble::at(path)(error)),
        _ => Ok(()),
    }
}

/// Who is in a group, as its ledger says.
enum State {
    /// Nobody, and the driver has let go of what those before held.
    Idle,
    /// Somebody.
    Busy,
    /// The container has made its ledger say nothing: it has no say in when the group goes.
    Spoilt,
}

impl State {
    fn of(group: &Group) -> Self {
        match Ledger::open(&group.ledger_path()) {
            Ok(ledger) if ledger.has_live() || ledger.clean(&NoWitness).draining != 0 => Self::Busy,
            // That nobody uses one of another version is found when it is removed.
            Ok(_) | Err(LedgerError::Version { .. }) => Self::Idle,
            Err(LedgerError::Damaged { .. }) => Self::Spoilt,
            Err(LedgerError::Io { error, .. })
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::NotFound
                ) =>
            {
                Self::Spoilt
            }
            Err(_) => Self::Busy,
        }
    }
}

/// A further name for a file; what else is there is replaced.
///
/// A container runtime makes an empty directory where it finds nothing to mount, as it may after a
/// reboot.
fn link(file: &Path, name: &Path) -> Result<(), Trouble> {
    let same = |about: &fs::Metadata| {
        let wanted = fs::symlink_metadata(file);
        wanted.is_ok_and(|wanted| (wanted.dev(), wanted.ino()) == (about.dev(), about.ino()))
    };
    match fs::symlink_metadata(name) {
        Ok(about) if about.is_dir() => fs::remove_dir_all(name).map_err(Trouble::at(name))?,
        Ok(about) if same(&about) => return Ok(()),
        Ok(_) => fs::remove_file(name).map_err(Trouble::at(name))?,
        Err(_) => {}
    }
    fs::hard_link(file, name).map_err(Trouble::at(name))
}

/// Makes a directory with exactly these permissions, or gives them to the one that is there.
fn make_directory(path: &Path, mode: u32) -> Result<(), Trouble> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(Trouble::at(path))
}
