//! gRPC over Unix sockets, with tonic: serves kubelet and calls it.

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

/// The time that kubelet may take to answer a call.
const ANSWER: Duration = Duration::from_secs(20);
/// The time that kubelet may take to send a request.
const REQUEST: Duration = Duration::from_secs(30);

/// The most open calls of a connection. Kubelet needs a few, and each costs memory.
const CALLS: u32 = 100;

/// Serves kubelet until the future is dropped. Messages may have up to 4 MiB, here and in [`ask`]:
/// this is tonic's default.
pub async fn serve(listener: UnixListener, plugin: Arc<Plugin>) {
    let connections = UnixListenerStream::new(listener).then(|connection| async {
        if connection.is_err() {
            // The process has run out of descriptors. Without this pause, tonic would try again at
            // once; other code may close some in the meantime.
            sleep(Duration::from_millis(100)).await;
        }
        connection
    });
    // `serve_with_incoming` fails only if a service fails, and this one does not.
    let _ = Server::builder()
        .timeout(REQUEST)
        .max_concurrent_streams(CALLS)
        .serve_with_incoming(DevicePluginServer::from_arc(plugin), connections)
        .await;
}

/// Calls kubelet at a socket, and waits for its answer for a bounded time. The error is text for
/// people.
pub async fn ask<A>(
    socket: &Path,
    call: impl AsyncFnOnce(Channel) -> Result<Response<A>, Status>,
) -> Result<A, String> {
    let kubelet = Endpoint::from_shared(format!("unix://{}", socket.display()))
        .map_err(|error| error.to_string())?;
    // The connection is made with the call, so a failure to connect is also a status.
    let answer = match timeout(ANSWER, call(kubelet.connect_lazy())).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::deadline_exceeded("no answer in time")),
    };
    answer.map(Response::into_inner).map_err(|status| {
        // For a broken connection, the status is only "transport error", and its last cause says
        // more.
        let mut words = status.message().to_owned();
        let mut cause = status.source();
        while let Some(error) = cause {
            words = error.to_string();
            cause = error.source();
        }
        format!("{:?}: {words}", status.code())
    })
}
