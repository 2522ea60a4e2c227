//! `gpulimit doctor`: what works, what does not, and what to do about it.

mod checks;

use super::failure::Failure;
use super::figures::SCHEMA;
use super::output;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;

/// Options of `doctor`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Looks at the driver, NVML, the library and its hooks, the groups, and the environment. Changes
nothing.

Examples:
  gpulimit doctor
  gpulimit doctor --json | jq '.findings[] | select(.level != \"ok\")'

Exit status: 0 when limits can be applied, 1 when something prevents it.";

/// How bad it is.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Level {
    /// As it should be.
    Fine,
    /// Limits hold, but something is amiss.
    Warning,
    /// Limits cannot be applied.
    Error,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing found out.
#[derive(Clone, Debug)]
struct Finding {
    /// What was looked at.
    check: &'static str,
    level: Level,
    text: String,
    /// What to do; empty where there is nothing to do.
    remedy: String,
}

impl Finding {
    fn fine(check: &'static str, text: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Fine,
            text: text.into(),
            remedy: String::new(),
        }
    }

    fn warning(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Warning,
            remedy: remedy.into(),
            ..Self::fine(check, text)
        }
    }

    fn error(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Error,
            ..Self::warning(check, text, remedy)
        }
    }

    fn json(&self) -> Value {
        json!({
            "check": self.check,
            "level": self.level.name(),
            "text": self.text,
            "remedy": (!self.remedy.is_empty()).then_some(&self.remedy),
        })
    }
}

/// Looks, and says what was found.
pub fn doctor(args: &Args) -> Result<ExitCode, Failure> {
    let findings = checks::all();
    let broken = findings.iter().any(|finding| finding.level == Level::Error);
    if args.json {
        let all: Vec<Value> = findings.iter().map(Finding::json).collect();
        output::json(&json!({ "schema": SCHEMA, "ok": !broken, "findings": all }))?;
    } else {
        output::print(&text(&findings, broken))?;
    }
    Ok(ExitCode::from(u8::from(broken)))
}

fn text(findings: &[Finding], broken: bool) -> String {
    let mut out = String::new();
    for finding in findings {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:<8} {:<12} {}",
            finding.level.name(),
            finding.check,
            finding.text
        );
        if !finding.remedy.is_empty() {
            let _ = writeln!(out, "{:<21} -> {}", "", finding.remedy);
        }
    }
    out.push_str(if broken {
        "\nLimits cannot be applied here: see the lines marked `error`.\n"
    } else {
        "\nLimits can be applied.\n"
    });
    out
}
