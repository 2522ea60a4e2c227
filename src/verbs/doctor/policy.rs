//! Checks whether the machine's policy file is in force.

use super::finding::{Check, Finding};
use crate::groups::plan;
use crate::machine::{accounts::Database, nvml::Driver};
use crate::words::failure::Failure;
use gpulimit_base::text_file;
use gpulimit_group::{Root, SYSTEM, effective_user};
use gpulimit_policy::rules::{FILE, LONGEST, POLICY};
use gpulimit_policy::{compile, file};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const CHECK: Check = Check("policy");

/// Compares the policy file, if there is one, with the groups and rules of the machine. Root's
/// `gpulimit set` may change a limit until the next `apply`, so that is a warning.
pub(super) fn checks() -> Vec<Finding> {
    let path = Path::new(POLICY);
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) if error.kind() == ErrorKind::PermissionDenied && effective_user() != 0 => {
            return Vec::new();
        }
        Err(error) => return vec![broken(&format!("cannot read {POLICY}: {error}"))],
    };
    let compared = compare(path, &text);
    compared.unwrap_or_else(|failure| vec![broken(&failure.to_string())])
}

fn broken(why: &str) -> Finding {
    CHECK.error(
        format!("{why}: `gpulimit apply` changes nothing, and after a boot no limit holds"),
        format!("`gpulimit apply --check {POLICY}` lists all mistakes"),
    )
}

fn compare(path: &Path, text: &str) -> Result<Vec<Finding>, Failure> {
    let (plan, mut mistakes) = compile::compile(&file::parse(path, text), &Database);
    let driver = Driver::load().ok();
    let (wanted, more) = plan::wanted(path, &plan, driver.as_ref())?;
    mistakes.extend(more);
    if let Some(first) = mistakes.first() {
        return Ok(vec![broken(&first.to_string())]);
    }
    let not_in_force = |why: String| {
        let remedy = "run `gpulimit apply` as root; docs/systemd.md has a unit for every boot";
        CHECK.error(format!("{POLICY} is not in force: {why}"), remedy)
    };
    let mut findings = Vec::new();
    let there = text_file::read(&Path::new(SYSTEM).join(FILE), LONGEST).ok();
    let rules = plan::rules_text(&plan)?;
    if there.as_deref() != rules.as_deref().map(str::as_bytes) {
        let none = format!("{SYSTEM} has no rules, as after a boot without `gpulimit apply`");
        let other = "it was changed, or the machine's users were, after the last `gpulimit apply`, \
                     which wrote other rules";
        findings.push(not_in_force(there.map_or(none, |_| other.into())));
    }
    let root = Root::at(SYSTEM)?;
    let is_missing = |name: &&str| root.group(name).is_err_and(|error| error.is_missing());
    let names = wanted.iter().map(|wanted| wanted.name.as_str());
    let missing: Vec<&str> = names.filter(is_missing).collect();
    if let Some(first) = missing.first() {
        let count = missing.len();
        let why = format!("{count} of its groups are missing, such as {first}");
        findings.push(not_in_force(why));
    } else if effective_user() == 0 && plan::differs(&root, &wanted)? {
        let text = format!("the groups of {SYSTEM} differ from {POLICY}");
        findings.push(CHECK.warning(text, "`gpulimit apply --dry-run` shows how"));
    }
    let left_out = plan.left_out.iter();
    findings.extend(left_out.map(|one| CHECK.warning(one.to_string(), "")));
    if findings.is_empty() {
        findings.push(CHECK.fine(format!("{POLICY} is in force")));
    }
    Ok(findings)
}
