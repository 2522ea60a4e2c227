//! Finds out whether users other than root could change or replace a file.

use gpulimit_base::missing::found;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The overflow uid. In a user namespace, the kernel shows it for users who have no uid there.
const OVERFLOW: u32 = 65534;
/// The maximum number of symbolic links to follow on a path. The kernel has the same maximum.
const MOST_LINKS: u32 = 40;

/// The trusted users and unix groups: those that may have write access to files that root uses.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    users: BTreeSet<u32>,
    unix_groups: BTreeSet<u32>,
}

/// A part of the path to a file: a directory, a symbolic link, or the file itself.
struct Step {
    path: PathBuf,
    about: fs::Metadata,
}

impl Trusted {
    /// Trusts root only.
    pub fn root() -> Self {
        let mut users = BTreeSet::from([0]);
        // In a user namespace, files of the machine's root seem to belong to the overflow uid. They
        // can be trusted.
        if is_in_user_namespace() {
            users.insert(OVERFLOW);
        }
        Self {
            users,
            unix_groups: BTreeSet::new(),
        }
    }

    /// Trusts root and this user.
    pub fn of_user(uid: u32) -> Self {
        let mut trusted = Self::root();
        trusted.users.insert(uid);
        trusted
    }

    /// Trusts root and everyone who can change this program's own file, because they control the
    /// program anyway.
    pub fn of_this_program() -> Self {
        let mut trusted = Self::root();
        let way = std::env::current_exe().and_then(|program| Way::to(Path::new("/"), &program));
        for Step { about, .. } in way.map_or_else(|_| Vec::new(), |way| way.steps) {
            trusted.users.insert(about.uid());
            if about.mode() & 0o020 != 0 && !about.is_symlink() {
                trusted.unix_groups.insert(about.gid());
            }
        }
        trusted
    }

    /// Fails if an untrusted user could change or replace a file. The error names what the user
    /// could change, and why.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        let way = self.checked(Path::new("/"), path)?;
        match way.ends_early {
            Some(missing) => Err(format!("there is no {}", missing.display())),
            None => Ok(()),
        }
    }

    /// Checks a path like [`Self::check`], but the file need not exist.
    pub fn check_new(&self, path: &Path) -> Result<(), String> {
        self.checked(Path::new("/"), path).map(drop)
    }

    /// Checks a path in the system image at `root`, as [`Self::check_new`] does. Refuses symbolic
    /// links, which may lead elsewhere later.
    pub fn check_in_image(&self, root: &Path, path: &Path) -> Result<(), String> {
        let way = self.checked(root, path)?;
        match way.steps.iter().find(|step| step.about.is_symlink()) {
            Some(step) => Err(format!("{} is a symbolic link", step.path.display())),
            None => Ok(()),
        }
    }

    fn checked(&self, root: &Path, path: &Path) -> Result<Way, String> {
        let way = Way::to(root, path)
            .map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        let last = way.steps.len();
        for (number, Step { path, about }) in way.steps.iter().enumerate() {
            let (mode, path) = (about.mode() & 0o7777, path.display());
            if !self.users.contains(&about.uid()) {
                return Err(format!("{path} belongs to user {}", about.uid()));
            }
            if about.is_symlink() {
                continue;
            }
            // In a sticky directory, others cannot replace a trusted user's files. Accept the
            // directory if the next part is such a file.
            let is_taken = number + 1 < last;
            if about.is_dir() && mode & 0o1000 != 0 && is_taken {
                continue;
            }
            let by_group = mode & 0o020 != 0 && !self.unix_groups.contains(&about.gid());
            if mode & 0o002 != 0 || by_group {
                return Err(format!("{path} may be written by others (mode {mode:04o})"));
            }
        }
        Ok(way)
    }
}

/// The parts of an absolute path. Together they decide to which file the path leads.
struct Way {
    /// The existing parts, in order. If the file exists, it is the last one.
    steps: Vec<Step>,
    /// The first part of the path that does not exist; `None` if the file exists.
    ends_early: Option<PathBuf>,
}

impl Way {
    /// Follows a path below `root`. Symbolic links lead where they would lead in a system whose
    /// root directory is `root`.
    fn to(root: &Path, path: &Path) -> io::Result<Self> {
        let below = path
            .strip_prefix(root)
            .map_err(|_| ErrorKind::InvalidInput)?;
        let mut ahead = parts(below);
        let mut here = root.to_path_buf();
        let mut steps = vec![Step {
            about: fs::symlink_metadata(&here)?,
            path: here.clone(),
        }];
        let mut links = 0;
        while let Some(part) = ahead.pop() {
            if part == Path::new("..") {
                if here != root {
                    here.pop();
                }
                continue;
            }
            let next = here.join(&part);
            let Some(about) = found(fs::symlink_metadata(&next))? else {
                let ends_early = Some(next);
                return Ok(Self { steps, ends_early });
            };
            let link = about
                .is_symlink()
                .then(|| fs::read_link(&next))
                .transpose()?;
            steps.push(Step {
                path: next.clone(),
                about,
            });
            match link {
                None => here = next,
                Some(target) => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(io::Error::from_raw_os_error(libc::ELOOP));
                    }
                    if target.is_absolute() {
                        here = root.to_path_buf();
                    }
                    ahead.extend(parts(&target));
                }
            }
        }
        let ends_early = None;
        Ok(Self { steps, ends_early })
    }
}

/// Returns the parts of a path in reverse order.
fn parts(path: &Path) -> Vec<PathBuf> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(part).collect()
}

/// Returns whether this process is outside the initial user namespace. Only in that namespace do
/// all users have their own uid.
pub fn is_in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::Scratch;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn every_directory_and_link_on_the_path_is_checked() {
        if !gpulimit_support::is_root() {
            return;
        }
        let place = Scratch::new();
        fs::create_dir_all(place.at("a/b")).expect("made");
        let at = |name: &str| place.at(name);
        let file = at("a/b/file");
        fs::write(&file, "").expect("written");
        for name in ["", "a", "a/b", "a/b/file"] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).expect("set");
        }
        symlink("/../a", at("relative")).expect("linked");
        symlink(at("a"), at("absolute")).expect("linked");
        let root = Trusted::root();
        let refused = |path: &Path, name: &str, why: &str| {
            let said = root.check(path).expect_err(name);
            assert!(
                said.contains(&format!("{} {why}", at(name).display())),
                "{said}"
            );
        };
        // The directory above the test's files is sticky or belongs to root, so this check passes.
        root.check(&file).expect("root's");
        root.check(&at("absolute/b/file")).expect("root's");
        assert!(root.check(&at("missing")).is_err());
        root.check_new(&at("a/missing/file")).expect("root's");
        root.check_in_image(&place.0, &file).expect("root's");
        let said = root.check_in_image(&place.0, &at("relative/b/file"));
        assert!(said.expect_err("a link").contains("is a symbolic link"));
        // In a sticky directory, any user could make a missing file before root does.
        fs::set_permissions(at("a/b"), fs::Permissions::from_mode(0o1777)).expect("set");
        root.check_new(&file).expect("root's");
        let said = root.check_new(&at("a/b/missing")).expect_err("refused");
        assert!(said.contains("may be written by others"), "{said}");
        fs::set_permissions(at("a/b"), fs::Permissions::from_mode(0o755)).expect("set");
        for name in ["a", "a/b", "a/b/file"] {
            chown(at(name), Some(40_001), None).expect("given");
            refused(&file, name, "belongs to user 40001");
            refused(&at("absolute/b/file"), name, "belongs to user 40001");
            chown(at(name), Some(0), None).expect("taken");
            for mode in [0o757, 0o775] {
                fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("set");
                refused(&file, name, "may be written by others");
            }
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).expect("set");
        }
        std::os::unix::fs::lchown(at("absolute"), Some(40_001), None).expect("given");
        refused(&at("absolute/b/file"), "absolute", "belongs to user 40001");
        // This check trusts root, and also the users who can change this test program.
        Trusted::of_this_program().check(&file).expect("root's");
    }
}
