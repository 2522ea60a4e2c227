//! The errors of finding and joining a process's group. The administrator's rules or the
//! environment variables ask for this group.

use super::rules::{Assigned, RulesError};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::SizeError;
use gpulimit_group::GroupError;
use gpulimit_limits::ExtentError;
use std::error::Error;
use std::fmt;

/// The reason why the limit that an environment variable or a rule asks for cannot be applied.
#[derive(Debug)]
pub enum PolicyError {
    /// The value of an environment variable is invalid.
    Value {
        /// The name of the variable.
        variable: String,
        /// The value of the variable.
        text: String,
        /// The reason why the value is not valid, and the values that are accepted.
        why: Why,
    },
    /// An environment variable sets a limit for a GPU that this process does not see.
    UnknownGpu {
        /// The name of the variable.
        variable: String,
        /// The GPU as the variable names it.
        gpu: String,
        /// The GPUs that this process sees.
        known: Vec<(u32, DeviceId)>,
    },
    /// An environment variable names a GPU ambiguously, or sets two limits for one GPU.
    Ambiguous {
        /// The name of the variable.
        variable: String,
        /// The GPU as the variable names it.
        gpu: String,
        /// The GPUs that the text `gpu` fits, or the GPU that already has a limit.
        matches: Vec<(u32, DeviceId)>,
    },
    /// A limit that depends on the size of a GPU ("all but 2 GiB") cannot be turned into bytes.
    Extent {
        /// The name of the variable.
        variable: String,
        /// The reason why the limit cannot be turned into bytes.
        error: ExtentError,
    },
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

/// The reason why the value of an environment variable is not valid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Why {
    /// The value is empty. The string says what to set instead.
    Empty(&'static str),
    /// The value is not UTF-8.
    NotText,
    /// A size in the value is invalid.
    Size(SizeError),
    /// The value has the wrong form. The string describes the expected form.
    Form(&'static str),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(remedy) => write!(f, "the value is empty: {remedy}"),
            Self::NotText => f.write_str("the value is not UTF-8"),
            Self::Size(error) => error.fmt(f),
            Self::Form(expected) => write!(f, "expected {expected}"),
        }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value {
                variable,
                text,
                why,
            } => {
                write!(f, "{variable}='{}': {why}", text.escape_debug())
            }
            Self::UnknownGpu {
                variable,
                gpu,
                known,
            } => write!(
                f,
                "{variable} has a limit for GPU '{}', which this process does not see; visible \
                 GPUs{}",
                gpu.escape_debug(),
                seen(known)
            ),
            Self::Ambiguous {
                variable,
                gpu,
                matches,
            } => write!(
                f,
                "{variable}: '{}' fits several GPUs, or a GPU for which {variable} already has a \
                 limit{}",
                gpu.escape_debug(),
                seen(matches)
            ),
            Self::Extent { variable, error } => write!(f, "{variable}: {error}"),
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

/// Formats the GPUs that a message lists, each with its CUDA ordinal.
fn seen(gpus: &[(u32, DeviceId)]) -> String {
    let gpu = |(ordinal, id): &(u32, DeviceId)| format!("{ordinal} = {id}");
    match gpus.iter().map(gpu).collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => ": none".into(),
        some => format!(": {some}"),
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
