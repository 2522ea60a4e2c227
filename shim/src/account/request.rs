//! A request to charge bytes to the group: how many, and what is done for it where the group is
//! full.

use gpulimit_group::Insistence;

/// A request to charge bytes.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub bytes: u64,
    /// Whether pools and graphs are trimmed for the request. Bytes that are charged and not used
    /// may go back to the group in any case.
    pub trims: bool,
    /// The function that asks, where the request insists: then it waits or has processes killed, as
    /// the group's options say, and a refusal is counted and reported with this name.
    symbol: Option<&'static str>,
    /// The bytes that the program asks for, where `bytes` are only the rest that is left to pay.
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

    /// Makes a request of a caller that can do without it. Pools and graphs keep what they hold
    /// unused.
    pub fn reclaiming(bytes: u64) -> Self {
        Request::new(bytes, false, None)
    }

    /// Makes a request of a caller that can do without it. Pools and graphs are trimmed for it.
    pub fn trimming(bytes: u64) -> Self {
        Request::new(bytes, true, None)
    }

    /// Makes a request of the function `symbol`, which fails where the group has no room. Never
    /// made while a lock is held.
    pub fn insisting(symbol: &'static str, bytes: u64) -> Self {
        Request::new(bytes, true, Some(symbol))
    }

    /// Returns the same request for so many bytes.
    pub fn with_bytes(self, bytes: u64) -> Self {
        Request { bytes, ..self }
    }

    /// Marks the request as the rest that is left to pay of the `asked` bytes.
    pub fn of(self, asked: u64) -> Self {
        Request {
            of: Some(asked),
            ..self
        }
    }

    /// Lets the request wait only for as long as `is_needed` returns true: another thread may make
    /// it needless. It fails then, and no refusal is reported.
    pub fn as_long_as(self, is_needed: &'a dyn Fn() -> bool) -> Self {
        Request {
            is_needed: Some(is_needed),
            ..self
        }
    }

    /// Returns the function that asks and the bytes that the program asks for, where a refusal is
    /// to be reported.
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
