//! `gpulimit set`: changes the limits of a group.

use crate::groups::changes;
use crate::groups::sizes::{self, Sizes};
use crate::shown::output::Answer;
use crate::words::failure::Failure;
use std::process::ExitCode;

/// Options of `set`.
#[derive(clap::Args)]
#[command(after_help = help())]
pub struct Args {
    /// The group
    group: String,

    /// Other settings to change, by the keys below; KEY=VALUE is the same as --KEY VALUE
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<String>,

    #[command(flatten)]
    sizes: Sizes,

    #[command(flatten)]
    answer: Answer,
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
--low, --min and --keep-free is 0.

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
    let done = changes::set(&args.group, settings, &args.sizes.devices)?;
    Ok(args.answer.done(&done))
}
