//! tonic over Unix sockets: how kubelet is answered, and how it is asked.

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

/// How long kubelet may take to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// How long it may take to say what it wants.
const REQUEST: Duration = Duration::from_secs(30);

/// How many calls of one connection may be open. Kubelet has a few; each costs memory.
const CALLS: u32 = 100;

/// Answers kubelet until this is dropped. What comes in may have 4 MiB a message, here and in
/// [`ask`]: tonic's own limit.
pub async fn serve(listener: UnixListener, plugin: Arc<Plugin>) {
    let connections = UnixListenerStream::new(listener).then(|connection| async {
        if connection.is_err() {
            // Out of descriptors, and tonic would try again at once: others may give some back.
            sleep(Duration::from_millis(100)).await;
        }
        connection
    });
    // It fails with its services, and ours does not.
    let _ = Server::builder()
        .timeout(REQUEST)
        .max_concurrent_streams(CALLS)
        .serve_with_incoming(DevicePluginServer::from_arc(plugin), connections)
        .await;
}

/// Calls kubelet at a socket, and waits for its answer for a bounded time. What went wrong is said
/// in words for a person.
pub async fn ask<A>(
    socket: &Path,
    call: impl AsyncFnOnce(Channel) -> Result<Response<A>, Status>,
) -> Result<A, String> {
    let kubelet = Endpoint::from_shared(format!("unix://{}", socket.display()))
        .map_err(|error| error.to_string())?;
    // It connects with the call: that it cannot is a status as well.
    let answer = match timeout(ANSWER, call(kubelet.connect_lazy())).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::deadline_exceeded("no answer in time")),
    };
    answer.map(Response::into_inner).map_err(|status| {
        // Of a connection that breaks the status says "transport error": its first cause says more.
        let mut words = status.message().to_owned();
        let mut cause = status.source();
        while let Some(error) = cause {
            words = error.to_string();
            cause = error.source();
        }
        format!("{:?}: {words}", status.code())
    })
}
