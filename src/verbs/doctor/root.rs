//! Checks the directory of groups, the entries in it, and whether the caller can make groups.

use super::finding::{Check, Finding};
use crate::groups;
use crate::groups::budget::{Budget, LINE, VERB};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output;
use crate::words::environment::env;
use gpulimit_base::file_system::{self, FileSystem, Unsuitable};
use gpulimit_base::units::gib;
use gpulimit_group::{Group, GroupError, Listing, Root, SYSTEM};
use gpulimit_ledger::{DeviceEntry, Ledger, LedgerError};
use std::error::Error;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const CHECK: Check = Check("root");
const STALE: Check = Check("stale");
/// The bytes of a user's budget that a finding takes.
const FINDING: usize = 8 * LINE;

/// Checks the directory in which the caller's groups are made. Fails if it cannot be examined.
pub(super) fn checks() -> Result<Vec<Finding>, Finding> {
    let failed = |error: &dyn Error| CHECK.error(error.to_string(), "");
    let root = Root::locate(&env).map_err(|error| failed(&error))?;
    let path = root.path().display();
    let on = file_system(root.path()).map_err(|error| failed(&error))?;
    let tried = root.try_out();
    let Ok(about) = fs::metadata(root.path()) else {
        tried.map_err(|error| unusable(&root, &error))?;
        let text = format!("{path}{on}; the directory will be made with the first group");
        return Ok(vec![CHECK.fine(text)]);
    };
    let listing = root.list(None).map_err(|error| failed(&error))?;
    let Listing { groups, cut_short } = listing;
    let (owner, mode) = (accounts::user_name(about.uid()), about.mode() & 0o7777);
    let count = groups.len();
    let text = format!("{path}{on}, owner {owner}, mode {mode:04o}, groups: {count}");
    let mut findings = vec![CHECK.fine(text)];
    match tried {
        Ok(true) => {}
        Ok(false) if groups.is_empty() => {
            let text = format!(
                "{path} has no groups in which to run programs, and you are not allowed to make one"
            );
            let remedy = "ask the owner of the directory for a group, or name a directory of your \
                          own in GPULIMIT_ROOT";
            findings.push(CHECK.error(text, remedy));
        }
        Ok(false) => findings.push(CHECK.fine(format!(
            "the space for more groups in {path} was not tested: you cannot make groups there"
        ))),
        Err(error) => findings.push(unusable(&root, &error)),
    }
    let is_system = root.path() == Path::new(SYSTEM) && about.uid() == 0;
    if is_system && !file_system::is_mount_point(root.path()) {
        let text = format!(
            "{path} is not a separate file system: members of its groups can fill the file system \
             of /run"
        );
        let remedy = "mount a tmpfs at that directory before you make groups: docs/systemd.md has \
                      a unit for it";
        findings.push(CHECK.warning(text, remedy));
    }
    let cut_short = groups::too_many(&cut_short).into_iter();
    findings.extend(cut_short.map(|text| CHECK.warning(text, "")));
    let driver = Driver::load().ok();
    let mut budget = Budget::new(VERB);
    for group in groups {
        let look = || -> Result<Vec<Finding>, GroupError> {
            let counts_contexts = group.limits()?.rules()?.options.count_context;
            let ledger = group.ledger()?;
            Ok(uncovered(&group, &ledger, counts_contexts, driver.as_ref()))
        };
        let purse = budget.of(&group);
        let warning = |error: GroupError| vec![Check("group").warning(error.to_string(), "")];
        if let Some(found) = purse.within(&group, look) {
            let found = found.unwrap_or_else(warning);
            purse.spend(found.len() * FINDING);
            findings.extend(found);
        }
    }
    let cut = budget.cut().into_iter();
    findings.extend(cut.map(|(_, text)| Check("group").warning(text, "")));
    if let Err(error) = root.trail() {
        let text = format!("new events of jobs outside named groups are lost: {error}");
        findings.push(Check("events").warning(text, ""));
    }
    let leftovers = root.leftovers().unwrap_or_default();
    if !leftovers.is_empty() {
        let text = format!("not complete groups: {}", output::some_paths(&leftovers));
        let remedy = "`gpulimit gc` removes an incomplete group without limits; `gpulimit create` \
                      makes the group again";
        findings.push(STALE.warning(text, remedy));
    }
    let foreign = root.survey().unwrap_or_default().foreign;
    if !foreign.is_empty() {
        let text = format!(
            "files not made by gpulimit: {}",
            output::some_paths(&foreign)
        );
        let remedy = "move such files elsewhere, or correct GPULIMIT_ROOT; gpulimit never changes \
                      or removes them";
        findings.push(CHECK.warning(text, remedy));
    }
    Ok(findings)
}

/// Reports memory that members of a group hold beyond their charges.
fn uncovered(
    group: &Group,
    ledger: &Ledger,
    counts_contexts: bool,
    driver: Option<&Driver>,
) -> Vec<Finding> {
    let on = |entry: DeviceEntry| {
        let found = groups::uncovered(ledger, counts_contexts, &entry, driver);
        let bytes = found.filter(|bytes| *bytes > 0)?;
        let text = format!(
            "processes of group {} hold {} of GPU {} beyond their charges: the group gets that \
             much less",
            group.name(),
            gib(bytes),
            entry.id.short()
        );
        Some(Check("uncovered").warning(
            text,
            "compare `nvidia-smi` with `gpulimit ps`: the process that has more has taken memory \
             without CUDA (OpenCL, Vulkan, video), or has memory that a program outside the group \
             has shared and let go of, or its charge was lowered by another member; such a charge \
             is restored at the next request, or after the next wait for the GPU",
        ))
    };
    ledger.devices().into_iter().filter_map(on).collect()
}

/// Returns the file system of the directory of groups, or of the closest directory above, in the
/// form " on tmpfs".
fn file_system(root: &Path) -> Result<String, Unsuitable> {
    let Some(place) = root.ancestors().find(|place| place.exists()) else {
        return Ok(String::new());
    };
    file_system::check(place)?;
    let name = FileSystem::of(place).map(|found| found.name);
    Ok(name.map_or_else(|_| String::new(), |name| format!(" on {name}")))
}

/// Reports why the caller cannot make groups in the directory `root`.
fn unusable(root: &Root, error: &GroupError) -> Finding {
    let cause = error
        .source()
        .and_then(<dyn Error>::downcast_ref::<io::Error>);
    let kind = match error {
        GroupError::Ledger(LedgerError::NoSpace { .. }) => Some(ErrorKind::StorageFull),
        _ => cause.map(io::Error::kind),
    };
    let text = format!("cannot make groups in {}: {error}", root.path().display());
    let remedy = kind.map(|kind| remedy(root.path(), kind));
    CHECK.error(text, remedy.unwrap_or_default())
}

/// Returns a remedy for a system error such as a full file system, or an empty text.
fn remedy(root: &Path, kind: ErrorKind) -> String {
    let place = root.ancestors().find(|place| place.exists());
    let place = place.unwrap_or(root);
    let mut above = place.ancestors();
    let mounted = above.find(|place| file_system::is_mount_point(place));
    let mounted = mounted.unwrap_or(Path::new("/")).display();
    match kind {
        ErrorKind::StorageFull => {
            let left = rustix::fs::statvfs(place);
            let (what, option) = match left.is_ok_and(|left| left.f_files > 0 && left.f_favail == 0)
            {
                true => ("no inodes are", "nr_inodes=64k"),
                false => ("no space is", "size=512M"),
            };
            format!(
                "{what} left on the file system of the groups: remove files, or enlarge the file \
                 system (a tmpfs: `mount -o remount,{option} {mounted}`)"
            )
        }
        ErrorKind::QuotaExceeded => "your quota on the file system of the groups is used up: \
                                     remove some of your files"
            .into(),
        ErrorKind::ReadOnlyFilesystem => {
            format!(
                "ask root to mount the file system for writing (`mount -o remount,rw {mounted}`)"
            )
        }
        _ => String::new(),
    }
}
