//! `gpulimit oci-hook`: called by OCI runtimes while they make a container, and after it has ended.

use crate::contained::container::{self, OnError, Wanted};
use crate::contained::state::State;
use crate::words::{environment::env, failure::Failure};
use clap::ValueEnum;
use gpulimit_base::units::Extent;
use gpulimit_group::{Root, check_name};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `oci-hook`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// What to do
    stage: Stage,

    /// For create: make a group with this limit for the container
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "group",
        allow_hyphen_values = true
    )]
    cap: Option<Extent>,

    /// For create: put the container into this group
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    /// For create: whether a container of an image that cannot load the library runs without a
    /// limit, or is refused
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OnError::Run)]
    on_error: OnError,

    /// The directory that contains all groups
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Copy, Clone, ValueEnum)]
enum Stage {
    /// Make the container's group (createRuntime)
    Create,
    /// Mount the group in the container, at /run/gpulimit (createContainer)
    Mount,
    /// Remove the group (poststop)
    Remove,
}

const HELP: &str = "\
OCI runtimes call this; `gpulimit cdi generate` writes the file that tells them
to. It reads the container's state from standard input, as the OCI runtime
specification defines it. A rule puts every program of the container into its
group, and no environment variable overrides it. The container sees no other
group, and can write only to the ledgers. Only root can call this. See
docs/containers.md.

Examples:
  gpulimit oci-hook create --cap 8G    at createRuntime
  gpulimit oci-hook mount              at createContainer
  gpulimit oci-hook remove             at poststop

Exit status: 0 on success, 1 on failure (the runtime then gives up the
container), 2 for a mistake in the options.";

/// Runs the stage.
pub fn oci_hook(args: &Args) -> Result<ExitCode, Failure> {
    let root = match &args.root {
        Some(path) => Root::at(path)?,
        None => Root::locate(&env)?,
    };
    let wanted = match (args.cap, &args.group) {
        (Some(size), _) => Some(Wanted::Cap(size)),
        (None, Some(name)) => {
            check_name(name)?;
            Some(Wanted::Group(name.clone()))
        }
        (None, None) => None,
    };
    let state = State::read()?;
    match (args.stage, wanted) {
        (Stage::Create, Some(wanted)) => container::create(&root, &state, &wanted, args.on_error)?,
        (Stage::Create, None) => {
            return Err(Failure::usage(
                "create needs a limit or a group: add --cap SIZE or --group NAME",
            ));
        }
        (Stage::Mount, None) => container::mount(&root, &state)?,
        (Stage::Remove, None) => container::remove(&root, &state)?,
        (Stage::Mount | Stage::Remove, Some(_)) => {
            return Err(Failure::usage("--cap and --group apply only to create"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
