//! Connections and their limits.

use super::access::{Access, Scope};
use super::listen::{self, Listener};
use super::peer::Peer;
use super::places::{Lost, Place, Places};
use super::routes::Site;
use super::worker::Worker;
use crate::figures::machines::Machines;
use crate::shown::output;
use crate::words::failure::Failure;
use gpulimit_base::patience;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio_io_timeout::TimeoutStream;

/// The longest head of a request in bytes that is read. A longer one gets 431 without a reason.
const BUFFER: usize = 64 << 10;
/// The most connections at a time that have not shown the token, and the most that have.
const PLACES: usize = 64;
/// The pause after a connection could not be accepted, for instance for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The descriptors that the server needs in order to start. The runtime panics without them.
const DESCRIPTORS: usize = 16;

/// Fails if too few descriptors can be opened.
fn check_descriptors() -> Result<(), Failure> {
    let spare = (0..DESCRIPTORS).map(|_| File::open("/dev/null"));
    let opened: io::Result<Vec<File>> = spare.collect();
    opened.map(drop).map_err(|error| {
        Failure::new(format_args!(
            "cannot open {DESCRIPTORS} files: {error}; raise the limit of open files, for instance \
             with `ulimit -n 1024`"
        ))
    })
}

/// Serves until SIGTERM or SIGINT.
pub fn run(
    listener: Listener,
    name: &str,
    access: Access,
    scope: Scope,
    machines: Option<Machines>,
) -> Result<(), Failure> {
    check_descriptors()?;
    let failed = |error: io::Error| Failure::new(format_args!("cannot serve: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let worker = Worker::start(scope, machines)?;
    let served = runtime.block_on(async {
        let (mut term, mut int) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        // Its file is removed at the end of this block.
        let _file = listener.file;
        let site = Arc::new(Site {
            access,
            scope,
            worker,
        });
        let places = Arc::new(Places::new(PLACES));
        for socket in listener.sockets {
            let socket = match socket {
                listen::Socket::Unix(socket) => Socket::Unix(UnixListener::from_std(socket)?),
                listen::Socket::Tcp(socket) => Socket::Tcp(TcpListener::from_std(socket)?),
            };
            tokio::spawn(accept(socket, Arc::clone(&site), Arc::clone(&places)));
        }
        output::note(&format!("serves at {name}"));
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        Ok(())
    });
    // Neither open connections nor the worker, which may be stuck, delay the end.
    runtime.shutdown_background();
    served.map_err(failed)
}

/// A listening socket in the runtime.
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

pub trait Stream: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Stream for T {}

impl Socket {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer)> {
        match self {
            Self::Unix(listener) => {
                let stream = listener.accept().await?.0;
                let user = stream.peer_cred().ok().map(|peer| peer.uid());
                Ok((Box::new(stream), Peer(user)))
            }
            Self::Tcp(listener) => {
                let (stream, client) = listener.accept().await?;
                let peer = Peer::of_tcp(client, stream.local_addr()?);
                Ok((Box::new(stream), peer))
            }
        }
    }
}

async fn accept(socket: Socket, site: Arc<Site>, places: Arc<Places>) {
    loop {
        let Ok((stream, peer)) = socket.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (site, places) = (Arc::clone(&site), Arc::clone(&places));
        tokio::spawn(async move {
            if let Some((place, lost)) = places.wait(peer).await {
                connection(Box::into_pin(stream), site, place, lost).await;
            }
        });
    }
}

pub async fn connection(stream: Pin<Box<dyn Stream>>, site: Arc<Site>, place: Place, lost: Lost) {
    // How long a client may take for the head of a request, or stay silent between two requests.
    let head_time = patience::of("GPULIMIT_DEBUG_HEAD_MS", Duration::from_secs(10));
    // How long a client may take no byte of an answer.
    let write_time = patience::of("GPULIMIT_DEBUG_WRITE_MS", Duration::from_secs(20));
    let place = Arc::new(place);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(write_time));
    let service = service_fn(move |request: Request<Incoming>| {
        let (site, place) = (Arc::clone(&site), Arc::clone(&place));
        async move {
            let (head, _) = request.into_parts();
            Ok::<_, Infallible>(site.answer(head, &place).await)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .max_buf_size(BUFFER)
        // A client may send nothing more after its request (`shutdown(SHUT_WR)`, `nc -N`). One that
        // has closed its connection is noticed when the server writes.
        .half_close(true)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    // Nothing is to be said about clients that break the rules or go away.
    tokio::select! {
        _ = served => {}
        _ = lost => {}
    }
}
