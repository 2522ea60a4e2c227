//! Refusals on one GPU: by a group, or by the driver although the group had room. Remembers the
//! last one until a request for as much is granted.

use std::sync::atomic::{AtomicU64, Ordering};

use gpulimit_base::identity::Identity;
use gpulimit_base::process;
use gpulimit_group::{Holder, Refusal, Undisturbed};
use gpulimit_ledger::{Cause, Holding, Outside};

use super::Device;
use crate::abi::{CUDA_ERROR_OUT_OF_MEMORY, SUCCESS, Status};
use crate::account::pools::STEP;
use crate::driver::figures;
use crate::refusal::{self, Gpu, Refused, Told};
use crate::{clock, message};

/// The longest time from a refusal to the grant by which the program has recovered, milliseconds.
const RECOVERY_MS: u64 = 1_000;

/// The last refusal from which the program has not recovered.
#[derive(Default)]
pub struct Unrecovered {
    /// The time of the refusal in milliseconds; 0 without one, and once the program can no longer
    /// recover from it. The other fields keep their values then.
    since: AtomicU64,
    /// The time of the refusal in milliseconds; 0 if the program has recovered.
    pub at: AtomicU64,
    pub bytes: AtomicU64,
    level: AtomicU64,
}

impl Device {
    /// Notes the driver's answer to a request for about `bytes`, and returns the answer: a refusal,
    /// or that the program has recovered from one. The refusal of an unknown need, 0 bytes, is not
    /// noted.
    #[inline]
    pub fn note_answer(&self, symbol: &'static str, bytes: u64, status: Status) -> Status {
        if status != SUCCESS || self.unrecovered.since.load(Ordering::Relaxed) != 0 {
            self.look_at_answer(symbol, bytes, status);
        }
        status
    }

    #[cold]
    #[inline(never)]
    fn look_at_answer(&self, symbol: &'static str, bytes: u64, status: Status) {
        match status {
            SUCCESS => self.note_recovery(symbol, bytes),
            CUDA_ERROR_OUT_OF_MEMORY if bytes > 0 => self.refused_by_driver(symbol, bytes),
            _ => {}
        }
    }

    fn note_recovery(&self, symbol: &'static str, bytes: u64) {
        let Unrecovered { since, at, .. } = &self.unrecovered;
        let refused = since.load(Ordering::Relaxed);
        let is_over = clock::monotonic_ms().saturating_sub(refused) > RECOVERY_MS;
        let is_enough = bytes >= self.unrecovered.bytes.load(Ordering::Relaxed);
        if refused == 0 || !(is_over || is_enough) || since.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        if !is_over {
            let _undisturbed = Undisturbed::new();
            at.store(0, Ordering::Relaxed);
            let level = self.unrecovered.level.load(Ordering::Relaxed) as usize;
            let name = refusal::plain(symbol);
            self.book.group.record_recovered(level, bytes, name);
        }
    }

    /// Reports that the driver has refused `bytes` although the group had room.
    fn refused_by_driver(&self, symbol: &'static str, bytes: u64) {
        let _undisturbed = Undisturbed::new();
        let mut verdict = self.verdict();
        (verdict.cause, verdict.left) = match self.machine_free() {
            _ if bytes > self.capacity => (Cause::Capacity, self.capacity),
            // The driver may need a step more than the program asks for.
            Some(free) if free < bytes.saturating_add(STEP) => (Cause::Outside, free),
            _ => (Cause::Host, self.book.group.free()),
        };
        self.refused(symbol, bytes, &verdict);
    }

    /// Returns what lies outside this process's groups on the GPU, where `used` bytes are in use.
    fn outside(&self, used: u64) -> Outside {
        let members = self.book.group.all_living();
        let mut listed = figures::processes(&self.id).unwrap_or_default();
        let own = std::process::id();
        let lists_own = || listed.iter().any(|(pid, _)| *pid == own);
        if process::pid_ns() != process::FIRST_PID_NS && !lists_own() {
            // The pids are not those of this process's namespace.
            listed.clear();
        }
        // A member may hold more than its charge for a moment.
        let held = |pid| listed.iter().find(|it| it.0 == pid).map_or(0, |it| it.1);
        let inside = |member: &Holder| held(member.identity.pid).max(member.usage.in_use());
        let inside: u64 = members.iter().map(inside).sum();
        let is_member = |pid| pid == own || members.iter().any(|it| it.identity.pid == pid);
        listed.retain(|(pid, _)| !is_member(*pid));
        let mut largest = || {
            let sizes = listed.iter().map(|(_, bytes)| bytes).enumerate();
            let (at, _) = sizes.max_by_key(|(_, bytes)| *bytes)?;
            let (pid, bytes) = listed.swap_remove(at);
            Some(Holding::new(Identity::of_other(pid), bytes))
        };
        Outside {
            bytes: used.saturating_sub(inside),
            holders: std::array::from_fn(|_| largest()),
        }
    }

    /// Returns a refusal that was decided without trying to charge the bytes.
    fn verdict(&self) -> Refusal<'static> {
        let group = &self.book.group;
        Refusal {
            group: group.member().group(),
            charged: group.charged(),
            max: group.max(),
            left: group.free(),
            ..Refusal::default()
        }
    }

    /// Counts and reports a refusal that was decided without trying to charge the bytes, because
    /// of what [`Device::below`] has returned, or of the group's limit.
    pub fn refuse(&self, symbol: &'static str, bytes: u64, below: Option<u64>) -> Refused {
        let below = below.and_then(|left| self.book.group.below(left));
        self.refused(symbol, bytes, &below.unwrap_or_else(|| self.verdict()))
    }

    /// Counts, records, remembers and reports a refusal.
    pub(super) fn refused(
        &self,
        symbol: &'static str,
        bytes: u64,
        refusal: &Refusal<'_>,
    ) -> Refused {
        let _undisturbed = Undisturbed::new();
        let group = &self.book.group;
        let context = group.context_hint().max(self.least_context);
        let cause = match refusal.cause {
            Cause::Limit if context > refusal.max && group.member().counts_contexts() => {
                Cause::Context
            }
            cause => cause,
        };
        let is_of_gpu = matches!(cause, Cause::KeepFree | Cause::Outside);
        let used = self.capacity.saturating_sub(refusal.left);
        let outside = is_of_gpu.then(|| self.outside(used));
        let bytes = bytes.max(refusal.room);
        let refusal = Refusal {
            bytes: bytes.max(refusal.bytes),
            cause,
            outside: outside.as_ref(),
            ..*refusal
        };
        let name = refusal::plain(symbol);
        let (level, holders) = group.count_refusal(name, bytes, &refusal);
        let (last, now) = (&self.unrecovered, clock::monotonic_ms().max(1));
        last.bytes.store(bytes, Ordering::Relaxed);
        last.level.store(level as u64, Ordering::Relaxed);
        last.at.store(now, Ordering::Relaxed);
        last.since.store(now, Ordering::Relaxed);
        if !refusal::may_tell() {
            return Refused;
        }
        let gpu = self.gpu();
        if let Some(damage) = group.member().damage() {
            message::line(format_args!("refused {name} on GPU {gpu}: {damage}"));
            return Refused;
        }
        let told = Told {
            name,
            gpu,
            asked: bytes,
            refusal: &refusal,
            capacity: self.capacity,
            context,
            holders: &holders,
        };
        message::line(format_args!("{told}"));
        Refused
    }

    /// Returns the GPU for display. NVML is asked for its index until it answers.
    pub fn gpu(&self) -> Gpu {
        let known = self.index.load(Ordering::Relaxed);
        let index = known.checked_sub(1).or_else(|| figures::index(&self.id));
        let word = index.map_or(0, |index| index.saturating_add(1));
        self.index.store(word, Ordering::Relaxed);
        Gpu { index, id: self.id }
    }
}
