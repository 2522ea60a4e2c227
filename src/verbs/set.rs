//! `gpulimit set`: changes the limits of a group.

use crate::groups::changes;
use crate::groups::sizes::{self, Sizes};
use crate::shown::output;
use crate::words::failure::Failure;
use std::process::ExitCode;

/// Options of `set`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The group
    group: String,

    /// Other settings to change: on_limit, wait_timeout, pressure_timeout, oom, count_context,
    /// suspended.max; max=4G is the same as --max 4G
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<String>,

    #[command(flatten)]
    sizes: Sizes,

    /// The GPU or MIG instance whose limits to change: index, UUID, start of the UUID, PCI bus id,
    /// or all. Repeat for more
    #[arg(long = "device", value_name = "GPU")]
    devices: Vec<String>,
}

const HELP: &str = "\
All changes of one call take effect at the same time, for running programs and
for later ones. A smaller max does not take memory away: it refuses growth until
the usage is below it.

Keys of the group:
  on_limit=fail       or wait, until other processes give memory back
  wait_timeout=10m    how long a request waits, such as 30s or 10m
  pressure_timeout=2s how long a request waits for processes that were asked to
                      give memory back; 0 asks none
  oom=none            kill-largest or kill-group before a request is refused
  count_context=yes   whether the memory of CUDA contexts counts, yes or no
  suspended.max=default
                      the most memory of suspended processes that may be on
                      the host, such as 64G, or max (no limit of the group);
                      contexts count as for --max; the default is what the
                      host has available, less a tenth
These are the defaults. The default of --max and --high is max (none), that of
--low and --min is 0.

Examples:
  gpulimit set lab --max 8G
  gpulimit set lab --max 25% --high 20% --device 1
  gpulimit set lab on_limit=wait wait_timeout=5m
  gpulimit set lab --max max                 no limit";

/// Changes the limits.
pub fn set(args: &Args) -> Result<ExitCode, Failure> {
    let settings = sizes::together(&args.sizes, &args.changes)?;
    if settings.is_empty() {
        return Err(Failure::usage(format_args!(
            "nothing to change: give a limit, such as `gpulimit set {} --max 8G`",
            args.group
        )));
    }
    let done = changes::set(&args.group, settings, &args.devices)?;
    Ok(output::done(&done))
}
