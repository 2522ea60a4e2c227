//! A look at groups, shared by the verbs that show them.

use super::failure::Failure;
use super::nvml::Driver;
use gpulimit::device::DeviceId;
use gpulimit::group::{Group, GroupError, Root};
use gpulimit::ledger::{DeviceEntry, Ledger, LedgerError, NoWitness, ProcessUsage, Witness};
use gpulimit::limits::{LimitSet, Limits};
use std::io::ErrorKind;

/// A group, open for looking.
pub struct View {
    pub group: Group,
    pub limits: Limits,
    pub rules: LimitSet,
    pub ledger: Ledger,
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
        let ledger = match Ledger::open(&group.ledger_path()) {
            Err(LedgerError::Io { error, .. })
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                group.ledger()?
            }
            opened => opened?,
        };
        ledger.clean(witness);
        Ok(Self {
            devices: ledger.devices(),
            processes: ledger.processes(witness),
            group,
            limits,
            rules,
            ledger,
        })
    }
}

/// The group of this name, or all.
pub fn chosen(root: &Root, name: Option<&str>) -> Result<Vec<Group>, Failure> {
    match name {
        Some(name) => Ok(vec![root.group(name)?]),
        None => Ok(root.groups()?),
    }
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
