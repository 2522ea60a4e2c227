//! Finds or makes the group in which `run` runs the command.

use super::Args;
use super::user::User;
use crate::groups::changes::{self, Changes};
use crate::groups::{self, Purpose, sizes, warnings};
use crate::machine::nvml::Driver;
use crate::shown::{output, terminal};
use crate::words::{environment::env, failure::Failure};
use gpulimit_base::identity::Identity;
use gpulimit_group::{Access, Created, Group, GroupError, Hold, MAX_DEPTH, Root};
use gpulimit_ledger::Ledger;
use gpulimit_limits::{LimitSet, OnLimit, Selector};
use gpulimit_policy as policy;
use std::path::PathBuf;
use std::time::Duration;

/// The group in which the command runs.
pub struct Place {
    pub group: Group,
    /// The root in which the command finds the group: the secret view of a job of root, else the
    /// group's own.
    pub programs_root: PathBuf,
    root: Root,
    /// A lock that prevents removal of this command's own group while this process lives. `None`
    /// for other groups.
    own: Option<Hold>,
}

impl Place {
    /// Finds or makes the group that the options and the environment select.
    pub fn of(args: &Args, user: Option<&User>) -> Result<Self, Failure> {
        let asked = Asked::of(args)?;
        let place = match &args.name {
            Some(name) => Self::named(args, name, asked, user),
            None => Self::own(args, asked.limits()?, user),
        }?;
        // Remove the groups of ended jobs. A failure must not keep the command from running.
        let _ = place.root.collect_garbage();
        Ok(place)
    }

    /// Finds or makes the group that `--name` names. This group stays after the command.
    fn named(args: &Args, name: &str, asked: Asked, user: Option<&User>) -> Result<Self, Failure> {
        let limits = asked.limits()?;
        if limits.is_some() {
            groups::refuse_job_name(name)?;
        }
        let name = match &args.group {
            Some(parent) => format!("{parent}/{name}"),
            None => name.to_owned(),
        };
        let (mut root, name) = groups::meant(&name, Purpose::Run)?;
        let top = name.split('/').next().map(|top| root.group(top));
        if user.is_some() && top.is_some_and(|top| top.is_ok_and(|top| top.is_in_secret())) {
            return Err(Failure::usage(format_args!(
                "another user cannot reach the group '{name}' of a job of root: use --group with \
                 the name of the job, and leave out --name"
            )));
        }
        let group = match limits {
            None => root.group(&name)?,
            Some(limits) => {
                let access = access_in(&mut root, user, name.contains('/'))?;
                let created = root.create_for(&name, &limits, access)?;
                if !created.new {
                    asked.agree(&name, &created.group.limits()?.rules()?)?;
                }
                created.group
            }
        };
        may_join(&group)?;
        user.map_or(Ok(()), |user| user.check_joins(&group, false))?;
        Ok(Self {
            group,
            programs_root: root.path().into(),
            root,
            own: None,
        })
    }

    /// Makes a group for this command only. If that is not allowed and the command has no limit,
    /// uses the parent group.
    fn own(args: &Args, limits: Option<LimitSet>, user: Option<&User>) -> Result<Self, Failure> {
        let (parent, _again) = match &args.group {
            Some(name) => (Some(groups::find(name, Purpose::Run)?), None),
            None => callers()?,
        };
        let (mut root, above) = match (&parent, &limits) {
            (None, None) => {
                return Err(Failure::usage(
                    "no limit given: use `gpulimit run --max SIZE -- COMMAND`, or name an existing \
                     group with --name or --group",
                ));
            }
            (None, Some(_)) => (Root::locate(&env)?, String::new()),
            (Some(parent), _) => {
                may_join(parent)?;
                user.map_or(Ok(()), |user| user.check_joins(parent, true))?;
                if parent.upwards().count() == MAX_DEPTH {
                    return Err(Failure::new(format_args!(
                        "group '{0}' is already {MAX_DEPTH} levels deep, the most that is \
                         possible: use `gpulimit run --name {0}` without limits to run in it",
                        parent.name()
                    )));
                }
                (Root::at(parent.root())?, format!("{}/", parent.name()))
            }
        };
        let access = match user {
            Some(user) if parent.as_ref().is_some_and(Group::is_in_secret) => user.access(),
            _ => access_in(&mut root, user, parent.is_some())?,
        };
        let own = limits.as_ref();
        let made = make_job(&root, &above, own.unwrap_or(&LimitSet::default()), access);
        match (made, parent) {
            (Ok(Created { group, hold, .. }), parent) => {
                // Without the view, programs of other users get no memory: in a job of root, and
                // in a user's job below one.
                let view = (user.is_some() == parent.is_some())
                    .then(|| group.show_in_secret().ok().flatten());
                Ok(Self {
                    group,
                    programs_root: view.flatten().unwrap_or_else(|| root.path().into()),
                    root,
                    own: Some(hold),
                })
            }
            (Err(error), Some(parent)) if groups::is_denied(&error) => match limits {
                // Without a limit of its own, the command can run in the parent group.
                None => Ok(Self {
                    group: parent,
                    programs_root: root.path().into(),
                    root,
                    own: None,
                }),
                Some(_) => Err(Failure::new(format_args!(
                    "you may not make a group below '{0}', which a limit for this command needs: \
                     ask the administrator of {0}, or use `gpulimit run --name {0}` without limits \
                     to run in it",
                    parent.name()
                ))),
            },
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Removes this command's group. If child processes of the command still run, the group stays
    /// until they end.
    pub fn leave(self) {
        if self.own.is_some() {
            let _ = self.group.forget_job();
            drop(self.own);
            let _ = self.root.remove(self.group.name());
        }
    }
}

/// Makes a group named by this process's pid and start time. Tries another name if the name is
/// taken, for instance from another pid namespace.
fn make_job(
    root: &Root,
    above: &str,
    limits: &LimitSet,
    access: Access,
) -> Result<Created, GroupError> {
    const TRIES: u64 = 1_000;
    let me = Identity::of_self();
    let mut taken = root.path().to_path_buf();
    for attempt in 0..TRIES {
        let name = format!("{above}run-{}-{}", me.pid, me.start_time + attempt);
        let created = root.create_for(&name, limits, access)?;
        if created.new {
            created.group.record_job()?;
            // Without a history, the job runs like any other.
            let _ = created.group.keep_history();
            return Ok(created);
        }
        taken = created.group.path().into();
    }
    Err(GroupError::Held { path: taken })
}

/// Returns who may use a new group in the root. If the user of `--user` cannot find root's groups
/// there, becomes the user, and goes to the user's own root.
fn access_in(root: &mut Root, user: Option<&User>, is_below: bool) -> Result<Access, Failure> {
    let Some(user) = user else {
        return Ok(Access::default());
    };
    if !root.is_public() {
        if is_below || env("GPULIMIT_ROOT").is_some() {
            let path = root.path().display();
            return Err(Failure::new(format_args!(
                "{} could not find a group in {path}, because only root can read this directory: \
                 first run `install -d -m 0755 {path}`",
                user.name()
            )));
        }
        user.become_it()?;
        *root = Root::locate(&env)?;
        return Ok(Access::default());
    }
    Ok(user.access())
}

/// Returns the group that the rules and the environment select for the caller. Makes a job's group
/// that is gone again; the second value keeps it. Without `GPULIMIT_GROUP`, ignores `GPULIMIT_MAX`,
/// which asks for a new group.
fn callers() -> Result<(Option<Group>, Option<Created>), Failure> {
    let is_named = env(policy::GROUP).is_some_and(|name| !name.is_empty());
    let rule = policy::rule()?;
    if !is_named && rule.is_none() {
        return Ok((None, None));
    }
    let Some(mut asked) = policy::assignment_by(rule, &env)? else {
        return Ok((None, None));
    };
    if let (false, Some(rule)) = (is_named, &asked.rule) {
        (asked.group, asked.create) = (rule.group.clone(), None);
    }
    let failed = |failure: Failure| match is_named {
        true => Failure::new(format_args!("{} is set, and {failure}", policy::GROUP)),
        false => failure,
    };
    let made = match (asked.root.group(&asked.group), &asked.create) {
        (Err(error), Some(limits)) if error.is_missing() && limits.needs_gpus() => {
            return Err(Failure::new(format_args!(
                "{variable} has limits of single GPUs, which only a program of CUDA can apply: \
                 run `unset {variable} {}`, and give the limits as options, such as `--max 4G \
                 --device 0`",
                policy::GROUP,
                variable = limits.variable
            )));
        }
        (Err(error), _) if error.is_missing() => asked.make(&Vec::new, &|_| None),
        _ => Ok(None),
    };
    let made = made.map_err(|error| failed(error.into()))?;
    let group = groups::open(&asked.root, &asked.group, Purpose::Run).map_err(failed)?;
    Ok((Some(group), made))
}

/// The limits that the options of `run` ask for.
struct Asked {
    changes: Changes,
    wait: Option<Duration>,
}

impl Asked {
    /// Reads the options, and prints warnings about the limits.
    fn of(args: &Args) -> Result<Self, Failure> {
        let settings = sizes::together(&args.sizes, &args.settings)?;
        if settings.is_empty() && !args.sizes.devices.is_empty() {
            return Err(Failure::usage(
                "--device selects the GPU of a limit, and no limit is given: add --max SIZE",
            ));
        }
        // NVML loads slowly. Load it only for limits that depend on the GPUs, and for warnings at a
        // terminal.
        let driver = (terminal::shows_notes() && !settings.is_empty())
            || !args.sizes.devices.is_empty()
            || settings.iter().any(changes::depends_on_gpus);
        let driver = driver.then(|| Driver::load().ok()).flatten();
        let driver = driver.as_ref();
        let changes = Changes::new(settings, &args.sizes.devices, driver)?;
        let mut limits = LimitSet::default();
        changes.apply(&mut limits)?;
        changes.warning().iter().for_each(|line| output::note(line));
        for line in warnings::of(&limits, &warnings::capacities(driver, None), driver) {
            output::note(&format!("warning: {line}"));
        }
        let said = warnings::reserve(&limits, driver);
        said.iter().for_each(|line| output::note(line));
        let wait = args.wait;
        Ok(Self { changes, wait })
    }

    /// Returns the limits of a new group; `None` if the options ask for no limit.
    fn limits(&self) -> Result<Option<LimitSet>, Failure> {
        let limits = self.applied_to(&LimitSet::default())?;
        Ok((limits != LimitSet::default()).then_some(limits))
    }

    fn applied_to(&self, limits: &LimitSet) -> Result<LimitSet, Failure> {
        let mut limits = limits.clone();
        self.changes.apply(&mut limits)?;
        if let Some(time) = self.wait {
            limits.options.on_limit = OnLimit::Wait;
            limits.options.wait_timeout = time;
        }
        Ok(limits)
    }

    /// Fails if an existing group has a limit that differs from the option for it. Limits without
    /// an option do not matter.
    fn agree(&self, name: &str, there: &LimitSet) -> Result<(), Failure> {
        let asked = self.applied_to(there)?;
        // Old and new settings, as `gpulimit set` takes them.
        let (mut has, mut wants) = (Vec::new(), Vec::new());
        for (selector, values) in &asked.rules {
            for (key, size) in values.iter() {
                let (old, of) = match selector {
                    Selector::All => (there.get(Selector::All, key), String::new()),
                    Selector::Device(id) => (there.for_device(*id, key), format!(" --device {id}")),
                };
                if old != Some(size) {
                    has.push(old.map_or(format!("no {key}"), |old| format!("{key}={old}")) + &of);
                    wants.push(format!("{key}={size}{of}"));
                }
            }
        }
        for (key, value) in asked.options.iter() {
            let old = there.options.get(key);
            if old != value {
                has.push(format!("{key}={old}"));
                wants.push(format!("{key}={value}"));
            }
        }
        if has.is_empty() {
            return Ok(());
        }
        let (of_gpus, of_all): (Vec<_>, Vec<_>) =
            wants.iter().cloned().partition(|it| it.contains(' '));
        let of_all = (!of_all.is_empty()).then(|| of_all.join(" "));
        let set = |settings: String| format!("gpulimit set {name} {settings}");
        let commands: Vec<String> = of_all.into_iter().chain(of_gpus).map(set).collect();
        Err(Failure::new(format_args!(
            "group '{name}' exists and has {}, not {}: leave these limits out to join it, or \
             change it with `{}`",
            has.join(", "),
            wants.join(", "),
            commands.join(" && ")
        )))
    }
}

/// Checks, before the command starts, that the caller may join the group.
fn may_join(group: &Group) -> Result<(), Failure> {
    for above in group.upwards() {
        match Ledger::open(&above.ledger_path()).map_err(GroupError::from) {
            Err(error) if groups::is_forbidden(&error) => {
                return Err(Failure::new(format_args!(
                    "you may not run in group '{}': you cannot write {}; ask the administrator of \
                     the group, or use your own group",
                    group.name(),
                    above.ledger_path().display()
                )));
            }
            opened => drop(opened?),
        }
    }
    Ok(())
}
