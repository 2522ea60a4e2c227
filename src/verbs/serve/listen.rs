//! Where the server listens: a Unix socket, a TCP port of this machine, or a socket that systemd
//! has opened.

use crate::machine::trust::Trusted;
use crate::shown::output;
use crate::words::environment::env;
use crate::words::failure::{Failure, cannot};
use gpulimit_group::effective_user;
use rustix::fs::Mode;
use rustix::net::sockopt::socket_acceptconn;
use rustix::process::umask;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest path of a socket in bytes (unix(7)).
const LONGEST: usize = 107;

/// An address on the command line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return match path.is_absolute() {
                true if path.as_os_str().len() > LONGEST => Err(format!(
                    "the path of a socket has at most {LONGEST} bytes: choose a shorter one"
                )),
                true => Ok(Self::Unix(path)),
                false => Err("expected an absolute path after unix:".into()),
            };
        }
        let address = match text.strip_prefix("localhost:") {
            Some(port) => (port.parse().ok()).map(|port| (Ipv4Addr::LOCALHOST, port).into()),
            None => text.parse::<SocketAddr>().ok(),
        };
        let address = address
            .ok_or("expected unix:PATH, or an IP address and a port, such as 127.0.0.1:13900")?;
        match address.ip().is_loopback() {
            true => Ok(Self::Tcp(address)),
            false => Err(
                "the server listens only on this machine (127.0.0.1 or ::1): for other machines \
                 put a reverse proxy in front of it, or use `ssh -L 13900:127.0.0.1:13900 HOST`"
                    .into(),
            ),
        }
    }
}

/// Where the server accepts connections: at a Unix socket, or at one or two TCP sockets.
pub struct Listener {
    pub sockets: Vec<Socket>,
    /// The TCP port; `None` at a Unix socket.
    pub port: Option<u16>,
    /// Whether systemd has opened the port, and keeps it when the server ends.
    is_kept: bool,
    /// The file of a Unix socket; `None` for one from systemd.
    pub file: Option<SocketFile>,
}

/// An open socket.
pub enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Returns the path of a Unix socket.
    fn path(&self) -> Option<PathBuf> {
        let [Socket::Unix(socket)] = &self.sockets[..] else {
            return None;
        };
        Some(socket.local_addr().ok()?.as_pathname()?.to_owned())
    }

    /// Returns whether every user of the machine can connect: to a TCP port, to a socket without a
    /// file, and to a socket from systemd with the mode 0666, which is systemd's default.
    pub fn is_for_everybody(&self) -> bool {
        let about = self.path().and_then(|path| fs::symlink_metadata(path).ok());
        self.file.is_none() && about.is_none_or(|about| about.mode() & 0o002 != 0)
    }

    /// Returns why another user can listen here when the server does not, and gets the tokens of
    /// clients then; `None` if no other user can.
    pub fn can_be_taken(&self) -> Option<String> {
        let Some(port) = self.port else {
            // A socket from systemd without a file is kept.
            let trusted = Trusted::of_user(effective_user());
            return trusted.check(self.path()?.parent()?).err();
        };
        // Ports of IPv6 follow the same rule.
        let start = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        let start = start.ok().and_then(|start| start.trim().parse().ok());
        let is_free = !self.is_kept && start.is_none_or(|start: u32| u32::from(port) >= start);
        is_free.then(|| format!("port {port} is free for every user"))
    }
}

/// The file of a socket that this process has made. Dropping it removes the file, unless the path
/// leads to another file.
pub struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let about = fs::symlink_metadata(path).ok()?;
    Some((about.dev(), about.ino()))
}

/// Listens at the address; without one, on the socket that systemd passed, or at the default
/// socket.
pub fn listen(address: Option<&Address>) -> Result<(Listener, String), Failure> {
    let passed = passed()?;
    if passed.is_some() && address.is_some() {
        return Err(Failure::usage(
            "--listen and the socket from systemd are two places to listen at: leave out --listen, \
             and set ListenStream= in the socket unit",
        ));
    }
    let (listener, name) = match address {
        Some(Address::Tcp(address)) => tcp(bind(*address)?, false)?,
        Some(Address::Unix(path)) => unix(path)?,
        None => match passed {
            Some(listener) => listener,
            None => unix(&default_path()?)?,
        },
    };
    let nonblocking = listener.sockets.iter().try_for_each(|socket| match socket {
        Socket::Unix(socket) => socket.set_nonblocking(true),
        Socket::Tcp(socket) => socket.set_nonblocking(true),
    });
    nonblocking.map_err(|error| Failure::new(format_args!("cannot use the socket: {error}")))?;
    Ok((listener, name))
}

/// Listens at an address. `localhost` is 127.0.0.1 and, where the machine has it, ::1: with one of
/// them the server takes the other, too, before another user does.
fn bind(address: SocketAddr) -> Result<Vec<TcpListener>, Failure> {
    let failed =
        |at: SocketAddr| move |error| Failure::new(format_args!("cannot listen at {at}: {error}"));
    let socket = TcpListener::bind(address).map_err(failed(address))?;
    let bound = socket.local_addr().map_err(failed(address))?;
    let Some(other) = other_localhost(bound) else {
        return Ok(vec![socket]);
    };
    match TcpListener::bind(other) {
        Ok(second) => Ok(vec![socket, second]),
        // The system has chosen a port that is free at one address only.
        Err(error) if error.kind() == ErrorKind::AddrInUse && address.port() == 0 => bind(address),
        Err(error)
            if error.kind() == ErrorKind::AddrNotAvailable
                || error.raw_os_error() == Some(libc::EAFNOSUPPORT) =>
        {
            Ok(vec![socket])
        }
        Err(error) => Err(failed(other)(error)),
    }
}

/// Returns the other address of `localhost`.
fn other_localhost(address: SocketAddr) -> Option<SocketAddr> {
    let other: IpAddr = match address.ip() {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv4Addr::LOCALHOST.into(),
        _ => return None,
    };
    Some(SocketAddr::new(other, address.port()))
}

fn tcp(sockets: Vec<TcpListener>, is_kept: bool) -> Result<(Listener, String), Failure> {
    let addresses: io::Result<Vec<_>> = sockets.iter().map(TcpListener::local_addr).collect();
    let addresses =
        addresses.map_err(|error| Failure::new(format_args!("cannot use the socket: {error}")))?;
    if let Some(far) = addresses.iter().find(|address| !address.ip().is_loopback()) {
        return Err(Failure::new(format_args!(
            "the socket from systemd listens at {far}, beyond this machine: use an address such as \
             ListenStream=127.0.0.1:13900"
        )));
    }
    let (first, port) = (addresses[0], addresses[0].port());
    if addresses.iter().any(|address| address.port() != port) {
        return Err(too_many(addresses.len()));
    }
    if let [only] = addresses[..]
        && is_kept
        && let Some(other) = other_localhost(only)
        && TcpListener::bind((other.ip(), 0)).is_ok()
    {
        output::note(&format!(
            "systemd passed {only} only, and `localhost` is also {other}, where any user can \
             listen: add ListenStream={other} to the socket unit"
        ));
    }
    let listener = Listener {
        sockets: sockets.into_iter().map(Socket::Tcp).collect(),
        port: Some(port),
        is_kept,
        file: None,
    };
    Ok((listener, format!("http://{first}/")))
}

fn too_many(number: usize) -> Failure {
    Failure::new(format_args!(
        "systemd passed {number} sockets: use one ListenStream= in the socket unit, or one for \
         127.0.0.1 and one for [::1] with the same port"
    ))
}

/// Returns the socket that systemd passed to this process, if any, or the two of `localhost`.
fn passed() -> Result<Option<(Listener, String)>, Failure> {
    let mut sockets = listenfd::ListenFd::from_env();
    let number = sockets.len();
    if number == 0 {
        return Ok(None);
    }
    if let Ok(Some(listener)) = sockets.take_unix_listener(0)
        && socket_acceptconn(&listener).unwrap_or(false)
    {
        if number > 1 {
            return Err(too_many(number));
        }
        let name = "the socket from systemd".to_owned();
        return Ok(Some((at_unix(listener, None), name)));
    }
    // With `Accept=yes`, systemd passes a connection.
    let listens = |socket: &TcpListener| socket_acceptconn(socket).unwrap_or(false);
    let take = |at| sockets.take_tcp_listener(at).ok().flatten().filter(listens);
    let listeners: Option<Vec<_>> = (0..number).map(take).collect();
    match listeners {
        Some(listeners) => tcp(listeners, true).map(Some),
        None => Err(Failure::new(
            "the socket from systemd is not a listening stream socket: use ListenStream= in the \
             socket unit",
        )),
    }
}

fn default_path() -> Result<PathBuf, Failure> {
    if effective_user() == 0 {
        return Ok("/run/gpulimit.sock".into());
    }
    let directory = env("XDG_RUNTIME_DIR").map(PathBuf::from);
    let directory = directory.filter(|path| path.is_absolute());
    directory
        .map(|path| path.join("gpulimit.sock"))
        .ok_or_else(|| {
            Failure::usage(
                "XDG_RUNTIME_DIR names no directory for the socket: say where to listen, as in \
                 `gpulimit serve --listen unix:/tmp/gpulimit.sock`",
            )
        })
}

/// Makes a socket that only this user can connect to. Replaces a socket of this user at which no
/// process listens any more.
fn unix(path: &Path) -> Result<(Listener, String), Failure> {
    let bind = || {
        // The mode must be right from the start: a connection that was made earlier stays.
        let before = umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        umask(before);
        bound
    };
    let bound = match bind() {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            remove_stale(path)?;
            bind()
        }
        bound => bound,
    };
    let listener = bound.map_err(cannot("listen at", path))?;
    let file = SocketFile {
        path: path.into(),
        identity: identity(path),
    };
    let listener = at_unix(listener, Some(file));
    Ok((listener, format!("unix:{}", path.display())))
}

fn at_unix(socket: UnixListener, file: Option<SocketFile>) -> Listener {
    Listener {
        sockets: vec![Socket::Unix(socket)],
        port: None,
        is_kept: false,
        file,
    }
}

fn remove_stale(path: &Path) -> Result<(), Failure> {
    let refused =
        |why: &str| Failure::new(format_args!("cannot listen at {}: {why}", path.display()));
    // This does not follow a symbolic link.
    let about = fs::symlink_metadata(path).map_err(cannot("read", path))?;
    if !about.file_type().is_socket() {
        return Err(refused(
            "a file that is not a socket is in the way; choose another path",
        ));
    }
    if about.uid() != effective_user() {
        return Err(refused(
            "the socket there belongs to another user; choose another path",
        ));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
        Ok(_) => {
            return Err(refused(
                "another process listens there; end it, or choose another path",
            ));
        }
        Err(error) => return Err(cannot("connect to", path)(error)),
    }
    match identity(path) {
        Some(now) if now == (about.dev(), about.ino()) => {
            fs::remove_file(path).map_err(cannot("remove", path))
        }
        _ => Err(cannot("listen at", path)(io::Error::from(
            ErrorKind::AddrInUse,
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_beyond_this_machine_are_refused() {
        let tcp = |text: &str| Ok(Address::Tcp(text.parse().expect("an address")));
        assert_eq!("127.0.0.1:13900".parse(), tcp("127.0.0.1:13900"));
        assert_eq!("127.1.2.3:1".parse(), tcp("127.1.2.3:1"));
        assert_eq!("localhost:13900".parse(), tcp("127.0.0.1:13900"));
        assert_eq!("[::1]:13900".parse(), tcp("[::1]:13900"));
        assert_eq!("unix:/a b".parse(), Ok(Address::Unix("/a b".into())));
        for far in [
            "0.0.0.0:13900",
            "[::]:13900",
            "192.168.0.1:13900",
            "8.8.8.8:1",
        ] {
            let error = far.parse::<Address>().expect_err(far);
            assert!(error.contains("ssh -L"), "{error}");
        }
        let long = |bytes: usize| format!("unix:/{}", "x".repeat(bytes - 1)).parse::<Address>();
        assert!(long(LONGEST).is_ok());
        assert!(long(LONGEST + 1).is_err_and(|why| why.contains("at most 107 bytes")));
        for wrong in ["", "13900", ":13900", "lab:13900", "unix:here", "127.0.0.1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
