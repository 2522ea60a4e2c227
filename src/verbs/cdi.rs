//! `gpulimit cdi`: describes limits and groups as devices that container engines know by name
//! (Container Device Interface).

mod name;

use crate::contained::container::OnError;
use crate::machine::file::{absolute, make_directories, replace, write_named};
use crate::machine::{library, preload::FILE, trust::Trusted};
use crate::shown::output::{self, Answer};
use crate::words::{environment::env, failure::Failure};
use clap::ValueEnum;
use gpulimit_group::{Root, SYSTEM, effective_user};
use name::Device;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `cdi`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// What to do
    what: What,

    /// Make a device that gives each container its own limit of SIZE. NAME, if given, is the
    /// device's name. Repeat for more devices
    #[arg(
        long = "cap",
        value_name = "[NAME=]SIZE",
        allow_hyphen_values = true,
        value_parser = Device::cap
    )]
    caps: Vec<Device>,

    /// Make a device for an existing group, which containers share with each other and with the
    /// host. Repeat for more devices
    #[arg(long = "group", value_name = "NAME", value_parser = Device::group)]
    groups: Vec<Device>,

    /// Whether a container of an image that cannot load the library, because it has no glibc or one
    /// before 2.17, runs without a limit or is refused
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OnError::Run)]
    on_error: OnError,

    /// The file to write; - for standard output
    #[arg(long, value_name = "FILE", default_value = "/etc/cdi/gpulimit.json")]
    output: PathBuf,

    /// The directory to which gpulimit writes the files that are mounted in all containers
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/etc/gpulimit/container",
        value_parser = absolute()
    )]
    files: PathBuf,

    #[command(flatten)]
    answer: Answer,
}

#[derive(Copy, Clone, ValueEnum)]
enum What {
    /// Write the CDI file, which tells container engines about the devices
    Generate,
}

const HELP: &str = "\
A container with the device gpulimit.dev/mem=8g gets its own group with max=8g,
which is removed with the container. A container with gpulimit.dev/mem=lab runs
in the group lab; the group lab/alice is the device lab.alice. Without --cap and
--group, devices for sizes from 1g to 80g are written. Every program of the
container loads the library, whatever its environment says. NVIDIA's toolkit
describes the GPUs themselves (nvidia-ctk cdi generate). See docs/containers.md.

Examples:
  gpulimit cdi generate
  gpulimit cdi generate --cap 4g --cap 8g --cap half=50% --group lab/alice
  docker run --device nvidia.com/gpu=all --device gpulimit.dev/mem=8g IMAGE

Exit status: 0 on success, 1 on failure, 2 for a mistake in the options.";

/// The kind of gpulimit's CDI devices, in the form VENDOR/CLASS.
const KIND: &str = "gpulimit.dev/mem";
/// The sizes for which devices are made if neither --cap nor --group is given.
const DEFAULT_SIZES: [&str; 16] = [
    "1g", "2g", "3g", "4g", "6g", "8g", "10g", "12g", "16g", "20g", "24g", "32g", "40g", "48g",
    "64g", "80g",
];
/// The path at which containers find libgpulimit.so.
const LIBRARY: &str = "/usr/local/lib/gpulimit/libgpulimit.so";
/// The first version of the CDI specification in which a device's name may begin with a digit.
const WITH_DIGITS: &str = "0.5.0";
/// The first version of the CDI specification.
const OLDEST: &str = "0.3.0";
/// The text of a container's rules file until a hook mounts valid rules. The invalid text refuses
/// all GPU memory.
const CLOSED: &str = "no gpulimit hook has given this container a group\n";

/// Runs the command.
pub fn cdi(args: &Args) -> Result<ExitCode, Failure> {
    match args.what {
        What::Generate => generate(args),
    }
}

/// Writes the CDI file, and the files that are mounted in containers with a gpulimit device.
fn generate(args: &Args) -> Result<ExitCode, Failure> {
    let devices = devices(args)?;
    let library = library::find()?;
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(format_args!(
            "cannot find the path of this program: {error}"
        ))
    })?;
    let root = Root::locate(&env)?;
    for device in &devices {
        if let ("--group", name) = device.asked()
            && let Err(error) = root.group(name)
        {
            let (why, device) = (error.with_known(), device.name());
            output::note(&format!(
                "containers with the device {device} cannot start: {why}"
            ));
        }
    }
    if effective_user() == 0 {
        let all = Trusted::root();
        let checks = [
            all.check(&library),
            all.check(&program),
            all.check_new(root.path()),
            all.check_new(&args.files),
        ];
        for checked in checks {
            checked.map_err(|why| {
                Failure::new(format_args!(
                    "{why}: other users could change what containers load and what root runs for \
                     them; install gpulimit where only root can write; if you set --files, {} or \
                     GPULIMIT_ROOT, name such a place there as well",
                    library::VARIABLE
                ))
            })?;
        }
    }
    let preload = args.files.join("ld.so.preload");
    let closed = args.files.join("closed");
    let rules = closed.join(gpulimit_policy::rules::FILE);
    let (program, groups) = (utf8(&program)?, utf8(root.path())?);
    let hook = |stage: &str, verb: &str, asked: &[&str]| {
        let args = [&["gpulimit", "oci-hook", verb, "--root", groups], asked].concat();
        json!({ "hookName": stage, "path": program, "args": args })
    };
    let mount = |host, container: &str| {
        Ok::<_, Failure>(json!({
            "hostPath": utf8(host)?,
            "containerPath": container,
            "options": ["rbind", "ro", "nosuid", "nodev"],
        }))
    };
    let device = |device: &Device| {
        let (option, value) = device.asked();
        let on_error = match args.on_error {
            OnError::Run => &[][..],
            OnError::Refuse => &["--on-error", "refuse"],
        };
        let asked = [&[option, value], on_error].concat();
        let hooks = [hook("createRuntime", "create", &asked)];
        json!({ "name": device.name(), "containerEdits": { "hooks": hooks } })
    };
    let is_number = |device: &Device| device.name().starts_with(|c: char| c.is_ascii_digit());
    let spec = json!({
        // Old container engines read only old versions of CDI files, so use the oldest version that
        // allows these device names.
        "cdiVersion": if devices.iter().any(is_number) { WITH_DIGITS } else { OLDEST },
        "kind": KIND,
        "containerEdits": {
            "mounts": [
                mount(&library, LIBRARY)?,
                mount(&preload, FILE)?,
                mount(&closed, SYSTEM)?,
            ],
            "hooks": [
                hook("createContainer", "mount", &[]),
                hook("poststop", "remove", &[]),
            ],
        },
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
    });
    let text = format!("{spec:#}\n");
    if args.output == Path::new("-") {
        output::print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    make_directories(&rules)?;
    replace(&rules, CLOSED.as_bytes(), 0o644)?;
    replace(&preload, format!("{LIBRARY}\n").as_bytes(), 0o644)?;
    make_directories(&args.output)?;
    write_named(&args.output, text.as_bytes(), 0o644)?;
    let names: Vec<&str> = devices.iter().map(Device::name).collect();
    let (file, devices) = (args.output.display(), names.join(", "));
    match args.answer.json {
        true => (args.answer).tell(&[(file.to_string(), format!("wrote {KIND}={devices}"))]),
        false => output::report(&format!("wrote {file}: {KIND}={devices}\n")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a path as text. Fails if the path is not UTF-8, because JSON cannot contain such a path.
fn utf8(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::new(format_args!(
            "the path '{}' is not UTF-8, but a CDI file must be UTF-8: use another path",
            path.display()
        ))
    })
}

/// Returns the devices for the options --cap and --group. Without these options, returns a device
/// for each default size.
fn devices(args: &Args) -> Result<Vec<Device>, Failure> {
    let mut devices = [&args.caps[..], &args.groups].concat();
    if devices.is_empty() {
        let sizes = DEFAULT_SIZES
            .iter()
            .filter_map(|size| Device::cap(size).ok());
        devices.extend(sizes);
    }
    for (index, device) in devices.iter().enumerate() {
        if devices[..index]
            .iter()
            .any(|other| other.name() == device.name())
        {
            return Err(Failure::usage(format_args!(
                "two devices have the name '{}': leave one out, or give the cap another name, as \
                 in small=4G",
                device.name()
            )));
        }
    }
    Ok(devices)
}
