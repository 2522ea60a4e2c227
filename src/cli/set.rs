//! `gpulimit set`: other limits for a group, at once.

use super::changes::Changes;
use super::failure::Failure;
use super::figures::bytes;
use super::groups::{self, View};
use super::nvml::Driver;
use super::output;
use gpulimit::group::{Group, GroupError};
use gpulimit::ledger::{DeviceEntry, EventKind, Happening, Identity, Ledger};
use gpulimit::limits::{Key, LimitsError, Selector};
use gpulimit::units::gib;
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

    /// Change it for this GPU or MIG instance only: index, UUID or its beginning, PCI bus id, or all. Repeat for more
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
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let changes = Changes::read(&args.changes, &args.devices, driver)?;
    let group = groups::find(&args.group)?;
    let now = group
        .write_limits(|rules| changes.apply(rules))
        .map_err(|error| refused(&group, error))?;
    record(&group, &changes);
    let mut lines = changes.lines(&now, driver);
    // Whoever administers a group need not be able to read its ledger.
    if let Ok(view) = View::open(group, args.group.clone(), driver) {
        lines.extend(changes.outranked(&view.above, view.ledger.as_ref(), driver));
        lines.extend(too_much(&view, driver));
    }
    let line = |line: String| format!("{}: {line}\n", args.group);
    output::print(&lines.into_iter().map(line).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
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

/// Writes down that the limits were changed, where we may. Of a change for one GPU with its figures.
fn record(group: &Group, changes: &Changes) {
    let Ok(ledger) = Ledger::open(&group.ledger_path()) else {
        return;
    };
    let device = match changes.targets[..] {
        [Selector::Device(id)] => ledger.find_device(&id),
        _ => None,
    };
    let entry = device.and_then(|device| ledger.device_entry(device));
    // The largest number: none, or not known.
    let max = bytes(changes.max(), entry.map(|entry| entry.capacity)).unwrap_or(u64::MAX);
    ledger.record(&Happening {
        kind: EventKind::Limits,
        device,
        process: Identity::of_self(),
        bytes: max,
        charged: device.map_or(0, |device| ledger.charged(device)),
        max,
    });
}

/// Where usage is above the limit.
fn too_much(view: &View, driver: Option<&Driver>) -> Vec<String> {
    let Some(ledger) = &view.ledger else {
        return Vec::new();
    };
    let line = |device: &DeviceEntry| {
        let max = view.rules.for_device(device.id, Key::Max)?;
        let max = max.resolve(device.capacity);
        let usage = ledger.usage(device.index);
        let usage = usage.charged.saturating_sub(usage.idle);
        (usage > max).then(|| {
            format!(
                "applied; usage {} of GPU {} is above the new max {}: growth is refused until it falls",
                gib(usage),
                groups::label(device.id, driver),
                gib(max)
            )
        })
    };
    view.devices.iter().filter_map(line).collect()
}
