//! Groups by name, and a look into them; shared by the verbs.

use super::failure::Failure;
use super::nvml::{Driver, Gpu};
use super::{env, output};
use gpulimit::device::DeviceId;
use gpulimit::group::{Group, GroupError, Root, SYSTEM, effective_user, upwards};
use gpulimit::ledger::{DeviceEntry, Ledger, LedgerError, NoWitness, ProcessUsage, Witness};
use gpulimit::limits::LimitSet;
use gpulimit::policy;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The root that has a group of this name, or would get it: the machine's for those whom its rules put into a group.
pub fn root_of(name: &str) -> Result<Root, Failure> {
    match policy::rule() {
        Ok(Some(_)) => Ok(Root::at(SYSTEM)?),
        // Rules that cannot be read, as those of another version, must not keep root from making way for new ones.
        Err(error) if effective_user() != 0 => Err(error.into()),
        Ok(None) | Err(_) => Ok(Root::locate_group(&env, name)?),
    }
}

/// The group of this name, which must exist.
pub fn find(name: &str) -> Result<Group, Failure> {
    Ok(root_of(name)?.group(name)?)
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
    /// The group of this name and those below it; all without a name, those of the system's root first.
    pub fn of(name: Option<&str>) -> Result<Self, Failure> {
        let (roots, groups) = match name {
            Some(name) => {
                let root = root_of(name)?;
                let mut groups = vec![root.group(name)?];
                groups.extend(root.groups_within(&groups[0])?);
                (vec![root], groups)
            }
            None => {
                let roots = Root::locate_all(&env)?;
                let mut groups = Vec::new();
                for root in &roots {
                    groups.extend(root.groups()?);
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

    /// The name of a group for people. By its name alone the first root's group is meant: one of another root that would be
    /// taken for it is shown with its root.
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
    pub fn views(&self, driver: Option<&Driver>) -> (Vec<View>, ExitCode) {
        let mut status = ExitCode::SUCCESS;
        let mut views = Vec::new();
        for group in &self.groups {
            match self.view(group, driver) {
                Ok(Some(view)) => views.push(view),
                // Removed since it was listed.
                Ok(None) => {}
                Err(error) => {
                    output::note(&error.to_string());
                    status = ExitCode::FAILURE;
                }
            }
        }
        (views, status)
    }

    /// Opens a group that was listed; `None` where it is gone. One that lacks a file may be on its way, or made anew at this moment.
    fn view(&self, group: &Group, driver: Option<&Driver>) -> Result<Option<View>, GroupError> {
        const LOOKS: u32 = 10;
        for look in 1.. {
            match View::open(group.clone(), self.title(group), driver) {
                Ok(view) => return Ok(Some(view)),
                Err(_) if !group.limits_path().exists() => return Ok(None),
                Err(error) if look == LOOKS => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        Ok(None)
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
    /// The groups above one, from below. One that cannot be opened, as it is being removed, is left out.
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
    /// Opens a group; what its dead processes held is taken out first, where we may and the driver has let go.
    pub fn open(group: Group, title: String, driver: Option<&Driver>) -> Result<Self, GroupError> {
        let witness = witness(driver);
        let rules = group.limits()?.rules()?;
        let ledger = readable(&group)?;
        let (mut devices, mut processes) = (Vec::new(), Vec::new());
        if let Some(ledger) = &ledger {
            ledger.clean(witness);
            devices = ledger.devices();
            processes = ledger.processes(witness);
        }
        Ok(Self {
            above: Above::all(&group),
            group,
            title,
            rules,
            ledger,
            devices,
            processes,
        })
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
