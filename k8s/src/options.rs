//! The command line of the plugin.

use gpulimit_base::units::Size;
use gpulimit_group::SYSTEM;
use gpulimit_limits::parse_duration;
use std::path::PathBuf;
use std::time::Duration;

/// Hands out GPU memory to the pods of a Kubernetes node, and limits each container to the memory
/// that it was given.
#[derive(clap::Parser)]
#[command(name = "gpulimit-k8s-device-plugin", version, after_help = HELP)]
pub struct Options {
    /// The name of the resource that pods request
    #[arg(long, value_name = "NAME", default_value = "gpulimit.dev/gpu-memory")]
    pub resource: String,

    /// The memory of one unit of the resource
    #[arg(long, value_name = "SIZE", default_value = "1Gi", value_parser = bytes)]
    pub unit: u64,

    /// Memory of each GPU that the plugin does not hand out, in addition to the driver's own
    /// reserve
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = bytes)]
    pub reserve: u64,

    /// How a container gets access to the GPU itself: with an environment variable for NVIDIA's
    /// container runtime, or with a device of the Container Device Interface
    #[arg(long, value_name = "HOW", default_value = "env")]
    pub gpus: Gpus,

    /// The kind of the GPUs in the Container Device Interface, where a GPU's name is its UUID
    #[arg(long, value_name = "VENDOR/CLASS", default_value = "nvidia.com/gpu")]
    pub cdi_kind: String,

    /// The libgpulimit.so that containers get [default: libgpulimit.so beside this program]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,

    /// The directory on the node in which the plugin makes groups
    #[arg(long, value_name = "DIR", default_value = SYSTEM)]
    pub root: PathBuf,

    /// The directory on the node for libgpulimit.so and the records of allocations, which must
    /// survive reboots
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gpulimit")]
    pub state: PathBuf,

    /// Kubelet's directory for the sockets of plugins
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    pub kubelet: PathBuf,

    /// Kubelet's socket that lists the resources of pods
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    pub pods: PathBuf,

    /// The name of the pod that this plugin runs in: a list of pods that lacks this pod is
    /// incomplete and not used
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub pod: Option<String>,

    /// How long to keep a group that kubelet lists in no pod: kubelet never lists init containers,
    /// which may still need their group
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    pub keep: Duration,

    /// How often to look for groups that can be removed
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub sweep: Duration,

    /// How often to check the health of the GPUs
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub health: Duration,
}

/// The way in which a container gets access to the GPU itself.
#[derive(Copy, Clone, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Gpus {
    /// `NVIDIA_VISIBLE_DEVICES`.
    Env,
    /// `nvidia.com/gpu=UUID`.
    Cdi,
}

const HELP: &str = "\
Runs until SIGTERM or SIGINT. Groups and containers stay, and the next plugin
takes them over. config/kubernetes/daemonset.yaml runs it on each node, as root;
docs/kubernetes.md explains it.

Examples:
  gpulimit-k8s-device-plugin
  gpulimit-k8s-device-plugin --unit 512Mi --reserve 1Gi --gpus cdi";

fn bytes(text: &str) -> Result<u64, String> {
    match text.parse::<Size>().map_err(|error| error.to_string())? {
        Size::Bytes(bytes) => Ok(bytes),
        _ => Err("expected a number of bytes, such as 1Gi".into()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a time, such as 500ms, 30s, 10m or 2h".into())
}
