//! A request to charge bytes to the group: the number of bytes, and what this process does to make
//! room for them in a full group.

use gpulimit_group::Insistence;

/// A request to charge bytes to the group.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub bytes: u64,
    /// Whether pools and graphs are trimmed for the request.
    pub trims: bool,
    /// The name of the CUDA function that makes the request, if the request insists. In a full
    /// group, an insisting request waits or has processes killed, as the group's options say. If it
    /// is refused, the refusal is counted and reported with this name.
    symbol: Option<&'static str>,
    /// All bytes that the program asks for, if `bytes` is only the part that is not charged yet.
    of: Option<u64>,
    is_needed: Option<&'a dyn Fn() -> bool>,
}

impl<'a> Request<'a> {
    const fn new(bytes: u64, trims: bool, symbol: Option<&'static str>) -> Self {
        Request {
            bytes,
            trims,
            symbol,
            of: None,
            is_needed: None,
        }
    }

    /// Makes a request for bytes that the caller can do without. Pools and graphs are not trimmed.
    pub fn reclaiming(bytes: u64) -> Self {
        Request::new(bytes, false, None)
    }

    /// Makes a request for bytes that the caller can do without. Pools and graphs are trimmed.
    pub fn trimming(bytes: u64) -> Self {
        Request::new(bytes, true, None)
    }

    /// Makes a request for the CUDA function `symbol`, whose call fails if the group refuses the
    /// bytes. Never use such a request while a lock is held.
    pub fn insisting(symbol: &'static str, bytes: u64) -> Self {
        Request::new(bytes, true, Some(symbol))
    }

    /// Returns the same request for another number of bytes.
    pub fn with_bytes(self, bytes: u64) -> Self {
        Request { bytes, ..self }
    }

    /// Marks the request as a part of the `asked` bytes that the program asks for: the part that is
    /// not charged yet.
    pub fn of(self, asked: u64) -> Self {
        Request {
            of: Some(asked),
            ..self
        }
    }

    /// Lets the request wait only while `is_needed` returns true. A request is no longer needed
    /// when, for instance, another thread has loaded the same code meanwhile. Such a request fails,
    /// and its refusal is not reported.
    pub fn as_long_as(self, is_needed: &'a dyn Fn() -> bool) -> Self {
        Request {
            is_needed: Some(is_needed),
            ..self
        }
    }

    /// Returns the CUDA function and the number of bytes that the report of a refusal names. `None`
    /// if a refusal is not to be reported.
    pub fn asker(&self) -> Option<(&'static str, u64)> {
        Some((self.symbol?, self.of.unwrap_or(self.bytes)))
    }

    pub fn insistence(&self) -> Insistence {
        match self.symbol {
            Some(_) => Insistence::Full,
            None => Insistence::None,
        }
    }

    pub fn is_needless(&self) -> bool {
        self.is_needed.is_some_and(|is_needed| !is_needed())
    }
}
