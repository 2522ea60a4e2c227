//! `gpulimit oci-hook`: what an OCI runtime calls while a container is made, and when it is gone.

mod container;
mod mount;
mod process;
mod record;
mod state;

use super::env;
use super::failure::Failure;
use clap::ValueEnum;
use container::Wanted;
use gpulimit_base::units::Extent;
use gpulimit_group::{Root, check_name};
use state::State;
use std::path::PathBuf;
use std::process::ExitCode;

pub use container::sweep;

/// Options of `oci-hook`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// What is to be done
    stage: Stage,

    /// create: the container gets a group of its own, with this limit
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "group",
        allow_hyphen_values = true
    )]
    cap: Option<Extent>,

    /// create: the container is in this group
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    /// Where the groups are
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Copy, Clone, ValueEnum)]
enum Stage {
    /// Make the container's group (createRuntime)
    Create,
    /// Put it into the container, at /run/gpulimit (createContainer)
    Mount,
    /// Remove it (poststop)
    Remove,
}

const HELP: &str = "\
Runtimes call this; `gpulimit cdi generate` tells them how. It reads the
container's state, as the OCI runtime specification has it, from standard
input. All programs of the container are in its group, by a rule that no
variable of theirs overrides; the container sees no other group, and can write
nothing but who uses what. Takes root. docs/containers.md has more.

Examples:
  gpulimit oci-hook create --cap 8G    at createRuntime
  gpulimit oci-hook mount              at createContainer
  gpulimit oci-hook remove             at poststop

Exit status: 0 when it is done, 1 when not (the runtime then gives the
container up), 2 for a mistake in the options.";

/// Does what the stage is for.
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
        (Stage::Create, Some(wanted)) => container::create(&root, &state, &wanted)?,
        (Stage::Create, None) => {
            return Err(Failure::usage(
                "what the container may use is not said: add --cap SIZE or --group NAME",
            ));
        }
        (Stage::Mount, None) => container::mount(&root, &state)?,
        (Stage::Remove, None) => container::remove(&root, &state)?,
        (Stage::Mount | Stage::Remove, Some(_)) => {
            return Err(Failure::usage("--cap and --group are for create"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
