//! Groups by name, and a look into them; shared by the verbs.

use super::failure::Failure;
use super::nvml::{Driver, Gpu};
use super::{env, output};
use gpulimit_base::device::DeviceId;
use gpulimit_group::{
    Group, GroupError, Root, SYSTEM, WithoutCreateHint, check_name, effective_user, is_within,
    parent, upwards,
};
use gpulimit_ledger::{DeviceEntry, Ledger, LedgerError, NoWitness, ProcessUsage, Witness};
use gpulimit_limits::LimitSet;
use gpulimit_policy::{self as policy, PolicyError};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// How often groups that lack a file are looked at again, how long the pauses before that are, and
/// for how long this goes on.
const LOOKS_AGAIN: u32 = 9;
const PAUSE: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_millis(100);

/// What a group is named for.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// To look at it or to remove it: it exists.
    Use,
    /// To change it: where it does not exist, it may be made first.
    Change,
    /// To make it.
    Make,
    /// To run programs in it, and perhaps to make it first.
    Run,
}

/// Returns the root and the whole name of the group that the caller means by `name`.
///
/// Names mean the same in all verbs as in `GPULIMIT_GROUP`: a user whom a rule assigns to a group
/// names groups from there on, so that `night` is `lab/alice/night`; a name that begins with the
/// assigned group is a whole one. Groups elsewhere can be looked at by their whole names, and
/// programs cannot run in them. Root administers the machine and names groups from the top, but for
/// running in them.
pub fn meant(name: &str, purpose: Purpose) -> Result<(Root, String), Failure> {
    let rule = match policy::rule() {
        Ok(Some(rule)) => rule,
        // Rules that cannot be read, as those of another version, must not keep root from making
        // way for new ones.
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

/// The group that the caller means by this name, which must exist.
pub fn find(name: &str, purpose: Purpose) -> Result<Group, Failure> {
    let (root, name) = meant(name, purpose)?;
    open(&root, &name, purpose)
}

/// Opens a group. Those who only look at groups are not told to make one.
pub fn open(root: &Root, name: &str, purpose: Purpose) -> Result<Group, Failure> {
    root.group(name).map_err(|error| match purpose {
        Purpose::Use if error.is_missing() => Failure::new(WithoutCreateHint(&error)),
        _ => error.into(),
    })
}

/// Leaves out the groups of ended jobs, unless there are others below them.
fn going_on(groups: Vec<Group>) -> Vec<Group> {
    let mut parents = BTreeSet::new();
    let mut kept = Vec::new();
    let ended = Group::ended(&groups);
    // Those below come before the one that they are in.
    for (group, ended) in groups.into_iter().zip(ended).rev() {
        if parents.contains(group.name()) || !ended {
            parents.extend(parent(group.name()).map(str::to_owned));
            kept.push(group);
        }
    }
    kept.reverse();
    kept
}

/// Groups that a verb is about: one and those below it, or all.
pub struct Selection {
    /// Each before those below it.
    pub groups: Vec<Group>,
    /// Where groups are looked for; the last one is where new ones are made.
    roots: Vec<Root>,
    /// Whether one was named.
    pub named: bool,
}

impl Selection {
    /// The group of this name and those below it; all without a name, those of the system's root
    /// first.
    pub fn of(name: Option<&str>) -> Result<Self, Failure> {
        let (roots, groups) = match name {
            Some(name) => {
                let (root, name) = meant(name, Purpose::Use)?;
                let mut groups = vec![open(&root, &name, Purpose::Use)?];
                groups.extend(going_on(root.groups_within(&groups[0])?));
                (vec![root], groups)
            }
            None => {
                let roots = Root::locate_all(&env)?;
                let mut groups = Vec::new();
                for root in &roots {
                    groups.extend(going_on(root.groups()?));
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

    /// The root of the group that was named, or in which new ones are made.
    pub fn root(&self) -> &Path {
        self.roots.last().map_or(Path::new(""), Root::path)
    }

    /// The name of a group for people. By its name alone the first root's group is meant: one of
    /// another root that would be taken for it is shown with its root.
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

    /// Opens the groups. What cannot be opened is said, and the status is a failure.
    ///
    /// A group that lacks a file may be one that is being made, so that it is looked at again. All
    /// such groups share the waits: an owner who leaves thousands of unfinished directories makes
    /// nobody wait for each.
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

    /// Opens a group that was listed; `None` where it was removed since.
    fn view(&self, group: &Group, driver: Option<&Driver>) -> Result<Option<View>, GroupError> {
        match View::cleaned(group.clone(), self.title(group), driver) {
            Ok(view) => Ok(Some(view)),
            Err(_) if !group.limits_path().exists() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Says which groups cannot be opened: the first ones each on a line, then how many others there
/// are.
#[derive(Default)]
pub struct Unreadable {
    groups: usize,
}

impl Unreadable {
    /// Lines for single groups.
    const LINES: usize = 8;

    /// Says why one group cannot be opened, unless enough were named.
    pub fn note(&mut self, why: &str) {
        self.groups += 1;
        if self.groups <= Self::LINES {
            output::note(why);
        }
    }

    /// Says how many groups were not named. Returns whether there was any group that cannot be
    /// opened.
    pub fn end(&self) -> bool {
        match self.groups.saturating_sub(Self::LINES) {
            0 => {}
            1 => output::note("and 1 other group cannot be opened"),
            others => output::note(&format!("and {others} other groups cannot be opened")),
        }
        self.groups > 0
    }
}

/// The part of a group above another one that counts for it.
pub struct Above {
    pub name: String,
    pub rules: LimitSet,
    /// `None` where it is not ours to read.
    pub ledger: Option<Ledger>,
}

impl Above {
    /// The groups above one, from below. One that cannot be opened, as it is being removed, is left
    /// out.
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

/// A group, open for looking.
pub struct View {
    pub group: Group,
    /// Its name for people.
    pub title: String,
    pub rules: LimitSet,
    /// `None` where it is not ours to read.
    pub ledger: Option<Ledger>,
    pub devices: Vec<DeviceEntry>,
    /// Those of the groups below it, too.
    pub processes: Vec<ProcessUsage>,
    /// From below.
    pub above: Vec<Above>,
}

impl View {
    /// Opens a group after what its dead processes held is taken out, where we may and the driver
    /// has let go.
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

    /// Looks at a group whose files are open.
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

    /// How many processes are of a kind; `None` where we may not look.
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

/// Who tells what the driver still holds.
pub fn witness(driver: Option<&Driver>) -> &dyn Witness {
    match driver {
        Some(driver) => driver,
        None => &NoWitness,
    }
}

/// Whether the system does not let us.
pub fn is_denied(error: &LedgerError) -> bool {
    match error {
        LedgerError::Io { error, .. } => matches!(
            error.kind(),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
        ),
        _ => false,
    }
}

/// The ledger, for cleaning too where we may; `None` where we may not even look.
pub fn readable(group: &Group) -> Result<Option<Ledger>, GroupError> {
    let path = group.ledger_path();
    match Ledger::open(&path) {
        Err(error) if is_denied(&error) => match Ledger::open_readonly(&path) {
            Err(error) if is_denied(&error) => Ok(None),
            opened => Ok(Some(opened?)),
        },
        opened => Ok(Some(opened?)),
    }
}

/// Opens the ledger as [`readable`] does, and waits for the end of other programs' leases on it: a
/// lease does not keep the group's processes from getting a signal.
pub fn to_signal(group: &Group) -> Result<Option<Ledger>, GroupError> {
    group.past_leases(end_of_leases(), || readable(group))
}

/// The time until which this command waits for other programs' leases (`F_SETLEASE`) on files of
/// groups: a minute from the first call, for all groups together. The kernel ends a lease after 45
/// seconds by default.
pub fn end_of_leases() -> Instant {
    static END: OnceLock<Instant> = OnceLock::new();
    *END.get_or_init(|| Instant::now() + Duration::from_secs(60))
}

/// A ledger that somebody asked for by name and that is not his to read.
pub fn unreadable(path: PathBuf) -> Failure {
    Failure::new(format_args!(
        "you may not read {}: it belongs to the group's members",
        path.display()
    ))
}

/// A GPU as a person knows it: NVML's index where there is one, and the beginning of the UUID.
pub fn label(id: DeviceId, driver: Option<&Driver>) -> String {
    match index(id, driver) {
        Some(index) => format!("{index} ({})", id.short()),
        None => id.short().to_string(),
    }
}

/// NVML's index of a GPU.
pub fn index(id: DeviceId, driver: Option<&Driver>) -> Option<u32> {
    gpu(id, driver).map(|gpu| gpu.index)
}

/// What NVML knows of a GPU.
pub fn gpu(id: DeviceId, driver: Option<&Driver>) -> Option<&Gpu> {
    driver?.gpus().iter().find(|gpu| gpu.id == id)
}
