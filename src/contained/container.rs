//! Makes and removes the group of a container.

use super::mount::mount_view;
use super::process::Process;
use super::record::{Place, Record, name_of};
use super::state::State;
use crate::machine::{files::Files, library, nvml::Driver, trust::is_in_user_namespace};
use crate::shown::output;
use crate::words::failure::{Failure, cannot};
use clap::ValueEnum;
use gpulimit_base::units::Extent;
use gpulimit_group::{Access, Group, GroupError, Hold, Members, Root, effective_user};
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_policy::rules::{self, Rules};
use std::fmt;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// What a container asks for: its own limit, or an existing group.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A new group for this container alone, with this limit.
    Cap(Extent),
    /// An existing group with this name.
    Group(String),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cap(size) => write!(f, "cap {size}"),
            Self::Group(name) => write!(f, "group {name}"),
        }
    }
}

/// What happens to a container whose image cannot load the library.
#[derive(Copy, Clone, Debug, Eq, PartialEq, ValueEnum)]
pub enum OnError {
    /// It runs, and its programs have no limit.
    Run,
    /// It does not start.
    Refuse,
}

/// The lock file for changes of the containers' records.
const LOCK: &str = ".containers.lock";
/// The longest time to wait for the lock on the records.
const LOCK_WAIT: Duration = Duration::from_secs(60);
/// How long `poststop` waits for a container's killed processes to end.
const END_WAIT: Duration = Duration::from_secs(30);
/// How long `poststop` waits for the container's first process to end. A process that lives on
/// belongs to another container.
const FIRST_END_WAIT: Duration = Duration::from_secs(1);

fn lock_records(root: &Root) -> Result<Hold, Failure> {
    let start = Instant::now();
    loop {
        match root.hold_alone(LOCK) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < LOCK_WAIT => {
                thread::sleep(Duration::from_millis(5));
            }
            held => return held.map_err(cannot("lock", &root.path().join(LOCK))),
        }
    }
}

/// Makes the container's group and view. A second call for the same container changes nothing.
pub fn create(
    root: &Root,
    state: &State,
    wanted: &Wanted,
    on_error: OnError,
) -> Result<(), Failure> {
    only_for_root(root)?;
    let bundle = state.bundle()?;
    if on_error == OnError::Refuse {
        check_image(&bundle.rootfs).map_err(|why| {
            Failure::new(format_args!(
                "the image of container {} cannot load libgpulimit.so: {why}: use an image with \
                 glibc 2.17 or later, or `cdi generate --on-error run`",
                state.id
            ))
        })?;
    }
    let init = Process::living(state.pid).ok_or_else(|| {
        Failure::new(format_args!(
            "container {} has no process {}: call this hook at createRuntime, in the runtime's \
             namespaces",
            state.id, state.pid
        ))
    })?;
    let name = name_of(&state.id);
    let own = matches!(wanted, Wanted::Cap(_));
    let record = Record {
        id: state.id.clone(),
        init,
        rootfs: bundle.rootfs,
        wanted: wanted.to_string(),
        group: match wanted {
            Wanted::Cap(_) => name.clone(),
            Wanted::Group(name) => name.clone(),
        },
        own,
    };
    let _lock = lock_records(root)?;
    // First remove groups that killed runtimes left behind. Ignore errors: the checks below report
    // errors that concern this container.
    let _ = sweep_held(root);
    let place = Place::of(root, &name);
    match place.read()? {
        Some(there) if there == record => return Ok(()),
        Some(there) if there.id == record.id && there.init == record.init => {
            return Err(Failure::new(format_args!(
                "the container already has {} and cannot also have {wanted}: give it only one \
                 gpulimit device",
                there.wanted
            )));
        }
        Some(there) => {
            return Err(Failure::new(format_args!(
                "another container {} has programs in group {}: end these programs, or give this \
                 container another name",
                there.id, there.group
            )));
        }
        None => {}
    }
    place.make()?;
    let made = place.write(&record).and_then(|()| {
        let group = match wanted {
            Wanted::Cap(size) => own_group(root, &name, *size)?,
            Wanted::Group(name) => root.group(name)?,
        };
        group.show_in(&place.view())?;
        let rules = Rules::everybody(group.name());
        let file = place.view().join(rules::FILE);
        fs::write(&file, rules.to_string())
            .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o644)))
            .map_err(cannot("write", &file))?;
        bundle.root_group.map_or(Ok(()), |group| place.admit(group))
    });
    if made.is_err() {
        // Remove what was made for the container. If this fails, a later sweep removes the rest
        // after the container has ended.
        let _ = take_away(root, &place, &record);
    }
    made
}

/// Checks that programs of an image can load the library. Reads files of the image, and starts no
/// program.
fn check_image(rootfs: &Path) -> Result<(), String> {
    let library = library::find().map_err(|failure| failure.to_string())?;
    let library = fs::read(library).map_err(|error| error.to_string())?;
    let files = Files::of_image(rootfs).map_err(|error| error.to_string())?;
    files.can_load(&library, &[])
}

/// Returns whether the caller is root of the host, and not root of a user namespace.
fn is_hosts_root() -> bool {
    effective_user() == 0 && !is_in_user_namespace()
}

/// Fails unless the caller is the host's root and the directory of groups belongs to root. Programs
/// trust only root's rules.
fn only_for_root(root: &Root) -> Result<(), Failure> {
    if !is_hosts_root() {
        return Err(Failure::new(
            "only the host's root can put containers into groups: for a rootless container, use \
             mounts and variables as docs/containers.md describes",
        ));
    }
    root.make()?;
    match fs::metadata(root.path()).map(|about| about.uid()) {
        Ok(0) => Ok(()),
        _ => Err(Failure::new(format_args!(
            "{} does not belong to root, so containers do not trust it: name another directory \
             with --root",
            root.path().display()
        ))),
    }
}

/// Makes a group for one container. All users in the container may use the group; on the host, only
/// root may.
fn own_group(root: &Root, name: &str, size: Extent) -> Result<Group, Failure> {
    // Remove a group of this name that has no record: a user or a killed process made the group.
    match root.remove(name) {
        Err(error) if !error.is_missing() => return Err(error.into()),
        _ => {}
    }
    let gpus = match size {
        Extent::AllBut(_) => Driver::load().map(|driver| driver.capacities()),
        Extent::Size(_) => Ok(Vec::new()),
    };
    let mut limits = LimitSet::default();
    limits
        .set_extent(
            Selector::All,
            Key::Max,
            size,
            &gpus.unwrap_or_default(),
            false,
        )
        .map_err(Failure::new)?;
    let created = root.create(name, &limits)?;
    let group = created.group;
    fs::set_permissions(group.path(), Permissions::from_mode(0o700))
        .map_err(cannot("close", group.path()))?;
    group.give_access(Access {
        owner: None,
        members: Members::All,
    })?;
    Ok(group)
}

/// Mounts the container's view of the groups in its mount namespace, before the runtime switches
/// the root file system.
pub fn mount(root: &Root, state: &State) -> Result<(), Failure> {
    let place = Place::of(root, &name_of(&state.id));
    let record = place.read_inside()?.filter(|record| record.id == state.id);
    let record = record.ok_or_else(|| {
        Failure::new(format_args!(
            "container {} has no group: call `gpulimit oci-hook create` first, at createRuntime",
            state.id
        ))
    })?;
    let view = place.view();
    let group = Root::at(&view)?.group(&record.group)?;
    let ledgers: Vec<_> = group.upwards().map(|group| group.ledger_path()).collect();
    mount_view(&view, &ledgers, &record.rootfs)
}

/// Removes the group of a container that ended or never started. A running container with the same
/// id keeps its group.
pub fn remove(root: &Root, state: &State) -> Result<(), Failure> {
    if !root.exists() {
        return Ok(());
    }
    let place = Place::of(root, &name_of(&state.id));
    let start = Instant::now();
    let mut before = None;
    loop {
        // Take the lock anew for each attempt, because hooks of other containers must not wait for
        // this container's processes.
        let lock = lock_records(root)?;
        let record = match place.read()? {
            Some(record) if record.id == state.id => record,
            _ => return Ok(()),
        };
        if before.is_some_and(|before| before != record) {
            // Another process has removed this container's record. The present record belongs to a
            // new container with the same id.
            return Ok(());
        }
        let Err((failure, patience)) = take_away(root, &place, &record) else {
            return Ok(());
        };
        drop(lock);
        if start.elapsed() >= patience {
            return Err(failure);
        }
        before = Some(record);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Removes groups, views and records that killed runtimes left behind. Returns the directories'
/// names. Only reports records that other users could write.
pub fn sweep(root: &Root) -> Result<Vec<String>, Failure> {
    if !is_hosts_root() {
        return Ok(Vec::new());
    }
    match Place::all(root) {
        Ok(places) if places.is_empty() => return Ok(Vec::new()),
        Ok(_) => {}
        Err(failure) => {
            output::note(&failure.to_string());
            return Ok(Vec::new());
        }
    }
    let _lock = lock_records(root)?;
    sweep_held(root)
}

fn sweep_held(root: &Root) -> Result<Vec<String>, Failure> {
    let mut removed = Vec::new();
    for (name, place) in Place::all(root)? {
        let done = match place.read() {
            Ok(Some(record)) if record.init.lives() => continue,
            Ok(Some(record)) => take_away(root, &place, &record).map_err(|(failure, _)| failure),
            // This directory has no record, because the process that made it was killed. So there
            // is no group.
            Ok(None) => place.remove_unrecorded(),
            Err(failure) => Err(failure),
        };
        match done {
            Ok(()) => removed.push(name),
            Err(failure) => output::note(&failure.to_string()),
        }
    }
    Ok(removed)
}

/// Why a container's group cannot be removed, and how long to repeat the attempt before giving up.
type Stays = (Failure, Duration);

/// Removes a container's view and record, and also its group if the group was made for it alone.
fn take_away(root: &Root, place: &Place, record: &Record) -> Result<(), Stays> {
    if record.init.lives() {
        let why = format!(
            "container {} still runs and uses group {}",
            record.id, record.group
        );
        return Err((Failure::new(why), FIRST_END_WAIT));
    }
    let removed = match record.own {
        true => root.remove(&record.group),
        false => Ok(()),
    };
    match removed {
        Err(error @ GroupError::InUse { .. }) => Err((error.into(), END_WAIT)),
        Err(error) if !error.is_missing() => Err((error.into(), Duration::ZERO)),
        _ => place.remove().map_err(|failure| (failure, Duration::ZERO)),
    }
}
