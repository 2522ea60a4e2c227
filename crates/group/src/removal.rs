//! Removes groups, and finds those that nobody needs any longer.
//!
//! Everything here works on open directories ([`Descent`]) and removes only what [`Contents`]
//! recognises as ours. A directory with anything else in it stays as it is.

use super::contents::{self, Contents, Verdict};
use super::descent::Descent;
use super::directory::{Directory, EntryKind};
use super::hold::Hold;
use super::job::{Everybody, JobState, Record, Records};
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

/// Names that are read below each directory of another user: what that user puts there costs
/// everybody else's clean-up a bounded time.
pub const MOST_OF_A_USER: usize = 4_096;

/// Which garbage to collect.
#[derive(Copy, Clone, Debug)]
pub enum Garbage<'a> {
    /// All of the root.
    Everywhere,
    /// What is directly below this group, or at the top.
    Below(Option<&'a str>),
}

/// What there is in a root.
#[derive(Debug, Default)]
pub struct Survey {
    /// Groups, each before those below it, by name.
    pub groups: Vec<Group>,
    /// Directories that are no complete group: left by a process that was killed while it made or
    /// removed one.
    pub unfinished: Vec<Group>,
    /// Files and directories that we have not made, [`Survey::MOST_FOREIGN`] at most.
    pub foreign: Vec<PathBuf>,
    /// Directories of other users that hold more than [`MOST_OF_A_USER`] names: the others were not
    /// looked at.
    pub cut_short: Vec<PathBuf>,
}

impl Survey {
    /// More are of no use to a reader.
    pub const MOST_FOREIGN: usize = 64;

    fn foreign(&mut self, path: PathBuf) {
        if self.foreign.len() < Self::MOST_FOREIGN {
            self.foreign.push(path);
        }
    }
}

/// How many names may still be read below a directory of another user.
type Budget = Option<usize>;

impl Root {
    /// Looks at everything in the root. Directories that may not be looked into are left out.
    pub fn survey(&self) -> Result<Survey, GroupError> {
        let mut survey = Survey::default();
        let failed = |error| GroupError::io("list", self.path(), error);
        let root = match Directory::open(self.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(survey),
            root => root.map_err(failed)?,
        };
        let mut budget = None;
        for name in Self::names(&root, &mut survey, &mut budget).map_err(failed)? {
            let Some(entry) = root.entry(&name).ok().flatten() else {
                continue;
            };
            match (name.to_str(), entry.kind) {
                (Some(text), EntryKind::Directory) if name::is_part(text) => {
                    self.survey_group(&root, text, text, &mut survey, &mut budget);
                }
                // Made with the file system.
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

    /// The names in a directory in their order, as far as the budget goes.
    pub(super) fn names(
        directory: &Directory,
        survey: &mut Survey,
        budget: &mut Budget,
    ) -> io::Result<Vec<OsString>> {
        let owner = directory.about()?.uid();
        if owner != user::effective() && owner != 0 && budget.is_none() {
            *budget = Some(MOST_OF_A_USER);
        }
        let mut names = Vec::new();
        for name in directory.names()? {
            match budget {
                Some(0) => {
                    survey.cut_short.push(directory.path().into());
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

    /// Looks at one directory in which a group may be, called `part` in `parent`, and at those
    /// below it. Whether something in it is not ours.
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
            // Not ours after all: what is in it was named.
            survey.unfinished.remove(number);
        }
        has_foreign
    }

    /// Looks at the directories below a group. Whether something there is not ours.
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
        // Each directory that root leaves to a user has a budget of its own.
        let outer = *budget;
        if let Ok(names) = Self::names(&below, survey, budget) {
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
        if outer.is_none() {
            *budget = None;
        }
        has_foreign
    }

    /// Directories that are no complete group: left by a process that was killed while it made or
    /// removed one.
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

    /// Removes a group in which no program runs, together with the groups of ended jobs below it.
    ///
    /// [`GroupError::Foreign`], with nothing changed, where its directory holds what we have not
    /// made.
    pub fn remove(&self, name: &str) -> Result<(), GroupError> {
        let group = self.group(name)?;
        self.remove_jobs_within(&group);
        // Whoever names a group knows better than a process that does not see the job.
        let may_end = |job: &Record| {
            group.kind() != Kind::Job || job.state(&Everybody::default()) != JobState::Lives
        };
        self.remove_if(&group, may_end, |_| true)
    }

    /// Removes the groups of ended jobs anywhere below a group. A group that cannot be removed
    /// stays, and the removal of the group above it then says so.
    pub fn remove_jobs_within(&self, group: &Group) {
        let below = self.directories_below(Some(group));
        self.remove_ended(below.unwrap_or_default());
    }

    /// Removes the groups of ended jobs, of all the root or of those directly below one group, and
    /// returns their names.
    ///
    /// A group stays while its job or a member lives, while it is held, while there are groups
    /// below it, and while the driver may not have let go of what its dead processes held.
    pub fn collect_garbage(&self, within: Garbage<'_>) -> Result<Vec<String>, GroupError> {
        let groups = match within {
            Garbage::Everywhere => {
                let survey = self.survey()?;
                let mut groups = survey.groups;
                groups.extend(survey.unfinished);
                groups
            }
            Garbage::Below(parent) => {
                self.directories_in(parent.map(|name| Group::at(self.path(), name)).as_ref())?
            }
        };
        Ok(self.remove_ended(groups))
    }

    /// Removes those of these groups that are of jobs which have ended, and returns their names. A
    /// job that may live keeps its group.
    fn remove_ended(&self, mut groups: Vec<Group>) -> Vec<String> {
        groups.retain(|group| group.kind() == Kind::Job);
        // Those below before the one that they are in.
        order::sort_by(&mut groups, |one, other| one.name > other.name);
        let records = Records::of(&groups);
        let mut states = records.states();
        let idle = |ledger: &Ledger| ledger.clean(&NoWitness).draining == 0;
        groups.retain(|group| {
            let state = states.next();
            // What was written since then, by who makes the group anew, is left to the next
            // clean-up.
            let has_ended = |now: &Record| {
                state.is_some_and(|(then, state)| now == then && state == JobState::Ended)
            };
            self.remove_if(group, has_ended, idle).is_ok()
        });
        groups.into_iter().map(|group| group.name).collect()
    }

    /// Removes the directories that never became a group, or are one no longer, and that nobody is
    /// making one of; returns their paths.
    ///
    /// Those that have limits stay: these are somebody's word.
    pub fn remove_leftovers(&self) -> Result<Vec<PathBuf>, GroupError> {
        let mut groups = self.survey()?.unfinished;
        order::sort_by(&mut groups, |one, other| one.name > other.name);
        groups.retain(|group| matches!(self.remove_leftover(group), Ok(true)));
        Ok(groups.iter().map(path).collect())
    }

    pub(super) fn remove_leftover(&self, group: &Group) -> Result<bool, GroupError> {
        let descent = Descent::to(group)?;
        if ours(group, &descent.directory)?.limits {
            return Ok(false);
        }
        let Some(alone) = hold_alone(group, &descent)? else {
            return Ok(true);
        };
        if ours(group, &descent.directory)?.limits {
            return Ok(false);
        }
        remove_held(group, &descent, alone, |_| true).map(|()| true)
    }

    /// Removes a group, if what its directory says of its job allows it.
    fn remove_if(
        &self,
        group: &Group,
        job: impl FnOnce(&Record) -> bool,
        idle: impl FnOnce(&Ledger) -> bool,
    ) -> Result<(), GroupError> {
        let descent = Descent::to(group)?;
        ours(group, &descent.directory)?;
        let Some(alone) = hold_alone(group, &descent)? else {
            return Ok(());
        };
        // Only now: whoever makes the group holds it until the job is on record.
        if !job(&Record::of(&descent.directory)) {
            return Err(group.in_use());
        }
        remove_held(group, &descent, alone, idle)
    }
}

impl Group {
    /// Takes the slots of dead processes out of the group's ledger, with the rights of the user to
    /// whom the group belongs.
    pub fn clean(&self, witness: &dyn Witness) -> Result<Cleaned, GroupError> {
        let _descent = Descent::to(self)?;
        Ok(Ledger::open(&self.ledger_path())?.clean(witness))
    }
}

fn path(group: &Group) -> PathBuf {
    group.path.clone()
}

/// What is in a group's directory, none of it somebody else's.
fn ours(group: &Group, directory: &Directory) -> Result<Contents, GroupError> {
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

/// Keeps everybody out of a group; [`GroupError::InUse`] while somebody holds it. `None` where it
/// was an empty directory, which is gone now.
fn hold_alone(group: &Group, descent: &Descent) -> Result<Option<Hold>, GroupError> {
    let failed = |error| group.failed("remove", error);
    let Descent { directory, .. } = descent;
    if Contents::of(directory).map_err(failed)?.is_empty() {
        // No lock: whoever makes a group of it meanwhile finds it gone, or has made the lock
        // before.
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
    let contents = ours(group, directory)?;
    check_below(group, directory)?;
    let ledger = match Ledger::open(&group.ledger_path()).map_err(GroupError::from) {
        // Whether the group has members cannot be told.
        Err(error) if error.is_leased() => return Err(error),
        ledger => ledger.ok(),
    };
    let removal = match &ledger {
        // Members that could read it may be of another version, and would go on beside whoever
        // makes the group again.
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
    gone(directory.remove_directory(BELOW)).map_err(failed)?;
    // The limits go first of the files: without them there is no group to come into.
    gone(directory.remove_file(LIMITS)).map_err(failed)?;
    for name in &contents.others {
        gone(directory.remove_file(name)).map_err(failed)?;
    }
    // The ledger proves that the directory is ours until there is nothing left to prove it for.
    gone(directory.remove_file(LEDGER)).map_err(failed)?;
    // Last of the files: until then nobody comes in.
    gone(directory.remove_file(LOCK)).map_err(failed)?;
    drop((removal, ledger, alone));
    await_hidden(directory);
    match remove_directory(group, descent) {
        // Somebody has come to make it anew, or to clean up, since the lock is gone: the directory
        // is theirs now.
        Err(error)
            if error.kind() == ErrorKind::DirectoryNotEmpty
                && directory.entry(LOCK).is_ok_and(|lock| lock.is_some()) => {}
        removed => removed.map_err(failed)?,
    }
    if protected {
        group.tell_parent();
    }
    Ok(())
}

/// Finds what is below a group before anything is gone.
fn check_below(group: &Group, directory: &Directory) -> Result<(), GroupError> {
    let below = match directory.open_directory(BELOW) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        below => below.map_err(|error| group.failed("list", error))?,
    };
    let failed = |error| group.failed("list", error);
    let mut foreign = None;
    let mut groups = Vec::new();
    for name in below.names().map_err(failed)? {
        let name = name.map_err(failed)?;
        let kind = below.entry(&name).map_err(failed)?.map(|entry| entry.kind);
        match (name.to_str(), kind) {
            (_, None) => {}
            (Some(part), Some(EntryKind::Directory)) if name::is_part(part) => {
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

/// Removes the group's own directory, which is empty, unless another one has its name by now.
fn remove_directory(group: &Group, descent: &Descent) -> io::Result<()> {
    let Descent {
        parent, directory, ..
    } = descent;
    let part = name::last(&group.name);
    let own = directory.about()?;
    match parent.entry(part)? {
        Some(there) if there.id == (own.dev(), own.ino()) => gone(parent.remove_directory(part)),
        _ => Ok(()),
    }
}

/// Waits a bounded time for files that a file system in user space keeps under another name, after
/// they were removed, until their last mapping is gone: this process has just dropped its own.
fn await_hidden(directory: &Directory) {
    const PATIENCE: Duration = Duration::from_secs(1);
    let has_hidden = || {
        let mut names = directory.names()?.flatten();
        io::Result::Ok(names.any(|name| contents::is_hidden(&name)))
    };
    let start = Instant::now();
    while start.elapsed() < PATIENCE && has_hidden().unwrap_or(false) {
        thread::sleep(Duration::from_millis(1));
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
