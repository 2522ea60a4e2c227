//! A request for bytes of the group: how many, and how far it goes where the group is full.

use gpulimit_group::Insistence;

/// Bytes that are to be charged.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub bytes: u64,
    effort: Effort,
    /// What the program asks for, where `bytes` are what is left to pay of it.
    of: Option<u64>,
    is_needed: Option<&'a dyn Fn() -> bool>,
}

/// How far a request goes. Each goes further than the one before.
#[derive(Clone, Copy)]
enum Effort {
    /// What is charged and not used may go back to the group; pools and graphs keep what they have.
    Reclaim,
    /// They are trimmed, too.
    Trim,
    /// As the group's options say: it waits, or processes end for it. A refusal is counted and
    /// told, with the function that asks.
    Insist(&'static str),
}

impl<'a> Request<'a> {
    const fn new(bytes: u64, effort: Effort) -> Self {
        Request {
            bytes,
            effort,
            of: None,
            is_needed: None,
        }
    }

    /// Of a caller that has another way: it leaves what pools and graphs hold unused where it is.
    pub fn reclaiming(bytes: u64) -> Self {
        Request::new(bytes, Effort::Reclaim)
    }

    /// Of a caller that has another way: pools and graphs are trimmed for it.
    pub fn trimming(bytes: u64) -> Self {
        Request::new(bytes, Effort::Trim)
    }

    /// Of `symbol`, which fails where the group has no room. Never made while a lock is held.
    pub fn insisting(symbol: &'static str, bytes: u64) -> Self {
        Request::new(bytes, Effort::Insist(symbol))
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
        match self.effort {
            Effort::Insist(symbol) => Some((symbol, self.of.unwrap_or(self.bytes))),
            _ => None,
        }
    }

    pub fn insistence(&self) -> Insistence {
        match self.effort {
            Effort::Insist(_) => Insistence::Full,
            _ => Insistence::None,
        }
    }

    /// Whether pools and graphs are trimmed for it.
    pub fn trims(&self) -> bool {
        !matches!(self.effort, Effort::Reclaim)
    }

    pub fn is_needless(&self) -> bool {
        self.is_needed.is_some_and(|is_needed| !is_needed())
    }
}
