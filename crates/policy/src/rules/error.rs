//! The errors of reading and applying the administrator's rules.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The reason why existing rules cannot be read or applied. The program then gets no GPU memory.
#[derive(Debug)]
pub enum RulesError {
    /// A system call failed.
    Io {
        /// The path of the rules file.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// A user other than the administrator could have written the rules.
    Unsafe {
        /// The path of the root or of the file with the rules.
        path: PathBuf,
        /// The reason why the file or directory is unsafe.
        why: String,
    },
    /// The content of the rules file is not what `gpulimit apply` writes.
    Damaged {
        /// The path of the rules file.
        path: PathBuf,
        /// The damaged line, counted from 1; 0 means the whole file.
        line: usize,
    },
    /// The rules file was written by another version of gpulimit.
    Version {
        /// The path of the rules file.
        path: PathBuf,
    },
    /// A rule has a condition on a property of this process that cannot be read.
    Unknown {
        /// The file in `/proc` from which the property is read.
        what: &'static str,
        /// The error of the system call.
        error: io::Error,
    },
    /// The process is in a user namespace of its own. There it can forge the properties that rules
    /// have conditions on.
    Namespace {
        /// The path of the rules file.
        path: PathBuf,
    },
    /// The machine has a policy file, but the path of the root with the rules leads to another
    /// directory.
    Hidden {
        /// The path of the root.
        root: PathBuf,
    },
    /// The rule makes a group for each listed user, but this user is not listed.
    Unlisted {
        /// The id of the user.
        uid: u32,
        /// The number of the rule.
        rule: u32,
    },
}

impl RulesError {
    /// Returns a function that builds the error for a property that cannot be read from the file
    /// `what`.
    pub(crate) fn unknown(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Unknown { what, error }
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const AGAIN: &str = "the administrator can write the rules again with `gpulimit apply`";
        match self {
            Self::Io { path, error } => write!(
                f,
                "cannot read the administrator's rules in {}: {error}",
                path.display()
            ),
            Self::Unsafe { path, why } => write!(
                f,
                "the administrator's rules are not safe: {} {why}: {AGAIN}",
                path.display()
            ),
            Self::Damaged { path, line: 0 } => {
                write!(
                    f,
                    "the administrator's rules in {} are damaged: {AGAIN}",
                    path.display()
                )
            }
            Self::Damaged { path, line } => write!(
                f,
                "the administrator's rules in {} are damaged in line {line}: {AGAIN}",
                path.display()
            ),
            Self::Version { path } => write!(
                f,
                "the administrator's rules in {} were written by another version of gpulimit: \
                 {AGAIN} of the same version as the libgpulimit.so of this program",
                path.display()
            ),
            Self::Unknown { what, error } => write!(
                f,
                "cannot read {what} of this program, on which the administrator's rules depend: \
                 {error}"
            ),
            Self::Namespace { path } => write!(
                f,
                "this program is in a user namespace, where the administrator's rules in {} \
                 cannot tell which user it belongs to: run the program outside of the user \
                 namespace, or in a container to which the administrator has given a group \
                 (docs/containers.md)",
                path.display()
            ),
            Self::Hidden { root } => write!(
                f,
                "this program is in a user namespace, where it cannot see the administrator's \
                 rules: {} is not the directory that holds the rules, although the machine has \
                 the policy {}: run the program outside of the user namespace, or in a container \
                 to which the administrator has given a group (docs/containers.md)",
                root.display(),
                super::POLICY
            ),
            Self::Unlisted { uid, rule } => write!(
                f,
                "rule {rule} of the administrator's policy has a group for each user, but none \
                 for user {uid}: the administrator makes one with `gpulimit apply`, or reads there \
                 why not"
            ),
        }
    }
}

impl Error for RulesError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { error, .. } | Self::Unknown { error, .. } => Some(error),
            _ => None,
        }
    }
}
