//! `gpulimit apply --check`: finds the mistakes in a policy file.

use crate::groups::plan::{self, difference::Wanted};
use crate::groups::{changes::outranked, warnings};
use crate::machine::{accounts::Database, nvml::Driver};
use crate::shown::output;
use crate::words::failure::Failure;
use gpulimit_base::units::{Extent, Size};
use gpulimit_group::upwards;
use gpulimit_limits::{Key, LimitSet, OptionKey, Options};
use gpulimit_policy::compile::{self, Plan};
use gpulimit_policy::file::{self, At, Mistake, Policy, Settings};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

/// Checks a policy file.
pub fn check(file: &Path) -> Result<ExitCode, Failure> {
    let driver = Driver::load().ok();
    let found = read(file, driver.as_ref(), "")?;
    plan::rules_text(&found.plan)?;
    // Report unknown users and GPUs, but do not fail: another machine may have them.
    for mistake in &found.absent {
        output::note(&format!(
            "warning: {mistake} (may be valid on another machine)"
        ));
    }
    warn(file, &found, driver.as_ref());
    let (ok, rejected) = match found.absent.is_empty() {
        true => ("ok, ", ""),
        false => ("", "; on this machine `gpulimit apply` rejects the policy"),
    };
    output::print(&format!(
        "{file}: {ok}groups: {groups}, rules: {rules}{rejected}\n",
        file = file.display(),
        groups = found.policy.groups.len(),
        rules = found.policy.rules.len(),
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints warnings on standard error: about limits that are valid but probably unintended, and
/// about users without a rule.
pub fn warn(path: &Path, found: &Found, driver: Option<&Driver>) {
    let Found { plan, wanted, .. } = found;
    let gpus = warnings::capacities(driver, None);
    let left_out = plan.left_out.iter();
    let mut lines: Vec<_> = left_out.map(|one| (one.line, one.why.clone())).collect();
    let all: BTreeMap<&str, &LimitSet> = wanted
        .iter()
        .map(|group| (&*group.name, &group.limits))
        .collect();
    let sizes = gpus.iter().map(|(id, bytes)| Some((*id, Some(*bytes))));
    let sizes: Vec<_> = sizes.chain(gpus.is_empty().then_some(None)).collect();
    for (group, wanted) in plan.groups.iter().zip(wanted) {
        let mut say = |line| lines.push((group.line, line));
        let above = upwards(&wanted.name).skip(1);
        let above: Vec<_> = above
            .filter_map(|name| Some((name, *all.get(name)?)))
            .collect();
        let odd = warnings::of(&wanted.limits, &gpus, driver).into_iter();
        odd.chain(outranked(&wanted.limits, &above, &sizes))
            .chain(without_max(&group.settings, &wanted.limits.options))
            .for_each(&mut say);
        if let Some(members) = &group.widened {
            let why = format!(
                "members = \"{}\" has no effect, because groups below are for other users: all \
                 users may run programs in the group; to close it, change the unix group and mode \
                 of its directory (docs/security.md)",
                members.value.escape_debug()
            );
            lines.push((members.line, why));
        }
    }
    // One entry of the policy can describe many groups. Print the entry's warning only once.
    lines.sort();
    lines.dedup();
    for (line, why) in lines {
        output::note(&format!("{}:{line}: warning: {why}", path.display()));
    }
    let left = compile::uncovered(&plan.rules, &Database);
    if !left.is_empty() {
        output::note(&format!(
            "{}: warning: no rule limits the programs of these users: {}; to limit all other \
             users, add a last rule for them (user = \"*\")",
            path.display(),
            output::some(&left)
        ));
    }
}

/// Warns about options that have no effect because the group has no `max`.
fn without_max(settings: &Settings, options: &Options) -> Option<String> {
    let limited = |(key, _, extent): &(Key, At<String>, Extent)| {
        *key == Key::Max && *extent != Extent::Size(Size::Max)
    };
    let set: Vec<String> = [OptionKey::OnLimit, OptionKey::Oom]
        .into_iter()
        .map(|key| (key, options.get(key)))
        .filter(|(key, value)| *value != Options::default().get(*key))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    (!set.is_empty() && !settings.sizes.iter().any(limited)).then(|| {
        format!(
            "{} has no effect, because the group has no max: when the limit of a group above is \
             reached, the options of that group apply",
            set.join(" ")
        )
    })
}

/// A policy file that was read and has no mistakes.
pub struct Found {
    /// The content of the policy file.
    policy: Policy,
    /// The policy's groups and rules, with the users and unix groups of this machine.
    pub plan: Plan,
    /// The groups, with limits for the GPUs of this machine.
    pub wanted: Vec<Wanted>,
    /// References to users, unix groups and GPUs that this machine does not have, in the order of
    /// their lines.
    pub absent: Vec<Mistake>,
}

/// Reads a policy file. If it has mistakes, prints them, and ends the error message with `outcome`.
pub fn read(path: &Path, driver: Option<&Driver>, outcome: &str) -> Result<Found, Failure> {
    let text = fs::read_to_string(path).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::NotFound => {
                ": write a policy file (config/README.md shows how), or name another file"
            }
            _ => "",
        };
        Failure::new(format_args!(
            "cannot read {}: {error}{remedy}",
            path.display()
        ))
    })?;
    let policy = file::parse(path, &text);
    let (plan, mut mistakes) = compile::compile(&policy, &Database);
    let (wanted, more) = plan::wanted(path, &plan, driver)?;
    mistakes.extend(more);
    mistakes.sort_by(|a, b| (a.line, &a.why).cmp(&(b.line, &b.why)));
    mistakes.dedup();
    let (absent, wrong): (Vec<_>, Vec<_>) = mistakes.into_iter().partition(|one| one.absent);
    if !wrong.is_empty() {
        return Err(refused(path, &wrong, outcome));
    }
    Ok(Found {
        policy,
        plan,
        wanted,
        absent,
    })
}

/// Prints all mistakes, and returns a failure with their number. `outcome` ends the failure's
/// message.
pub fn refused(path: &Path, mistakes: &[Mistake], outcome: &str) -> Failure {
    for mistake in mistakes {
        output::note(&mistake.to_string());
    }
    Failure::new(format_args!(
        "{} has {}{outcome}",
        path.display(),
        match mistakes.len() {
            1 => "1 mistake".to_owned(),
            count => format!("{count} mistakes"),
        }
    ))
}
