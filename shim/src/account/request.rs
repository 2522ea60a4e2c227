//! A request for bytes of the group: how many, and how far it goes where the group is full.

use gpulimit_group::Insistence;

/// Bytes that are to be charged.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub bytes: u64,
    /// Pools and graphs are trimmed for it, too; what is charged and not used goes back in any case.
    pub trims: bool,
    /// The function that asks, where the request insists: as the group's options say it waits, or
    /// processes end for it, and a refusal is counted and told.
    symbol: Option<&'static str>,
    /// What the program asks for, where `bytes` are what is left to pay of it.
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

    /// Of a caller that has another way: it leaves what pools and graphs hold unused where it is.
    pub fn reclaiming(bytes: u64) -> Self {
        Request::new(bytes, false, None)
    }

    /// Of a caller that has another way: pools and graphs are trimmed for it.
    pub fn trimming(bytes: u64) -> Self {
        Request::new(bytes, true, None)
    }

    /// Of `symbol`, which fails where the group has no room. Never made while a lock is held.
    pub fn insisting(symbol: &'static str, bytes: u64) -> Self {
        Request::new(bytes, true, Some(symbol))
    }

    /// The same of so many bytes.
    pub fn with_bytes(self, bytes: u64) -> Self {
        Request { bytes, ..self }
    }

    /// What is left to pay of the `asked` bytes.
    pub fn of(self, asked: u64) -> Self {
        Request {
            of: Some(asked),
            ..self
        }
    }

    /// It waits no longer than it `is_needed`: another thread may make it needless. It fails then,
    /// and no refusal is told.
    pub fn as_long_as(self, is_needed: &'a dyn Fn() -> bool) -> Self {
        Request {
            is_needed: Some(is_needed),
            ..self
        }
    }

    /// The function that asks, where a refusal is to be told, and what the program asks for.
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
