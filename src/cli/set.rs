//! `gpulimit set`: another limit for a group, at once.

use super::failure::Failure;
use super::groups::{self, View};
use super::nvml::Driver;
use super::{gpu, output};
use gpulimit::group::{Group, GroupError};
use gpulimit::limits::{LimitSet, LimitsError, Selector, Setting};
use gpulimit::units::gib;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::process::ExitCode;

/// Options of `set`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The group
    group: String,

    /// What to change: max, high, low, min, on_limit, wait_timeout, oom, count_context
    #[arg(value_name = "KEY=VALUE", required = true)]
    changes: Vec<String>,

    /// Change it for this GPU or MIG instance only; index, UUID or its beginning, or PCI bus id. Repeat for more
    #[arg(long = "device", value_name = "GPU")]
    devices: Vec<String>,
}

const HELP: &str = "\
All changes of one call are made at once. They hold for programs that run as for those that start
later. A smaller max takes nothing away: it refuses growth until the usage is below it.

Keys of each GPU (--device), or of all:
  max     hard limit: no byte above it                                          [default: max]
  high    above it members give back what they hold unused before they grow     [default: max]
  low     not asked back, and taken last by the growth of others                [default: 0]
  min     never taken by the growth of others below the same group              [default: 0]
Keys of the group:
  on_limit       fail, or wait until others give memory back                    [default: fail]
  wait_timeout   how long a request waits, such as 30s or 10m                   [default: 10m]
  oom            none, kill-largest or kill-group before a request is refused   [default: none]
  count_context  whether the memory of CUDA contexts counts, yes or no          [default: yes]

Examples:
  gpulimit set lab max=8G
  gpulimit set lab max=25% high=20% --device 1
  gpulimit set lab on_limit=wait wait_timeout=5m
  gpulimit set lab max=max                 no limit";

/// Changes the limits.
pub fn set(args: &Args) -> Result<ExitCode, Failure> {
    let changes = settings(&args.changes)?;
    let root = super::root()?;
    let group = root.group(&args.group)?;
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let targets = gpu::selectors(&args.devices, driver)?;
    let change = |rules: &mut LimitSet| apply(&changes, &targets, rules);
    let now = group
        .write_limits(change)
        .map_err(|error| refused(&group, error))?;
    output::print(&report(group, &targets, &changes, &now, driver)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads `KEY=VALUE` arguments, each key once.
pub fn settings(texts: &[String]) -> Result<Vec<Setting>, Failure> {
    let mut settings: Vec<Setting> = Vec::new();
    for text in texts {
        let setting: Setting = text.parse().map_err(Failure::usage)?;
        if settings.iter().any(|there| there.name() == setting.name()) {
            return Err(Failure::usage(format_args!(
                "{} is given twice",
                setting.name()
            )));
        }
        settings.push(setting);
    }
    Ok(settings)
}

/// Makes the changes in a set of rules.
pub fn apply(changes: &[Setting], targets: &[Selector], rules: &mut LimitSet) {
    for change in changes {
        match change {
            Setting::Size(key, size) => {
                for target in targets {
                    rules.set(*target, *key, *size);
                }
            }
            // Checked when it was read.
            Setting::Option(key, value) => drop(rules.options.set(*key, value)),
        }
    }
}

fn refused(group: &Group, error: GroupError) -> Failure {
    match error {
        GroupError::Limits(LimitsError::Io { ref error, .. })
            if error.kind() == ErrorKind::PermissionDenied =>
        {
            Failure::new(format_args!(
                "you may not change the limits of group '{}': they belong to whoever administers it ({})",
                group.name(),
                group.limits_path().display()
            ))
        }
        error => error.into(),
    }
}

/// What holds now, and where usage is above it.
fn report(
    group: Group,
    targets: &[Selector],
    changes: &[Setting],
    now: &LimitSet,
    driver: Option<&Driver>,
) -> Result<String, Failure> {
    let mut out = String::new();
    let name = group.name().to_owned();
    let mut say = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name}: {line}");
    };
    for change in changes {
        let Setting::Size(key, _) = change else {
            say(format_args!("{change} applied"));
            continue;
        };
        for target in targets {
            match target {
                Selector::All => say(format_args!("{change} applied to all GPUs")),
                Selector::Device(id) => say(format_args!(
                    "{change} applied to GPU {}",
                    groups::label(*id, driver)
                )),
            }
        }
        if !targets.contains(&Selector::All) {
            continue;
        }
        for (selector, own) in &now.rules {
            if let (Selector::Device(id), Some(size)) = (selector, own.get(*key)) {
                say(format_args!(
                    "GPU {} keeps its own {key}={size}; change it with --device",
                    groups::label(*id, driver)
                ));
            }
        }
    }
    let Ok(view) = View::open(group, driver) else {
        // Whoever administers a group need not be able to read its ledger.
        return Ok(out);
    };
    let Some(ledger) = &view.ledger else {
        return Ok(out);
    };
    for device in &view.devices {
        let max = view.limits.max(&device.id, device.capacity);
        let usage = ledger.usage(device.index);
        let usage = usage.charged.saturating_sub(usage.idle);
        if usage > max {
            say(format_args!(
                "applied; usage {} of GPU {} is above the new max {}: growth is refused until it falls",
                gib(usage),
                groups::label(device.id, driver),
                gib(max)
            ));
        }
    }
    Ok(out)
}
