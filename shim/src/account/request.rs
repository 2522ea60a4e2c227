//! A request to charge bytes to the group: the bytes, and what this process does to make room in a
//! full group.

use gpulimit_group::Insistence;

/// A request to charge bytes to the group.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub bytes: u64,
    /// Whether pools and graphs are trimmed for the request.
    pub trims: bool,
    /// The CUDA function of an insisting request, which in a full group waits or has processes
    /// killed. A refusal is reported.
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

    /// Makes a request for the CUDA function `symbol`, whose call fails after a refusal. Never use
    /// it while a lock is held.
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

    /// Lets the request wait only while `is_needed` returns true. A needless request fails without
    /// a report.
    pub fn as_long_as(self, is_needed: &'a dyn Fn() -> bool) -> Self {
        Request {
            is_needed: Some(is_needed),
            ..self
        }
    }

    /// Returns the CUDA function and the bytes that the report of a refusal names. `None`: a
    /// refusal is not reported.
    pub fn asker(&self) -> Option<(&'static str, u64)> {
        Some((self.symbol?, self.of.unwrap_or(self.bytes)))
    }

    pub fn insistence(&self) -> Insistence {
        match self.symbol {
            Some(_) => Insistence::Full,
            None => Insistence::Reclaiming,
        }
    }

    pub fn is_needless(&self) -> bool {
        self.is_needed.is_some_and(|is_needed| !is_needed())
    }
}
