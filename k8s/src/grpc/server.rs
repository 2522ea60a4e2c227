//! Answers calls that come in over a socket.

use super::frame::{Reader, framed};
use super::status::{Code, Status};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::select;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

type Bytes = bytes::Bytes;

/// Calls that are answered, each by its path and one message.
pub trait Service: Send + Sync + 'static {
    /// The answer. All calls are answered by one thread, one after the other.
    fn call(&self, path: &str, message: &[u8]) -> Result<Answer, Status>;
}

/// What comes back.
pub enum Answer {
    /// One message.
    One(Vec<u8>),
    /// A message now and whenever there is another one, until somebody hangs up.
    Stream(watch::Receiver<Vec<u8>>),
}

/// How long a caller may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers calls until this is dropped.
pub async fn serve(listener: UnixListener, service: Arc<dyn Service>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(connection(stream, Arc::clone(&service)));
            }
            // Out of descriptors: others may give some back.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn connection(stream: UnixStream, service: Arc<dyn Service>) {
    // What is wrong with a connection is its other end's matter.
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, Arc::clone(&service)));
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    service: Arc<dyn Service>,
) {
    let path = request.uri().path().to_owned();
    let mut reader = Reader::new(request.into_body());
    let answer = match timeout(PATIENCE, reader.next()).await {
        Ok(Ok(Some(message))) => service.call(&path, &message),
        Ok(Ok(None)) => Err(Status::new(Code::InvalidArgument, "a call without message")),
        Ok(Err(status)) => Err(status),
        Err(_) => Err(Status::new(Code::DeadlineExceeded, "no message came")),
    };
    // Whoever has hung up meanwhile needs no answer.
    let _ = match answer {
        Ok(Answer::One(message)) => one(&mut respond, &message),
        Ok(Answer::Stream(messages)) => stream(&mut respond, messages).await,
        Err(status) => refuse(&mut respond, &status),
    };
}

fn head() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::OK;
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", kind);
    response
}

fn refuse(respond: &mut SendResponse<Bytes>, status: &Status) -> Result<(), h2::Error> {
    let mut head = head();
    status.put(head.headers_mut());
    respond.send_response(head, true).map(drop)
}

fn one(respond: &mut SendResponse<Bytes>, message: &[u8]) -> Result<(), h2::Error> {
    let mut out = respond.send_response(head(), false)?;
    out.send_data(framed(message), false)?;
    end(&mut out)
}

fn end(out: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::new();
    Status::ok().put(&mut trailers);
    out.send_trailers(trailers)
}

async fn stream(
    respond: &mut SendResponse<Bytes>,
    mut messages: watch::Receiver<Vec<u8>>,
) -> Result<(), h2::Error> {
    let mut out = respond.send_response(head(), false)?;
    loop {
        let message = framed(&messages.borrow_and_update());
        out.send_data(message, false)?;
        select! {
            changed = messages.changed() => if changed.is_err() {
                return end(&mut out);
            },
            gone = poll_fn(|context| out.poll_reset(context)) => return gone.map(drop),
        }
    }
}
