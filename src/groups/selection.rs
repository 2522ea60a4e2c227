//! Finds and opens groups, for all verbs.

use super::above::{Above, Shared};
use super::beliefs;
use super::budget::{LINE, Most, Purse};
use super::drained;
use crate::machine::nvml::{Driver, Gpu};
use crate::words::order::Natural;
use crate::words::{environment::env, failure::Failure, notes::Notes, text};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_group::{
    Group, GroupError, Kind, MAX_USER_NAMES, Root, SYSTEM, WithoutCreateHint, check_name,
    effective_user, is_within, parent, upwards,
};
use gpulimit_ledger::{
    Compared, DeviceEntry, DeviceIndex, Ledger, LedgerError, NoWitness, ProcessUsage, Witness,
};
use gpulimit_limits::LimitSet;
use gpulimit_policy::{self as policy, PolicyError};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// The version of the schema of all JSON output of gpulimit.
pub const SCHEMA: u32 = 1;

/// Bounds for opening groups that lack a file: the attempts, the pause between them, and the total
/// time.
const LOOKS_AGAIN: u32 = 9;
const PAUSE: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_millis(100);

/// What a verb does with a group. This decides the error for a group that does not exist.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// The verb shows or removes the group: the group must exist.
    Use,
    /// The verb changes the group. If the group does not exist, the error suggests making it.
    Change,
    /// The verb makes the group.
    Make,
    /// The verb runs programs in the group, and can make the group first.
    Run,
}

/// Returns the root and the full name of the group that the caller means by `name`.
///
/// - If a rule assigns the caller to `lab/alice`, `night` means `lab/alice/night`. Most verbs also
///   accept other groups by full name; `create` and `run` do not.
/// - Without a rule, and for root except in `run`, names are full names.
pub fn meant(name: &str, purpose: Purpose) -> Result<(Root, String), Failure> {
    let rule = match policy::rule() {
        Ok(Some(rule)) => rule,
        // Root must be able to replace unreadable rules, such as rules of another version, so it
        // continues without rules.
        Err(error) if effective_user() != 0 => return Err(error.into()),
        Ok(None) | Err(_) => return Ok((Root::locate_group(&env, name)?, name.into())),
    };
    check_name(name)?;
    let root = Root::at(SYSTEM)?;
    let administers = effective_user() == 0 && purpose != Purpose::Run;
    if is_within(name, &rule.group) || administers {
        return Ok((root, name.into()));
    }
    let below = format!("{}/{name}", rule.group);
    let is_there = |name: &str| root.group(name).is_ok();
    match purpose {
        Purpose::Use | Purpose::Change if !is_there(&below) && is_there(name) => {
            Ok((root, name.into()))
        }
        Purpose::Run if !is_there(&below) && is_there(name) => {
            let (named, elsewhere) = (name.into(), true);
            Err(PolicyError::NotBelow {
                rule,
                named,
                elsewhere,
            }
            .into())
        }
        _ => Ok((root, below)),
    }
}

/// Refuses group names that are reserved for the groups of single jobs, because gpulimit removes
/// such groups automatically.
pub fn refuse_job_name(name: &str) -> Result<(), Failure> {
    match Kind::of(name) {
        Kind::Named => Ok(()),
        Kind::Job => Err(Failure::usage(format_args!(
            "the name '{name}' is reserved for the groups of single jobs, which are removed \
             automatically: choose another name"
        ))),
    }
}

/// Finds and opens the group that the caller means by `name`.
pub fn find(name: &str, purpose: Purpose) -> Result<Group, Failure> {
    let (root, name) = meant(name, purpose)?;
    open(&root, &name, purpose)
}

/// Opens a group. If it does not exist, the error suggests making it, except for [`Purpose::Use`].
pub fn open(root: &Root, name: &str, purpose: Purpose) -> Result<Group, Failure> {
    root.group(name).map_err(|error| match purpose {
        Purpose::Use if error.is_missing() => Failure::new(WithoutCreateHint(&error.with_known())),
        _ => error.into(),
    })
}

/// Drops the groups of ended jobs from a list, and sorts it by name. A group above a group that
/// stays is not dropped; nor, with `past`, one at the top of a root.
fn without_ended_jobs(groups: Vec<Group>, past: bool) -> Vec<Group> {
    let mut parents = BTreeSet::new();
    let mut kept = Vec::new();
    let ended = Group::ended(&groups);
    // Go through the list backwards, because child groups must be seen before their parents.
    for (group, ended) in groups.into_iter().zip(ended).rev() {
        let is_kept = past && parent(group.name()).is_none();
        if parents.contains(group.name()) || !ended || is_kept {
            parents.extend(parent(group.name()).map(str::to_owned));
            kept.push(group);
        }
    }
    kept.sort_by_cached_key(|group| Natural::of(group.name()));
    kept
}

/// Returns messages about users' directories that were not read in full.
pub fn too_many(paths: &[PathBuf]) -> Vec<String> {
    let line = |path: &PathBuf| {
        format!(
            "{} belongs to a user and has more than {MAX_USER_NAMES} entries; the groups among \
             the other entries are left out: ask that user to remove what is not needed",
            path.to_string_lossy().escape_debug()
        )
    };
    paths.iter().map(line).collect()
}

/// The groups that could not be opened, with their places in a selection.
type Failed = Vec<(usize, GroupError)>;

/// The groups that a verb handles: a named group and the groups below it, or all groups.
pub struct Selection {
    /// The groups. Each group comes before the groups below it.
    pub groups: Vec<Group>,
    /// The roots that were searched for groups. New groups are made in the last one.
    roots: Vec<Root>,
    /// True if the caller named a group; false for all groups.
    pub named: bool,
    /// The limits that were read while the groups were listed, by the paths of their files.
    limits: BTreeMap<OsString, LimitSet>,
    /// A line for each user's directory that was not read in full.
    pub notes: Vec<String>,
}

impl Selection {
    /// Selects the named group and the groups below it, or else all groups, with /run/gpulimit
    /// first.
    pub fn of(name: Option<&str>) -> Result<Self, Failure> {
        let Some(name) = name else {
            return Self::all();
        };
        let (root, name) = meant(name, Purpose::Use)?;
        let mut groups = vec![open(&root, &name, Purpose::Use)?];
        let below = root.list(Some(&groups[0]))?;
        groups.extend(without_ended_jobs(below.groups, false));
        Ok(Self {
            groups,
            notes: too_many(&below.cut_short),
            ..Self::gone(root)
        })
    }

    /// Selects all groups, with /run/gpulimit first.
    pub fn all() -> Result<Self, Failure> {
        Self::all_with(false)
    }

    /// Selects as [`Self::of`], also the jobs at the top of a root that have ended, if they have
    /// left something.
    pub fn with_past(name: Option<&str>) -> Result<Self, Failure> {
        let Some(name) = name else {
            return Self::all_with(true);
        };
        Self::of(Some(name)).or_else(|failure| {
            let (root, name) = meant(name, Purpose::Use)?;
            let left = root.past().and_then(|past| past.group(&name));
            let left = left.map_err(|_| failure)?;
            Ok(Self {
                groups: vec![left],
                ..Self::gone(root)
            })
        })
    }

    fn all_with(past: bool) -> Result<Self, Failure> {
        let roots = Root::locate_all(&env)?;
        let (mut groups, mut cut_short) = (Vec::new(), Vec::new());
        let mut notes = Vec::new();
        let mut limits = BTreeMap::new();
        for root in &roots {
            let listing = root.list_and_read(&mut |group, read| {
                limits.insert(group.limits_path().into_os_string(), read);
            })?;
            groups.extend(without_ended_jobs(listing.groups, past));
            cut_short.extend(listing.cut_short);
            match past.then(|| root.past().and_then(|past| past.groups())) {
                Some(Ok(mut left)) => {
                    // A program of the job may have made the group again.
                    left.retain(|left| root.group(left.name()).is_err());
                    left.sort_by_cached_key(|left| Natural::of(left.name()));
                    groups.extend(left);
                }
                Some(Err(error)) if !is_denied(&error) => notes.push(error.to_string()),
                _ => {}
            }
        }
        notes.extend(too_many(&cut_short));
        Ok(Self {
            groups,
            roots,
            named: false,
            limits,
            notes,
        })
    }

    /// Selects no group of the root, where the caller has named a group that does not exist.
    pub fn gone(root: Root) -> Self {
        Self {
            groups: Vec::new(),
            roots: vec![root],
            named: true,
            limits: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the roots that were searched for groups.
    pub fn roots(&self) -> &[Root] {
        &self.roots
    }

    /// Returns the path of the named group's root. Without a name, returns the path of the root in
    /// which new groups are made.
    pub fn root(&self) -> &Path {
        self.roots.last().map_or(Path::new(""), Root::path)
    }

    /// Returns the path of the system root, or of the view of it that the caller's job has; `None`
    /// if neither was searched.
    pub fn system(&self) -> Option<&Path> {
        let mut paths = self.roots.iter().map(Root::path);
        paths.find(|path| path.starts_with(SYSTEM))
    }

    /// Returns entries as JSON under this key. Adds the schema's version and the root's path.
    pub fn json(&self, key: &str, entries: Vec<Value>) -> Value {
        let root = text::shown_path(self.root());
        json!({ "schema": SCHEMA, "root": root, key: entries })
    }

    /// Returns a group's name for printing, with the root's path if the name could mean a group of
    /// the first root.
    pub fn title(&self, group: &Group) -> String {
        self.title_of(group.name(), group.home())
    }

    /// Returns the name for printing of a group that may be gone.
    pub fn title_of(&self, name: &str, root: &Path) -> String {
        let first = self.roots.first().map_or(root, Root::path);
        let top = upwards(name).last().unwrap_or_default();
        let is_top = |other: &Group| other.name() == top && other.root() == first;
        if root != first && self.groups.iter().any(is_top) {
            format!("{name} ({})", root.display())
        } else {
            name.into()
        }
    }

    /// Opens the selected groups for showing them. The notes name groups that fail.
    pub fn views(&self, driver: Option<&Driver>) -> (Vec<View>, Notes) {
        let mut views = Vec::new();
        let notes = self.visit(driver, |at, mut view| {
            // A caller with many views must not run out of descriptors.
            view.ledger.iter_mut().for_each(Ledger::close_file);
            views.push((at, view));
        });
        views.sort_by_key(|(at, _)| *at);
        (views.into_iter().map(|(_, view)| view).collect(), notes)
    }

    /// Opens the selected groups as [`Self::views`] does. Fails if the caller has named a group and
    /// cannot read its ledger.
    pub fn readable(&self, driver: Option<&Driver>) -> Result<(Vec<View>, Notes), Failure> {
        let (views, notes) = self.views(driver);
        match views.first().filter(|_| self.named) {
            Some(view) if view.ledger.is_none() => Err(unreadable(view.group.ledger_path())),
            _ => Ok((views, notes)),
        }
    }

    /// Opens the selected groups one after the other, and passes each to `see` with its place in
    /// [`Self::groups`]. The notes name groups that fail.
    pub fn visit(&self, driver: Option<&Driver>, mut see: impl FnMut(usize, View)) -> Notes {
        let mut shared = Shared::default();
        let mut failed = self.visit_with(&mut shared, driver, &mut see);
        let start = Instant::now();
        // Another program may still be making a group. The wait is bounded, so that no user can
        // delay the caller.
        for _ in 0..LOOKS_AGAIN {
            if failed.is_empty() || start.elapsed() > PATIENCE {
                break;
            }
            thread::sleep(PAUSE);
            failed.retain_mut(|(at, error)| {
                match self.view(&mut shared, &self.groups[*at], driver) {
                    Ok(view) => {
                        view.into_iter().for_each(|view| see(*at, view));
                        false
                    }
                    Err(again) => {
                        *error = again;
                        true
                    }
                }
            });
        }
        let mut notes = Notes {
            lines: self.notes.clone(),
            is_failure: false,
        };
        let cut = shared.budget.cut().into_iter().map(|(_, text)| text);
        notes.add_unopened(failed.iter().map(|(_, error)| error.to_string()).collect());
        notes.lines.extend(cut);
        notes
    }

    /// Opens the selected groups as [`Self::visit`] does, each only once and for a server's answer.
    /// Returns the groups that failed, with their places and the reasons, and a line for each user
    /// whose groups were left out.
    pub fn visit_once(
        &mut self,
        most: Most,
        driver: Option<&Driver>,
        see: impl FnMut(usize, View),
    ) -> (Failed, Vec<(u32, String)>) {
        let mut shared = Shared::with(std::mem::take(&mut self.limits), most);
        let failed = self.visit_with(&mut shared, driver, see);
        (failed, shared.budget.cut())
    }

    fn visit_with(
        &self,
        shared: &mut Shared,
        driver: Option<&Driver>,
        mut see: impl FnMut(usize, View),
    ) -> Failed {
        let mut failed = Vec::new();
        for (at, group) in self.groups.iter().enumerate() {
            let purse = shared.budget.of(group);
            purse.within(group, || match self.view(shared, group, driver) {
                Ok(view) => view.into_iter().for_each(|view| see(at, view)),
                Err(error) => failed.push((at, error)),
            });
        }
        failed
    }

    /// Opens a selected group; `None` if the group has been removed since it was selected.
    fn view(
        &self,
        shared: &mut Shared,
        group: &Group,
        driver: Option<&Driver>,
    ) -> Result<Option<View>, GroupError> {
        match View::cleaned_with(shared, group.clone(), driver) {
            Ok(view) => Ok(Some(View {
                title: self.title(group),
                ..view
            })),
            Err(_) if !group.limits_path().exists() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// An open group, with everything that verbs show about it.
pub struct View {
    pub group: Group,
    /// The budget of the group's owner.
    pub purse: Rc<Purse>,
    /// The group's name for printing.
    pub title: String,
    pub rules: LimitSet,
    /// `None` if the caller cannot read the ledger.
    pub ledger: Option<Ledger>,
    pub devices: Vec<DeviceEntry>,
    /// The processes that are members of this group or of a group below it.
    pub processes: Vec<ProcessUsage>,
    /// The slots of the ledger that count no more: see [`drained::slots`].
    pub drained: Vec<usize>,
    /// The groups above this group, the closest first.
    pub above: Vec<Rc<Above>>,
}

/// Returns whether a group keeps no history of a GPU that it has used.
pub fn is_unrecorded(view: &View) -> bool {
    view.ledger.as_ref().is_some_and(|ledger| {
        let mut devices = view.devices.iter();
        ledger.keeps_history() && devices.any(|device| !ledger.records(device.index))
    })
}

/// Returns a line that names the groups with these titles, which keep no history of a GPU that they
/// have used; `None` without such groups.
pub fn unrecorded_note(titles: &[String]) -> Option<String> {
    (!titles.is_empty()).then(|| {
        format!(
            "no figures of a GPU in {}: the file system of the groups had no space for its \
             history, which begins when the next program uses the GPU",
            text::some(titles)
        )
    })
}

/// Returns the titles of the groups of [`is_unrecorded`].
pub fn unrecorded(views: &[View]) -> Vec<String> {
    let views = views.iter().filter(|view| is_unrecorded(view));
    views.map(|view| view.title.clone()).collect()
}

/// Returns why ledgers could not be read to the end, so that figures are missing.
pub fn damages(views: &[View]) -> Vec<String> {
    let ledgers = views.iter().filter_map(|view| view.ledger.as_ref());
    let damages = ledgers.filter_map(Ledger::damage);
    damages.map(|damage| damage.to_string()).collect()
}

impl View {
    /// Opens a group for showing it. First removes the charges of dead processes if the ledger is
    /// writable.
    pub fn cleaned(group: Group, driver: Option<&Driver>) -> Result<Self, GroupError> {
        Self::cleaned_with(&mut Shared::default(), group, driver)
    }

    /// Opens one of several groups as [`Self::cleaned`] does.
    fn cleaned_with(
        shared: &mut Shared,
        group: Group,
        driver: Option<&Driver>,
    ) -> Result<Self, GroupError> {
        let rules = shared.limits(&group)?;
        let ledger = opened(&group, Ledger::look)?;
        let view = Self::of(shared, group, rules, ledger, driver);
        let damage = view.ledger.as_ref().and_then(Ledger::damage);
        damage.map_or(Ok(view), |damage| Err(damage.into()))
    }

    /// Returns the group's entry of a GPU; `None` if its members have not used the GPU.
    pub fn device(&self, id: DeviceId) -> Option<&DeviceEntry> {
        self.devices.iter().find(|device| device.id == id)
    }

    /// Returns the memory of a GPU in bytes, as the group or NVML knows it.
    pub fn capacity(&self, id: DeviceId, driver: Option<&Driver>) -> Option<u64> {
        let known = self
            .device(id)
            .map(|entry| entry.capacity)
            .filter(|bytes| *bytes > 0);
        known.or_else(|| gpu(id, driver)?.capacity)
    }

    /// Returns the bytes of a GPU that members hold beyond their charges; `None` if NVML does not
    /// tell.
    pub fn uncovered(&self, entry: &DeviceEntry, driver: Option<&Driver>) -> Option<u64> {
        let counts_contexts = self.rules.options.count_context;
        uncovered(self.ledger.as_ref()?, counts_contexts, entry, driver)
    }

    /// Returns the view of a group whose limits and ledger are already open. First removes the
    /// charges of dead processes.
    pub fn of(
        shared: &mut Shared,
        group: Group,
        rules: LimitSet,
        ledger: Option<Ledger>,
        driver: Option<&Driver>,
    ) -> Self {
        if let Some(ledger) = &ledger {
            group.clean_in(ledger, witness(driver));
        }
        let processes = |ledger: &Ledger| ledger.processes(witness(driver));
        let drained = ledger
            .as_ref()
            .map(|ledger| drained::slots(ledger, witness(driver)));
        let drained = drained.unwrap_or_default();
        let mut processes = ledger.as_ref().map(processes).unwrap_or_default();
        processes.retain(|process| drained.binary_search(&process.slot).is_err());
        let mut processes = ProcessUsage::merged(processes);
        let above = shared.above(&group);
        shared.drained(&group, &drained);
        let devices = |ledger| beliefs::devices(ledger, driver, || shared.seen(group.home()));
        let mut devices = ledger.as_ref().map(devices).unwrap_or_default();
        // GPUs that NVML does not list come last, in the order of the ledger.
        devices.sort_by_key(|device| index(device.id, driver).unwrap_or(u32::MAX));
        let purse = shared.budget.of(&group);
        let line = LINE + group.name().len();
        purse.spend(devices.len() * line);
        processes.retain(|process| purse.admits(process.devices.len().max(1) * line));
        Self {
            above,
            title: group.name().to_owned(),
            group,
            purse,
            rules,
            devices,
            processes,
            drained,
            ledger,
        }
    }

    /// Closes the ledger, and returns what was read from it; `None` if the caller cannot read it.
    pub fn into_seen(self) -> Option<Seen> {
        self.ledger.map(|ledger| Seen {
            charges: (self.processes.iter().filter(|process| process.alive))
                .flat_map(|process| process.devices.iter().map(|on| (process.slot, on.device)))
                .filter_map(|(slot, on)| Some(((slot, on), ledger.last_charge(slot, on)?)))
                .collect(),
            group: self.group,
            title: self.title,
            devices: self.devices,
            processes: self.processes,
            abandoned: ledger.abandoned(),
        })
    }

    /// Counts the processes in the group for which `of_kind` is true; `None` if the caller may not
    /// read the ledger.
    pub fn count(&self, of_kind: impl Fn(&ProcessUsage) -> bool) -> Option<u64> {
        let processes = self.processes.iter();
        let found = processes.filter(|process| of_kind(process));
        self.ledger.is_some().then(|| found.count() as u64)
    }
}

/// The members of a group whose ledger was read and is closed again.
pub struct Seen {
    pub group: Group,
    /// The group's name for printing.
    pub title: String,
    pub devices: Vec<DeviceEntry>,
    /// The processes that are members of this group or of a group below it.
    pub processes: Vec<ProcessUsage>,
    /// When the charges of live processes last changed, in seconds since 1970, by slot and device.
    pub charges: BTreeMap<(usize, DeviceIndex), u64>,
    /// The processes of this group on which a command was at work when it died.
    pub abandoned: Vec<Identity>,
}

/// Returns the name of a process's group: `group`, in whose ledger the process is listed, or a
/// group below.
pub fn of_process(group: &Group, process: &ProcessUsage) -> String {
    match &*process.below {
        "" => group.name().into(),
        below => format!("{}/{below}", group.name()),
    }
}

/// Returns the witness, NVML if it answers, which tells whether the driver holds a dead process's
/// memory.
pub fn witness(driver: Option<&Driver>) -> &dyn Witness {
    match driver {
        Some(driver) => driver,
        None => &NoWitness,
    }
}

/// Returns the bytes of a GPU that members of a group hold beyond their charges; `None` if NVML
/// does not tell.
pub fn uncovered(
    ledger: &Ledger,
    counts_contexts: bool,
    entry: &DeviceEntry,
    driver: Option<&Driver>,
) -> Option<u64> {
    let driver = driver?;
    if !ledger.has_live() {
        return Some(0);
    }
    let compared = Compared {
        ledger,
        device: entry.index,
        counts_contexts,
    };
    gpulimit_ledger::uncovered(&[compared], || driver.figures(&entry.id))?.pop()
}

/// Returns whether the system denied access to a group's file.
pub fn is_denied(error: &GroupError) -> bool {
    is_forbidden(error) || kind(error) == Some(ErrorKind::ReadOnlyFilesystem)
}

/// Returns whether the permissions of a group's file deny access.
pub fn is_forbidden(error: &GroupError) -> bool {
    kind(error) == Some(ErrorKind::PermissionDenied)
}

fn kind(error: &GroupError) -> Option<ErrorKind> {
    match error {
        GroupError::Io { error, .. } | GroupError::Ledger(LedgerError::Io { error, .. }) => {
            Some(error.kind())
        }
        _ => None,
    }
}

/// Opens a group's ledger for writing, or else read-only. Returns `None` if the caller cannot read
/// it.
pub fn readable(group: &Group) -> Result<Option<Ledger>, GroupError> {
    opened(group, |path, write| match write {
        true => Ledger::open(path),
        false => Ledger::open_readonly(path),
    })
}

/// Does the same as [`readable`] with `open`, whose second argument is whether to write.
fn opened(
    group: &Group,
    open: impl Fn(&Path, bool) -> Result<Ledger, LedgerError>,
) -> Result<Option<Ledger>, GroupError> {
    let path = group.ledger_path();
    let opened = match open(&path, true).map_err(GroupError::from) {
        Err(error) if is_denied(&error) => open(&path, false).map_err(GroupError::from),
        opened => opened,
    };
    match opened {
        Err(error) if is_denied(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Opens a group's ledger to signal its processes. If another program has a lease on the ledger,
/// waits for the end of the lease: a lease must not protect the processes from signals.
pub fn to_signal(group: &Group) -> Result<Option<Ledger>, GroupError> {
    group.past_lease_on_ledger(end_of_leases(), || readable(group))
}

/// Returns the time until which this command waits for leases (`F_SETLEASE`) of other programs: one
/// minute in all.
pub fn end_of_leases() -> Instant {
    static END: OnceLock<Instant> = OnceLock::new();
    *END.get_or_init(|| Instant::now() + Duration::from_secs(60))
}

/// Returns the error for a ledger that the caller is not allowed to read.
pub fn unreadable(path: PathBuf) -> Failure {
    Failure::new(format_args!(
        "you are not allowed to read {}: only members of the group can read this file",
        path.display()
    ))
}

/// Returns a GPU's name in tables: NVML's index, or else the beginning of the UUID.
pub fn short_label(index: Option<u32>, id: DeviceId) -> String {
    index.map_or_else(|| id.short().to_string(), |index| index.to_string())
}

/// Returns a GPU's name in messages: NVML's index, if known, and the beginning of the UUID.
pub fn label(id: DeviceId, driver: Option<&Driver>) -> String {
    match index(id, driver) {
        Some(index) => format!("{index} ({})", id.short()),
        None => id.short().to_string(),
    }
}

/// Returns NVML's index of a GPU.
pub fn index(id: DeviceId, driver: Option<&Driver>) -> Option<u32> {
    gpu(id, driver).map(|gpu| gpu.index)
}

/// Returns the GPU with this UUID from NVML's list.
pub fn gpu(id: DeviceId, driver: Option<&Driver>) -> Option<&Gpu> {
    driver?.gpus().iter().find(|gpu| gpu.id == id)
}
