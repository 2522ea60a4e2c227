//! The line on standard error that tells a user why a request for GPU memory was refused.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gpulimit_base::device::DeviceId;
use gpulimit_base::process;
use gpulimit_base::units::gib;
use gpulimit_group::{Holder, Member, MemberDevice, Refusal};
use gpulimit_ledger::{Category, Witness};

use crate::{clock, message};

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

/// Returns whether another line may be written at the time `now` (milliseconds). Counts the line if
/// it may.
fn allowed(window: &AtomicU64, now: u64) -> bool {
    let mut verdict = false;
    let _ = window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |window| {
        let (start, lines) = (window >> 16, window & 0xffff);
        let fresh = now.saturating_sub(start) >= WINDOW_MS || window == 0;
        verdict = fresh || lines < LINES;
        if fresh {
            Some((now << 16) | 1)
        } else {
            verdict.then_some((start << 16) | (lines + 1))
        }
    });
    verdict
}

/// The GPU on which a request for memory was refused.
pub struct Gpu<'a> {
    /// The CUDA ordinal: the number by which the program knows this GPU.
    pub ordinal: i32,
    pub id: &'a DeviceId,
    /// Returns the least bytes that a CUDA context takes on this GPU; 0 where that size is unknown.
    pub context: &'a dyn Fn() -> u64,
}

/// Returns the name of a CUDA function without the version and the kind of default stream.
pub fn plain(symbol: &str) -> &str {
    symbol
        .split("_v")
        .next()
        .unwrap_or(symbol)
        .trim_end_matches("_ptsz")
}

/// Writes a line about a refused request for memory to standard error, at most [`LINES`] lines per
/// second.
pub fn report(
    gpu: Gpu<'_>,
    member: &Member,
    member_device: &MemberDevice,
    witness: &dyn Witness,
    symbol: &str,
    bytes: u64,
    refusal: &Refusal<'_>,
) {
    if !allowed(&WINDOW, clock::monotonic_ms()) {
        return;
    }
    let name = plain(symbol);
    if let Some(damage) = member.damage() {
        message::line(format_args!(
            "refused {name} of {} on GPU {} ({}): {damage}",
            gib(bytes),
            gpu.ordinal,
            gpu.id.short(),
        ));
        return;
    }
    let holders = member.holders(member_device, refusal.group, witness);
    let context = (gpu.context)();
    let hint = Hint {
        max: refusal.max,
        context,
    };
    let next = Next {
        group: refusal.group,
        told: hint.is_due() || holders.is_empty() || TOLD.swap(true, Ordering::Relaxed),
    };
    message::line(format_args!(
        "refused {name} of {} on GPU {} ({}): group {} uses {}{}{hint}{}{next}",
        gib(bytes),
        gpu.ordinal,
        gpu.id.short(),
        refusal.group,
        Usage {
            charged: refusal.charged,
            reserve: member.reserve(member_device, refusal.group),
            max: refusal.max,
            kept: refusal.kept,
            uncovered: member.uncovered(member_device, refusal.group),
        },
        Holders {
            holders: &holders,
            own_uid: process::uid(),
        },
        Stuck(refusal),
    ));
}

/// The group's usage as in `gpulimit show`: `0.5 of 4.0 GiB`.
///
/// Names charged bytes beyond the usage: `520.0 of 524.0 MiB and keeps 4.0 MiB in reserve`. Also
/// names what is kept for other groups: by `min`, or for jobs with a limit of their own.
struct Usage {
    charged: u64,
    reserve: u64,
    max: u64,
    kept: u64,
    uncovered: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            charged,
            reserve,
            max,
            kept,
            uncovered,
        } = *self;
        let used = charged.saturating_sub(reserve);
        write!(f, "{} of {}", gib(used).in_unit_of(max), gib(max))?;
        if !gib(used).in_unit_of(max).shows_as(charged) {
            write!(f, " and keeps {} in reserve", gib(reserve))?;
        }
        if kept > 0 {
            write!(f, " and keeps {} for other groups", gib(kept))?;
        }
        match uncovered {
            0 => Ok(()),
            bytes => write!(
                f,
                ", and processes hold {} beyond their charges",
                gib(bytes)
            ),
        }
    }
}

/// The processes that use the group's memory, the largest first: `; pid 4711 (python) 3.6 GiB:
/// allocations 3.1, driver 0.5`. A process of another user has that user's id: `(python, uid
/// 1001)`.
///
/// The id stands there and not the name: `getpwuid` can load modules into the program, take locks
/// that the calling thread holds already, and ask a server. `USER` in the environment could only
/// name this process's own user, and its processes need no name.
struct Holders<'a> {
    holders: &'a [Holder],
    own_uid: u32,
}

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for holder in self.holders.iter().take(NAMED) {
            let total = holder.usage.in_use();
            let process = &holder.identity;
            write!(f, "; pid {} ({}", process.pid, process.command())?;
            if process.uid != self.own_uid {
                write!(f, ", uid {}", process.uid)?;
            }
            if !holder.alive {
                f.write_str(", ended")?;
            }
            write!(f, ") {}:", gib(total))?;
            let parts = [
                ("allocations", holder.usage.allocations()),
                ("pools", holder.usage.of(Category::Pools)),
                ("managed", holder.usage.of(Category::Managed)),
                ("driver", holder.usage.of(Category::Driver)),
            ];
            for (at, (name, bytes)) in parts
                .into_iter()
                .filter(|(_, bytes)| *bytes > 0)
                .enumerate()
            {
                write!(
                    f,
                    "{} {name} {}",
                    if at == 0 { "" } else { "," },
                    gib(bytes).in_unit_of(total)
                )?;
            }
        }
        match self.holders.len().saturating_sub(NAMED) {
            0 => Ok(()),
            1 => f.write_str("; and 1 other process"),
            others => write!(f, "; and {others} other processes"),
        }
    }
}

/// A hint for users whose programs all wait for each other, or whose job does not begin.
struct Stuck<'a>(&'a Refusal<'a>);

impl fmt::Display for Stuck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_stuck {
            true => write!(
                f,
                ". All its programs wait for each other's memory: give each a limit of its own, \
                 which is kept free for it (`gpulimit run --group {} --max SIZE`)",
                self.0.group
            ),
            false if self.0.room > 0 => {
                f.write_str(". A job with a limit of its own begins when its whole limit is free")
            }
            false => Ok(()),
        }
    }
}

/// A hint for users whose limit is smaller than the memory of one CUDA context.
struct Hint {
    max: u64,
    context: u64,
}

impl Hint {
    fn is_due(&self) -> bool {
        self.context > self.max
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_due() {
            write!(
                f,
                ". A CUDA context on this GPU takes at least {}: raise the limit",
                gib(self.context)
            )?;
        }
        Ok(())
    }
}

/// Set when this process has named the command that lists the holders: see [`Next`].
static TOLD: AtomicBool = AtomicBool::new(false);

/// What a user can do next. Only the first refusal of a process says it.
struct Next<'a> {
    group: &'a str,
    told: bool,
}

impl fmt::Display for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.told {
            true => Ok(()),
            false => write!(f, ". `gpulimit ps {}` shows all holders", self.group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_matches_show_and_names_the_reserve() {
        const MIB: u64 = 1 << 20;
        let keeps = |charged, reserve, max, kept| {
            Usage {
                charged: charged * MIB,
                reserve: reserve * MIB,
                max: max * MIB,
                kept: kept * MIB,
                uncovered: 0,
            }
            .to_string()
        };
        let said = |charged, reserve, max| keeps(charged, reserve, max, 0);
        assert_eq!(
            said(524, 4, 524),
            "520.0 of 524.0 MiB and keeps 4.0 MiB in reserve"
        );
        assert_eq!(said(524, 0, 524), "524.0 of 524.0 MiB");
        assert_eq!(said(1536, 4, 2048), "1.5 of 2.0 GiB");
        assert_eq!(said(2, 4, 8), "0.0 of 8.0 MiB and keeps 4.0 MiB in reserve");
        let said = "1.0 of 2.0 GiB and keeps 512.0 MiB for other groups";
        assert_eq!(keeps(1024, 0, 2048, 512), said);
    }

    #[test]
    fn at_most_a_few_lines_per_second() {
        let window = AtomicU64::new(0);
        let start = 5_000_000;
        let passed = (0..100).filter(|at| allowed(&window, start + at)).count() as u64;
        assert_eq!(passed, LINES);
        assert!(allowed(&window, start + WINDOW_MS));
    }
}
