//! A trial of a root: makes a group, joins it and removes it, to find out whether groups can be
//! made.

use super::directory::Directory;
use super::{Access, Created, GroupError, Member, Root, user};
use gpulimit_base::identity::Identity;
use gpulimit_limits::LimitSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;

impl Root {
    /// Tests whether groups can be made in this root, and removes all traces. Returns `false` if
    /// only another user may make groups here.
    pub fn try_out(&self) -> Result<bool, GroupError> {
        if self.exists() {
            return match self.try_group() {
                Err(error) if self.is_for_others(&error) => Ok(false),
                tried => tried.map(|()| true),
            };
        }
        let failed = |error| GroupError::io("create", self.path(), error);
        let above = self.path().parent();
        let above = above.ok_or_else(|| failed(ErrorKind::InvalidInput.into()))?;
        let above = fs::canonicalize(above).and_then(|above| Directory::open(&above));
        let above = above.map_err(failed)?;
        let (name, draft) = self.draft(&above)?;
        let tried = draft.try_group();
        let removed = above.remove_directory(&name).map_err(failed);
        tried.and(removed).map(|()| true)
    }

    /// Makes a temporary directory beside the root. Tries several names, because other users may
    /// have taken some.
    fn draft(&self, above: &Directory) -> Result<(String, Self), GroupError> {
        const NAMES: u32 = 1_000;
        let me = Identity::of_self();
        for number in 0..NAMES {
            let name = format!(".gpulimit-{}-{}-{number}", me.pid, me.start_time);
            let path = above.path().join(&name);
            let draft = Self { path };
            if draft.make_directory(0o700)? {
                return Ok((name, draft));
            }
        }
        Err(GroupError::io(
            "create",
            self.path(),
            ErrorKind::AlreadyExists.into(),
        ))
    }

    /// Makes, joins and removes a group with a job's name. If this process is killed, the usual
    /// clean-up removes the group.
    fn try_group(&self) -> Result<(), GroupError> {
        let me = Identity::of_self();
        let name = format!("run-{}-{}", me.pid, me.start_time);
        let created = self.create_alone(&name, &LimitSet::default(), Access::default())?;
        let Created { group, hold, .. } = created;
        let joined = group.record_job().and_then(|()| Member::join(self, &name));
        let joined = joined.map(drop);
        let _ = group.forget_job();
        drop(hold);
        joined.and(self.remove(&name))
    }

    /// Returns whether the error is that the caller may not write a directory of another user.
    fn is_for_others(&self, error: &GroupError) -> bool {
        let is_denied = |error: &io::Error| error.kind() == ErrorKind::PermissionDenied;
        matches!(error, GroupError::Io { error, .. } if is_denied(error))
            && fs::metadata(self.path()).is_ok_and(|about| about.uid() != user::effective())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;

    #[test]
    fn a_directory_of_another_user_is_not_used_for_the_trial() {
        let scratch = Scratch::new();
        let me = Identity::of_self();
        let theirs = scratch.at(&format!(".gpulimit-{}-{}-0", me.pid, me.start_time));
        fs::create_dir_all(theirs.join("precious")).expect("made");
        let root = Root::at(scratch.at("groups")).expect("a root");
        assert!(root.try_out().expect("tried"));
        let names = fs::read_dir(&scratch.0).expect("listed").count();
        assert!(names == 1 && theirs.join("precious").exists());
    }
}
