//! Calls somebody who listens at a socket.

use super::frame::{Reader, framed};
use super::status::{Code, Status};
use http::{Method, Request, StatusCode};
use prost::Message;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Calls, and waits for the answer for a bounded time.
pub async fn call<A: Message + Default>(
    socket: &Path,
    path: &str,
    message: &impl Message,
) -> Result<A, Status> {
    let answer = async {
        let mut reader = open(socket, path, message).await?;
        let answer = reader.next().await?;
        let status = match reader.next().await? {
            Some(_) => Status::new(Code::Internal, "more than one answer"),
            None => reader.end().await,
        };
        match (status.code, answer) {
            (Code::Ok, Some(answer)) => decoded(&answer),
            (Code::Ok, None) => Err(Status::new(Code::Internal, "no answer")),
            _ => Err(status),
        }
    };
    match timeout(PATIENCE, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::new(Code::DeadlineExceeded, "no answer came")),
    }
}

/// Messages that come as long as this is there.
pub struct Watch(Reader);

/// Calls, and waits for messages one by one.
pub async fn watch(socket: &Path, path: &str, message: &impl Message) -> Result<Watch, Status> {
    open(socket, path, message).await.map(Watch)
}

impl Watch {
    /// The next message; `None` when there are no more.
    pub async fn next<A: Message + Default>(&mut self) -> Result<Option<A>, Status> {
        match self.0.next().await? {
            Some(message) => decoded(&message).map(Some),
            None => Ok(None),
        }
    }
}

fn decoded<A: Message + Default>(message: &[u8]) -> Result<A, Status> {
    A::decode(message).map_err(|error| Status::new(Code::Internal, error))
}

async fn open(socket: &Path, path: &str, message: &impl Message) -> Result<Reader, Status> {
    let failed = |error| Status::new(Code::Unavailable, error);
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| Status::new(Code::Unavailable, error))?;
    let (sender, connection) = h2::client::handshake(stream).await.map_err(failed)?;
    // It ends with the last of its streams.
    tokio::spawn(connection);
    let mut sender = sender.ready().await.map_err(failed)?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(|error| Status::new(Code::Internal, error))?;
    let (answer, mut out) = sender.send_request(request, false).map_err(failed)?;
    out.send_data(framed(&message.encode_to_vec()), true)
        .map_err(failed)?;
    let answer = answer.await.map_err(failed)?;
    if answer.status() != StatusCode::OK {
        let what = format!("status {} of HTTP", answer.status());
        return Err(Status::new(Code::Unavailable, what));
    }
    // One that says no at once has nothing but headers.
    if answer.headers().contains_key("grpc-status") {
        let status = Status::of(answer.headers());
        if status.code != Code::Ok {
            return Err(status);
        }
    }
    Ok(Reader::new(answer.into_body()))
}
