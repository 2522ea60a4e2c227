//! What containers were given: a group each, a view of it that the container gets as its root of groups, and a record of both.
//!
//! ```text
//! STATE/allocations/NAME        the record: which card, which units, how many bytes; survives a reboot, written first and removed last
//! ROOT/NAME/                    the group, on the node open to root alone
//! ROOT/.kubernetes/NAME/        the view: what is at /run/gpulimit in the container, read-only
//!     .rules                    puts every program there into the group, whatever its environment says
//!     NAME/limits, lock         the group's own files under further names
//!     NAME/ledger               that, too; the only one that is mounted writable
//! ```
//! An allocation's name follows from its units: whoever gets the same units again, as kubelet does not tell whose they are, gets the same name.
//!
//! Every group is at the top. Below a common one, all containers could write that one's ledger, and so stop each other.

use crate::library::replace;
use crate::units::{Share, Unit};
use gpulimit::device::DeviceId;
use gpulimit::group::{Access, Group, GroupError, Members, Root};
use gpulimit::ledger::{Ledger, LedgerError, NoWitness};
use gpulimit::limits::{Key, LimitSet, Selector};
use gpulimit::policy::rules::{self, Rules};
use gpulimit::units::Size;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The directory of the views, in the root. No group can have this name.
const VIEWS: &str = ".kubernetes";
/// The directory of the records, in the state.
const RECORDS: &str = "allocations";
/// Kubelet allocates for the init containers of a pod and at once, from the same units, for the others. Units that are given out
/// again after so long have had another owner.
const SAME_POD: Duration = Duration::from_secs(60);

/// Without NVML's word a dead process's memory counts for a second.
const DRAINS: Duration = Duration::from_secs(3);

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
}

impl Record {
    fn card(&self) -> Result<DeviceId, Trouble> {
        self.gpu.parse().map_err(Trouble::new)
    }

    /// `k8s-1a2b3c4d-16GiB-0123456789abcdef`: for people, and told apart by all units.
    fn name(&self) -> String {
        // FNV-1a; kubelet chooses the units, and nobody who would gain by two of the same name.
        let mut sum: u64 = 0xcbf2_9ce4_8422_2325;
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        add(self.gpu.as_bytes());
        add(&self.bytes.to_le_bytes());
        for number in &self.units {
            add(&number.to_le_bytes());
        }
        let card = self.gpu.get(4..12).unwrap_or_default();
        format!("k8s-{card}-{}-{sum:016x}", Size::Bytes(self.bytes))
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

impl Allocations {
    /// With groups in this root and records in this directory; both are made where they are not there.
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

    /// Makes an allocation. A dead one of the same units is replaced, with all that its processes have written.
    pub fn grant(&mut self, share: &Share, bytes: u64) -> Result<Grant, Trouble> {
        let record = Record {
            gpu: share.card.to_string(),
            bytes,
            units: share.numbers.clone(),
        };
        let name = record.name();
        self.unused.remove(&name);
        self.granted.insert(name.clone(), Instant::now());
        // Where programs run in it, it is theirs: their pod is about to end, or kubelet asks a second time.
        if let Ok(group) = self.root.group(&name)
            && becomes_idle(&group)
        {
            self.remove(&name)?;
        }
        let path = self.records.join(&name);
        let text = serde_json::to_vec(&record).map_err(Trouble::new)?;
        // Its time is that of this call, also where it says what it said before.
        let _ = fs::remove_file(&path);
        replace(&path, &text, 0o600).map_err(Trouble::at(&path))?;
        self.ensure(&name, &record)
    }

    /// Makes groups and views that are written down and not there, as after a reboot. Those that are there stay as they are, and so do those
    /// that run in them. Says what could not be made.
    pub fn recover(&self) -> Result<Vec<Trouble>, Trouble> {
        let mut troubles = Vec::new();
        for (name, (record, _)) in self.records()? {
            if let Err(trouble) = self.ensure(&name, &record) {
                troubles.push(Trouble(format!("{name}: {trouble}")));
            }
        }
        Ok(troubles)
    }

    /// Removes allocations that nobody has any longer, and says which: without processes, and with units that were given out anew, or that
    /// kubelet has said for `keep` are in no pod. `in_use`: what it says now, and when it was asked: it knows nothing of what came after that.
    pub fn sweep(
        &mut self,
        in_use: Option<(Instant, &BTreeMap<Unit, String>)>,
        keep: Duration,
    ) -> Result<Vec<String>, Trouble> {
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
        let mut removed = Vec::new();
        for (name, (record, time)) in &records {
            let replaced = records
                .values()
                .any(|(other, later)| *later > *time + SAME_POD && other.overlaps(record));
            let unused = self.unused.get(name);
            if !replaced && unused.is_none_or(|since| since.elapsed() < keep) {
                continue;
            }
            let free = match self.root.group(name) {
                Ok(group) => is_idle(&group),
                Err(error) => matches!(error, GroupError::Missing { .. }),
            };
            if free && self.remove(name).is_ok() {
                removed.push(name.clone());
            }
        }
        Ok(removed)
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

    /// The group and its view, made where they are not there.
    fn ensure(&self, name: &str, record: &Record) -> Result<Grant, Trouble> {
        let created = self.root.create(name, &record.limits()?)?;
        let group = &created.group;
        // A container's programs may be of any user. Those of the node must not be among them.
        let private = Permissions::from_mode(0o700);
        fs::set_permissions(group.path(), private).map_err(Trouble::at(group.path()))?;
        let readable = Permissions::from_mode(0o644);
        fs::set_permissions(group.limits_path(), readable)
            .map_err(Trouble::at(&group.limits_path()))?;
        group.give_access(Access {
            owner: None,
            members: Members::All,
        })?;
        self.view(group)
    }

    fn view(&self, group: &Group) -> Result<Grant, Trouble> {
        let view = self.root.path().join(VIEWS).join(group.name());
        let files = view.join(group.name());
        let grant = Grant {
            name: group.name().into(),
            ledger: files.join("ledger"),
            view,
        };
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

    /// The group first: it says no where somebody runs in it.
    fn remove(&self, name: &str) -> Result<(), Trouble> {
        match self.root.remove(name) {
            Err(GroupError::Missing { .. }) => {}
            removed => removed?,
        }
        let view = self.root.path().join(VIEWS).join(name);
        let record = self.records.join(name);
        for (path, removed) in [
            (&view, fs::remove_dir_all(&view)),
            (&record, fs::remove_file(&record)),
        ] {
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Trouble::at(path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether nobody runs in a group, and the driver has let go of what those before held. A ledger that is none any more is nobody's.
fn is_idle(group: &Group) -> bool {
    match Ledger::open(&group.ledger_path()) {
        Ok(ledger) => !ledger.has_live() && ledger.clean(&NoWitness).draining == 0,
        Err(error) => matches!(
            error,
            LedgerError::Damaged { .. } | LedgerError::Version { .. }
        ),
    }
}

/// The same after what the dead held, or what somebody has written there of dead who never were, has had its time to drain.
fn becomes_idle(group: &Group) -> bool {
    let start = Instant::now();
    loop {
        if is_idle(group) {
            return true;
        }
        let dead = Ledger::open(&group.ledger_path()).is_ok_and(|ledger| !ledger.has_live());
        if !dead || start.elapsed() > DRAINS {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A further name for a file; what else is there is replaced.
///
/// A container runtime makes an empty directory where it finds nothing to mount, as it may after a reboot.
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
