//! The administrator's rules in compiled form: they decide which group a process belongs to.
//!
//! `gpulimit apply` writes the rules into the system root, and the preloaded library reads them
//! there. The file has numbers in place of names, so a reader needs no user database. A damaged
//! file is an error; it never means "no rules".

mod error;
mod text;

pub use error::RulesError;

use super::namespace;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name of the file in a root that holds the compiled rules. A group cannot have this name.
pub const FILE: &str = ".rules";

/// The administrator's policy file. If only this file is visible in a container, the rules are
/// hidden.
pub const POLICY: &str = "/etc/gpulimit/gpulimit.toml";

/// The most bytes of a rules file that are read. A longer file counts as damaged.
pub const LONGEST: u64 = 4 << 20;

/// What happens to a program that cannot join the group that a rule assigns.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum OnError {
    /// The program gets no GPU memory.
    #[default]
    Closed,
    /// The program runs without a limit, and a warning says so.
    Open,
}

impl OnError {
    /// Returns the value as the text that administrators write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }

    /// Returns the value that administrators write as this text.
    pub fn of(text: &str) -> Option<Self> {
        [Self::Closed, Self::Open]
            .into_iter()
            .find(|it| it.name() == text)
    }
}

/// A range of user ids, from the first to the last.
pub type Range = (u32, u32);

/// A condition on the unix groups of a process.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UnixGroups {
    /// The ids of the unix groups, which are compared with the unix groups of the process.
    pub gids: Vec<u32>,
    /// The ids of the users in the unix groups. A process can hide its unix groups in a user
    /// namespace.
    pub members: Vec<Range>,
}

/// The group that a rule puts processes into.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Target {
    /// The rule exempts processes: the environment decides about their group.
    Exempt,
    /// The same group for all processes that the rule matches.
    Group(String),
    /// A group for each user, as pairs of user id and group. Other users get no GPU memory.
    Each(Vec<(u32, String)>),
}

/// A compiled rule. It matches a process if all its conditions are true. An empty condition is
/// always true.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    /// The rule's position in the policy file, counted from 1.
    pub number: u32,
    /// What happens to a program that cannot join the rule's group.
    pub on_error: OnError,
    /// Condition: the process belongs to one of these users.
    pub user: Vec<Range>,
    /// Condition: the process is in one of these unix groups.
    pub unix_group: Option<UnixGroups>,
    /// Condition: one of these patterns matches a cgroup of the process.
    pub cgroup: Vec<String>,
    /// Condition: one of these patterns matches the path of the executed file.
    pub executable: Vec<String>,
    /// Condition: one of these patterns matches the id of a container that the process is in.
    pub container: Vec<String>,
    /// The group that the rule assigns.
    pub target: Target,
}

/// All rules. The first rule that matches a process decides.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rules(pub Vec<Rule>);

/// The group that the rules put a process into, with the rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Assigned {
    /// The name of the group.
    pub group: String,
    /// What happens if the process cannot join the group.
    pub on_error: OnError,
    /// The rule's position in the policy file, counted from 1.
    pub rule: u32,
}

/// The directory that holds the compiled rules, and the user who must own the rules.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// The root that holds the rules.
    pub root: PathBuf,
    /// The only user who may write the rules.
    pub owner: u32,
}

impl Source {
    /// Returns the source of the machine's rules: the system root, owned by root.
    pub fn system() -> Self {
        Self {
            root: gpulimit_group::SYSTEM.into(),
            owner: 0,
        }
    }
}

impl Rule {
    /// Returns a rule without conditions, which matches every process.
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
    /// Returns rules that put every process into the group `group`, for a root that only one
    /// container sees.
    pub fn everybody(group: &str) -> Self {
        Self(vec![Rule::of_everybody(1, Target::Group(group.into()))])
    }

    /// Iterates over the rules.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// Reads the compiled rules in a root, if any. Fails if a user other than `source.owner` could
    /// have written the rules.
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
        // In a user namespace, root's files may show `UNMAPPED`. Accept this id: a user who forges
        // it could also avoid the library.
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
                "is not a plain file or directory".into()
            } else if about.uid() != owner {
                format!("belongs to user {} and not to root", about.uid())
            } else if about.mode() & 0o022 != 0 {
                let mode = about.mode() & 0o7777;
                format!("can be written by other users (mode {mode:04o})")
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

    /// Fails if a user namespace hides the machine's rules: the policy file is visible, but the
    /// machine's root of groups is not.
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

/// Returns whether one of the ranges contains this user id.
pub(crate) fn is_in(ranges: &[Range], number: u32) -> bool {
    ranges
        .iter()
        .any(|(first, last)| (*first..=*last).contains(&number))
}

/// Opens a file. If the path leads to a FIFO, does not wait for the FIFO's writer.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
}

#[cfg(test)]
mod tests;
