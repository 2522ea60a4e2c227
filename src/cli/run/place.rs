//! The group that the command of `run` runs in.

use super::Args;
use crate::cli::create::no_job;
use crate::cli::failure::Failure;
use crate::cli::nvml::Driver;
use crate::cli::{env, gpu, groups};
use gpulimit::group::{Garbage, Group, GroupError, Hold, Kind, MAX_DEPTH, Root};
use gpulimit::ledger::{Identity, Ledger};
use gpulimit::limits::{Key, LimitSet, OnLimit, Selector};
use gpulimit::policy;
use std::io::ErrorKind;

/// The group, made where it has to be.
pub struct Place {
    pub group: Group,
    root: Root,
    /// Set for a group of the command's own, which goes away with it.
    own: Option<Hold>,
}

impl Place {
    /// As the options and the environment say.
    pub fn of(args: &Args) -> Result<Self, Failure> {
        let limits = limits(args)?;
        let place = match &args.name {
            Some(name) => Self::named(args, name, limits),
            None => Self::own(args, limits),
        }?;
        // What cannot be collected is in nobody's way.
        let _ = place.root.collect_garbage(Garbage::Everywhere);
        Ok(place)
    }

    /// A group that stays.
    fn named(args: &Args, name: &str, limits: Option<LimitSet>) -> Result<Self, Failure> {
        no_job(name)?;
        let name = match &args.group {
            Some(parent) => format!("{parent}/{name}"),
            None => name.to_owned(),
        };
        let root = groups::root_of(&name)?;
        let group = match limits {
            None => root.group(&name)?,
            Some(limits) => {
                let created = root.create(&name, &limits)?;
                if !created.new {
                    agree(&name, &limits, &created.group.limits()?.rules()?)?;
                }
                created.group
            }
        };
        may_join(&group)?;
        Ok(Self {
            group,
            root,
            own: None,
        })
    }

    /// A group of the command's own.
    fn own(args: &Args, limits: Option<LimitSet>) -> Result<Self, Failure> {
        let parent = match &args.group {
            Some(name) => Some(groups::find(name)?),
            None => callers()?,
        };
        let me = Identity::of_self();
        let job = format!("run-{}-{}", me.pid, me.start_time);
        let (root, name) = match (&parent, &limits) {
            (None, None) => {
                return Err(Failure::usage(
                    "no limit given: use `gpulimit run --max SIZE -- COMMAND`, or --name or --group with the name of a group that exists",
                ));
            }
            (None, Some(_)) => (Root::locate(&env)?, job),
            (Some(parent), _) => {
                may_join(parent)?;
                if parent.upwards().count() == MAX_DEPTH {
                    return Err(Failure::new(format_args!(
                        "group '{0}' is {MAX_DEPTH} deep, no group can be below it: use `gpulimit run --name {0}` without limits to run in it",
                        parent.name()
                    )));
                }
                (Root::at(parent.root())?, format!("{}/{job}", parent.name()))
            }
        };
        let made = root.create(&name, limits.as_ref().unwrap_or(&LimitSet::default()));
        match (made, parent) {
            (Ok(created), _) => Ok(Self {
                group: created.group,
                root,
                own: Some(created.hold),
            }),
            (Err(error), Some(parent)) if is_denied(&error) => match limits {
                // It would have no limit of its own.
                None => Ok(Self {
                    group: parent,
                    root,
                    own: None,
                }),
                Some(_) => Err(Failure::new(format_args!(
                    "you may not make a group below '{0}', which a limit of the command's own needs: ask who administers {0}, or use `gpulimit run --name {0}` without limits to run in it",
                    parent.name()
                ))),
            },
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Removes a group of the command's own. One in which children of the command go on stays until they are gone.
    pub fn leave(self) {
        if self.own.is_some() {
            drop(self.own);
            let _ = self.root.remove(self.group.name());
        }
    }
}

/// The group that the caller is in, as the rules and the environment say. That of a job that has not begun, as `GPULIMIT_MAX` asks for, is
/// none: what `run` is asked for takes its place.
fn callers() -> Result<Option<Group>, Failure> {
    if let Some(rule) = policy::rule()? {
        let asked = policy::assignment(&env)?.filter(|asked| asked.create.is_none());
        let name = asked.map_or(rule.group, |asked| asked.group);
        return groups::find(&name).map(Some);
    }
    let Some(name) = env(policy::GROUP).filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let name = name.to_string_lossy();
    match groups::find(&name) {
        Err(_) if Kind::of(&name) == Kind::Job && gpulimit::group::check_name(&name).is_ok() => {
            Ok(None)
        }
        Err(failure) => Err(Failure::new(format_args!(
            "{} is set, and {failure}",
            policy::GROUP
        ))),
        Ok(group) => Ok(Some(group)),
    }
}

/// What the options ask for; `None` where they ask for nothing.
fn limits(args: &Args) -> Result<Option<LimitSet>, Failure> {
    let sizes = [(Key::Max, args.max), (Key::High, args.high)];
    let mut limits = LimitSet::default();
    let driver = match &args.devices[..] {
        [] => None,
        _ => Driver::load().ok(),
    };
    let targets = gpu::selectors(&args.devices, driver.as_ref())?;
    for (key, size) in sizes {
        for target in &targets {
            if let Some(size) = size {
                limits.set(*target, key, size);
            }
        }
    }
    if let Some(time) = args.wait {
        limits.options.on_limit = OnLimit::Wait;
        limits.options.wait_timeout = time;
    }
    Ok((limits != LimitSet::default()).then_some(limits))
}

/// Finds out before the command starts what it would only tell when it uses a GPU.
fn may_join(group: &Group) -> Result<(), Failure> {
    for above in group.upwards() {
        match Ledger::open(&above.ledger_path()) {
            Err(error) if groups::is_denied(&error) => {
                return Err(Failure::new(format_args!(
                    "you may not run in group '{}': {} is not yours to write; ask who administers the group, or use one of your own",
                    group.name(),
                    above.ledger_path().display()
                )));
            }
            opened => opened.map(drop).map_err(GroupError::from)?,
        }
    }
    Ok(())
}

fn is_denied(error: &GroupError) -> bool {
    matches!(error, GroupError::Io { error, .. } if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem))
}

/// A group that exists is joined only under the limits that it has.
fn agree(name: &str, asked: &LimitSet, there: &LimitSet) -> Result<(), Failure> {
    if asked.same_as(there) {
        return Ok(());
    }
    let set = match asked.get(Selector::All, Key::Max) {
        Some(max) => format!("gpulimit set {name} max={max}"),
        None => format!("gpulimit set {name} max=SIZE --device GPU"),
    };
    Err(Failure::new(format_args!(
        "group '{name}' exists and has {there}, not {asked}: leave --max out to join it, or change it with `{set}`"
    )))
}
