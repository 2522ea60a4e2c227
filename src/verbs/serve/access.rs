//! Who may see: decides about a request by its head.

use super::token::Token;
use crate::words::failure::Failure;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Version};
use std::net::IpAddr;

/// The status of an answer without data, and the reason.
#[derive(Debug, Eq, PartialEq)]
pub struct Refusal(pub StatusCode, pub String);

impl Refusal {
    pub fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self(status, why.into())
    }

    /// Returns the refusal of a wrong request.
    pub fn wrong(why: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why)
    }

    /// Returns the refusal of a request that the server can answer later.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::unavailable(failure.to_string())
    }
}

/// What the server shows.
#[derive(Copy, Clone, Debug)]
pub struct Scope {
    /// Whether users, processes, commands, and groups that belong to a user's private root are left
    /// out.
    pub public: bool,
    /// Whether the metrics have a series for each process.
    pub processes: bool,
}

/// The name of the cookie that holds the token.
const COOKIE_NAME: &str = "gpulimit-token";

/// The longest address and headers of a request in bytes.
const HEAD: usize = 16 << 10;

/// The rules for requests.
pub struct Access {
    /// The token that clients must send; `None` if they need none.
    pub token: Option<Token>,
    /// The TCP port at which the server listens; `None` at a Unix socket.
    pub port: Option<u16>,
    /// More host names that requests may be for.
    pub hosts: Vec<String>,
}

/// An admitted request.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Admitted {
    /// The request is answered.
    Yes,
    /// A browser sent the token in the address. It gets a cookie, and is sent to the page.
    ByAddress,
}

impl Access {
    /// Decides about a request.
    pub fn admit(&self, head: &Parts) -> Result<Admitted, Refusal> {
        // First the host: a page of another site must not learn anything, not even a status.
        if !self.is_for_here(head) {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "the request is for another host: use localhost or a loopback address, with the \
                 port of the server",
            ));
        }
        if head.method != Method::GET && head.method != Method::HEAD {
            return Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "the server only reads: use GET or HEAD",
            ));
        }
        let has_body = head.headers.contains_key(TRANSFER_ENCODING)
            || (head.headers.get_all(CONTENT_LENGTH).iter()).any(|length| length != "0");
        if has_body {
            return Err(Refusal::wrong("a request to this server has no body"));
        }
        if length(head) > HEAD {
            return Err(Refusal::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the address and the headers of the request have more than 16 KiB: send less; in a \
                 browser, delete the cookies of this host",
            ));
        }
        let Some(token) = &self.token else {
            return Ok(Admitted::Yes);
        };
        if sent(&head.headers).any(|sent| token.is(sent)) {
            return Ok(Admitted::Yes);
        }
        let in_address = super::query::pairs(head.uri.query().unwrap_or(""));
        let mut in_address = in_address.filter(|(key, _)| key == "token");
        // A plus sign in an address means a space, which no token has.
        let is_it = |sent: &str| token.is(sent.replace(' ', "+").as_bytes());
        if head.uri.path() == "/" && in_address.any(|(_, sent)| is_it(&sent)) {
            return Ok(Admitted::ByAddress);
        }
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "the server needs its token: send `Authorization: Bearer TOKEN`, or open /?token=TOKEN \
             in a browser",
        ))
    }

    /// Returns whether the request is for this server by name, so that a foreign page whose name
    /// leads to this machine is refused (DNS rebinding).
    fn is_for_here(&self, head: &Parts) -> bool {
        let mut hosts = head.headers.get_all(HOST).iter();
        let (first, second) = (hosts.next(), hosts.next());
        let named = match first {
            Some(host) => host.to_str().is_ok_and(|host| self.is_own(host)),
            // A client without the header is no browser.
            None => head.version < Version::HTTP_11 && self.port.is_none(),
        };
        let in_address = head.uri.authority();
        named && second.is_none() && in_address.is_none_or(|host| self.is_own(host.as_str()))
    }

    fn is_own(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (host, None),
        };
        if self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return true;
        }
        let port = match port {
            Some(port) => match port.parse::<u16>() {
                Ok(port) => port,
                Err(_) => return false,
            },
            None => 80,
        };
        let ip = match name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
        {
            Some(inner) => inner.parse().ok().filter(IpAddr::is_ipv6),
            None => name.parse().ok().filter(IpAddr::is_ipv4),
        };
        let is_here = ip.is_some_and(|ip| ip.is_loopback());
        // A Unix socket has no port, and ssh forwards any port to it.
        (is_here || name.eq_ignore_ascii_case("localhost"))
            && self.port.is_none_or(|own| own == port)
    }

    /// Returns the cookie that admits a browser which has sent the token in the address. Without a
    /// path, the browser takes the path of the page, which a reverse proxy may have changed.
    pub fn cookie(&self) -> Option<String> {
        let token = self.token.as_ref()?.text();
        Some(format!("{COOKIE_NAME}={token}; HttpOnly; SameSite=Strict"))
    }
}

/// Returns the length of the address and the headers in bytes.
fn length(head: &Parts) -> usize {
    let address = head.uri.path_and_query().map_or(0, |it| it.as_str().len());
    let headers = head.headers.iter();
    let lengths = headers.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    address + lengths.sum::<usize>()
}

/// Returns the tokens that a client sent in headers.
fn sent(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get_all(AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
    });
    let cookies = headers.get_all(COOKIE).iter().flat_map(|value| {
        let pairs = value.as_bytes().split(|byte| *byte == b';');
        pairs.filter_map(|pair| {
            let pair = pair.trim_ascii();
            let value = pair.strip_prefix(COOKIE_NAME.as_bytes())?;
            value.strip_prefix(b"=")
        })
    });
    bearer.chain(cookies)
}
