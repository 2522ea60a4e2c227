//! `gpulimit apply`: the tree of groups and the rules, made what a policy file says.

mod difference;
mod record;

use super::failure::Failure;
use super::groups::end_of_leases;
use super::nvml::Driver;
use super::output::Escaped;
use super::trust::Trusted;
use super::{check, gpu, install, output};
use difference::Step;
pub use difference::Wanted;
use gpulimit_base::text_file;
use gpulimit_group::{Access, Garbage, GroupError, Hold, Root, SYSTEM, effective_user};
use gpulimit_limits::{ExtentError, Key, LimitSet, Selector};
use gpulimit_policy::compile::Plan;
use gpulimit_policy::file::Mistake;
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
    /// [default: /etc/gpulimit/gpulimit.toml for root, else gpulimit/gpulimit.toml in $XDG_CONFIG_HOME or ~/.config]
    file: Option<PathBuf>,

    /// Only say what would change
    #[arg(long)]
    dry_run: bool,

    /// Say it in JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Groups that the file names are made or changed to what it says. Groups that an
earlier apply made and that it no longer names are removed when no program runs
in them. Groups that were made by hand and that it does not name are left
alone. The rules are written last, and hold for programs that start to use a
GPU from then on, in /run/gpulimit whatever their environment says.

Examples:
  gpulimit apply --dry-run
  gpulimit apply /etc/gpulimit/gpulimit.toml

Exit status: 0 also when there was nothing to change; 1 when the file is wrong
or a step failed. Where users could be the cause of that, all other steps are
done; else what was done before stays: apply again.";

/// What mistakes in the file mean here.
const UNCHANGED: &str = ": nothing was changed";

/// Held while the tree is changed.
const LOCK: &str = ".apply.lock";

/// Applies a policy file.
pub fn apply(args: &Args) -> Result<ExitCode, Failure> {
    let file = match &args.file {
        Some(file) => file.clone(),
        None => default_file()?,
    };
    let check::Found { plan, absent, .. } = check::read(&file, UNCHANGED)?;
    let driver = names_gpus(&plan).then(|| Driver::load().ok()).flatten();
    let driver = driver.as_ref();
    let (wanted, mut mistakes) = wanted(&file, &plan, driver)?;
    mistakes.extend(absent);
    if !mistakes.is_empty() {
        check::tidy(&mut mistakes);
        return Err(check::refused(&file, &mistakes, UNCHANGED));
    }
    check::warn(&file, &plan, &wanted, driver);
    let root = root()?;
    let is_system = root.path() == Path::new(SYSTEM) && effective_user() == 0;
    if !plan.rules.0.is_empty() && !is_system {
        output::note(&format!(
            "the rules hold only where {} is {SYSTEM} and root's: elsewhere the environment says which group a program is in",
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
    let shown = Shown {
        file: &file,
        root: &root,
        steps: &steps,
        rules: rules.as_ref(),
        dry_run: args.dry_run,
    };
    if args.json {
        output::json(&shown.json())?;
    } else {
        output::report(&shown.text());
    }
    if !plan.rules.0.is_empty() && is_system && !install::is_installed() {
        output::note(&format!(
            "warning: {} does not name the library, so that the rules hold only for programs that \
             are started with it: `gpulimit install` puts it into every program",
            install::FILE
        ));
    }
    let mut status = ExitCode::SUCCESS;
    for (step, why) in steps
        .iter()
        .filter_map(|step| Some((step, step.failure()?)))
    {
        output::note(&format!("{}: not changed, {why}", step.name()));
        status = ExitCode::FAILURE;
    }
    Ok(status)
}

fn default_file() -> Result<PathBuf, Failure> {
    const NAME: &str = "gpulimit/gpulimit.toml";
    if effective_user() == 0 {
        return Ok(rules::POLICY.into());
    }
    let absolute = |name: &str| {
        let path = PathBuf::from(super::env(name)?);
        path.is_absolute().then_some(path)
    };
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    folder.map(|folder| folder.join(NAME)).ok_or_else(|| {
        Failure::usage(
            "no policy file given, and neither XDG_CONFIG_HOME nor HOME is set: name the file",
        )
    })
}

/// The root that the environment names; else the machine's for root, and one's own for others.
fn root() -> Result<Root, Failure> {
    if super::env("GPULIMIT_ROOT").is_none() && effective_user() == 0 {
        return Ok(Root::at(SYSTEM)?);
    }
    Ok(Root::locate(&super::env)?)
}

/// Whether a group of the plan has limits, which depend on the GPUs of this machine.
fn names_gpus(plan: &Plan) -> bool {
    let mut groups = plan.groups.iter();
    groups.any(|group| !group.settings.sizes.is_empty())
}

/// The groups with everything that only this machine knows, and what is wrong with them here: GPUs
/// that it does not have, or that are too small.
pub fn wanted(
    file: &Path,
    plan: &Plan,
    driver: Option<&Driver>,
) -> Result<(Vec<Wanted>, Vec<Mistake>), Failure> {
    let gpus = driver.map(Driver::capacities).unwrap_or_default();
    let mut mistakes = Vec::new();
    let mut all = Vec::new();
    for group in &plan.groups {
        let mut limits = LimitSet::default();
        let mut sizes: Vec<_> = group.settings.sizes.iter().collect();
        sizes.sort_by_key(|(_, gpu, _)| gpu.value != "all");
        let mut seen: Vec<(Selector, Key)> = Vec::new();
        for (key, gpu, extent) in sizes {
            let mut wrong = |why: String, absent: bool| {
                mistakes.push(Mistake {
                    path: file.into(),
                    line: gpu.line,
                    why,
                    absent,
                })
            };
            let selector = match gpu.value.as_str() {
                "all" => Selector::All,
                text => match gpu::resolve(text, driver) {
                    Ok(id) => Selector::Device(id),
                    Err(failure) => {
                        wrong(failure.to_string(), true);
                        continue;
                    }
                },
            };
            if seen.contains(&(selector, *key)) {
                let why = format!(
                    "'{}' names a GPU that has a {key} already: one for each GPU",
                    gpu.value
                );
                wrong(why, true);
            }
            seen.push((selector, *key));
            if let Err(error) = limits.set_extent(selector, *key, *extent, &gpus, false) {
                let is_absent = matches!(error, ExtentError::Unknown { .. });
                wrong(error.to_string(), is_absent);
            }
        }
        for (key, value) in &group.settings.options {
            limits.options.set(*key, value).map_err(Failure::new)?;
        }
        all.push(Wanted {
            name: group.name.clone(),
            limits,
            access: Access {
                owner: Some(group.owner.unwrap_or_else(effective_user)),
                members: group.members,
            },
        });
    }
    Ok((all, mistakes))
}

/// Makes the root where it is not there, and keeps other controllers from applying at the same
/// time.
fn prepare(root: &Root, plan: &Plan) -> Result<Hold, Failure> {
    root.make()?;
    let path = root.path().display();
    if effective_user() == 0 {
        // What is written there is read as root's word.
        Trusted::root().check(root.path()).map_err(|why| {
            Failure::new(format_args!(
                "{why}: as root, gpulimit applies a policy only in a directory that nobody else can replace; run it as that user, or unset GPULIMIT_ROOT"
            ))
        })?;
    }
    let about = fs::metadata(root.path())
        .map_err(|error| Failure::new(format_args!("cannot open {path}: {error}")))?;
    let mode = about.permissions().mode() & 0o7777;
    if effective_user() == 0 && !plan.rules.0.is_empty() && mode & 0o005 != 0o005 {
        return Err(Failure::new(format_args!(
            "{path} is closed to users (mode {mode:04o}), who have to read the rules in it: run `chmod 0755 {path}`"
        )));
    }
    root.hold_alone(LOCK).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => Failure::new(format_args!(
            "another `gpulimit apply` is changing {path}: wait until it has ended"
        )),
        _ => Failure::new(format_args!("cannot write in {path}: {error}")),
    })
}

/// What happens to the file of rules.
struct RulesStep {
    count: u32,
    /// `None`: removed.
    text: Option<String>,
}

/// The rules as they are written for all users; `None` where there are none.
pub fn rules_text(plan: &Plan) -> Result<Option<String>, Failure> {
    let text = (!plan.rules.0.is_empty()).then(|| plan.rules.to_string());
    match text {
        Some(text) if text.len() as u64 > rules::LONGEST => Err(Failure::new(
            "the rules name too many users for one file: name unix groups in place of users, or one group for all in place of one for each",
        )),
        text => Ok(text),
    }
}

fn rules_step(root: &Root, plan: &Plan) -> Result<Option<RulesStep>, Failure> {
    let path = root.path().join(rules::FILE);
    let there = match text_file::read(&path, rules::LONGEST) {
        Ok(there) => Some(there),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        // Whatever else is there makes way for rules.
        Err(error) if error.kind() == ErrorKind::InvalidData => Some(Vec::new()),
        Err(error) => {
            return Err(Failure::new(format_args!(
                "cannot read {}: {error}",
                path.display()
            )));
        }
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

/// Makes the tree what it is to be. What is made is on record before it is there, and whatever a
/// rule names is there before the rule.
fn carry_out(
    root: &Root,
    steps: &mut [Step],
    recorded: &BTreeSet<String>,
    rules: Option<&RulesStep>,
) -> Result<(), Failure> {
    let mut record = recorded.clone();
    record.extend(steps.iter().filter_map(Step::created).map(str::to_owned));
    if record != *recorded {
        record::write(root, &record)?;
    }
    // A user has a say in what is in the way of a change of their group. It must not keep the other
    // groups and the rules as they are.
    for step in steps.iter_mut() {
        let changed = root.past_leases(step.name(), end_of_leases(), || change(root, step));
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
        let Step::Remove { name, kept } = &mut *step else {
            continue;
        };
        // Groups of jobs that have ended are in the way of nobody.
        let _ = root.collect_garbage(Garbage::Below(Some(name)));
        match root.past_leases(name, end_of_leases(), || root.remove(name)) {
            Ok(()) => drop(record.remove(name)),
            Err(error @ (GroupError::InUse { .. } | GroupError::HasGroups { .. })) => {
                *kept = Some(error.to_string());
            }
            Err(error) => fail(root, step, error)?,
        }
    }
    // What somebody else has removed is not to be removed once more when it is made by hand.
    record.retain(|name| !root.group(name).is_err_and(|error| error.is_missing()));
    if record != before {
        record::write(root, &record)?;
    }
    Ok(())
}

/// Makes or changes a group.
fn change(root: &Root, step: &Step) -> Result<(), GroupError> {
    match step {
        Step::Create(wanted) => {
            root.create_for(&wanted.name, &wanted.limits, wanted.access)?;
        }
        Step::Change {
            wanted,
            limits,
            access,
            ..
        } => {
            let group = root.group(&wanted.name)?;
            if *limits {
                group.write_limits(|set| *set = wanted.limits.clone())?;
            }
            if *access {
                group.give_access(wanted.access)?;
            }
        }
        Step::Remove { .. } | Step::Failed { .. } => {}
    }
    Ok(())
}

/// Where no user has a say, as on a full file system, it is the end of all steps.
fn fail(root: &Root, step: &mut Step, error: GroupError) -> Result<(), GroupError> {
    if !difference::is_users(root, step.name()) {
        return Err(error);
    }
    *step = Step::Failed {
        name: step.name().to_owned(),
        why: error.to_string(),
    };
    Ok(())
}

/// The answer.
struct Shown<'a> {
    file: &'a Path,
    root: &'a Root,
    steps: &'a [Step],
    rules: Option<&'a RulesStep>,
    dry_run: bool,
}

impl Shown<'_> {
    fn text(&self) -> String {
        let mut out = String::new();
        for step in self.steps {
            for line in step.lines(!self.dry_run) {
                // Writing to a string does not fail.
                let _ = writeln!(out, "{}", Escaped(&line));
            }
        }
        let _ = match self.rules {
            Some(RulesStep {
                text: Some(_),
                count,
            }) if self.dry_run => writeln!(out, "rules: {count} would be written"),
            Some(RulesStep {
                text: Some(_),
                count,
            }) => writeln!(out, "rules: {count} written"),
            Some(RulesStep { text: None, .. }) if self.dry_run => {
                writeln!(out, "rules: would be removed")
            }
            Some(RulesStep { text: None, .. }) => writeln!(out, "rules: removed"),
            None => Ok(()),
        };
        if out.is_empty() && self.steps.is_empty() {
            out += "nothing to change\n";
        } else if !out.is_empty() && self.dry_run {
            out += "dry run: nothing was changed\n";
        }
        out
    }

    fn json(&self) -> Value {
        let rules = self.rules.map(|step| {
            let action = if step.text.is_some() {
                "written"
            } else {
                "removed"
            };
            json!({ "action": action, "count": step.count })
        });
        json!({
            "file": self.file.display().to_string(),
            "root": self.root.path().display().to_string(),
            "dry_run": self.dry_run,
            "changed": !self.steps.is_empty() || self.rules.is_some(),
            "groups": self.steps.iter().map(Step::json).collect::<Vec<_>>(),
            "rules": rules,
        })
    }
}
