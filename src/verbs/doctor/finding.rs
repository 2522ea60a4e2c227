//! What a check finds.

use serde_json::{Value, json};
use std::borrow::Cow;

/// How serious a finding is.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Level {
    /// Nothing is wrong.
    Fine,
    /// Limits can be applied, but something should be corrected.
    Warning,
    /// Limits cannot be applied.
    Error,
}

impl Level {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Fine, Self::Warning, Self::Error];
        all.into_iter().find(|level| level.name() == name)
    }
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The name of the check that made the finding.
    pub check: Cow<'static, str>,
    pub level: Level,
    pub text: String,
    /// How to solve the problem; empty if there is no problem.
    pub remedy: String,
}

impl Finding {
    pub fn fine(check: &'static str, text: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            level: Level::Fine,
            text: text.into(),
            remedy: String::new(),
        }
    }

    pub fn warning(
        check: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Warning,
            remedy: remedy.into(),
            ..Self::fine(check, text)
        }
    }

    pub fn error(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Error,
            ..Self::warning(check, text, remedy)
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "check": self.check,
            "level": self.level.name(),
            "text": self.text,
            "remedy": (!self.remedy.is_empty()).then_some(&self.remedy),
        })
    }

    /// Parses a finding from the JSON that [`Finding::json`] makes.
    pub fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            check: value["check"].as_str()?.to_owned().into(),
            level: Level::named(value["level"].as_str()?)?,
            text: value["text"].as_str()?.into(),
            remedy: value["remedy"].as_str().unwrap_or_default().into(),
        })
    }
}
