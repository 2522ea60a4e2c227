//! The allocations of containers: each has a group, a view and a record. The container mounts the
//! view as its root of groups.
//!
//! ```text
//! STATE/allocations/NAME     the record: card, units and bytes; survives a reboot; it is written
//!                            first and removed last
//! ROOT/NAME/                 the group; on the node, only root can access it
//! ROOT/.kubernetes/NAME/     the view, mounted read-only at /run/gpulimit in the container
//!     .pod                   the names of the pod and the container, once kubelet has told them
//!     .rules                 the rule that puts every program there into the group
//!     NAME/limits, lock      hard links to the group's files
//!     NAME/ledger            a hard link to the ledger, the only file that is mounted writable
//! ```
//! Each allocation gets new files, because a container's root can change the ledger's owner and
//! keep the ledger open in another pod.
//!
//! The groups of containers have no parent group, because every container could block the others
//! through the parent's ledger.

use crate::library::replace;
use crate::units::{Share, Unit};
use gpulimit_base::device::DeviceId;
use gpulimit_base::missing::found;
use gpulimit_base::text_file;
use gpulimit_base::units::Size;
use gpulimit_group::pod::{Pod, VIEWS};
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

/// The directory in the plugin's state directory that contains the records of allocations.
const RECORDS: &str = "allocations";
/// The length of the longest record that is read, in bytes. A record has 8 bytes for each unit.
const LONGEST: u64 = 4 << 20;
/// The longest time between the allocations of one pod's units to init containers and to other
/// containers.
const SAME_POD: Duration = Duration::from_secs(60);
/// The total time that the plugin waits at its start for other programs' leases (`F_SETLEASE`). A
/// lease ends after 45 seconds.
const LEASES: Duration = Duration::from_secs(60);

/// All allocations of the node, with their groups, views and records.
pub struct Allocations {
    root: Root,
    records: PathBuf,
    /// The names of the unused allocations, and the times when kubelet's list of pods first lacked
    /// their units.
    unused: BTreeMap<String, Instant>,
    /// The time when this process made each allocation, by the allocation's name.
    granted: BTreeMap<String, Instant>,
}

/// The group and the files that a container gets for its allocation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grant {
    /// The name of the group.
    pub name: String,
    /// The path of the container's view of its group, on the node.
    pub view: PathBuf,
    /// The path of the group's ledger inside the view, on the node.
    pub ledger: PathBuf,
}

/// The record of an allocation, as it is in the allocation's file in the state directory.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    gpu: String,
    bytes: u64,
    units: Vec<u32>,
    /// When the allocation was made, in nanoseconds since 1970. No two allocations of the same
    /// units have the same time.
    made: u64,
}

impl Record {
    fn card(&self) -> Result<DeviceId, String> {
        self.gpu.parse().map_err(text)
    }

    /// Returns the name of the allocation's group, such as `k8s-1a2b3c4d-16GiB-0123456789abcdef`:
    /// the card, the size and the time.
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

    /// Returns the group's limits: `bytes` on this card, and 0 on all other GPUs.
    fn limits(&self) -> Result<LimitSet, String> {
        let mut limits = LimitSet::all(Size::Bytes(0));
        let card = Selector::Device(self.card()?);
        limits.set(card, Key::Max, Size::Bytes(self.bytes));
        Ok(limits)
    }
}

/// Returns a function that prefixes an I/O error with the file's path.
fn at(path: &Path) -> impl Fn(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

/// Turns an error into its text.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The result of removing the unused allocations.
#[derive(Debug, Default)]
pub struct Swept {
    /// The names of the allocations that were removed.
    pub removed: Vec<String>,
    /// The reasons why unused allocations could not be removed.
    pub troubles: Vec<String>,
}

impl Allocations {
    /// Opens the root of groups at `root`, and the directory of records in `state`. Makes both
    /// directories if they do not exist.
    pub fn open(root: &Path, state: &Path) -> Result<Self, String> {
        let root = Root::at(root).map_err(text)?;
        root.make().map_err(text)?;
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

    /// Makes an allocation with new files. Earlier allocations of the same units stay: kubelet
    /// reuses units of init containers.
    pub fn grant(&mut self, share: &Share, bytes: u64) -> Result<Grant, String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut record = Record {
            gpu: share.card.to_string(),
            bytes,
            units: share.numbers.clone(),
            // The nanoseconds since 1970 fit into 64 bits until the year 2554.
            made: now.map_or(0, |since| since.as_nanos() as u64),
        };
        // This loop ends soon, because each nanosecond gives another name.
        while self.is_taken(&record.name()) {
            record.made += 1;
        }
        let name = record.name();
        self.granted.insert(name.clone(), Instant::now());
        let path = self.records.join(&name);
        let text = serde_json::to_vec(&record).map_err(text)?;
        replace(&path, &text, 0o600).map_err(at(&path))?;
        self.ensure(&name, &record, Instant::now())
            .inspect_err(|_| {
                // No container got the incomplete group, so remove it. If this fails, the next
                // sweep removes it.
                let _ = self.remove(&name, true);
            })
    }

    /// Returns whether a record, a group or a view with this name exists.
    fn is_taken(&self, name: &str) -> bool {
        let (group, view) = (self.root.path().join(name), self.view_of(name));
        [self.records.join(name), group, view]
            .iter()
            .any(|path| fs::symlink_metadata(path).is_ok())
    }

    fn view_of(&self, name: &str) -> PathBuf {
        self.root.path().join(VIEWS).join(name)
    }

    /// Makes groups and views that are missing although they have a record. Returns the reasons for
    /// failures.
    pub fn recover(&self) -> Result<Vec<String>, String> {
        let mut troubles = Vec::new();
        let mut records = self.records()?;
        // Try all groups once before waiting, so that the leases on all groups end at the same
        // time.
        records.retain(|name, (record, _)| self.ensure(name, record, Instant::now()).is_err());
        let until = Instant::now() + LEASES;
        for (name, (record, _)) in records {
            if let Err(trouble) = self.ensure(&name, &record, until) {
                troubles.push(format!("{name}: {trouble}"));
            }
        }
        Ok(troubles)
    }

    /// Removes unused allocations, and returns the reasons for failures. An allocation is unused:
    /// - if its units were allocated again to another pod, or
    /// - if no process uses its group, and kubelet has listed its units in no pod for `keep`.
    ///
    /// `in_use` has the units in kubelet's list, and the time when the plugin asked for that list.
    pub fn sweep(
        &mut self,
        in_use: Option<(Instant, &BTreeMap<Unit, String>)>,
        keep: Duration,
    ) -> Result<Swept, String> {
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
                    let why = format!("cannot remove {name}: {trouble}");
                    swept.troubles.push(why);
                }
            }
        }
        Ok(swept)
    }

    /// Writes into an allocation's view which container has it, `NAMESPACE/POD/CONTAINER`.
    pub fn name_owner(&self, name: &str, owner: &str) -> Result<(), String> {
        let path = Pod::file(&self.view_of(name));
        replace(&path, owner.as_bytes(), 0o644).map_err(at(&path))
    }

    /// Returns the allocations, each with its first unit.
    pub fn first_units(&self) -> Result<Vec<(String, Unit)>, String> {
        let first = |(name, (record, _)): (String, (Record, SystemTime))| {
            Some((name, record.units().next()?))
        };
        Ok(self.records()?.into_iter().filter_map(first).collect())
    }

    /// Returns the records of all allocations, each with the time when it was written. Ignores
    /// other files in the directory.
    fn records(&self) -> Result<BTreeMap<String, (Record, SystemTime)>, String> {
        let failed = at(&self.records);
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(&self.records).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let read = || {
                let bytes = text_file::read(&entry.path(), LONGEST).ok()?;
                let record: Record = serde_json::from_slice(&bytes).ok()?;
                let time = entry.metadata().ok()?.modified().ok()?;
                let name = entry.file_name().into_string().ok()?;
                (record.name() == name).then_some((name, (record, time)))
            };
            records.extend(read());
        }
        Ok(records)
    }

    /// Makes an allocation's group and view if missing. Waits until `until` for other programs'
    /// leases to end.
    fn ensure(&self, name: &str, record: &Record, until: Instant) -> Result<Grant, String> {
        let limits = record.limits()?;
        let create = || self.root.create(name, &limits);
        let created = self.root.past_leases(name, until, create).map_err(text)?;
        let group = &created.group;
        // The container's programs may have any user id, so all users may open the files. The
        // private directory excludes the node's users.
        let private = Permissions::from_mode(0o700);
        fs::set_permissions(group.path(), private).map_err(at(group.path()))?;
        let readable = Permissions::from_mode(0o644);
        fs::set_permissions(group.limits_path(), readable).map_err(at(&group.limits_path()))?;
        let access = Access {
            owner: None,
            members: Members::All,
        };
        group
            .past_leases(until, || group.give_access(access))
            .map_err(text)?;
        self.view(group)
    }

    fn view(&self, group: &Group) -> Result<Grant, String> {
        let view = self.view_of(group.name());
        let files = view.join(group.name());
        let grant = Grant {
            name: group.name().into(),
            ledger: files.join("ledger"),
            view,
        };
        // Make all directories again, because the root of groups may have been removed since the
        // plugin started.
        make_directory(&self.root.path().join(VIEWS), 0o700)?;
        make_directory(&grant.view, 0o755)?;
        make_directory(&files, 0o755)?;
        for name in ["limits", "lock", "ledger"] {
            link(&group.path().join(name), &files.join(name))?;
        }
        let everybody = Rules::everybody(group.name());
        let path = grant.view.join(rules::FILE);
        replace(&path, everybody.to_string().as_bytes(), 0o644).map_err(at(&path))?;
        Ok(grant)
    }

    /// Removes an allocation. Fails if a process uses the group, unless `force` is set.
    fn remove(&self, name: &str, force: bool) -> Result<(), String> {
        let group = self.root.path().join(name);
        match self.root.remove(name) {
            Ok(()) | Err(GroupError::Missing { .. }) => {}
            Err(_) if force => drop(found(fs::remove_dir_all(&group)).map_err(at(&group))?),
            Err(error) => return Err(error.to_string()),
        }
        let (view, record) = (self.view_of(name), self.records.join(name));
        found(fs::remove_dir_all(&view)).map_err(at(&view))?;
        let removed = found(fs::remove_file(&record));
        removed.map(drop).map_err(at(&record))
    }
}

/// The use of a group, as its ledger shows it.
enum State {
    /// No process uses the group, and the driver has freed all memory of its former processes.
    Idle,
    /// A process uses the group.
    Busy,
    /// The container has made its group's ledger unusable, so the ledger cannot tell whether a
    /// process uses the group.
    Spoilt,
}

impl State {
    fn of(group: &Group) -> Self {
        match Ledger::open(&group.ledger_path()) {
            Ok(ledger)
                if ledger.has_live() || group.clean_in(&ledger, &NoWitness).draining != 0 =>
            {
                Self::Busy
            }
            // A ledger of another version is unreadable here. The removal of the group checks that
            // no process uses the ledger.
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

/// Makes a hard link to `file` at the path `name`, and replaces whatever is there.
fn link(file: &Path, name: &Path) -> Result<(), String> {
    let same = |about: &fs::Metadata| {
        let wanted = fs::symlink_metadata(file);
        wanted.is_ok_and(|wanted| (wanted.dev(), wanted.ino()) == (about.dev(), about.ino()))
    };
    match fs::symlink_metadata(name) {
        // After a reboot, a container runtime makes an empty directory in place of a missing file.
        Ok(about) if about.is_dir() => fs::remove_dir_all(name).map_err(at(name))?,
        Ok(about) if same(&about) => return Ok(()),
        Ok(_) => fs::remove_file(name).map_err(at(name))?,
        Err(_) => {}
    }
    fs::hard_link(file, name).map_err(at(name))
}

/// Makes a directory with exactly these permissions. If the directory exists, changes its
/// permissions.
fn make_directory(path: &Path, mode: u32) -> Result<(), String> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(at(path))
}
