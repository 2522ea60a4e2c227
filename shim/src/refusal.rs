//! The line on standard error that tells a user why a request for GPU memory was refused.

mod users;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use gpulimit_base::device::DeviceId;
use gpulimit_base::units::gib;
use gpulimit_group::Refusal;
use gpulimit_ledger::{Cause, Holding};

use crate::clock;
use users::Users;

/// The error for a request without room in the group: the program gets the driver's out-of-memory
/// code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refused;

/// The length of the time window in which at most [`LINES`] refusal messages are written,
/// milliseconds.
const WINDOW_MS: u64 = 1000;
const LINES: u64 = 3;
/// The most processes that one refusal message names.
const NAMED: usize = 3;

/// The current time window: its start in milliseconds (48 bits) and the lines written in it (16
/// bits).
static WINDOW: AtomicU64 = AtomicU64::new(0);

/// Returns whether another line may be written now. Counts the line if it may.
pub fn may_tell() -> bool {
    allowed(&WINDOW, clock::monotonic_ms())
}

/// Returns whether another line may be written at the time `now` (milliseconds). Counts the line if
/// it may.
fn allowed(window: &AtomicU64, now: u64) -> bool {
    let counted = window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |window| {
        let (start, lines) = (window >> 16, window & 0xffff);
        match window == 0 || now.saturating_sub(start) >= WINDOW_MS {
            true => Some((now << 16) | 1),
            false => (lines < LINES).then_some(window + 1),
        }
    });
    counted.is_ok()
}

/// A GPU by the number that all verbs of gpulimit use for it: `0 (GPU-1a2b…)`.
#[derive(Clone, Copy)]
pub struct Gpu {
    /// NVML's index; `None` for a MIG instance, and where NVML does not answer.
    pub index: Option<u32>,
    pub id: DeviceId,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{index} ({})", self.id.short()),
            None => self.id.short().fmt(f),
        }
    }
}

/// Returns the name of a CUDA function without the version and the kind of default stream.
pub fn plain(symbol: &str) -> &str {
    symbol.split('_').next().unwrap_or(symbol)
}

/// A refused request, displayed as the line about it.
pub struct Told<'a> {
    /// The CUDA function.
    pub name: &'a str,
    pub gpu: Gpu,
    /// The bytes that the program asked for.
    pub asked: u64,
    pub refusal: &'a Refusal<'a>,
    /// The size of the GPU's memory in bytes.
    pub capacity: u64,
    /// The least bytes that a CUDA context takes on this GPU; 0 where that size is unknown.
    pub context: u64,
    /// The processes on record that hold the memory, the largest first.
    pub holders: &'a [Option<Holding>],
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refusal, asked, .. } = *self;
        write!(f, "refused {} of {}", self.name, gib(asked))?;
        // A pool grows in steps, for which what is left can be too little.
        if refusal.bytes > asked && refusal.left >= asked {
            write!(f, ", which takes {},", gib(refusal.bytes))?;
        }
        write!(f, " on GPU {}: ", self.gpu)?;
        self.reason(f)?;
        if refusal.waited > 0 {
            let is_behind = refusal.cause == Cause::Limit && refusal.left >= refusal.bytes;
            let others = if is_behind { " behind others" } else { "" };
            write!(f, ". It waited {} s{others}", refusal.waited)?;
        }
        f.write_str(". `gpulimit why` explains it")
    }
}

impl Told<'_> {
    fn reason(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Cause::{Capacity, Host, KeepFree, Outside};
        let Self { refusal, .. } = *self;
        write!(f, "{refusal}")?;
        if refusal.cause == Outside {
            write!(f, " of {} on the GPU", gib(self.capacity))?;
        }
        if let Some(outside) = refusal.outside {
            let (bytes, group) = (outside.bytes, refusal.group);
            write!(f, "; {} outside of group {group}:", gib(bytes))?;
            let named = names(f, "", self.holders)?;
            let comma = if named > 0 { "," } else { "" };
            return write!(f, "{comma} others {}", gib(bytes.saturating_sub(named)));
        }
        if matches!(refusal.cause, Capacity | Host | KeepFree | Outside) {
            return Ok(());
        }
        let rest = refusal.charged.saturating_add(refusal.kept);
        let rest = rest.saturating_add(refusal.left);
        if let beyond @ 1.. = refusal.max.saturating_sub(rest) {
            let beyond = gib(beyond);
            write!(f, ", and processes hold {beyond} beyond their charges")?;
        }
        names(f, "; most is used by", self.holders)?;
        match refusal.cause {
            Cause::Context => write!(
                f,
                ". A CUDA context on this GPU takes at least {}: raise the limit",
                gib(self.context)
            ),
            Cause::Standstill => f.write_str(
                ". All its programs wait for each other's memory: let fewer run at once, or give \
                 each a limit of its own",
            ),
            Cause::Signal => f.write_str(". A signal ended its wait"),
            _ if refusal.room > 0 => {
                f.write_str(". A job with a limit of its own begins when its whole limit is free")
            }
            _ => Ok(()),
        }
    }
}

/// Writes the largest holders after `begin`, and returns what they hold: ` pid 4711 (python) 3.6
/// GiB, pid 4712 (python, alice) 1.0 GiB`. A process of another user has that user's name.
fn names(
    f: &mut fmt::Formatter<'_>,
    begin: &str,
    holders: &[Option<Holding>],
) -> Result<u64, fmt::Error> {
    let named = || holders.iter().flatten().take(NAMED);
    let users = Users::of(named().map(|holding| holding.process.uid));
    let mut sum = 0_u64;
    for (at, holding) in named().enumerate() {
        let comma = if at == 0 { begin } else { "," };
        write!(f, "{comma} ")?;
        users.write(f, &holding.process)?;
        write!(f, " {}", gib(holding.bytes))?;
        sum = sum.saturating_add(holding.bytes);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_a_few_lines_per_second() {
        let window = AtomicU64::new(0);
        let start = 5_000_000;
        let passed = (0..100).filter(|at| allowed(&window, start + at)).count() as u64;
        assert_eq!(passed, LINES);
        assert!(allowed(&window, start + WINDOW_MS));
    }
}
