//! `gpulimit apply`: changes the groups and the rules of this machine to match a policy file.

mod check;

use crate::groups::plan::difference::{self, Change, Step, What};
use crate::groups::plan::{record, rules_text};
use crate::groups::{end_of_leases, warnings};
use crate::machine::{accounts, nvml::Driver, preload, trust::Trusted};
use crate::shown::output::{self, Escaped};
use crate::words::environment::env;
use crate::words::failure::{Failure, cannot};
use gpulimit_base::units::Size;
use gpulimit_base::{missing::found, text_file};
use gpulimit_group::{Group, GroupError, Hold, Root, SYSTEM, effective_user};
use gpulimit_ledger::NoWitness;
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_policy::compile::Plan;
use gpulimit_policy::rules;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `apply`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The policy file
    /// [default: /etc/gpulimit/gpulimit.toml for root, else gpulimit/gpulimit.toml in
    /// $XDG_CONFIG_HOME or ~/.config]
    file: Option<PathBuf>,

    /// Print all mistakes in the file, with their lines, and change nothing
    #[arg(long, conflicts_with_all = ["dry_run", "json"])]
    check: bool,

    /// Only print what would be changed
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Makes or changes the groups that the file names. Removes the groups that an
earlier apply made and that the file no longer names. A group in which programs
still run is kept, with its present usage as its max, until a later apply.
Leaves alone other groups that were made by hand. Writes the rules last; they
apply to programs that start to use a GPU from then on, whatever their
environment says. Rules have an effect only in /run/gpulimit.

With --check, users, unix groups and GPUs that this machine does not have are no
mistakes, but are printed, too. Warnings name limits and options that make no
sense or have no effect, users whose names clash with groups, and users whom no
rule covers.

Examples:
  gpulimit apply --check ./gpulimit.toml
  gpulimit apply --dry-run
  gpulimit apply /etc/gpulimit/gpulimit.toml

Exit status: 0 on success, also when there was nothing to change; 1 when the
file has mistakes, when a step failed, and when users or unix groups can have no
group because of their names: apply names them and does the rest. If a step
fails at a group of another user, apply continues with the other steps; else it
stops there, and can be repeated.";

/// The end of the error message for a policy file with mistakes.
const UNCHANGED: &str = ": nothing was changed";

/// The lock file that `gpulimit apply` holds while it changes groups and rules.
const LOCK: &str = ".apply.lock";

/// Applies a policy file.
pub fn apply(args: &Args) -> Result<ExitCode, Failure> {
    let file = match &args.file {
        Some(file) => file.clone(),
        None => default_file()?,
    };
    if args.check {
        return check::check(&file);
    }
    let driver = Driver::load().ok();
    let found = check::read(&file, driver.as_ref(), UNCHANGED)?;
    if !found.absent.is_empty() {
        return Err(check::refused(&file, &found.absent, UNCHANGED));
    }
    check::warn(&file, &found, driver.as_ref());
    let check::Found { plan, wanted, .. } = found;
    let root = root()?;
    let is_system = root.path() == Path::new(SYSTEM) && effective_user() == 0;
    if !plan.rules.0.is_empty() && !is_system {
        output::note(&format!(
            "the rules in {} have no effect: programs follow only the rules that root puts into \
             {SYSTEM}; without rules the environment selects the group",
            root.path().display()
        ));
    }
    let alone = match args.dry_run {
        true => None,
        false => Some(prepare(&root, &plan)?),
    };
    let recorded = record::read(&root)?;
    let mut steps = difference::steps(&root, &wanted, &recorded)?;
    let rules = rules_step(&root, &plan)?;
    if alone.is_some() {
        carry_out(&root, &mut steps, &recorded, rules.as_ref())?;
    }
    drop(alone);
    tell(args, &file, &root, &steps, rules.as_ref())?;
    if !plan.rules.0.is_empty() && is_system && !preload::is_installed() {
        output::note(&format!(
            "warning: {} does not name the library, so the rules hold only for programs that are \
             started with the library: run `gpulimit install` to load the library into every \
             program",
            preload::FILE
        ));
    }
    let mut status = match plan.left_out.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    };
    for Step { name, what } in &steps {
        if let What::Fail(why) = what {
            output::note(&format!("{name}: not changed: {why}"));
            status = ExitCode::FAILURE;
        }
    }
    Ok(status)
}

fn default_file() -> Result<PathBuf, Failure> {
    const NAME: &str = "gpulimit/gpulimit.toml";
    if effective_user() == 0 {
        return Ok(rules::POLICY.into());
    }
    let absolute = |name: &str| {
        let path = PathBuf::from(env(name)?);
        path.is_absolute().then_some(path)
    };
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    folder.map(|folder| folder.join(NAME)).ok_or_else(|| {
        Failure::usage(
            "no policy file given, and neither XDG_CONFIG_HOME nor HOME is set: name the file",
        )
    })
}

/// Opens the directory of groups: GPULIMIT_ROOT, else for root /run/gpulimit, else the user's own
/// directory.
fn root() -> Result<Root, Failure> {
    if env("GPULIMIT_ROOT").is_none() && effective_user() == 0 {
        return Ok(Root::at(SYSTEM)?);
    }
    Ok(Root::locate(&env)?)
}

/// Makes the directory of groups if necessary. Locks the directory, so that one `gpulimit apply` at
/// a time changes it.
fn prepare(root: &Root, plan: &Plan) -> Result<Hold, Failure> {
    root.make()?;
    let path = root.path().display();
    if effective_user() == 0 {
        // Programs trust the rules in this directory, so other users must not be able to change
        // them.
        Trusted::root().check(root.path()).map_err(|why| {
            Failure::new(format_args!(
                "{why}: as root, gpulimit applies a policy only in a directory that other users \
                 cannot replace; run the command as the owner of that directory, or unset \
                 GPULIMIT_ROOT"
            ))
        })?;
    }
    let about = fs::metadata(root.path()).map_err(cannot("open", root.path()))?;
    let mode = about.permissions().mode() & 0o7777;
    if effective_user() == 0 && !plan.rules.0.is_empty() && mode & 0o005 != 0o005 {
        return Err(Failure::new(format_args!(
            "users cannot read the rules in {path} (mode {mode:04o}): run `chmod 0755 {path}`"
        )));
    }
    root.hold_alone(LOCK).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => Failure::new(format_args!(
            "another `gpulimit apply` is changing {path}: wait until that command has ended"
        )),
        _ => Failure::new(format_args!("cannot lock {path}: {error}")),
    })
}

/// A change of the rules file. The rules assign programs to groups.
struct RulesStep {
    count: u32,
    /// The new text of the rules file; `None` removes the file.
    text: Option<String>,
}

impl RulesStep {
    /// Returns one word for the change of the rules file, for people and for JSON.
    fn action(&self) -> &'static str {
        match self.text {
            Some(_) => "written",
            None => "removed",
        }
    }
}

fn rules_step(root: &Root, plan: &Plan) -> Result<Option<RulesStep>, Failure> {
    let path = root.path().join(rules::FILE);
    let there = match found(text_file::read(&path, rules::LONGEST)) {
        // The file is a symbolic link, a special file or too long: replace it.
        Err(error) if error.kind() == ErrorKind::InvalidData => Some(Vec::new()),
        there => there.map_err(cannot("read", &path))?,
    };
    let text = rules_text(plan)?;
    let same = there.as_deref() == text.as_deref().map(str::as_bytes);
    let whole = there.is_none()
        || fs::symlink_metadata(&path).is_ok_and(|about| {
            about.is_file()
                && about.permissions().mode() & 0o7777 == 0o644
                && about.uid() == effective_user()
        });
    let count = plan.rules.0.last().map_or(0, |rule| rule.number);
    Ok((!same || !whole).then_some(RulesStep { count, text }))
}

/// Carries out the steps. Records new groups before making them, so that the next `apply` can
/// finish interrupted work.
fn carry_out(
    root: &Root,
    steps: &mut [Step],
    recorded: &BTreeSet<String>,
    rules: Option<&RulesStep>,
) -> Result<(), Failure> {
    let mut record = recorded.clone();
    let is_new = |step: &&Step| matches!(step.what, What::Create(_));
    record.extend(steps.iter().filter(is_new).map(|step| step.name.clone()));
    if record != *recorded {
        record::write(root, &record)?;
    }
    // A group's owner can block changes to that group. The other changes must go on.
    for step in steps.iter_mut() {
        let changed = root.past_leases(&step.name, end_of_leases(), || change(root, step));
        if let Err(error) = changed {
            fail(root, step, error)?;
        }
    }
    match rules {
        Some(RulesStep {
            text: Some(text), ..
        }) => record::replace(&root.path().join(rules::FILE), text)?,
        Some(RulesStep { text: None, .. }) => record::remove(&root.path().join(rules::FILE))?,
        None => {}
    }
    let before = record.clone();
    for step in steps {
        if !matches!(step.what, What::Remove) {
            continue;
        }
        let name = &step.name;
        // A group with child groups cannot be removed. So first remove the child groups whose jobs
        // have ended.
        let _ = root.collect_garbage_below(Some(name));
        match root.past_leases(name, end_of_leases(), || root.remove(name)) {
            Ok(()) => drop(record.remove(name)),
            Err(error @ (GroupError::InUse { .. } | GroupError::HasGroups { .. })) => {
                match root.past_leases(name, end_of_leases(), || shrink(&root.group(name)?)) {
                    Ok(shrunk) => step.what = What::Keep(format!("{error}{shrunk}")),
                    Err(error) => fail(root, step, error)?,
                }
            }
            Err(error) => fail(root, step, error)?,
        }
    }
    // Forget the names of removed groups, so that `apply` never removes a group later made by hand.
    record.retain(|name| !root.group(name).is_err_and(|error| error.is_missing()));
    if record != before {
        record::write(root, &record)?;
    }
    Ok(())
}

/// Makes or changes a group.
fn change(root: &Root, step: &Step) -> Result<(), GroupError> {
    match &step.what {
        What::Create(wanted) => {
            root.create_for(&wanted.name, &wanted.limits, wanted.access)?;
        }
        What::Change(wanted, changes) => {
            let group = root.group(&wanted.name)?;
            if !changes.iter().all(Change::is_of_access) {
                group.write_limits(|set| *set = wanted.limits.clone())?;
            }
            if changes.iter().any(Change::is_of_access) {
                group.give_access(wanted.access)?;
            }
        }
        What::Remove | What::Keep(_) | What::Fail(_) => {}
    }
    Ok(())
}

/// Bounds a group by its present usage, if programs run in it or below it: the rules give its users
/// another share, and they must not have both. Returns the end of a sentence that says so.
fn shrink(group: &Group) -> Result<String, GroupError> {
    let ledger = group.ledger()?;
    if !ledger.has_live() {
        return Ok(String::new());
    }
    let there = group.limits()?.rules()?;
    let mut bounded = LimitSet {
        options: there.options,
        ..LimitSet::all(Size::Bytes(0))
    };
    let driver = Driver::load().ok();
    let gpus = warnings::capacities(driver.as_ref(), None);
    let mut living = ledger.processes(&NoWitness);
    living.retain(|process| process.alive);
    for device in ledger.devices() {
        let usage = living.iter().map(|process| process.on(device.index));
        // A suspended process comes back to its group. What the dead used is not used again.
        let usage = usage.map(|usage| usage.charged.saturating_add(usage.suspended));
        let usage = Size::Bytes(usage.fold(0, u64::saturating_add));
        // Members can forge figures in the ledger, so usage never raises the limit.
        let capacity = gpus.iter().find(|(id, _)| *id == device.id);
        let max = match (there.for_device(device.id, Key::Max), capacity) {
            (Some(max @ Size::Percent(_)), None) => max,
            (Some(max), capacity) => {
                let capacity = capacity.map_or(u64::MAX, |(_, capacity)| *capacity);
                match usage.resolve(capacity) < max.resolve(capacity) {
                    true => usage,
                    false => max,
                }
            }
            (None, _) => usage,
        };
        bounded.set(Selector::Device(device.id), Key::Max, max);
    }
    group.write_limits(|set| *set = bounded.clone())?;
    let users: BTreeSet<u32> = living.iter().map(|one| one.identity.uid).collect();
    let users: Vec<String> = users.into_iter().map(accounts::user_name).collect();
    Ok(format!(
        "; users: {}; its max is now its usage, so that it only shrinks",
        output::some(&users)
    ))
}

/// Marks the step as failed if another user can block changes to the group; otherwise returns the
/// error.
fn fail(root: &Root, step: &mut Step, error: GroupError) -> Result<(), GroupError> {
    if !difference::user_can_block(root, &step.name) {
        return Err(error);
    }
    step.what = What::Fail(error.to_string());
    Ok(())
}

/// Prints what was done or would be done.
fn tell(
    args: &Args,
    file: &Path,
    root: &Root,
    steps: &[Step],
    rules: Option<&RulesStep>,
) -> Result<(), Failure> {
    if args.json {
        let groups: Vec<Value> = steps.iter().map(Step::json).collect();
        let rules = rules.map(|step| json!({ "action": step.action(), "count": step.count }));
        return output::json(&json!({
            "file": file.display().to_string(),
            "root": root.path().display().to_string(),
            "dry_run": args.dry_run,
            "changed": !groups.is_empty() || rules.is_some(),
            "groups": groups,
            "rules": rules,
        }));
    }
    let mut out = String::new();
    for line in steps.iter().flat_map(|step| step.lines(!args.dry_run)) {
        let _ = writeln!(out, "{}", Escaped(&line));
    }
    if let Some(rules) = rules {
        let count = rules.text.as_ref().map(|_| format!("{} ", rules.count));
        let (count, action) = (count.unwrap_or_default(), rules.action());
        let would = if args.dry_run { "would be " } else { "" };
        let _ = writeln!(out, "rules: {count}{would}{action}");
    }
    if out.is_empty() && steps.is_empty() {
        out += "nothing to change\n";
    } else if !out.is_empty() && args.dry_run {
        out += "dry run: nothing was changed\n";
    }
    output::report(&out);
    Ok(())
}
