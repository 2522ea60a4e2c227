//! Removes drafts that killed processes have left: new files that never got their final names.

use super::contents::{self, Contents};
use super::descent::Descent;
use super::directory::Directory;
use super::hold::Hold;
use super::removal::Survey;
use super::{Group, GroupError, LOCK, Root, context_size};
use std::io;
use std::path::PathBuf;

impl Root {
    /// Removes the drafts in the root and in the groups of `survey` without members. Returns the
    /// paths of the drafts.
    pub fn remove_drafts(&self, survey: &Survey) -> Vec<PathBuf> {
        let in_root = self.remove_own_drafts().unwrap_or_default();
        let in_groups = survey.groups.iter().map(Group::remove_drafts);
        let in_groups = in_groups.flat_map(Result::unwrap_or_default);
        in_root.into_iter().chain(in_groups).collect()
    }

    /// Removes the drafts of the files directly in the root: of the sizes of contexts, and of the
    /// trail. A process that is just writing such a draft then fails to make the file. The next
    /// measurement of a context, or the next job, makes the file again.
    fn remove_own_drafts(&self) -> io::Result<Vec<PathBuf>> {
        let root = Directory::open(self.path())?;
        let names = Self::names(&root, &mut Vec::new(), &mut None)?;
        let drafts = names.iter().filter_map(|name| name.to_str());
        let drafts = drafts.filter(|name| {
            context_size::is_draft(&root, name) || Self::is_draft_of_trail(&root, name)
        });
        let removed = drafts.filter(|name| root.remove_file(name).is_ok());
        Ok(removed.map(|name| self.path().join(name)).collect())
    }
}

impl Group {
    fn remove_drafts(&self) -> Result<Vec<PathBuf>, GroupError> {
        let failed = |error| self.failed("clean", error);
        let descent = Descent::to(self)?;
        let directory = &descent.directory;
        let drafts = || -> io::Result<Vec<String>> {
            let others = Contents::of(directory)?.others.into_iter();
            let names = others.filter_map(|name| name.into_string().ok());
            Ok(names
                .filter(|name| contents::is_draft(directory, name))
                .collect())
        };
        if drafts().map_err(failed)?.is_empty() {
            return Ok(Vec::new());
        }
        // A process that makes files of a group holds the group's lock, so its drafts stay.
        let Some(_alone) = Hold::alone_in(directory, LOCK).map_err(failed)? else {
            return Ok(Vec::new());
        };
        let mut drafts = drafts().map_err(failed)?;
        drafts.retain(|name| directory.remove_file(name).is_ok());
        let path = |name| directory.path().join(name);
        Ok(drafts.into_iter().map(path).collect())
    }
}
