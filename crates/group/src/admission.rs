//! Makes a group's files and sets which users may use them.
//!
//! Permissions are changed through open files ([`Descent`]), and root has only the rights of the
//! directory's owner. So a user's symbolic link cannot lead root to other files.

use super::descent::Descent;
use super::directory::Directory;
use super::root::Modes;
use super::trust::check_open;
use super::{Access, BELOW, Group, GroupError, Kind, LEDGER, LIMITS, LOCK, Members, user};
use gpulimit_ledger::Ledger;
use gpulimit_limits::{LimitSet, Limits};
use std::io::{self, ErrorKind};

impl Group {
    /// Makes the group's file `lock`, unless the file exists.
    pub(super) fn make_lock(&self, here: &Directory, access: Access) -> Result<(), GroupError> {
        let made = match here.create_file(LOCK, 0o600) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            made => made.and_then(|file| access.give(&file)),
        };
        made.map_err(|error| match error.kind() {
            // A clean-up or a removal by another process has removed the group's directory or its
            // new lock file.
            ErrorKind::NotFound => self.missing(),
            _ => self.failed("create", error),
        })
    }

    /// Makes the missing files of the group. Returns whether this call made the group's limits
    /// file. The caller holds the group's lock.
    pub(super) fn fill(
        &self,
        place: Descent,
        limits: &LimitSet,
        access: Access,
        modes: Modes,
    ) -> Result<bool, GroupError> {
        let failed = |error| self.failed("create", error);
        let here = &place.directory;
        match here.create_directory(BELOW, modes.directory) {
            Ok(below) => access.give_directory(&below).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                check_open(&here.open_directory(BELOW).map_err(failed)?)?;
            }
            Err(error) => return Err(failed(error)),
        }
        if here.entry(LEDGER).map_err(failed)?.is_none() {
            let path = self.ledger_path();
            match self.kind() {
                Kind::Named => Ledger::create_with_history(&path, 0o600)?,
                Kind::Job => Ledger::create(&path, 0o600)?,
            }
            access.give_file(here, LEDGER).map_err(failed)?;
        }
        let is_group = here.entry(LIMITS).map_err(failed)?.is_some();
        // Dropping `place` restores the rights of root, which are needed in the groups above.
        drop(place);
        if !is_group {
            self.admit_above(access)?;
        }
        let _power = Descent::to(self)?;
        // The limits file turns the directory into a group, so this file is made last.
        let new = Limits::create(&self.limits_path(), modes.limits, limits)?;
        if new && limits.protects() {
            self.notify_parent();
        }
        Ok(new)
    }

    /// Returns which users may run programs in the group, from the permissions of the group's
    /// ledger.
    pub fn access(&self) -> Result<Access, GroupError> {
        Access::of(&self.ledger_path()).map_err(|error| self.failed("open", error))
    }

    /// Lets the users of `access` run programs in the group and in the groups above it. All users
    /// keep their rights there.
    pub fn give_access(&self, access: Access) -> Result<(), GroupError> {
        self.change(|here| {
            access.give_file(here, LEDGER)?;
            access.give_file(here, LOCK)?;
            access.give_directory(&here.open_directory(BELOW)?)
        })?;
        self.admit_above(access)
    }

    /// Changes the files in the group's directory, with the rights of the directory's owner.
    fn change(&self, change: impl FnOnce(&Directory) -> io::Result<()>) -> Result<(), GroupError> {
        let place = Descent::to(self)?;
        change(&place.directory).map_err(|error| self.failed("change", error))
    }

    /// Lets the users of `access` write the ledgers of all groups above, because members are also
    /// charged there.
    fn admit_above(&self, access: Access) -> Result<(), GroupError> {
        let user = access.owner.filter(|uid| *uid != user::effective());
        for above in self.upwards().skip(1) {
            above.change(|here| {
                let ledger = here.entry(LEDGER)?.ok_or(ErrorKind::NotFound)?;
                let there = Access::of_entry(&ledger);
                let user_is_in = user.is_none_or(|uid| there.admits(uid));
                let members_are_in = access.members == Members::Owner
                    || there.members == Members::All
                    || there.members == access.members;
                if user_is_in && members_are_in {
                    return Ok(());
                }
                let members = match there.members {
                    Members::Owner if user_is_in => access.members,
                    _ => Members::All,
                };
                let wider = Access {
                    owner: None,
                    members,
                };
                wider.give_file(here, LEDGER)?;
                wider.give_file(here, LOCK)
            })?;
        }
        Ok(())
    }
}
