//! An administrator's rules, compiled: which process belongs to which group, whatever its
//! environment says.
//!
//! `gpulimit apply` writes them into the system root, and the preloaded library reads them there:
//! lines of words, with numbers in place of names, so that neither TOML nor the user database is
//! needed. Anything that is not exactly what was written is an error, never "no rules".

mod error;
mod text;

pub use error::{Fault, RulesError};

use super::namespace;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file in a root that has them. No group can have this name.
pub const FILE: &str = ".rules";

/// The administrator's policy, which `gpulimit apply` makes rules of. That it is there is how
/// programs know that rules are wanted where they cannot see the root that has them.
pub const POLICY: &str = "/etc/gpulimit/gpulimit.toml";

/// A file of more bytes is not read.
pub const LONGEST: u64 = 4 << 20;

/// What happens to a program that cannot come into its group.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
#[cfg_attr(
    feature = "file",
    derive(serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum OnError {
    /// It gets no GPU memory.
    #[default]
    Closed,
    /// It runs without a limit, and says so.
    Open,
}

impl OnError {
    /// As written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}

/// Users by number, from the first to the last of each range.
pub type Range = (u32, u32);

/// The members of some unix groups.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UnixGroups {
    /// By the groups of the process.
    pub gids: Vec<u32>,
    /// By user: in a user namespace a process need not show its groups.
    pub members: Vec<Range>,
}

/// The group that a rule puts processes into.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Target {
    /// None: the environment decides.
    Exempt,
    /// This one.
    Group(String),
    /// One for each user; somebody who is not in the list gets no GPU memory.
    Each(Vec<(u32, String)>),
}

/// One rule. All of its conditions must hold; one that is empty always does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    /// Its place in the policy file, from 1.
    pub number: u32,
    /// What happens to a program that cannot come into the group.
    pub on_error: OnError,
    /// One of these users.
    pub user: Vec<Range>,
    /// In one of these unix groups.
    pub unix_group: Option<UnixGroups>,
    /// In a cgroup of such a path.
    pub cgroup: Vec<String>,
    /// Executing such a file.
    pub executable: Vec<String>,
    /// In a container with such an id.
    pub container: Vec<String>,
    /// Where to.
    pub target: Target,
}

/// All rules, the first of which that matches counts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rules(pub Vec<Rule>);

/// The group that the rules put a process into.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Assigned {
    /// The group.
    pub group: String,
    /// What happens when the process cannot come into it.
    pub on_error: OnError,
    /// The rule, as the policy file counts.
    pub rule: u32,
}

/// Where rules are, and whose they must be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// The root.
    pub root: PathBuf,
    /// The user who may write them.
    pub owner: u32,
}

impl Source {
    /// The machine's own.
    pub fn system() -> Self {
        Self {
            root: gpulimit_group::SYSTEM.into(),
            owner: 0,
        }
    }
}

impl Rule {
    /// A rule that fits every process.
    fn of_everybody(number: u32, target: Target) -> Self {
        Self {
            number,
            on_error: OnError::Closed,
            user: Vec::new(),
            unix_group: None,
            cgroup: Vec::new(),
            executable: Vec::new(),
            container: Vec::new(),
            target,
        }
    }
}

impl Rules {
    /// Every process belongs to this group, whatever its environment says: for a root that only one
    /// container sees.
    pub fn everybody(group: &str) -> Self {
        Self(vec![Rule::of_everybody(1, Target::Group(group.into()))])
    }

    /// The rules one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// Reads the rules of a root; `None` where it has none. They count only where nobody but their
    /// owner can have written them.
    pub fn load(source: &Source) -> Result<Option<Self>, RulesError> {
        let path = source.root.join(FILE);
        let failed = |error| RulesError::Io {
            path: path.clone(),
            error,
        };
        let mut file = match open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let root = fs::symlink_metadata(&source.root).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        // In a user namespace the machine's root has no number, and his files show that. So do
        // those of a user who has this number there, by subordinate ids; who mounts such files here
        // could leave out the library as well.
        let is_initial = namespace::is_initial().map_err(RulesError::unknown(namespace::USER))?;
        let owner = match is_initial {
            true => source.owner,
            false if about.uid() == namespace::UNMAPPED && root.uid() == about.uid() => about.uid(),
            false => return Err(RulesError::Namespace { path }),
        };
        for (path, about, kind) in [
            (&source.root, &root, root.is_dir()),
            (&path, &about, about.is_file()),
        ] {
            let why = if !kind {
                Fault::Kind
            } else if about.uid() != owner {
                Fault::Owner(about.uid())
            } else if about.mode() & 0o022 != 0 {
                Fault::Writable(about.mode() & 0o7777)
            } else {
                continue;
            };
            return Err(RulesError::Unsafe {
                path: path.clone(),
                why,
            });
        }
        let mut bytes = Vec::new();
        file.by_ref()
            .take(LONGEST + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        let damaged = |line| RulesError::Damaged {
            path: path.clone(),
            line,
        };
        if bytes.len() as u64 > LONGEST {
            return Err(damaged(0));
        }
        match text::read(&bytes) {
            Ok(rules) => Ok(Some(rules)),
            Err(text::Wrong::Version) => Err(RulesError::Version { path }),
            Err(text::Wrong::Line(line)) => Err(damaged(line)),
        }
    }

    /// Fails where something else than the machine's root of groups is at its place, in a user
    /// namespace on a machine with a policy.
    pub(super) fn check_hidden(source: &Source) -> Result<(), RulesError> {
        let is_the_machines = |path: &Path| match fs::symlink_metadata(path) {
            Ok(about) => about.uid() == namespace::UNMAPPED,
            Err(error) => error.kind() == ErrorKind::PermissionDenied,
        };
        let hidden = is_the_machines(Path::new(POLICY))
            && !is_the_machines(&source.root)
            && !namespace::is_initial().map_err(RulesError::unknown(namespace::USER))?;
        match hidden {
            true => Err(RulesError::Hidden {
                root: source.root.clone(),
            }),
            false => Ok(()),
        }
    }
}

/// Returns whether one of the ranges has this number.
pub(crate) fn is_in(ranges: &[Range], number: u32) -> bool {
    ranges
        .iter()
        .any(|(first, last)| (*first..=*last).contains(&number))
}

/// Not waiting for the writer of a FIFO that stands where the file should.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
}

#[cfg(test)]
mod tests;
