//! What a check finds.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// How serious a finding is.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is wrong.
    #[serde(rename = "ok")]
    Fine,
    /// Limits can be applied, but something should be corrected.
    Warning,
    /// Limits cannot be applied.
    Error,
}

/// Writes the name of the level, as in JSON.
impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The result of a check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the check that made the finding.
    pub check: Cow<'static, str>,
    pub level: Level,
    pub text: String,
    /// How to solve the problem, if there is one.
    pub remedy: Option<String>,
}

/// The name of a check.
#[derive(Copy, Clone)]
pub struct Check(pub &'static str);

impl Check {
    pub fn fine(self, text: impl Into<String>) -> Finding {
        self.found(Level::Fine, text, "")
    }

    pub fn warning(self, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.found(Level::Warning, text, remedy)
    }

    pub fn error(self, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.found(Level::Error, text, remedy)
    }

    /// Returns a finding. An empty `remedy` stands for none.
    pub fn found(
        self,
        level: Level,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            check: self.0.into(),
            level,
            text: text.into(),
            remedy: Some(remedy.into()).filter(|remedy| !remedy.is_empty()),
        }
    }
}
