//! `gpulimit set`: changes the limits of a group.

use super::above::Shared;
use super::changes::Changes;
use super::failure::Failure;
use super::figures::bytes;
use super::groups::{self, Purpose, View};
use super::nvml::Driver;
use super::output::Answer;
use super::sizes::{self, Sizes};
use super::warnings;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::{Extent, gib};
use gpulimit_group::{Group, GroupError};
use gpulimit_ledger::{Details, DeviceEntry, EventKind, Happening, Ledger};
use gpulimit_limits::{Key, LimitSet, LimitsError, Selector};
use std::io::ErrorKind;
use std::process::ExitCode;

/// Options of `set`.
#[derive(clap::Args)]
#[command(after_help = help())]
pub struct Args {
    /// The group
    group: String,

    /// Other settings to change, by the keys below; max=4G is the same as --max 4G
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<String>,

    #[command(flatten)]
    sizes: Sizes,

    /// The GPU or MIG instance whose limits to change: index, UUID, start of the UUID, PCI bus id,
    /// or all. Repeat for more
    #[arg(long = "device", value_name = "GPU")]
    devices: Vec<String>,

    #[command(flatten)]
    answer: Answer,
}

impl Args {
    /// Returns the options that set `max` of a group, on this GPU or on all GPUs.
    pub fn of_max(group: String, max: Extent, gpu: Option<String>) -> Self {
        Self {
            group,
            changes: Vec::new(),
            sizes: Sizes {
                max: Some(max),
                ..Sizes::default()
            },
            devices: gpu.into_iter().collect(),
            answer: Answer::default(),
        }
    }
}

/// The help, with a line for each key.
fn help() -> String {
    format!("{KEYS}{}{EXAMPLES}", sizes::table())
}

const KEYS: &str = "\
All changes of one call take effect at the same time, for running programs and
for later ones. A smaller max does not take memory away: it refuses growth until
the usage is below it.

Keys of the group:
";

const EXAMPLES: &str = "\
These are the defaults. The default of --max and --high is max (none), that of
--low and --min is 0.

Examples:
  gpulimit set lab --max 8G
  gpulimit set lab --max 25% --high 20% --device 1
  gpulimit set lab on_limit=wait wait_timeout=5m
  gpulimit set lab --max max                 no limit";

/// Changes the limits.
pub fn set(args: &Args) -> Result<ExitCode, Failure> {
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let settings = sizes::together(&args.sizes, &args.changes)?;
    if settings.is_empty() {
        return Err(Failure::usage(format_args!(
            "nothing to change: give a limit, such as `gpulimit set {} --max 8G`",
            args.group
        )));
    }
    let changes = Changes::new(settings, &args.devices, driver)?;
    let group = groups::find(&args.group, Purpose::Change)?;
    let now = group
        .past_leases(groups::end_of_leases(), || {
            // Cannot fail: [`Changes::new`] has already tried to apply the changes.
            group.write_limits(|rules| drop(changes.apply(rules)))
        })
        .map_err(|error| refused(&group, error))?;
    let name = group.name().to_owned();
    let mut lines = changes.lines(&now, driver);
    if let Ok(ledger) = groups::readable(&group) {
        // The ledger is `None` if the caller is allowed to change the group's limits, but not to
        // read its ledger.
        if let Some(ledger) = &ledger {
            record(&group, ledger, &changes, &now);
            // Remove the charges of dead processes, because the warnings show the group's usage.
            group.clean_in(ledger, groups::witness(driver));
        }
        let view = View::of(
            &mut Shared::default(),
            group,
            name.clone(),
            now,
            ledger,
            driver,
        );
        lines.extend(changes.outranked(&view.rules, &view.above, view.ledger.as_ref(), driver));
        lines.extend(above_max(&view, driver));
        if changes.has_sizes() {
            let gpus = warnings::capacities(driver, view.ledger.as_ref());
            warnings::note(&name, &warnings::of(&view.rules, &gpus, driver));
        }
    }
    let done = lines.into_iter().map(|line| (name.clone(), line));
    args.answer.tell(&done.collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}

fn refused(group: &Group, error: GroupError) -> Failure {
    match error {
        GroupError::Limits(LimitsError::Io { ref error, .. })
            if error.kind() == ErrorKind::PermissionDenied =>
        {
            Failure::new(format_args!(
                "you may not change the limits of group '{}': only the owner of {} may do that",
                group.name(),
                group.limits_path().display()
            ))
        }
        error => error.into(),
    }
}

/// Records the changes as an event in the ledger, if the caller may write the ledger. If the
/// changes are for one GPU, the event contains the figures of that GPU.
fn record(group: &Group, ledger: &Ledger, changes: &Changes, now: &LimitSet) {
    let (device, max) = match changes.targets[..] {
        [Selector::Device(id)] => (ledger.find_device(&id), now.for_device(id, Key::Max)),
        _ => (None, now.get(Selector::All, Key::Max)),
    };
    let entry = device.and_then(|device| ledger.device_entry(device));
    // In an event, the largest number stands for "no limit" or "unknown".
    let max = max.filter(|_| changes.has_max());
    let max = bytes(max, entry.map(|entry| entry.capacity)).unwrap_or(u64::MAX);
    let happening = Happening {
        kind: EventKind::Limits,
        device,
        process: Identity::of_self(),
        bytes: max,
        charged: device.map_or(0, |device| ledger.charged(device)),
        max,
    };
    group.record(ledger, &happening, Details::default());
}

/// Returns a warning for each GPU on which the usage is above the new limit.
fn above_max(view: &View, driver: Option<&Driver>) -> Vec<String> {
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
                "applied; usage {usage} of GPU {gpu} is above the new max {max}: growth is refused \
                 until the usage falls",
                usage = gib(usage),
                gpu = groups::label(device.id, driver),
                max = gib(max)
            )
        })
    };
    view.devices.iter().filter_map(line).collect()
}
