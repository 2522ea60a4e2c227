//! The errors of finding and joining a process's group. The administrator's rules or the
//! environment variables ask for this group.

use super::rules::{Assigned, RulesError};
use gpulimit_group::GroupError;
use std::error::Error;
use std::fmt;

/// The reason why the limit that an environment variable or a rule asks for cannot be applied.
#[derive(Debug)]
pub enum PolicyError {
    /// The limit that an environment variable asks for cannot be applied: the variable, and why.
    Variable(String),
    /// The root or the group that the process should join cannot be used.
    Group(GroupError),
    /// The administrator's rules cannot be read or applied.
    Rules(RulesError),
    /// The environment names a group that is not below the group to which a rule assigns the
    /// process.
    NotBelow {
        /// The rule that matches the process.
        rule: Assigned,
        /// The group's name as the environment gives it.
        named: String,
        /// Whether a group of this name exists outside of the assigned group.
        elsewhere: bool,
    },
    /// The group that a rule assigns cannot be used.
    Assigned {
        /// The rule that matches the process.
        rule: Assigned,
        /// The rule's group, or the group below it that the environment asks for.
        group: String,
        /// The reason why the group cannot be used.
        error: Box<GroupError>,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(why) => f.write_str(why),
            Self::Group(error) => error.fmt(f),
            Self::Rules(error) => error.fmt(f),
            Self::NotBelow {
                rule,
                named,
                elsewhere,
            } => {
                let (group, named) = (&rule.group, named.escape_debug());
                write!(
                    f,
                    "you are assigned to group {group} by rule {} of the administrator's policy, \
                     and your programs run only in this group and in groups below it: ",
                    rule.rule
                )?;
                match elsewhere {
                    true => write!(
                        f,
                        "group '{named}' is not below {group}; leave out GPULIMIT_GROUP, --group \
                         and --name, or name a group below {group}"
                    ),
                    false => write!(
                        f,
                        "'{named}' means group {group}/{named}, which does not exist; make the \
                         group with `gpulimit create {group}/{named}`, or unset GPULIMIT_GROUP"
                    ),
                }
            }
            Self::Assigned { rule, group, error } => {
                write!(
                    f,
                    "you are assigned to group {} by rule {} of the administrator's policy, ",
                    rule.group, rule.rule
                )?;
                match &**error {
                    GroupError::Io { path, error, .. } if *group != rule.group => write!(
                        f,
                        "but you may not make groups below this group ({}: {error}): unset the \
                         variables that ask for a limit, or ask the administrator",
                        path.display()
                    ),
                    GroupError::Missing { .. } => write!(
                        f,
                        "but there is no group {group}: the administrator makes the group with \
                         `gpulimit apply`"
                    ),
                    GroupError::Io { what, path, error } => write!(
                        f,
                        "but gpulimit cannot {what} {}: {error}: ask the administrator",
                        path.display()
                    ),
                    error => write!(f, "but the group cannot be used: {error}"),
                }
            }
        }
    }
}

impl Error for PolicyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Group(error) => error.source(),
            Self::Assigned { error, .. } => error.source(),
            Self::Rules(error) => error.source(),
            _ => None,
        }
    }
}

impl From<GroupError> for PolicyError {
    fn from(error: GroupError) -> Self {
        Self::Group(error)
    }
}

impl From<RulesError> for PolicyError {
    fn from(error: RulesError) -> Self {
        Self::Rules(error)
    }
}
