//! gRPC over Unix sockets, with tonic: answers kubelet's calls, and calls kubelet.

use crate::api::device_plugin_server::DevicePluginServer;
use crate::plugin::Plugin;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Response, Status};

/// The longest time that the plugin waits for kubelet's answer to a call.
const ANSWER: Duration = Duration::from_secs(20);
/// The longest time that the plugin waits until a request from kubelet is complete.
const REQUEST: Duration = Duration::from_secs(30);

/// The most open calls on one connection. Kubelet needs few, and each open call costs memory.
const CALLS: u32 = 100;

/// Serves kubelet until the caller drops the future. tonic accepts messages of up to 4 MiB.
pub async fn serve(listener: UnixListener, plugin: Arc<Plugin>) {
    let connections = UnixListenerStream::new(listener).then(|connection| async {
        if connection.is_err() {
            // The process has run out of file descriptors. Pause, so that other code can close
            // some; tonic would try again at once.
            sleep(Duration::from_millis(100)).await;
        }
        connection
    });
    // The error is ignored, because the plugin's service never fails.
    let _ = Server::builder()
        .timeout(REQUEST)
        .max_concurrent_streams(CALLS)
        .serve_with_incoming(DevicePluginServer::from_arc(plugin), connections)
        .await;
}

/// Calls kubelet at a socket, and waits a bounded time for its answer. The error is a text for
/// people.
pub async fn ask<A>(
    socket: &Path,
    call: impl AsyncFnOnce(Channel) -> Result<Response<A>, Status>,
) -> Result<A, String> {
    let kubelet = Endpoint::from_shared(format!("unix://{}", socket.display()))
        .map_err(|error| error.to_string())?;
    // tonic connects when it makes the call, so a failure to connect also arrives as a gRPC status.
    let answer = match timeout(ANSWER, call(kubelet.connect_lazy())).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::deadline_exceeded("kubelet did not answer in time")),
    };
    answer.map(Response::into_inner).map_err(|status| {
        // For a broken connection, the gRPC status says only "transport error". The last error in
        // its chain of causes says more.
        let mut words = status.message().to_owned();
        let mut cause = status.source();
        while let Some(error) = cause {
            words = error.to_string();
            cause = error.source();
        }
        format!("{:?}: {words}", status.code())
    })
}
