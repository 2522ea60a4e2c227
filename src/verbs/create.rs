//! `gpulimit create`: makes a group that stays until it is removed.

use crate::groups::sizes::{self, Sizes};
use crate::groups::{self, Purpose, above::Shared, changes::Changes, warnings};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output::{self, Answer};
use crate::words::{environment::env, failure::Failure};
use gpulimit_group::{Access, GroupError, Members, Root, SYSTEM, effective_user, upwards};
use gpulimit_limits::LimitSet;
use std::io::ErrorKind;
use std::process::ExitCode;

/// Options of `create`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The name of the group; lab/alice is a group below lab
    group: String,

    /// Other settings, as for `gpulimit set`; KEY=VALUE is the same as --KEY VALUE
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<String>,

    #[command(flatten)]
    sizes: Sizes,

    /// The user who may run programs in the group and make groups below it [default: yourself]
    #[arg(long, value_name = "USER")]
    owner: Option<String>,

    /// Who may run programs in the group: its owner, all users, or its owner and a unix group
    #[arg(long, value_name = "owner|all|@UNIXGROUP", default_value = "owner")]
    members: String,

    /// Also make the missing groups above this group
    #[arg(long)]
    parents: bool,

    #[command(flatten)]
    answer: Answer,
}

const HELP: &str = "\
Only the user who makes the group can change its limits: its owner and members
cannot. The usage of a group counts in all groups above it. `gpulimit set
--help` explains the keys.

Examples:
  gpulimit create lab --max 60G
  gpulimit create lab/alice --max 50% --high 40% --owner alice
  gpulimit create lab/course --max 8G --device 1 --members @students
  gpulimit create site/lab/bob on_limit=wait --parents";

/// Makes the group.
pub fn create(args: &Args) -> Result<ExitCode, Failure> {
    gpulimit_group::check_name(&args.group)?;
    groups::refuse_job_name(&args.group)?;
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let settings = sizes::together(&args.sizes, &args.changes)?;
    let changes = Changes::new(settings, &args.sizes.devices, driver)?;
    changes.warning().iter().for_each(|line| output::note(line));
    let access = access(args)?;
    let (root, name) = groups::meant(&args.group, Purpose::Make)?;
    let name = &*name;
    check_findable(&root, name, access, args)?;
    let mut limits = LimitSet::default();
    changes.apply(&mut limits)?;
    let mut above: Vec<&str> = upwards(name).skip(1).collect();
    above.retain(|_| args.parents);
    let mut made = Vec::new();
    let mut make = || {
        for name in above.iter().rev() {
            if root.create(name, &LimitSet::default())?.new {
                made.push(*name);
            }
        }
        root.create_for(name, &limits, access)
    };
    let created = make().map_err(|error| {
        // Remove the groups that were made: `create` makes all groups or none.
        for name in made.iter().rev() {
            let _ = root.remove(name);
        }
        denied(error, args)
    })?;
    if !created.new {
        return Err(Failure::new(format_args!(
            "group '{name}' already exists and was not changed: change it with `gpulimit set \
             {name} KEY=VALUE`"
        )));
    }
    let gpus = warnings::capacities(driver, None);
    let odd = warnings::of(&limits, &gpus, driver);
    output::notes(&warnings::named(name, odd));
    let mut lines = vec![format!("created, {limits}")];
    let above = Shared::default().above(&created.group);
    lines.extend(changes.outranked(&limits, &above, None, driver));
    let done = lines.into_iter().map(|line| (name.to_owned(), line));
    args.answer.tell(&done.collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}

fn access(args: &Args) -> Result<Access, Failure> {
    let unknown = |what, name: &str| {
        Failure::usage(format_args!(
            "unknown {what} '{}': give a name or a number",
            name.escape_debug()
        ))
    };
    let owner = args
        .owner
        .as_deref()
        .map(|name| accounts::user_id(name).ok_or_else(|| unknown("user", name)))
        .transpose()?;
    let members = match &*args.members {
        "owner" => Members::Owner,
        "all" => Members::All,
        other => match other.strip_prefix('@') {
            Some(name) => Members::UnixGroup(
                accounts::unix_group_id(name).ok_or_else(|| unknown("unix group", name))?,
            ),
            None => {
                return Err(Failure::usage(format_args!(
                    "invalid --members '{}': expected owner, all, or @UNIXGROUP",
                    other.escape_debug()
                )));
            }
        },
    };
    Ok(Access { owner, members })
}

/// Refuses to give a group to a user who could not find it in a private directory of groups.
fn check_findable(root: &Root, name: &str, access: Access, args: &Args) -> Result<(), Failure> {
    let me = effective_user();
    let (Some(owner), 0) = (access.owner.filter(|owner| *owner != me), me) else {
        return Ok(());
    };
    if root.is_public() {
        return Ok(());
    }
    let path = root.path();
    let owner = args
        .owner
        .clone()
        .unwrap_or_else(|| accounts::user_name(owner));
    // The remedy is a directory that all users can read: GPULIMIT_ROOT, or else /run/gpulimit, used
    // once it exists.
    let step = match env("GPULIMIT_ROOT") {
        Some(_) => format!("install -d -m 0755 {}", path.display()),
        None => format!("install -d -m 0755 {SYSTEM}"),
    };
    Err(Failure::new(format_args!(
        "{owner} would not be able to find group '{name}' in {}, because only root can read this \
         directory: first run `{step}` to make a directory of groups for all users",
        path.display()
    )))
}

/// Explains the error "permission denied": only root may give a group to another user.
fn denied(error: GroupError, args: &Args) -> Failure {
    let (path, cause) = match &error {
        GroupError::Io { path, error, .. } if error.kind() == ErrorKind::PermissionDenied => {
            (path.display(), error)
        }
        _ => return error.into(),
    };
    match (&args.owner, args.members.strip_prefix('@')) {
        (Some(owner), _) => Failure::new(format_args!(
            "cannot create {path}: {cause}; only root can give a group to another user ({owner})"
        )),
        (None, Some(members)) => Failure::new(format_args!(
            "cannot create {path}: {cause}; only root and members of the unix group can give a \
             group to @{members}"
        )),
        (None, None) => error.into(),
    }
}
