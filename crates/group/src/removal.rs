//! Removes groups, and finds groups that are no longer used.
//!
//! All functions work on open directories ([`Descent`]). A directory with a file that [`Contents`]
//! does not recognise stays as it is.

use super::carriers;
use super::contents::{self, Contents, Verdict};
use super::descent::Descent;
use super::directory::{Directory, EntryKind};
use super::hold::Hold;
use super::job::{Everybody, JobState, Record};
use super::trail::Traced;
use super::{BELOW, Group, GroupError, Kind, LEDGER, LIMITS, LOCK, MAX_DEPTH, Root, name, user};
use gpulimit_base::file_system;
use gpulimit_base::order;
use gpulimit_ledger::{Cleaned, Ledger, LedgerError, NoWitness, Witness};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// The most names that a clean-up reads below a user's directory. One user must not slow down
/// others' clean-ups.
pub const MAX_USER_NAMES: usize = 4_096;

/// The groups of a root, and the other entries found in its directories.
#[derive(Debug, Default)]
pub struct Survey {
    /// The groups by name, each before the groups below it.
    pub groups: Vec<Group>,
    /// The incomplete groups, left by processes that were killed while they made or removed the
    /// groups.
    pub unfinished: Vec<Group>,
    /// The files and directories that gpulimit did not make, at most [`Survey::MAX_FOREIGN`].
    pub foreign: Vec<PathBuf>,
    /// The directories of other users that have more than [`MAX_USER_NAMES`] names. Only that many
    /// names were read.
    pub cut_short: Vec<PathBuf>,
}

impl Survey {
    /// The most paths of foreign files and directories that are reported.
    pub const MAX_FOREIGN: usize = 64;

    fn foreign(&mut self, path: PathBuf) {
        if self.foreign.len() < Self::MAX_FOREIGN {
            self.foreign.push(path);
        }
    }
}

/// The number of names that may still be read below another user's directory; `None` in other
/// directories.
pub(super) type Budget = Option<usize>;

impl Root {
    /// Reads all directories of the root. Directories that the caller may not read are left out.
    pub fn survey(&self) -> Result<Survey, GroupError> {
        let mut survey = Survey::default();
        let failed = |error| GroupError::io("list", self.path(), error);
        let root = match Directory::open(self.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(survey),
            root => root.map_err(failed)?,
        };
        let mut budget = None;
        for name in Self::names(&root, &mut survey.cut_short, &mut budget).map_err(failed)? {
            let Some(entry) = root.entry(&name).ok().flatten() else {
                continue;
            };
            match (name.to_str(), entry.kind) {
                (Some(text), EntryKind::Directory) if name::is_part(text) => {
                    self.survey_group(&root, text, text, &mut survey, &mut budget);
                }
                // The directory `lost+found` belongs to the file system, so it is not reported as
                // foreign.
                (Some("lost+found"), EntryKind::Directory)
                    if entry.owner == 0 && file_system::is_mount_point(self.path()) => {}
                (_, kind) if !contents::belongs_in_root(&name, kind) => {
                    survey.foreign(root.path().join(&name));
                }
                _ => {}
            }
        }
        Ok(survey)
    }

    /// Returns the sorted names in a directory. Returns at most as many names as `budget` allows.
    pub(super) fn names(
        directory: &Directory,
        cut_short: &mut Vec<PathBuf>,
        budget: &mut Budget,
    ) -> io::Result<Vec<OsString>> {
        let owner = directory.about()?.uid();
        if owner != user::effective() && owner != 0 && budget.is_none() {
            *budget = Some(MAX_USER_NAMES);
        }
        let mut names = Vec::new();
        for name in directory.names()? {
            match budget {
                Some(0) => {
                    cut_short.push(directory.path().into());
                    break;
                }
                Some(left) => *left -= 1,
                None => {}
            }
            names.push(name?);
        }
        order::sort(&mut names);
        Ok(names)
    }

    /// Reads the directory `part` in `parent` and the directories below it. Returns whether any of
    /// them holds foreign files.
    fn survey_group(
        &self,
        parent: &Directory,
        part: &str,
        name: &str,
        survey: &mut Survey,
        budget: &mut Budget,
    ) -> bool {
        let Ok(directory) = parent.open_directory(part) else {
            return false;
        };
        let Ok(contents) = Contents::of(&directory) else {
            return false;
        };
        let group = Group::at(self.path(), name);
        let verdict = contents.verdict(part);
        let number = survey.unfinished.len();
        match verdict {
            Verdict::Group if contents.limits => survey.groups.push(group),
            Verdict::Group | Verdict::Unfinished => survey.unfinished.push(group),
            Verdict::Foreign => {
                survey.foreign(directory.path().into());
                return true;
            }
        }
        for foreign in &contents.foreign {
            survey.foreign(directory.path().join(foreign));
        }
        let mut has_foreign = !contents.foreign.is_empty();
        if contents.below && name.split('/').count() < MAX_DEPTH {
            has_foreign |= self.survey_below(&directory, name, survey, budget);
        }
        if has_foreign && verdict == Verdict::Unfinished {
            // gpulimit must not remove this directory, because it holds foreign files.
            survey.unfinished.remove(number);
        }
        has_foreign
    }

    /// Reads the directories below a group. Returns whether any of these directories holds foreign
    /// files.
    fn survey_below(
        &self,
        group: &Directory,
        name: &str,
        survey: &mut Survey,
        budget: &mut Budget,
    ) -> bool {
        let Ok(below) = group.open_directory(BELOW) else {
            return false;
        };
        let mut has_foreign = false;
        // Each directory that root has given to a user has a budget of names to read.
        let (outer, cut_before) = (*budget, survey.cut_short.len());
        if let Ok(names) = Self::names(&below, &mut survey.cut_short, budget) {
            for part in names {
                let kind = below.entry(&part).ok().flatten().map(|entry| entry.kind);
                match (part.to_str(), kind) {
                    (Some(part), Some(EntryKind::Directory)) if name::is_part(part) => {
                        let name = format!("{name}/{part}");
                        has_foreign |= self.survey_group(&below, part, &name, survey, budget);
                    }
                    (_, Some(_)) => {
                        survey.foreign(below.path().join(&part));
                        has_foreign = true;
                    }
                    (_, None) => {}
                }
            }
        }
        if outer.is_none() && budget.is_some() {
            *budget = None;
            survey.cut_short.truncate(cut_before + 1);
        }
        has_foreign
    }

    /// Returns the paths of incomplete groups, left by processes that were killed while they made
    /// or removed them.
    pub fn leftovers(&self) -> Result<Vec<PathBuf>, GroupError> {
        let survey = self.survey()?;
        let lacks = |group: &&Group| {
            let ledger = group.ledger_path();
            std::fs::symlink_metadata(ledger)
                .is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        let half = survey.groups.iter().filter(lacks);
        let mut paths: Vec<_> = survey.unfinished.iter().chain(half).map(path).collect();
        order::sort(&mut paths);
        Ok(paths)
    }

    /// Removes an unused group and the groups of ended jobs below it. Fails with
    /// [`GroupError::Foreign`] if the directory holds foreign files.
    pub fn remove(&self, name: &str) -> Result<(), GroupError> {
        let group = self.group(name)?;
        self.remove_jobs_within(&group);
        if group.kind() != Kind::Job {
            return self.remove_if(&group, |_| true, |_| true);
        }
        // Remove a job's group on request, even if this process cannot see whether the job still
        // runs.
        let may_end = |job: &Record| job.state(&Everybody::default()) != JobState::Lives;
        if let [Some(pid)] = carriers::of(&[&group])[..] {
            let name = group.name;
            return Err(GroupError::Carried { name, pid });
        }
        self.remove_if(&group, may_end, |ledger| {
            self.keep_past(&group, ledger);
            true
        })
    }

    /// Removes the groups of ended jobs below a group. Ignores failures, which a later removal
    /// reports.
    pub fn remove_jobs_within(&self, group: &Group) {
        let below = self.directories_below(Some(group)).unwrap_or_default();
        self.remove_ended(below.groups, |_, _| true);
    }

    /// Removes the groups of ended jobs, and returns their names. A job's group stays while:
    /// - its job, a member or a process that could join it lives,
    /// - a process holds its lock,
    /// - it has child groups, or
    /// - the driver may still hold memory of its dead processes.
    ///
    /// Keeps a record of each removed job at the top of the root for a while: see [`Root::past`].
    pub fn collect_garbage(&self) -> Result<Vec<String>, GroupError> {
        let survey = self.survey()?;
        let mut groups = survey.groups;
        groups.extend(survey.unfinished);
        let removed = self.remove_ended(groups, |group, ledger| {
            self.keep_past(group, ledger);
            true
        });
        self.drop_old_past();
        Ok(removed)
    }

    /// Removes groups of ended jobs as [`Root::collect_garbage`] does, only the child groups of
    /// this group, or with `None` those at the top of the root. Leaves groups that keep a history
    /// to [`Root::collect_garbage`]: the preloaded library calls this function, and stays small.
    pub fn collect_garbage_below(&self, parent: Option<&str>) -> Result<Vec<String>, GroupError> {
        let parent = parent.map(|name| Group::at(self.path(), name));
        let groups = self.directories_in(parent.as_ref())?;
        Ok(self.remove_ended(groups, |_, ledger| !ledger.keeps_history()))
    }

    /// Removes those of `groups` whose jobs have ended, and returns their names. A group whose job
    /// may still run stays, as does one that `may_go`, called right before the removal, refuses.
    fn remove_ended(
        &self,
        mut groups: Vec<Group>,
        may_go: impl Fn(&Group, &Ledger) -> bool,
    ) -> Vec<String> {
        // Sort each group before the group above it: the groups below must be removed first.
        order::sort_by(&mut groups, |one, other| one.name > other.name);
        let unused = Group::unused(&groups).into_iter().zip(groups);
        let removed = unused.filter_map(|(then, group)| {
            let then = then?;
            // A changed record means that a process makes the group again. Leave such a group to
            // the next clean-up.
            let has_ended = |now: &Record| *now == then;
            let idle = |ledger: &Ledger| {
                group.clean_in(ledger, &NoWitness).draining == 0 && may_go(&group, ledger)
            };
            let removed = self.remove_if(&group, has_ended, idle);
            removed.is_ok().then_some(group.name)
        });
        removed.collect()
    }

    /// Removes incomplete groups that no process is making, and returns their paths. Keeps
    /// directories with a limits file.
    pub fn remove_leftovers(&self) -> Result<Vec<PathBuf>, GroupError> {
        let mut groups = self.survey()?.unfinished;
        order::sort_by(&mut groups, |one, other| one.name > other.name);
        groups.retain(|group| matches!(self.remove_leftover(group), Ok(true)));
        Ok(groups.iter().map(path).collect())
    }

    /// Removes an incomplete group that no process is making. Returns false, and keeps the
    /// directory, if it has a limits file.
    pub fn remove_leftover(&self, group: &Group) -> Result<bool, GroupError> {
        let descent = Descent::to(group)?;
        if own_contents(group, &descent.directory)?.limits {
            return Ok(false);
        }
        let Some(alone) = hold_alone(group, &descent)? else {
            return Ok(true);
        };
        if own_contents(group, &descent.directory)?.limits {
            return Ok(false);
        }
        remove_held(group, &descent, alone, |_| true).map(|()| true)
    }

    /// Removes a group if `job` accepts the record of its job and `idle` accepts its ledger.
    pub(super) fn remove_if(
        &self,
        group: &Group,
        job: impl FnOnce(&Record) -> bool,
        idle: impl FnOnce(&Ledger) -> bool,
    ) -> Result<(), GroupError> {
        let descent = Descent::to(group)?;
        own_contents(group, &descent.directory)?;
        let Some(alone) = hold_alone(group, &descent)? else {
            return Ok(());
        };
        // A process that makes the group records the job while it holds the lock. So read the
        // record under the lock.
        if !job(&Record::of(&descent.directory)) {
            return Err(group.in_use());
        }
        remove_held(group, &descent, alone, idle)
    }
}

impl Group {
    /// Removes the slots of dead processes from the group's ledger, with the rights of the group's
    /// owner.
    pub fn clean(&self, witness: &dyn Witness) -> Result<Cleaned, GroupError> {
        let _descent = Descent::to(self)?;
        let ledger = Ledger::open(&self.ledger_path())?;
        Ok(self.clean_in(&ledger, witness))
    }

    /// Removes the slots of dead processes from the group's open ledger. Records the events also in
    /// the trail where the group's events go.
    pub fn clean_in(&self, ledger: &Ledger, witness: &dyn Witness) -> Cleaned {
        let trails = self;
        ledger.clean(&Traced {
            witness,
            trails,
            adopts: true,
        })
    }
}

fn path(group: &Group) -> PathBuf {
    group.path.clone()
}

/// Returns the content of a group's directory. Fails if the directory holds foreign files or files
/// with a lease.
fn own_contents(group: &Group, directory: &Directory) -> Result<Contents, GroupError> {
    let contents = Contents::of(directory).map_err(|error| group.failed("list", error))?;
    if let Some(name) = &contents.leased {
        return Err(GroupError::leased(&directory.path().join(name)));
    }
    let foreign = |name: Option<&OsString>| {
        let path = directory.path();
        Err(GroupError::Foreign {
            path: name.map_or(path.into(), |name| path.join(name)),
        })
    };
    match contents.verdict(name::last(&group.name)) {
        Verdict::Foreign => foreign(contents.foreign.first()),
        _ if !contents.foreign.is_empty() => foreign(contents.foreign.first()),
        Verdict::Group | Verdict::Unfinished => Ok(contents),
    }
}

/// Takes a group's lock exclusively, or fails with [`GroupError::InUse`]. Removes an empty
/// directory instead and returns `None`.
fn hold_alone(group: &Group, descent: &Descent) -> Result<Option<Hold>, GroupError> {
    let failed = |error| group.failed("remove", error);
    let Descent { directory, .. } = descent;
    if Contents::of(directory).map_err(failed)?.is_empty() {
        // An empty directory needs no lock. A process that is just making a group in it tries
        // again.
        return match remove_directory(group, descent) {
            Ok(()) => Ok(None),
            Err(error) => Err(failed(error)),
        };
    }
    match directory.create_file(LOCK, 0o600) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    match Hold::alone_in(directory, LOCK) {
        Ok(None) => Err(group.in_use()),
        held => held.map_err(failed),
    }
}

fn remove_held(
    group: &Group,
    descent: &Descent,
    alone: Hold,
    idle: impl FnOnce(&Ledger) -> bool,
) -> Result<(), GroupError> {
    let directory = &descent.directory;
    let failed = |error| group.failed("remove", error);
    let contents = own_contents(group, directory)?;
    check_below(group, directory)?;
    let ledger = match Ledger::open(&group.ledger_path()).map_err(GroupError::from) {
        // While another program has a lease on the ledger, gpulimit cannot read whether the group
        // has members.
        Err(error) if error.is_leased() => return Err(error),
        ledger => ledger.ok(),
    };
    let removal = match &ledger {
        // Members of another gpulimit version may use the ledger. After a removal, they would still
        // charge there.
        None if Ledger::is_used(&group.ledger_path()) => return Err(group.in_use()),
        Some(ledger) if !idle(ledger) => return Err(group.in_use()),
        Some(ledger) => Some(ledger.begin_removal().map_err(|error| match error {
            LedgerError::InUse { .. } => group.in_use(),
            error => error.into(),
        })?),
        None => None,
    };
    let protected = group
        .limits()
        .is_ok_and(|limits| limits.rules().is_ok_and(|rules| rules.protects()));
    if group.kind() == Kind::Job {
        group.remove_secret_views().map_err(failed)?;
    }
    if_there(directory.remove_directory(BELOW)).map_err(failed)?;
    // Remove the limits file first: a process cannot join a group without limits.
    if_there(directory.remove_file(LIMITS)).map_err(failed)?;
    for name in &contents.others {
        if_there(directory.remove_file(name)).map_err(failed)?;
    }
    // The ledger proves that the directory is a group, so it stays until only the lock is left.
    if_there(directory.remove_file(LEDGER)).map_err(failed)?;
    // This process holds the lock, so no process can join while the lock file exists. Remove the
    // lock file last.
    if_there(directory.remove_file(LOCK)).map_err(failed)?;
    drop((removal, ledger, alone));
    await_hidden(directory);
    match remove_directory(group, descent) {
        // Another process has begun to make the group again, or to clean up. That process now uses
        // the directory.
        Err(error)
            if error.kind() == ErrorKind::DirectoryNotEmpty
                && directory.entry(LOCK).is_ok_and(|lock| lock.is_some()) => {}
        removed => removed.map_err(failed)?,
    }
    if protected {
        group.notify_parent();
    }
    Ok(())
}

/// Fails if the group has child groups. Called before any file of the group is removed.
fn check_below(group: &Group, directory: &Directory) -> Result<(), GroupError> {
    let below = match directory.open_directory(BELOW) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        below => below.map_err(|error| group.failed("list", error))?,
    };
    let failed = |error| group.failed("list", error);
    // No group can be below the deepest level.
    let may_have_groups = group.name.split('/').count() < MAX_DEPTH;
    let mut foreign = None;
    let mut groups = Vec::new();
    for name in below.names().map_err(failed)? {
        let name = name.map_err(failed)?;
        let kind = below.entry(&name).map_err(failed)?.map(|entry| entry.kind);
        match (name.to_str(), kind) {
            (_, None) => {}
            (Some(part), Some(EntryKind::Directory)) if may_have_groups && name::is_part(part) => {
                groups.push(part.to_owned());
            }
            _ => foreign = Some(below.path().join(&name)),
        }
    }
    order::sort(&mut groups);
    match (groups.first(), foreign) {
        (Some(first), _) => Err(GroupError::HasGroups {
            name: group.name.clone(),
            below: format!("{}/{first}", group.name),
        }),
        (None, Some(path)) => Err(GroupError::Foreign { path }),
        (None, None) => Ok(()),
    }
}

/// Removes the group's own empty directory, unless another directory has its name by now.
fn remove_directory(group: &Group, descent: &Descent) -> io::Result<()> {
    let Descent {
        parent, directory, ..
    } = descent;
    let part = name::last(&group.name);
    let own = directory.about()?;
    match parent.entry(part)? {
        Some(there) if there.id == (own.dev(), own.ino()) => {
            if_there(parent.remove_directory(part))
        }
        _ => Ok(()),
    }
}

/// Waits at most a second for removed files that a FUSE file system keeps under another name while
/// they are mapped.
fn await_hidden(directory: &Directory) {
    const PATIENCE: Duration = Duration::from_secs(1);
    if !directory.is_on_fuse().unwrap_or(false) {
        return;
    }
    let has_hidden = || {
        let mut names = directory.names()?.flatten();
        io::Result::Ok(names.any(|name| contents::is_hidden(&name)))
    };
    let start = Instant::now();
    while start.elapsed() < PATIENCE && has_hidden().unwrap_or(false) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Treats the removal of an entry that does not exist as a success.
fn if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
