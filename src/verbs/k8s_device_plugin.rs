//! `gpulimit k8s-device-plugin`: runs the Kubernetes device plugin. The plugin is a separate
//! program, because its dependencies are useless outside a cluster.

use crate::machine::signals;
use crate::words::failure::{Failure, cannot};
use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Options of `k8s-device-plugin`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Options of the plugin
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

const HELP: &str = "\
Starts gpulimit-k8s-device-plugin, which is beside this program or in PATH,
with these options. config/kubernetes runs it on each node of a cluster;
docs/kubernetes.md explains it.

Examples:
  gpulimit k8s-device-plugin -- --help
  gpulimit k8s-device-plugin --unit 512Mi --reserve 1Gi";

const NAME: &str = "gpulimit-k8s-device-plugin";

/// Replaces this process with the program of the Kubernetes device plugin.
pub fn k8s_device_plugin(args: Args, inherited: &signals::Inherited) -> Result<ExitCode, Failure> {
    let beside = env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.join(NAME)))
        .filter(|path| path.is_file());
    let program = beside.unwrap_or_else(|| PathBuf::from(NAME));
    let error = signals::become_command(Command::new(&program).args(args.options), inherited);
    Err(match error.kind() {
        ErrorKind::NotFound => Failure::new(format_args!(
            "cannot find {NAME} beside this program or in PATH: build it with `cargo build \
             --release -p gpulimit-k8s`"
        )),
        _ => cannot("run", &program)(error),
    })
}
