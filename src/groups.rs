//! Finds and opens groups, for all verbs.

use super::failure::Failure;
use super::figures::SCHEMA;
use super::nvml::{Driver, Gpu};
use super::{env, output};
use gpulimit_base::device::DeviceId;
use gpulimit_group::{
    Group, GroupError, Listing, MAX_USER_NAMES, Root, SYSTEM, WithoutCreateHint, check_name,
    effective_user, is_within, parent, upwards,
};
use gpulimit_ledger::{DeviceEntry, Ledger, LedgerError, NoWitness, ProcessUsage, Witness};
use gpulimit_limits::LimitSet;
use gpulimit_policy::{self as policy, PolicyError};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// The limits for reopening groups that lack a file: the number of attempts, the pause before each
/// attempt, and the total time for all groups.
const LOOKS_AGAIN: u32 = 9;
const PAUSE: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_millis(100);

/// What a verb needs a group for. The purpose decides the error for a group that does not exist.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// The verb shows or removes the group: the group must exist.
    Use,
    /// The verb changes the group: if the group does not exist, the error suggests making it.
    Change,
    /// To make it.
    Make,
    /// The verb runs programs in the group, and may make the group first.
    Run,
}

/// Returns the root and the full name of the group that the caller means by `name`.
///
/// Names of groups have the same meaning in all verbs and in `GPULIMIT_GROUP`. If a rule assigns
/// the caller to a group, names are relative to that group: for a caller in `lab/alice`, the name
/// `night` means `lab/alice/night`. A name that begins with the name of the assigned group is a
/// full name. Verbs that only show groups also accept full names of other groups; programs cannot
/// run in those groups. Root administers the machine, so root's names are always full names, except
/// in `run`.
pub fn meant(name: &str, purpose: Purpose) -> Result<(Root, String), Failure> {
    let rule = match policy::rule() {
        Ok(Some(rule)) => rule,
        // If the rules cannot be read, root continues without a rule. Root must be able to replace
        // such rules, for instance rules of another version.
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

/// Finds and opens the group that the caller means by `name`.
pub fn find(name: &str, purpose: Purpose) -> Result<Group, Failure> {
    let (root, name) = meant(name, purpose)?;
    open(&root, &name, purpose)
}

/// Opens a group. For [`Purpose::Use`], the error for a missing group does not suggest making it.
pub fn open(root: &Root, name: &str, purpose: Purpose) -> Result<Group, Failure> {
    root.group(name).map_err(|error| match purpose {
        Purpose::Use if error.is_missing() => Failure::new(WithoutCreateHint(&error.with_known())),
        _ => error.into(),
    })
}

/// Drops the groups of ended jobs from a list of groups. Keeps a job's group if a group below it
/// stays.
fn without_ended_jobs(groups: Vec<Group>) -> Vec<Group> {
    let mut parents = BTreeSet::new();
    let mut kept = Vec::new();
    let ended = Group::ended(&groups);
    // Go through the list backwards, so that the groups below a group are seen before the group
    // itself.
    for (group, ended) in groups.into_iter().zip(ended).rev() {
        if parents.contains(group.name()) || !ended {
            parents.extend(parent(group.name()).map(str::to_owned));
            kept.push(group);
        }
    }
    kept.reverse();
    kept
}

/// Returns the groups of a listing, and names on standard error the directories of users that have
/// too many names to be read in full.
pub fn reported(listing: Listing) -> Vec<Group> {
    for path in &listing.cut_short {
        output::note(&format!(
            "{} belongs to a user and has more than {MAX_USER_NAMES} entries; the groups among the \
             other entries are left out: ask that user to remove what is not needed",
            path.to_string_lossy().escape_debug()
        ));
    }
    listing.groups
}

/// The groups that a verb handles: one group and the groups below it, or all groups.
pub struct Selection {
    /// The groups. Each group comes before the groups below it.
    pub groups: Vec<Group>,
    /// The roots in which the groups were searched. New groups are made in the last root.
    roots: Vec<Root>,
    /// True if the caller of the verb named a group; false for all groups.
    pub named: bool,
}

impl Selection {
    /// Selects the group with this name and the groups below it. Without a name, selects all
    /// groups, those of the system's root first.
    pub fn of(name: Option<&str>) -> Result<Self, Failure> {
        let (roots, groups) = match name {
            Some(name) => {
                let (root, name) = meant(name, Purpose::Use)?;
                let mut groups = vec![open(&root, &name, Purpose::Use)?];
                let below = reported(root.list(Some(&groups[0]))?);
                groups.extend(without_ended_jobs(below));
                (vec![root], groups)
            }
            None => {
                let roots = Root::locate_all(&env)?;
                let mut groups = Vec::new();
                for root in &roots {
                    groups.extend(without_ended_jobs(reported(root.list(None)?)));
                }
                (roots, groups)
            }
        };
        Ok(Self {
            groups,
            roots,
            named: name.is_some(),
        })
    }

    /// Returns the path of the root of the named group or, without a name, of the root in which new
    /// groups are made.
    pub fn root(&self) -> &Path {
        self.roots.last().map_or(Path::new(""), Root::path)
    }

    /// Prints entries as JSON under this key, with the version of the schema and the root's path.
    pub fn print_json(&self, key: &str, entries: Vec<Value>) -> Result<(), Failure> {
        let root = self.root().to_string_lossy();
        output::json(&json!({ "schema": SCHEMA, "root": root, key: entries }))
    }

    /// Returns the name of a group for people. A name without a root's path means a group of the
    /// first root. So this function adds the root's path to the name of a group of another root, if
    /// the first root has a group with the same top-level name.
    pub fn title(&self, group: &Group) -> String {
        let first = self.roots.first().map_or(group.root(), Root::path);
        let top = upwards(group.name()).last().unwrap_or_default();
        let is_top = |other: &Group| other.root() == first && other.name() == top;
        if group.root() != first && self.groups.iter().any(is_top) {
            format!("{} ({})", group.name(), group.root().display())
        } else {
            group.name().into()
        }
    }

    /// Opens the selected groups for showing them. Groups that cannot be opened are reported, and
    /// the exit status is then a failure.
    ///
    /// Another program may still be making a group that lacks a file, so this function tries to
    /// open the group again. All such groups share one bounded wait. So a user with thousands of
    /// unfinished directories cannot delay the caller for long.
    pub fn views(&self, driver: Option<&Driver>) -> (Vec<View>, ExitCode) {
        let look = |group: &Group| self.view(group, driver);
        let mut seen: Vec<_> = self.groups.iter().map(look).collect();
        let start = Instant::now();
        for _ in 0..LOOKS_AGAIN {
            if seen.iter().all(Result::is_ok) || start.elapsed() > PATIENCE {
                break;
            }
            thread::sleep(PAUSE);
            for (group, view) in self.groups.iter().zip(&mut seen) {
                if view.is_err() {
                    *view = look(group);
                }
            }
        }
        let mut unreadable = Unreadable::default();
        let mut views = Vec::new();
        for view in seen {
            match view {
                Ok(view) => views.extend(view),
                Err(error) => unreadable.note(&error.to_string()),
            }
        }
        (views, ExitCode::from(u8::from(unreadable.end())))
    }

    /// Opens a group of the selection; `None` if the group was removed after it was listed.
    fn view(&self, group: &Group, driver: Option<&Driver>) -> Result<Option<View>, GroupError> {
        match View::cleaned(group.clone(), self.title(group), driver) {
            Ok(view) => Ok(Some(view)),
            Err(_) if !group.limits_path().exists() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The report of the groups that cannot be opened: a line for each of the first groups, then the
/// number of the other groups.
#[derive(Default)]
pub struct Unreadable {
    groups: usize,
}

impl Unreadable {
    /// The number of groups that get a line of their own in the report.
    const LINES: usize = 8;

    /// Reports why a group cannot be opened, unless enough groups were reported already.
    pub fn note(&mut self, why: &str) {
        self.groups += 1;
        if self.groups <= Self::LINES {
            output::note(why);
        }
    }

    /// Reports the number of groups that got no line of their own. Returns whether there was any
    /// group that cannot be opened.
    pub fn end(&self) -> bool {
        match self.groups.saturating_sub(Self::LINES) {
            0 => {}
            1 => output::note("and 1 other group cannot be opened"),
            others => output::note(&format!("and {others} other groups cannot be opened")),
        }
        self.groups > 0
    }
}

/// A group above a shown group, with the facts that the figures of the shown group depend on.
pub struct Above {
    pub name: String,
    pub rules: LimitSet,
    /// `None` if the caller may not read the ledger.
    pub ledger: Option<Ledger>,
}

impl Above {
    /// Opens the groups above `group`, the closest first. Leaves out groups that cannot be opened
    /// because they are being removed.
    pub fn all(group: &Group) -> Vec<Self> {
        let open = |group: Group| {
            Some(Self {
                rules: group.limits().ok()?.rules().ok()?,
                ledger: Ledger::open_readonly(&group.ledger_path()).ok(),
                name: group.name().into(),
            })
        };
        group.upwards().skip(1).filter_map(open).collect()
    }
}

/// An open group with everything that verbs show of it.
pub struct View {
    pub group: Group,
    /// The name that people see.
    pub title: String,
    pub rules: LimitSet,
    /// `None` if the caller may not read the ledger.
    pub ledger: Option<Ledger>,
    pub devices: Vec<DeviceEntry>,
    /// The processes that are members of this group or of a group below it.
    pub processes: Vec<ProcessUsage>,
    /// The groups above this group, the closest first.
    pub above: Vec<Above>,
}

impl View {
    /// Opens a group for showing it. First removes the charges of dead processes from its ledger,
    /// if the caller may write the ledger and the driver has freed the memory.
    pub fn cleaned(
        group: Group,
        title: String,
        driver: Option<&Driver>,
    ) -> Result<Self, GroupError> {
        let rules = group.limits()?.rules()?;
        let ledger = readable(&group)?;
        if let Some(ledger) = &ledger {
            ledger.clean(witness(driver));
        }
        Ok(Self::of(group, title, rules, ledger, driver))
    }

    /// Reads a group whose limits and ledger are already open.
    pub fn of(
        group: Group,
        title: String,
        rules: LimitSet,
        ledger: Option<Ledger>,
        driver: Option<&Driver>,
    ) -> Self {
        let processes = |ledger: &Ledger| ledger.processes(witness(driver));
        Self {
            above: Above::all(&group),
            group,
            title,
            rules,
            devices: ledger.as_ref().map(Ledger::devices).unwrap_or_default(),
            processes: ledger.as_ref().map(processes).unwrap_or_default(),
            ledger,
        }
    }

    /// Counts the group's processes that match a condition; `None` if the caller may not read the
    /// ledger.
    pub fn count(&self, of_kind: impl Fn(&ProcessUsage) -> bool) -> Option<usize> {
        let count = || {
            self.processes
                .iter()
                .filter(|process| of_kind(process))
                .count()
        };
        self.ledger.is_some().then(count)
    }
}

/// Returns the name of the group that a process is in: `group`, or a group below it.
pub fn of_process(group: &Group, process: &ProcessUsage) -> String {
    match &*process.below {
        "" => group.name().into(),
        below => format!("{}/{below}", group.name()),
    }
}

/// Returns the witness: NVML, if it answers. A witness tells whether the driver still holds the
/// memory of a dead process.
pub fn witness(driver: Option<&Driver>) -> &dyn Witness {
    match driver {
        Some(driver) => driver,
        None => &NoWitness,
    }
}

/// Returns whether the system denied access to a group's file.
pub fn is_denied(error: &GroupError) -> bool {
    let (GroupError::Io { error, .. } | GroupError::Ledger(LedgerError::Io { error, .. })) = error
    else {
        return false;
    };
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
    )
}

/// Opens the ledger of a group: for writing, so that the charges of dead processes can be removed,
/// or read-only if the caller may not write. Returns `None` if the caller may not even read the
/// ledger.
pub fn readable(group: &Group) -> Result<Option<Ledger>, GroupError> {
    let path = group.ledger_path();
    let opened = match Ledger::open(&path).map_err(GroupError::from) {
        Err(error) if is_denied(&error) => Ledger::open_readonly(&path).map_err(GroupError::from),
        opened => opened,
    };
    match opened {
        Err(error) if is_denied(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Opens the ledger of a group whose processes will get a signal. Other programs may hold leases on
/// the ledger (`F_SETLEASE`). Waits for the end of these leases, because a lease must not keep the
/// processes from getting the signal.
pub fn to_signal(group: &Group) -> Result<Option<Ledger>, GroupError> {
    group.past_lease_on_ledger(end_of_leases(), || readable(group))
}

/// Returns the deadline for this command's waits on leases: other programs may hold leases
/// (`F_SETLEASE`) on groups' files. The deadline is a minute after the first call of this function,
/// for all groups together. The kernel ends a lease after 45 seconds by default.
pub fn end_of_leases() -> Instant {
    static END: OnceLock<Instant> = OnceLock::new();
    *END.get_or_init(|| Instant::now() + Duration::from_secs(60))
}

/// Makes the failure for a ledger that the caller may not read.
pub fn unreadable(path: PathBuf) -> Failure {
    Failure::new(format_args!(
        "you may not read {}: only members of the group can",
        path.display()
    ))
}

/// Returns the name of a GPU for people: NVML's index, if known, and the beginning of the UUID.
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
