//! Kubelet's protocols, as far as we speak them: device plugins (v1beta1) and who has which devices
//! (podresources v1).
//!
//! The messages are written by hand from the numbers that the wire demands, so that building needs
//! no compiler of protocol buffers. The tests compare with bytes that kubelet's own code has
//! written.

use std::collections::HashMap;

/// The version of the device plugin protocol.
pub const VERSION: &str = "v1beta1";
/// Health of a unit that can be given to a container.
pub const HEALTHY: &str = "Healthy";
/// Health of a unit that cannot.
pub const UNHEALTHY: &str = "Unhealthy";
/// The longest id of a unit, in characters.
pub const LONGEST_ID: usize = 63;

// The clients and servers of the calls in build.rs: `registration_client::RegistrationClient` and
// so on.
tonic::include_proto!("v1beta1.Registration");
tonic::include_proto!("v1beta1.DevicePlugin");
tonic::include_proto!("v1.PodResourcesLister");

/// A message without fields.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// What kubelet is to do beyond the plain protocol.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Options {
    /// Whether it calls `PreStartContainer`.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// Whether it calls `GetPreferredAllocation`.
    #[prost(bool, tag = "2")]
    pub preference_available: bool,
}

/// A plugin says that it is there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket, beside kubelet's.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// What pods ask for: `gpulimit.dev/gpu-memory`.
    #[prost(string, tag = "3")]
    pub resource: String,
    /// As `GetDevicePluginOptions` answers.
    #[prost(message, optional, tag = "4")]
    pub options: Option<Options>,
}

/// All units that there are.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceList {
    /// In any order.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// What kubelet calls a device: for us a unit of a GPU's memory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// Its name, of at most [`LONGEST_ID`] characters.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// Which units to take, for some containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferenceRequest {
    /// A choice each.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Choice>,
}

/// What there is to choose from.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Choice {
    /// The units that nobody has, and those of `must_include`.
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    /// Those that the container gets in any case.
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    /// How many it needs in all.
    #[prost(int32, tag = "3")]
    pub size: i32,
}

/// The answer to a [`PreferenceRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferenceResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Units>,
}

/// Some units, by their ids.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Units {
    /// The ids.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// Containers are given units.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// The units of each.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Units>,
}

/// The answer to an [`AllocateRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Edits>,
}

/// What a container gets.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Edits {
    /// Variables of its environment.
    #[prost(map = "string, string", tag = "1")]
    pub variables: HashMap<String, String>,
    /// Files and directories of the node.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// Devices by the names of the Container Device Interface.
    #[prost(message, repeated, tag = "5")]
    pub cdi: Vec<CdiDevice>,
}

/// A bind mount.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// Where it is in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Where it is on the node.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Whether the container may only read it.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device of the Container Device Interface.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    /// `nvidia.com/gpu=GPU-…`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A container with these units is about to start.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreStartRequest {
    /// The ids.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// All pods of the node that have anything.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodList {
    /// In any order.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<Pod>,
}

/// A pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pod {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The namespace that it is in.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers, without those that only prepare the others.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What it has.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// What a container has of one resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// The resource.
    #[prost(string, tag = "1")]
    pub resource: String,
    /// The ids.
    #[prost(string, repeated, tag = "2")]
    pub ids: Vec<String>,
}
