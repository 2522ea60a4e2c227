//! A look at groups, shared by the verbs that show them.

use super::failure::Failure;
use super::nvml::Driver;
use super::output;
use gpulimit::device::DeviceId;
use gpulimit::group::{Group, GroupError, Root};
use gpulimit::ledger::{DeviceEntry, Ledger, LedgerError, NoWitness, ProcessUsage, Witness};
use gpulimit::limits::{LimitSet, Limits};
use std::io::ErrorKind;
use std::process::ExitCode;

/// A group, open for looking.
pub struct View {
    pub group: Group,
    pub limits: Limits,
    pub rules: LimitSet,
    /// `None` where it is not ours to read.
    pub ledger: Option<Ledger>,
    pub devices: Vec<DeviceEntry>,
    pub processes: Vec<ProcessUsage>,
}

impl View {
    /// Opens a group; what its dead processes held is taken out first, where we may and the driver has let go.
    pub fn open(group: Group, driver: Option<&Driver>) -> Result<Self, GroupError> {
        let witness: &dyn Witness = match driver {
            Some(driver) => driver,
            None => &NoWitness,
        };
        let limits = group.limits()?;
        let rules = limits.rules()?;
        let ledger = readable(&group)?;
        let (mut devices, mut processes) = (Vec::new(), Vec::new());
        if let Some(ledger) = &ledger {
            ledger.clean(witness);
            devices = ledger.devices();
            processes = ledger.processes(witness);
        }
        Ok(Self {
            group,
            limits,
            rules,
            ledger,
            devices,
            processes,
        })
    }
}

impl View {
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

/// The ledger, for cleaning too where we may; `None` where we may not even look.
fn readable(group: &Group) -> Result<Option<Ledger>, GroupError> {
    let denied = |error: &LedgerError| match error {
        LedgerError::Io { error, .. } => matches!(
            error.kind(),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
        ),
        _ => false,
    };
    let path = group.ledger_path();
    match Ledger::open(&path) {
        Err(error) if denied(&error) => match Ledger::open_readonly(&path) {
            Err(error) if denied(&error) => Ok(None),
            opened => Ok(Some(opened?)),
        },
        opened => Ok(Some(opened?)),
    }
}

/// The group of this name, or all that can be opened. What cannot is said, and the status is a failure.
pub fn views(
    root: &Root,
    name: Option<&str>,
    driver: Option<&Driver>,
) -> Result<(Vec<View>, ExitCode), Failure> {
    let groups = match name {
        Some(name) => vec![root.group(name)?],
        None => root.groups()?,
    };
    let mut status = ExitCode::SUCCESS;
    let mut views = Vec::new();
    for group in groups {
        let limits = group.limits_path();
        match View::open(group, driver) {
            Ok(view) => views.push(view),
            // Removed since it was listed.
            Err(_) if name.is_none() && !limits.exists() => {}
            Err(error) => {
                output::note(&error.to_string());
                status = ExitCode::FAILURE;
            }
        }
    }
    Ok((views, status))
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
    let gpu = driver?.gpus().iter().find(|gpu| gpu.id == id)?;
    Some(gpu.index)
}
