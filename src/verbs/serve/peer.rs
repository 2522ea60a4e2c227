//! The user at the other end of a connection.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::net::{IpAddr, SocketAddr};

/// The user whose connections share places. Connections whose user the kernel does not tell are one
/// user's: a client chooses its own address among those of 127.0.0.0/8.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Peer(pub Option<u32>);

/// Size of a header and a request, and of a header and an answer (`linux/inet_diag.h`).
const REQUEST: usize = 72;
const ANSWER: usize = 88;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

impl Peer {
    /// Asks the kernel for the user of a TCP socket of this machine: in constant time, unlike
    /// `/proc/net/tcp`, which any user can make long.
    pub fn of_tcp(client: SocketAddr, server: SocketAddr) -> Self {
        Self(user(client, server))
    }
}

fn user(client: SocketAddr, server: SocketAddr) -> Option<u32> {
    let (family, type_) = (AddressFamily::NETLINK, SocketType::RAW);
    let protocol = Some(netlink::SOCK_DIAG);
    let kernel = socket_with(family, type_, SocketFlags::CLOEXEC, protocol).ok()?;
    send(&kernel, &request(client, server), SendFlags::empty()).ok()?;
    let mut answer = [0; 4096];
    let (length, _) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT).ok()?;
    let answer = answer.get(..length)?;
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let is_whole = kind == SOCK_DIAG_BY_FAMILY && length >= ANSWER;
    // Without such a connection, the kernel tells of a socket that listens there.
    let is_connected = answer.get(22..24)? == server.port().to_be_bytes();
    // A socket that its process has closed has no inode, and counts as root's.
    let (user, inode) = (number(80)?, number(84)?);
    (is_whole && is_connected && inode != 0).then_some(user)
}

/// Returns a request for the socket that has these addresses (`struct inet_diag_req_v2`).
fn request(client: SocketAddr, server: SocketAddr) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let family = match client {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    put(0, &(REQUEST as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    put(16, &[family as u8, libc::IPPROTO_TCP as u8]);
    put(24, &client.port().to_be_bytes());
    put(26, &server.port().to_be_bytes());
    put(28, &address(client.ip()));
    put(44, &address(server.ip()));
    // Any socket of these addresses (`INET_DIAG_NOCOOKIE`).
    put(64, &[0xff; 8]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_group::effective_user;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_user_of_an_open_socket_is_known() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let server = listener.local_addr().expect("an address");
            let stream = TcpStream::connect(server).expect("connected");
            let client = stream.local_addr().expect("an address");
            let peer = || Peer::of_tcp(client, server);
            assert_eq!(peer(), Peer(Some(effective_user())), "{address}");
            // The accepted end is still open, so that the client's end remains in the kernel.
            let _accepted = listener.accept().expect("accepted");
            drop(stream);
            assert_eq!(peer(), Peer(None), "a closed socket is not root's");
        }
    }
}
