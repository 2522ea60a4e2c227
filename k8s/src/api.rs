//! The parts of kubelet's protocols that the plugin uses: device plugins (v1beta1) and the devices
//! of pods (podresources v1).
//!
//! The messages are written by hand with the field numbers of the wire format, so that building
//! needs no compiler for protocol buffers. The tests compare them with bytes that kubelet's own
//! code has written.

use std::collections::HashMap;

/// The version of the device plugin protocol.
pub const VERSION: &str = "v1beta1";
/// Health of a unit that can be given to a container.
pub const HEALTHY: &str = "Healthy";
/// Health of a unit that cannot be given to a container.
pub const UNHEALTHY: &str = "Unhealthy";
/// The longest id of a unit, in characters.
pub const LONGEST_ID: usize = 63;

// The clients and servers of the calls in build.rs, such as
// `registration_client::RegistrationClient`.
tonic::include_proto!("v1beta1.Registration");
tonic::include_proto!("v1beta1.DevicePlugin");
tonic::include_proto!("v1.PodResourcesLister");

/// A message without fields.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// The optional calls that kubelet should make.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Options {
    /// True if kubelet should call `PreStartContainer`.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// True if kubelet should call `GetPreferredAllocation`.
    #[prost(bool, tag = "2")]
    pub preference_available: bool,
}

/// Registers a plugin with kubelet.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket, in the same directory as kubelet's.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The resource that pods request: `gpulimit.dev/gpu-memory`.
    #[prost(string, tag = "3")]
    pub resource: String,
    /// The same options as the answer of `GetDevicePluginOptions`.
    #[prost(message, optional, tag = "4")]
    pub options: Option<Options>,
}

/// The list of all units.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceList {
    /// The units, in any order.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// What kubelet calls a device; in this plugin, a unit of a GPU's memory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// The unit's id, of at most [`LONGEST_ID`] characters.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// Asks which units to prefer for containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferenceRequest {
    /// The choices, one for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Choice>,
}

/// The units to choose from for a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Choice {
    /// The free units, and those of `must_include`.
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    /// The units that the container gets in any case.
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    /// The number of units that the container needs in all.
    #[prost(int32, tag = "3")]
    pub size: i32,
}

/// The answer to a [`PreferenceRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferenceResponse {
    /// The preferred units, one list for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Units>,
}

/// A list of units.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Units {
    /// The ids of the units.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// Allocates units to containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// The units of each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Units>,
}

/// The answer to an [`AllocateRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// The changes of each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Edits>,
}

/// The changes that kubelet makes to a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Edits {
    /// The environment variables.
    #[prost(map = "string, string", tag = "1")]
    pub variables: HashMap<String, String>,
    /// The bind mounts of files and directories of the node.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// The devices of the Container Device Interface.
    #[prost(message, repeated, tag = "5")]
    pub cdi: Vec<CdiDevice>,
}

/// A bind mount.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// The path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// The path on the node.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// True if the container may only read it.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device of the Container Device Interface.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    /// The device's name, `nvidia.com/gpu=GPU-…`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Announces that a container with these units is about to start.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreStartRequest {
    /// The ids of the units.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// The pods of the node that have resources.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodList {
    /// The pods, in any order.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<Pod>,
}

/// A pod with its containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pod {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The pod's namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// The containers without the init containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// The container's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The container's devices, by resource.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// The devices of a container, of one resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    pub resource: String,
    /// The ids of the devices.
    #[prost(string, repeated, tag = "2")]
    pub ids: Vec<String>,
}
