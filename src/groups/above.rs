//! The groups above the groups that a verb shows. All groups of a round share them.

use super::budget::{Budget, Most, VERB};
use super::sizes;
use gpulimit_base::device::DeviceId;
use gpulimit_group::{Group, GroupError, Root, job_key};
use gpulimit_ledger::{Ledger, child_key};
use gpulimit_limits::{LimitSet, Limits, LimitsError};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The limits and the groups above, which the groups of one round share. With thousands of groups
/// below one group, a round would take minutes if each group read its siblings' limits.
pub struct Shared {
    pub budget: Budget,
    limits: Rc<Read>,
    /// The groups above the last group. The next group is often below them, too.
    above: Vec<Rc<Above>>,
    /// The slots that count no more ([`super::drained`]) of the groups that have such slots, by the
    /// paths of their ledgers.
    drained: BTreeMap<PathBuf, Vec<usize>>,
    /// The GPUs that each root's owner has seen.
    seen: BTreeMap<PathBuf, Vec<DeviceId>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self::with(BTreeMap::new(), VERB)
    }
}

impl Shared {
    /// Returns what a round shares that has read these limits already.
    pub fn with(limits: BTreeMap<OsString, LimitSet>, most: Most) -> Self {
        Self {
            budget: Budget::new(most),
            limits: Rc::new(Read(limits.into())),
            above: Vec::new(),
            drained: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    /// Returns the GPUs that the owner of the root has seen.
    pub fn seen(&mut self, root: &Path) -> &[DeviceId] {
        let read = || Root::at(root).map_or(Vec::new(), |root| root.seen_gpus());
        self.seen.entry(root.into()).or_insert_with(read)
    }

    /// Returns the limits of a group.
    pub fn limits(&self, group: &Group) -> Result<LimitSet, GroupError> {
        Ok(self.limits.of(&group.limits_path())?)
    }

    /// Returns the groups above `group`, the closest first. Skips groups that cannot be opened,
    /// because somebody may be removing them.
    pub fn above(&mut self, group: &Group) -> Vec<Rc<Above>> {
        let open = |group: Group| {
            let mut known = self.above.iter().filter(|above| above.group == group);
            match known.next() {
                Some(above) => Some(Rc::clone(above)),
                None => {
                    let drained = self.drained.get(&group.ledger_path());
                    let drained = drained.cloned().unwrap_or_default();
                    Above::open(group, &self.limits, drained).map(Rc::new)
                }
            }
        };
        let above: Vec<Rc<Above>> = group.upwards().skip(1).filter_map(open).collect();
        self.above.clone_from(&above);
        above
    }

    /// Takes note of the slots of a group that count no more.
    pub fn drained(&mut self, group: &Group, slots: &[usize]) {
        if !slots.is_empty() {
            self.drained.insert(group.ledger_path(), slots.into());
        }
    }
}

/// The limits that were read, by the paths of their files as text, which is compared faster.
#[derive(Default)]
struct Read(RefCell<BTreeMap<OsString, LimitSet>>);

impl Read {
    /// Returns the limits in a file. A file that cannot be read is opened again by the next call.
    fn of(&self, path: &Path) -> Result<LimitSet, LimitsError> {
        if let Some(known) = self.0.borrow().get(path.as_os_str()) {
            return Ok(known.clone());
        }
        let limits = Limits::read(path)?;
        self.0
            .borrow_mut()
            .insert(path.as_os_str().into(), limits.clone());
        Ok(limits)
    }
}

/// A group above another group. Its limits and its usage affect what the lower group can get.
pub struct Above {
    pub group: Group,
    pub rules: LimitSet,
    /// `None` if the caller cannot read the ledger.
    pub ledger: Option<Ledger>,
    drained: Vec<usize>,
    limits: Rc<Read>,
    /// The child groups with protected memory: the key of the name, and the limits.
    protected: OnceCell<Vec<(u64, LimitSet)>>,
    /// The memory that is not free, by GPU and its size in bytes.
    taken: RefCell<BTreeMap<(DeviceId, u64), Taken>>,
}

/// The memory of a group on one GPU that is not free, in bytes.
struct Taken {
    charged: u64,
    /// What `min` keeps for each child group, by the key of its name.
    kept: BTreeMap<u64, u64>,
    kept_in_all: u128,
}

impl Above {
    fn open(group: Group, limits: &Rc<Read>, drained: Vec<usize>) -> Option<Self> {
        Some(Self {
            drained,
            rules: limits.of(&group.limits_path()).ok()?,
            ledger: Ledger::open_readonly(&group.ledger_path()).ok(),
            group,
            limits: Rc::clone(limits),
            protected: OnceCell::new(),
            taken: RefCell::default(),
        })
    }

    /// Returns the group itself, for what processes in it or below it can get.
    pub fn of(group: &Group, drained: &[usize]) -> Option<Self> {
        Self::open(group.clone(), &Rc::default(), drained.into())
    }

    /// Returns the bytes of this group that processes of `leaf`, a group below, and of the groups
    /// `inner` below that one cannot get: the charged ones, and those that are kept for other child
    /// groups, by `min` or for jobs. `capacity` is the GPU's memory in bytes. Returns `None` if the
    /// caller cannot read the ledger.
    pub fn taken(&self, leaf: &str, inner: &[String], id: DeviceId, capacity: u64) -> Option<u64> {
        let ledger = self.ledger.as_ref()?;
        let mut taken = self.taken.borrow_mut();
        let read = || self.read_taken(ledger, id, capacity);
        let taken = taken.entry((id, capacity)).or_insert_with(read);
        let below = leaf.get(self.group.name().len() + 1..).unwrap_or_default();
        let own = child_key(below.split('/').next().unwrap_or_default());
        let own = taken.kept.get(&own).copied().unwrap_or(0);
        let kept = u64::try_from(taken.kept_in_all - u128::from(own)).unwrap_or(u64::MAX);
        let key = |leaf: &str| job_key(self.group.name(), leaf);
        let keys = || {
            iter::once(leaf)
                .chain(inner.iter().map(|name| &**name))
                .map(key)
        };
        let own = OnceCell::<Vec<u64>>::new();
        let is_own = |job| own.get_or_init(|| keys().collect()).contains(&job);
        let rooms = (ledger.find_device(&id)).map_or(0, |device| ledger.rooms_but(device, is_own));
        let kept = kept.saturating_add(rooms);
        Some(taken.charged.saturating_add(kept))
    }

    fn read_taken(&self, ledger: &Ledger, id: DeviceId, capacity: u64) -> Taken {
        let device = ledger.find_device(&id);
        let kept = |(child, limits): &(u64, LimitSet)| {
            let bytes = sizes::rule(limits, id).resolve(capacity).min;
            let taken = device.map_or(0, |device| ledger.taken(device, *child));
            (*child, bytes.saturating_sub(taken))
        };
        let read = || read_protected(&self.group, &self.limits);
        let protected = self.protected.get_or_init(read);
        let kept: BTreeMap<u64, u64> = protected.iter().map(kept).collect();
        let charged = |device| {
            let drained = self.drained.iter();
            let drained = drained.map(|slot| ledger.usage_of(*slot, device).charged);
            ledger.charged(device).saturating_sub(drained.sum())
        };
        Taken {
            charged: device.map_or(0, charged),
            kept_in_all: kept.values().copied().map(u128::from).sum(),
            kept,
        }
    }
}

/// Returns the child groups of a group that have protected memory: the key of the name, and the
/// limits.
pub fn protected_in(group: &Group) -> Vec<(u64, LimitSet)> {
    read_protected(group, &Read::default())
}

/// Reads which child groups have protected memory. A child group whose limits cannot be read counts
/// as unprotected.
fn read_protected(group: &Group, limits: &Read) -> Vec<(u64, LimitSet)> {
    let entries = fs::read_dir(group.below_path());
    let protected = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let limits = limits.of(&entry.path().join("limits")).ok()?;
        limits.protects().then(|| (child_key(&name), limits))
    };
    entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(protected)
        .collect()
}
