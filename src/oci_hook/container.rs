//! A container's group, from before its first program to after its last.

use super::mount::mount_view;
use super::process::Process;
use super::record::{Place, Record, name_of};
use super::state::State;
use crate::failure::{Failure, cannot};
use crate::nvml::Driver;
use crate::output;
use crate::trust::is_in_user_namespace;
use gpulimit_base::units::Extent;
use gpulimit_group::{Access, Group, GroupError, Hold, Members, Root, effective_user};
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_policy::rules::{self, Rules};
use std::fmt;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::thread;
use std::time::{Duration, Instant};

/// What a container asks for.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A group of its own, with this limit.
    Cap(Extent),
    /// This group.
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

/// Held by whoever changes what is on record.
const LOCK: &str = ".containers.lock";
/// How long others may hold that.
const TURN: Duration = Duration::from_secs(60);
/// How long processes that were killed may take to be gone.
const END: Duration = Duration::from_secs(30);
/// How long the first of them may: runtimes wait for it, so that one that lives is another
/// container's.
const FIRST_END: Duration = Duration::from_secs(1);

fn turn(root: &Root) -> Result<Hold, Failure> {
    let start = Instant::now();
    loop {
        match root.hold_alone(LOCK) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < TURN => {
                thread::sleep(Duration::from_millis(5));
            }
            held => return held.map_err(cannot("lock", &root.path().join(LOCK))),
        }
    }
}

/// Makes the container's group and what it will see of it. Called again, by a runtime that does
/// everything twice, it does nothing.
pub fn create(root: &Root, state: &State, wanted: &Wanted) -> Result<(), Failure> {
    only_for_root(root)?;
    let bundle = state.bundle()?;
    let init = Process::living(state.pid).ok_or_else(|| {
        Failure::new(format_args!(
            "container {} has no process {}: call this at createRuntime, in the runtime's \
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
    let _turn = turn(root)?;
    // Of containers whose runtime was killed as well. What cannot be removed is in nobody's way but
    // its namesake's.
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
                "another container {} has programs in group {}: end them, or give this container \
                 another name",
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
        // Nothing half-made stays; what does is swept away when the container has ended.
        let _ = take_away(root, &place, &record);
    }
    made
}

/// Not root of a user namespace.
fn is_hosts_root() -> bool {
    effective_user() == 0 && !is_in_user_namespace()
}

/// Programs believe rules of root's only, and only root can mount what they cannot change.
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

/// A group that goes with the container, for all users in it, whoever they are, and for nobody on
/// the host.
fn own_group(root: &Root, name: &str, size: Extent) -> Result<Group, Failure> {
    // One without a record was made by hand, or its maker was killed.
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

/// Puts what it may see into the container. In the container's mount namespace, before it becomes
/// the root.
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

/// Removes the group of a container that has ended, or what a container that was never begun left.
/// One that runs keeps it: another of the same id was given up.
pub fn remove(root: &Root, state: &State) -> Result<(), Failure> {
    if !root.exists() {
        return Ok(());
    }
    let place = Place::of(root, &name_of(&state.id));
    let start = Instant::now();
    let mut before = None;
    loop {
        // For each attempt anew. Who has been in the container can keep its group in use for as
        // long as they like, and others must not wait for that to make or remove theirs.
        let turn = turn(root)?;
        let record = match place.read()? {
            Some(record) if record.id == state.id => record,
            _ => return Ok(()),
        };
        if before.is_some_and(|before| before != record) {
            // Somebody else has removed it, and it is another container's of this id.
            return Ok(());
        }
        let Err(stays) = take_away(root, &place, &record) else {
            return Ok(());
        };
        drop(turn);
        if start.elapsed() >= stays.patience() {
            return Err(stays.into());
        }
        before = Some(record);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Removes what containers have left whose end nobody told us; says the names of their groups.
///
/// Only root has containers on record. A record that others than root could have written is not
/// followed, and named on standard error.
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
    let _turn = turn(root)?;
    sweep_held(root)
}

fn sweep_held(root: &Root) -> Result<Vec<String>, Failure> {
    let mut removed = Vec::new();
    for (name, place) in Place::all(root)? {
        let done = match place.read() {
            Ok(Some(record)) if record.init.lives() => continue,
            Ok(Some(record)) => take_away(root, &place, &record).map_err(Failure::from),
            // Its maker was killed before he wrote it: there is no group yet.
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

/// Why a container's group stays.
enum Stays {
    /// Its first process lives.
    Runs(Failure),
    /// A process uses the group.
    Used(Failure),
    /// It cannot be removed.
    Fails(Failure),
}

impl Stays {
    /// How long to try again.
    fn patience(&self) -> Duration {
        match self {
            Self::Runs(_) => FIRST_END,
            Self::Used(_) => END,
            Self::Fails(_) => Duration::ZERO,
        }
    }
}

impl From<Stays> for Failure {
    fn from(stays: Stays) -> Self {
        match stays {
            Stays::Runs(failure) | Stays::Used(failure) | Stays::Fails(failure) => failure,
        }
    }
}

/// Removes the group, where it is the container's own, and then the record.
fn take_away(root: &Root, place: &Place, record: &Record) -> Result<(), Stays> {
    if record.init.lives() {
        return Err(Stays::Runs(Failure::new(format_args!(
            "container {} still runs and uses group {}",
            record.id, record.group
        ))));
    }
    let removed = match record.own {
        true => root.remove(&record.group),
        false => Ok(()),
    };
    match removed {
        Err(error @ GroupError::InUse { .. }) => Err(Stays::Used(error.into())),
        Err(error) if !error.is_missing() => Err(Stays::Fails(error.into())),
        _ => place.remove().map_err(Stays::Fails),
    }
}
