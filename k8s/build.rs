//! Generates clients and servers of kubelet's services with tonic's generator. The list of services
//! saves the build from needing `protoc`.

use tonic_build::manual::{Builder, Method, MethodBuilder, Service};

/// Describes a call: its names in Rust and on the wire, and the messages of `src/api.rs` that it
/// takes and returns.
fn call(name: &str, route: &str, takes: &str, answers: &str) -> MethodBuilder {
    Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("crate::api::{takes}"))
        .output_type(format!("crate::api::{answers}"))
        .codec_path("tonic_prost::ProstCodec")
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let registration = Service::builder()
        .package("v1beta1")
        .name("Registration")
        .method(call("register", "Register", "RegisterRequest", "Empty").build());
    let plugin = Service::builder()
        .package("v1beta1")
        .name("DevicePlugin")
        .method(
            call(
                "get_device_plugin_options",
                "GetDevicePluginOptions",
                "Empty",
                "Options",
            )
            .build(),
        )
        .method(
            call("list_and_watch", "ListAndWatch", "Empty", "DeviceList")
                .server_streaming()
                .build(),
        )
        .method(
            call(
                "get_preferred_allocation",
                "GetPreferredAllocation",
                "PreferenceRequest",
                "PreferenceResponse",
            )
            .build(),
        )
        .method(
            call(
                "allocate",
                "Allocate",
                "AllocateRequest",
                "AllocateResponse",
            )
            .build(),
        )
        .method(
            call(
                "pre_start_container",
                "PreStartContainer",
                "PreStartRequest",
                "Empty",
            )
            .build(),
        );
    let pods = Service::builder()
        .package("v1")
        .name("PodResourcesLister")
        .method(call("list", "List", "Empty", "PodList").build());
    Builder::new().compile(&[registration.build(), plugin.build(), pods.build()]);
}
