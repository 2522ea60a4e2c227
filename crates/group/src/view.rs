//! Views of groups: a root with one group and the groups above it, for a container or for a job of
//! root whose programs become other users.
//!
//! The files in a view are hard links, so a process that joins the view's group is a member of the
//! group itself.

use super::descent::Descent;
use super::directory::Directory;
use super::root::make_directory;
use super::{
    Access, BELOW, Group, GroupError, LEDGER, LIMITS, Members, context_size, images, user,
};
use gpulimit_base::name::SECRET;
use gpulimit_ledger::Ledger;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The permissions of a view's directories: all users in the container may read them.
const DIRECTORY: u32 = 0o755;

/// The directory of a root that holds the views of containers, each as `CONTAINER/view`.
const CONTAINERS: &str = ".containers";
const VIEW: &str = "view";

impl Group {
    /// Makes a view of this group at the new path `place` on the same file system. Returns the
    /// paths of the view's ledgers.
    pub fn show_in(&self, place: &Path) -> Result<Vec<PathBuf>, GroupError> {
        let failed = |error| GroupError::io("create", place, error);
        fs::create_dir(place)
            .and_then(|()| fs::set_permissions(place, fs::Permissions::from_mode(DIRECTORY)))
            .map_err(failed)?;
        let mut ledgers = Vec::new();
        let path: Vec<_> = self.upwards().collect();
        for group in path.iter().rev() {
            let shown = Self::at(place, group.name());
            make_directory(shown.path(), DIRECTORY)?;
            make_directory(&shown.below_path(), DIRECTORY)?;
            for (there, here) in [
                (group.ledger_path(), shown.ledger_path()),
                (group.lock_path(), shown.lock_path()),
                (group.limits_path(), shown.limits_path()),
            ] {
                fs::hard_link(there, here).map_err(failed)?;
            }
            ledgers.push(shown.ledger_path());
        }
        context_size::copy(self.root(), place).map_err(failed)?;
        // Without the stored answers, programs in the container read their images themselves.
        let _ = images::copy(self.root(), place);
        Ok(ledgers)
    }

    /// Makes a view of a job's group in a directory whose name has 128 random bits, and returns its
    /// path. Every user who knows the path can run programs in the group. Closes the group itself
    /// to all users but root. Returns `None` unless the group is at the top of a root of root's own
    /// that all users can enter.
    pub fn show_in_secret(&self) -> Result<Option<PathBuf>, GroupError> {
        let failed = |error| self.failed("open", error);
        let root = Directory::open(&self.root).map_err(failed)?;
        let about = root.about().map_err(failed)?;
        let is_open = about.uid() == 0 && about.mode() & 0o001 != 0;
        if user::effective() != 0 || !is_open || self.parent().is_some() {
            return Ok(None);
        }
        match root.create_directory(SECRET, 0o711) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let Some(secret) = self.secret().map_err(failed)? else {
            return Ok(None);
        };
        let mut random = [0; 16];
        let urandom = File::open("/dev/urandom");
        let random = urandom.and_then(|mut file| file.read_exact(&mut random).map(|()| random));
        let random = u128::from_ne_bytes(random.map_err(failed)?);
        // Close the directory before its files are opened to all users.
        let place = Descent::to(self)?;
        let closed = place.directory.set_mode(0o700).and_then(|()| {
            let limits = place.directory.open_file(LIMITS, false)?;
            limits.set_permissions(fs::Permissions::from_mode(0o644))
        });
        closed.map_err(failed)?;
        self.give_access(Access {
            owner: None,
            members: Members::All,
        })?;
        let view = secret.path().join(format!("{}.{random:032x}", self.name));
        self.show_in(&view).map(|_| Some(view))
    }

    /// Removes the secret views of this group.
    pub(super) fn remove_secret_views(&self) -> io::Result<()> {
        let Some(secret) = self.secret()? else {
            return Ok(());
        };
        for name in secret.names()? {
            let name = name?;
            let of = name.to_str().and_then(|name| name.rsplit_once('.'));
            if of.is_some_and(|(of, _)| of == self.name) {
                fs::remove_dir_all(secret.path().join(name))?;
            }
        }
        Ok(())
    }

    /// Opens the directory of secret views; `None` where there is none that root has made and the
    /// caller can list.
    fn secret(&self) -> io::Result<Option<Directory>> {
        let secret = match Directory::open(&self.root.join(SECRET)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(None),
            secret => secret?,
        };
        let about = secret.about()?;
        Ok((about.uid() == 0 && about.mode() & 0o066 == 0).then_some(secret))
    }

    /// Returns whether an open ledger has hard links only in the group's directory and in views,
    /// which only root makes.
    pub(super) fn is_only_ledger(&self, ledger: &Ledger) -> Result<bool, GroupError> {
        let failed = |error| self.failed("open", error);
        let before = ledger.metadata().map_err(failed)?;
        if before.nlink() == 1 {
            return Ok(true);
        }
        let views = self.views_with((before.dev(), before.ino()));
        let views = views.map_err(failed)?;
        // Check that the number of links stayed the same while the views were counted.
        let after = ledger.metadata().map_err(failed)?;
        Ok(before.nlink() == after.nlink() && after.nlink() == views + 1)
    }

    /// Returns the number of containers' views in which this group's ledger is the file `id`, a
    /// device and inode.
    fn views_with(&self, id: (u64, u64)) -> io::Result<u64> {
        let containers = match Directory::open(&self.root.join(CONTAINERS)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            containers => containers?,
        };
        let about = containers.about()?;
        if about.uid() != 0 || about.mode() & 0o022 != 0 {
            return Ok(0);
        }
        let shows = |container: &Directory| -> io::Result<bool> {
            let mut here = container.open_directory(VIEW)?;
            for (depth, part) in self.name.split('/').enumerate() {
                if depth > 0 {
                    here = here.open_directory(BELOW)?;
                }
                here = here.open_directory(part)?;
            }
            Ok(here.entry(LEDGER)?.is_some_and(|there| there.id == id))
        };
        let mut count = 0;
        for name in containers.names()? {
            let container = containers.open_directory(name?);
            count += u64::from(container.and_then(|one| shows(&one)).unwrap_or(false));
        }
        Ok(count)
    }
}
