//! The parts of kubelet's protocols that the plugin uses: device plugins (v1beta1) and the devices
//! of pods (podresources v1).
//!
//! The messages are written by hand, so that the build needs no compiler for protocol buffers.

use std::collections::HashMap;

/// The version of the device plugin protocol.
pub const VERSION: &str = "v1beta1";
/// The health of a unit that can be given to a container.
pub const HEALTHY: &str = "Healthy";
/// The health of a unit that cannot be given to a container.
pub const UNHEALTHY: &str = "Unhealthy";
/// The maximum length of a unit's id, in characters.
pub const LONGEST_ID: usize = 63;

// The gRPC clients and servers that build.rs generates, such as
// `registration_client::RegistrationClient`.
tonic::include_proto!("v1beta1.Registration");
tonic::include_proto!("v1beta1.DevicePlugin");
tonic::include_proto!("v1.PodResourcesLister");

/// A message without fields.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// The plugin's options: the optional calls that kubelet should make.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Options {
    /// True if kubelet should call the plugin's `PreStartContainer`.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// True if kubelet should call the plugin's `GetPreferredAllocation`.
    #[prost(bool, tag = "2")]
    pub preference_available: bool,
}

/// The request that registers a plugin with kubelet.
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
    /// The plugin's options, the same as in the answer to `GetDevicePluginOptions`.
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

/// A device in kubelet's words. In this plugin, a device stands for a unit of a GPU's memory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// The unit's id, of at most [`LONGEST_ID`] characters.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The unit's health: [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// Kubelet's question which units the plugin prefers for the given containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferenceRequest {
    /// The units to choose from, one entry for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Choice>,
}

/// The units from which the plugin chooses for one container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Choice {
    /// The free units, and the units of `must_include`.
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    /// The units that the container gets whatever the plugin prefers.
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    /// The number of units that the container needs, including the units of `must_include`.
    #[prost(int32, tag = "3")]
    pub size: i32,
}

/// The answer to a [`PreferenceRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferenceResponse {
    /// The units that the plugin prefers, one list for each container.
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

/// Kubelet's request to allocate units to containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// The units of each container, one entry for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Units>,
}

/// The answer to an [`AllocateRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// What kubelet must change in each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Edits>,
}

/// What kubelet must change in a container before it starts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Edits {
    /// The environment variables that the container gets.
    #[prost(map = "string, string", tag = "1")]
    pub variables: HashMap<String, String>,
    /// The files and directories of the node that kubelet mounts into the container.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// The devices of the Container Device Interface (CDI) that the container gets.
    #[prost(message, repeated, tag = "5")]
    pub cdi: Vec<CdiDevice>,
}

/// A bind mount.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// The mount's path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// The path on the node.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// True if the container may only read the mounted file or directory.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device of the Container Device Interface (CDI).
#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    /// The CDI device's name, `nvidia.com/gpu=GPU-…`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Kubelet's announcement that a container with the units `ids` is about to start.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreStartRequest {
    /// The ids of the units.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// The pods of the node that have resources, from kubelet's list.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodList {
    /// The pods, in any order.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<Pod>,
}

/// A pod of the node with its containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pod {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The pod's namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// The pod's containers, without its init containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// The container's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The container's devices (units), grouped by resource.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// A container's devices (units) of one resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    pub resource: String,
    /// The ids of the devices.
    #[prost(string, repeated, tag = "2")]
    pub ids: Vec<String>,
}
