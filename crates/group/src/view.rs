//! Views of groups: a root with one group and the groups above it, for a container or for a job of
//! root whose programs become other users.
//!
//! The files in a view are hard links, so a process that joins the view's group is a member of the
//! group itself.

use super::descent::Descent;
use super::directory::Directory;
use super::root::make_directory;
use super::{
    Access, BELOW, Group, GroupError, LEDGER, LIMITS, Members, context_size, images, name, user,
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
    /// path. Closes the group itself to all users but root, and lets every user who knows the path
    /// run programs in the group. Below a job that has such a view, only makes the view: it leads
    /// the group's own user past the closed directory. Returns `None` elsewhere, and unless the
    /// root is one of root's own that all users can enter.
    pub fn show_in_secret(&self) -> Result<Option<PathBuf>, GroupError> {
        let failed = |error| self.failed("open", error);
        let root = Directory::open(&self.root).map_err(failed)?;
        let about = root.about().map_err(failed)?;
        let is_open = about.uid() == 0 && about.mode() & 0o001 != 0;
        let is_below = self.parent().is_some();
        if user::effective() != 0 || !is_open || is_below && !self.is_in_secret() {
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
        drop(place);
        if !is_below {
            self.give_access(Access {
                owner: None,
                members: Members::All,
            })?;
        }
        let name = format!("{}.{random:032x}", name::last(&self.name));
        let view = secret.path().join(name);
        self.show_in(&view).map(|_| Some(view))
    }

    /// Returns whether this group is a job of root with a secret view, or is below one.
    pub fn is_in_secret(&self) -> bool {
        let top = self.upwards().last();
        top.is_some_and(|top| top.secret_views().is_ok_and(|views| !views.is_empty()))
    }

    /// Removes the secret views of this group, which has no groups below it.
    pub(super) fn remove_secret_views(&self) -> io::Result<()> {
        self.secret_views()?.iter().try_for_each(fs::remove_dir_all)
    }

    /// Returns the secret views of this group, and of groups below it with the same last name.
    fn secret_views(&self) -> io::Result<Vec<PathBuf>> {
        let mut views = Vec::new();
        let Some(secret) = self.secret()? else {
            return Ok(views);
        };
        for name in secret.names()? {
            let name = name?;
            let of = name.to_str().and_then(|name| name.rsplit_once('.'));
            let view = secret.path().join(&name);
            let is_of = of.is_some_and(|(of, _)| of == name::last(&self.name));
            if is_of && Self::at(&view, &self.name).path().is_dir() {
                views.push(view);
            }
        }
        Ok(views)
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
