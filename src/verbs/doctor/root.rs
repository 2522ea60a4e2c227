//! Checks the directory of groups, the entries in it, and whether the caller can make groups.

use super::finding::{Check, Finding};
use super::history;
use crate::groups;
use crate::groups::budget::{Budget, LINE, VERB};
use crate::machine::{accounts, nvml::Driver};
use crate::words::environment::env;
use gpulimit_base::file_system::{self, FileSystem, Unsuitable};
use gpulimit_base::units::gib;
use gpulimit_group::{Group, GroupError, Kind, Listing, MAX_USER_NAMES, Root, SYSTEM};
use gpulimit_ledger::{DeviceEntry, Ledger, LedgerError};
use std::error::Error;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const CHECK: Check = Check("root");
/// The maximum number of incomplete groups to list one by one. Users can make thousands.
const SHOWN: usize = 8;
/// The bytes of a user's budget that a finding takes.
const FINDING: usize = 8 * LINE;

/// Checks the directory in which the caller's groups are made.
pub(super) fn checks() -> Vec<Finding> {
    let root = match Root::locate(&env) {
        Ok(root) => root,
        Err(error) => return vec![CHECK.error(error.to_string(), "")],
    };
    let path = root.path().display();
    let on = match file_system(root.path()) {
        Ok(name) => name,
        Err(unsuitable) => return vec![CHECK.error(unsuitable.to_string(), "")],
    };
    let tried = root.try_out();
    let Ok(about) = fs::metadata(root.path()) else {
        return vec![match tried {
            Ok(_) => CHECK.fine(format!(
                "{path}{on}; the directory will be made with the first group"
            )),
            Err(error) => unusable(&root, &error),
        }];
    };
    let Listing { groups, cut_short } = match root.list(None) {
        Ok(listing) => listing,
        Err(error) => return vec![CHECK.error(error.to_string(), "")],
    };
    let about_it = format!(
        "{path}{on}, owner {owner}, mode {mode:04o}, groups: {count}",
        owner = accounts::user_name(about.uid()),
        mode = about.permissions().mode() & 0o7777,
        count = groups.len()
    );
    let mut findings = vec![CHECK.fine(about_it)];
    match tried {
        Ok(true) => {}
        Ok(false) if groups.is_empty() => findings.push(CHECK.error(
            format!(
                "{path} has no groups in which to run programs, and you are not allowed to make one"
            ),
            "ask the owner of the directory for a group, or name a directory of your own in \
             GPULIMIT_ROOT",
        )),
        Ok(false) => findings.push(CHECK.fine(format!(
            "the space for more groups in {path} was not tested: you cannot make groups there"
        ))),
        Err(error) => findings.push(unusable(&root, &error)),
    }
    if root.path() == Path::new(SYSTEM)
        && about.uid() == 0
        && !file_system::is_mount_point(root.path())
    {
        findings.push(CHECK.warning(
            format!(
                "{path} is not a separate file system: members of its groups can fill the file \
                     system of /run"
            ),
            "mount a tmpfs at that directory before you make groups: docs/systemd.md has a unit \
             for it",
        ));
    }
    for path in cut_short {
        let name = path.to_string_lossy();
        findings.push(CHECK.warning(
            format!(
                "{} belongs to a user and has more than {MAX_USER_NAMES} entries; the groups among \
                 the other entries were not checked",
                name.escape_debug()
            ),
            "ask the owner of this directory to remove entries that are not needed",
        ));
    }
    let (mut idle, mut without_trail) = (Vec::new(), Vec::new());
    let driver = Driver::load().ok();
    let mut budget = Budget::new(VERB);
    for group in groups {
        let mut look = || -> Result<Vec<Finding>, GroupError> {
            let counts_contexts = group.limits()?.rules()?.options.count_context;
            let ledger = group.ledger()?;
            let mut found = uncovered(&group, &ledger, counts_contexts, driver.as_ref());
            if group.kind() == Kind::Job && !ledger.has_live() {
                idle.push(group.name().to_owned());
            } else if ledger.keeps_history() {
                found.extend(history::check(&group, &ledger));
                let name = || format!("group {}", group.name());
                without_trail.extend((!ledger.has_whole_trail()).then(name));
            }
            Ok(found)
        };
        let purse = budget.of(&group);
        let warning = |error: GroupError| vec![Check("group").warning(error.to_string(), "")];
        if let Some(found) = purse.within(&group, &mut look) {
            let found = found.unwrap_or_else(warning);
            purse.spend(found.len() * FINDING);
            findings.extend(found);
        }
    }
    let cut = budget.cut().into_iter();
    findings.extend(cut.map(|(_, text)| Check("group").warning(text, "")));
    findings.extend(history::trails(&root, without_trail));
    if let Err(error) = root.trail() {
        let text = format!("new events of jobs outside named groups are lost: {error}");
        findings.push(Check("events").warning(text, ""));
    }
    if !idle.is_empty() {
        findings.push(Check("stale").fine(format!(
            "job groups without programs: {} ({}); `gpulimit gc` and the next `gpulimit \
                     run` remove those whose command has ended",
            idle.len(),
            idle.join(", ")
        )));
    }
    let leftovers = root.leftovers().unwrap_or_default();
    for left in leftovers.iter().take(SHOWN) {
        let name = left.to_string_lossy();
        findings.push(Check("stale").warning(
            format!(
                "{group} is not a complete group",
                group = name.escape_debug()
            ),
            "`gpulimit gc` removes an incomplete group without limits; `gpulimit create` makes \
             the group again",
        ));
    }
    if leftovers.len() > SHOWN {
        let more = format!(
            "{count} more groups are not complete",
            count = leftovers.len() - SHOWN
        );
        findings.push(Check("stale").warning(more, ""));
    }
    let survey = root.survey().unwrap_or_default();
    if let Some(first) = survey.foreign.first() {
        let more = match survey.foreign.len() {
            1 => String::new(),
            2 => " and 1 more file".into(),
            count => format!(" and {more} more files", more = count - 1),
        };
        let name = first.to_string_lossy();
        findings.push(Check("root").warning(
            format!(
                "found files not made by gpulimit: {name}{more}",
                name = name.escape_debug()
            ),
            "move such files elsewhere, or correct GPULIMIT_ROOT; gpulimit never changes or \
             removes them",
        ));
    }
    findings
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
             without CUDA (OpenCL, Vulkan, video), or its charge was lowered by another member; \
             such a charge is restored at the next request, or after the next wait for the GPU",
        ))
    };
    ledger.devices().into_iter().filter_map(on).collect()
}

/// Returns the file system of the directory of groups, or of the closest directory above, in the
/// form " on tmpfs".
fn file_system(root: &Path) -> Result<String, Unsuitable> {
    let place = root.ancestors().find(|place| place.exists());
    let Some(place) = place else {
        return Ok(String::new());
    };
    file_system::check(place)?;
    let name = FileSystem::of(place).map(|found| found.name);
    Ok(name.map_or_else(|_| String::new(), |name| format!(" on {name}")))
}

/// Reports why the caller cannot make groups in the directory `root`.
fn unusable(root: &Root, error: &GroupError) -> Finding {
    let path = root.path();
    let said = format!("cannot make groups in {}: {error}", path.display());
    let cause = error
        .source()
        .and_then(<dyn Error>::downcast_ref::<io::Error>);
    let kind = match error {
        GroupError::Ledger(LedgerError::NoSpace { .. }) => Some(ErrorKind::StorageFull),
        _ => cause.map(io::Error::kind),
    };
    CHECK.error(
        said,
        kind.map_or_else(String::new, |kind| remedy(path, kind)),
    )
}

/// Returns a remedy for a system error such as a full file system, or an empty text.
pub(super) fn remedy(root: &Path, kind: ErrorKind) -> String {
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
