//! `gpulimit get`: prints a group's settings, for scripts.

use crate::figures::Gpu;
use crate::groups::{self, Purpose, View, gpu};
use crate::machine::nvml::Driver;
use crate::shown::output;
use crate::words::failure::Failure;
use clap::builder::PossibleValuesParser;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_limits::{Key, LimitSet, OptionKey, Selector};
use std::process::ExitCode;

/// Options of `get`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The group
    group: String,

    /// Print only the value of this key
    #[arg(value_parser = PossibleValuesParser::new(gpulimit_limits::names()))]
    key: Option<String>,

    /// The GPU whose values to print: index, UUID, start of the UUID, PCI bus id. Repeat for more
    #[arg(long = "device", value_name = "GPU")]
    devices: Vec<String>,

    /// Take the groups above this group into account: print the smallest max of the group and the
    /// groups above it
    #[arg(long)]
    effective: bool,
}

const HELP: &str = "\
Prints KEY=VALUE lines that `gpulimit set` accepts, with the GPU that a line is
for. With KEY, prints only the value. `gpulimit show --json` prints all figures.

Examples:
  gpulimit get lab
  gpulimit get lab max
  gpulimit get lab/alice max --device 0 --effective";

/// Prints the settings.
pub fn get(args: &Args) -> Result<ExitCode, Failure> {
    let group = groups::find(&args.group, Purpose::Use)?;
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let targets = gpu::selectors(&args.devices, driver)?;
    let view = View::cleaned(group, driver)?;
    let mut out = String::new();
    let mut line = |key: &str, selector, value: String| {
        match args.key {
            Some(_) => out += &value,
            None => out += &format!("{key}={value}"),
        }
        // If the caller named exactly one GPU, the line need not name it.
        if let Selector::Device(id) = selector
            && args.devices.len() != 1
        {
            out += &format!(" --device {id}");
        }
        out.push('\n');
    };
    let is_asked = |key: &str| args.key.as_deref().is_none_or(|asked| asked == key);
    for key in Key::ALL.into_iter().filter(|key| is_asked(key.name())) {
        for (selector, value) in values(&view, key, &targets, args, driver)? {
            line(key.name(), selector, value);
        }
    }
    for key in OptionKey::ALL
        .into_iter()
        .filter(|key| is_asked(key.name()))
    {
        line(key.name(), Selector::All, view.rules.options.get(key));
    }
    output::print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the values of a size in this group. Each value comes with the GPUs that it applies to.
fn values(
    view: &View,
    key: Key,
    targets: &[Selector],
    args: &Args,
    driver: Option<&Driver>,
) -> Result<Vec<(Selector, String)>, Failure> {
    if args.effective {
        let named = targets.iter().filter_map(|target| match target {
            Selector::Device(id) => Some(*id),
            Selector::All => None,
        });
        let mut ids: Vec<DeviceId> = named.collect();
        if ids.is_empty() {
            let seen = view.devices.iter().map(|device| device.id);
            let there = driver.into_iter().flat_map(Driver::gpus).map(|gpu| gpu.id);
            for id in seen.chain(there) {
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        if ids.is_empty() {
            return Err(Failure::new(
                "no GPU found: name one by its full UUID with --device",
            ));
        }
        let value = |id| Ok((Selector::Device(id), effective(view, key, id, driver)?));
        return ids.into_iter().map(value).collect();
    }
    let of = |target: &Selector| {
        let said = match target {
            Selector::Device(id) => view.rules.for_device(*id, key),
            Selector::All => view.rules.get(Selector::All, key),
        };
        (*target, said.unwrap_or(key.default()).to_string())
    };
    let mut values: Vec<(Selector, String)> = targets.iter().map(of).collect();
    if args.devices.is_empty() {
        let own = view.rules.rules.iter().filter_map(|(selector, values)| {
            let size = values.get(key).filter(|_| *selector != Selector::All)?;
            Some((*selector, size.to_string()))
        });
        values.extend(own);
    }
    Ok(values)
}

/// Returns the value of a key that applies to a GPU; for `max`, the smallest of the group and those
/// above.
fn effective(
    view: &View,
    key: Key,
    id: DeviceId,
    driver: Option<&Driver>,
) -> Result<String, Failure> {
    let gpu = Gpu::of(view, id, driver);
    if key != Key::Max {
        return Ok(gpu.rule.get(key).unwrap_or(key.default()).to_string());
    }
    let above = view.above.iter().map(|above| &above.rules);
    let is_part = |rules: &LimitSet| matches!(rules.for_device(id, key), Some(Size::Percent(_)));
    if gpu.capacity.is_none() && above.chain([&view.rules]).any(is_part) {
        return Err(Failure::new(format_args!(
            "cannot compute max of GPU {}: max is a percentage, and the GPU's memory is unknown \
             here",
            gpu.label
        )));
    }
    let max = gpu.effective.map_or(Size::Max, |(max, _)| Size::Bytes(max));
    Ok(max.to_string())
}
