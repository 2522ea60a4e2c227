//! What PyTorch noted when it ran out of memory (`gpulimit run --explain`).

use crate::figures::event::Line;
use crate::groups::Selection;
use gpulimit_base::text_file;
use gpulimit_base::units::gib;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A note of `python/gpulimit/_explain.py`; sizes in bytes.
#[derive(Debug, Deserialize, Serialize)]
pub struct Note {
    #[serde(skip_serializing)]
    pid: u32,
    /// When it was written, in milliseconds since 1970.
    #[serde(skip_serializing)]
    time_ms: u64,
    pub asked: u64,
    pub reserved: u64,
    pub allocated: u64,
    pub largest_free: u64,
    pub expandable: bool,
    /// What `find_batch` has measured last: a batch, what PyTorch reserved for it, and what each
    /// further element takes.
    #[serde(skip_serializing)]
    batch: Option<(u64, u64, u64)>,
}

/// PyTorch empties its cache and asks once more before it notes anything.
const LATE_MS: u64 = 10_000;
/// A note is shorter.
const MOST: u64 = 64 << 10;

impl Note {
    /// Returns the note on a refusal; `None` if there is none.
    pub fn of(line: &Line, selection: &Selection) -> Option<Self> {
        let (pid, refused) = (line.event.what.process.pid, line.last_us() / 1_000);
        let times = refused..=refused.saturating_add(LATE_MS);
        let mut roots = selection.roots().iter();
        roots.find_map(|root| {
            let path = root.path().join(format!(".explained-{pid}"));
            let note: Self = serde_json::from_slice(&text_file::read(&path, MOST).ok()?).ok()?;
            (note.pid == pid && times.contains(&note.time_ms)).then_some(note)
        })
    }

    /// Returns what PyTorch had reserved and did not use.
    pub const fn unused(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }

    /// Returns the batch that fits by what `find_batch` has measured, if PyTorch gets `more` bytes.
    /// Like `find_batch`, leaves 8 % free.
    pub fn batch(&self, more: u64) -> Option<u64> {
        let (batch, took, each) = self.batch.filter(|(_, _, each)| *each > 0)?;
        let all = u128::from(self.reserved) + u128::from(more);
        let room = u64::try_from(all * 92 / 100).ok()?;
        let fits = match room.checked_sub(took) {
            Some(more) => batch.saturating_add(more / each),
            None => batch.checked_sub((took - room).div_ceil(each))?,
        };
        Some(fits).filter(|fits| *fits > 0)
    }

    /// Returns whether one block of what PyTorch did not use would have sufficed, and that is an
    /// eighth of what it had at least: less comes and goes with each request.
    pub const fn is_fragmented(&self) -> bool {
        !self.expandable && self.unused() >= self.asked && self.unused() >= self.reserved / 8
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PyTorch had reserved {} and used {} of it; its largest free block had {}",
            gib(self.reserved),
            gib(self.allocated),
            gib(self.largest_free)
        )
    }
}
