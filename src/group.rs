//! Groups on disk: a directory each, below a root, with the limits and the ledger in it.
//!
//! The ownership of these files is the permission model: who may write `limits` administers the group, who may
//! write `ledger` can be a member.

mod context_size;
mod error;
mod hold;
mod member;
mod name;
mod root;
mod user;

pub use error::{Fault, GroupError};
pub use hold::Hold;
pub use member::{Holder, MAX_DEPTH, Member, MemberDevice, Refusal};
pub use name::{Kind, check as check_name};
pub use root::{Created, Root, SYSTEM};

use crate::ledger::Ledger;
use crate::limits::{LimitSet, Limits};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A group on disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Group {
    name: String,
    path: PathBuf,
    root: PathBuf,
}

impl Group {
    fn at(root: &Path, name: &str) -> Self {
        Self {
            name: name.into(),
            path: root.join(name),
            root: root.into(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long it stays.
    pub fn kind(&self) -> Kind {
        Kind::of(&self.name)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its limits file.
    pub fn limits_path(&self) -> PathBuf {
        self.path.join("limits")
    }

    /// Its ledger.
    pub fn ledger_path(&self) -> PathBuf {
        self.path.join("ledger")
    }

    /// Opens its limits for reading.
    pub fn limits(&self) -> Result<Limits, GroupError> {
        Ok(Limits::open(&self.limits_path())?)
    }

    /// Changes its limits, for programs that run in it as for those that will.
    pub fn write_limits(&self, change: impl FnOnce(&mut LimitSet)) -> Result<LimitSet, GroupError> {
        Ok(Limits::write(&self.limits_path(), change)?)
    }

    /// Opens its ledger for looking only.
    pub fn ledger(&self) -> Result<Ledger, GroupError> {
        Ok(Ledger::open_readonly(&self.ledger_path())?)
    }

    /// Keeps the group from being removed until the answer is dropped.
    pub fn hold(&self) -> Result<Hold, GroupError> {
        Hold::shared(&self.path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => GroupError::Missing {
                name: self.name.clone(),
                root: self.root.clone(),
                known: Vec::new(),
            },
            ErrorKind::TimedOut => GroupError::Held {
                path: self.path.clone(),
            },
            _ => self.failed("open", error),
        })
    }

    fn failed(&self, what: &'static str, error: io::Error) -> GroupError {
        GroupError::Io {
            what,
            path: self.path.clone(),
            error,
        }
    }
}
