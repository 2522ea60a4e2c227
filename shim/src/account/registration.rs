//! Whether this process may be asked for memory, and its threads that wait to be asked.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use gpulimit_group::{Demanded, Member, Told};
use gpulimit_ledger::{OFTEN, Reason};

use super::Process;
use crate::clock;
use crate::driver::figures::ProcessList;

/// How often the waiting threads look by themselves whether usage is above `high` or a limit:
/// whoever lowers a limit may be unable to wake this process.
const LOOK: Duration = Duration::from_secs(1);
/// How often a thread looks whether the process has joined its group meanwhile.
const JOIN: Duration = Duration::from_millis(100);

/// The shortest time between two demands that the program is told, in milliseconds. A tick of the
/// clock longer than the shortest time between two demands.
const PAUSE_MS: u64 = OFTEN.as_millis() as u64 + 10;

thread_local! {
    /// The last demand that this thread was told and has not answered. Its next look is the answer:
    /// by then the thread has given back what it can.
    static TOLD: Cell<Option<Told<'static>>> = const { Cell::new(None) };
}

/// The registrations of the parts of a program.
#[derive(Default)]
pub struct Registration {
    count: AtomicU32,
    /// When a thread was last told, in milliseconds of [`clock::monotonic_ms`]; 0 for never.
    told_at: AtomicU64,
    /// The last demand that a thread was told, by its number.
    told: AtomicU64,
    /// When a thread last looked by itself, as in `told_at`.
    looked_at: AtomicU64,
}

/// The answer to one look.
pub enum Look {
    /// The thread is told to give memory back.
    Told(Demanded<'static>),
    /// Nothing is asked. The thread looks again after a sleep in [`Pause::sleep`].
    Nothing(Pause),
    /// The process is not registered.
    Unregistered,
}

/// A sleep of a waiting thread.
pub struct Pause {
    /// The group, and the number of demands before the look; `None` before the process has joined.
    group: Option<(&'static Member, u64)>,
    most: Duration,
}

impl Pause {
    /// Sleeps until something may have changed, at most for `time`. Returns false after a signal.
    pub fn sleep(&self, time: Duration) -> bool {
        let time = time.min(self.most);
        match self.group {
            Some((member, seen)) => member.await_demand(seen, time),
            None => clock::nap(time),
        }
    }
}

impl Process {
    /// Lets other processes ask this process for memory, until as many calls of
    /// [`Self::unregister`].
    pub fn register(&'static self) {
        self.registration.count.fetch_add(1, Ordering::SeqCst);
        self.show_registration();
    }

    /// Undoes one call of [`Self::register`]. Returns false if there was none. The last call ends
    /// the waits of all threads.
    pub fn unregister(&'static self) -> bool {
        let less = |count: u32| count.checked_sub(1);
        let (order, failed) = (Ordering::SeqCst, Ordering::SeqCst);
        let before = self.registration.count.fetch_update(order, failed, less);
        self.show_registration();
        if before == Ok(1)
            && let Some(Ok(member)) = self.joined()
        {
            member.end_waits();
        }
        before.is_ok()
    }

    fn is_registered(&self) -> bool {
        self.registration.count.load(Ordering::SeqCst) > 0
    }

    /// Writes to the ledgers whether this process is registered. Of several threads the last one
    /// writes the present state.
    pub(super) fn show_registration(&'static self) {
        let Some(Ok(member)) = self.joined() else {
            return;
        };
        loop {
            let registered = self.is_registered();
            member.register(registered);
            if self.is_registered() == registered {
                break;
            }
        }
    }

    /// Looks whether this process should give memory back. Answers the demand that the calling
    /// thread was told before.
    pub fn look(&'static self) -> Look {
        if !self.is_registered() {
            return Look::Unregistered;
        }
        let Some(Ok(member)) = self.joined() else {
            return Look::Nothing(Pause {
                group: None,
                most: JOIN,
            });
        };
        // If another thread was told since, the answer is that thread's.
        if let Some(told) = TOLD.take()
            && told.number == self.registration.told.load(Ordering::SeqCst)
        {
            member.answer(&told);
        } else {
            member.answer_abandoned();
        }
        // Read before the look, so that a later demand ends the sleep at once.
        let group = Some((member, member.demands()));
        let before = match self.registration.may_tell() {
            Ok(before) => before,
            Err(most) => return Look::Nothing(Pause { group, most }),
        };
        let mut most = LOOK;
        let demanded = member
            .take_demand()
            .or_else(|| match self.registration.look_now() {
                Ok(()) => member.excess(&ProcessList),
                Err(pause) => {
                    most = pause;
                    None
                }
            });
        match demanded {
            Some(demanded) if self.registration.tell(before) => {
                if demanded.reason != Reason::Request {
                    self.registration.put_off_look();
                }
                if let Some(told) = demanded.told {
                    TOLD.set(Some(told));
                    self.registration.told.store(told.number, Ordering::SeqCst);
                }
                Look::Told(demanded)
            }
            _ => Look::Nothing(Pause { group, most }),
        }
    }
}

impl Registration {
    /// Returns when a thread was last told, or an error with the time that must pass before the
    /// next one. The words in the ledger do not decide alone: any member can write them.
    fn may_tell(&self) -> Result<u64, Duration> {
        let told = self.told_at.load(Ordering::Acquire);
        let since = clock::monotonic_ms().saturating_sub(told);
        match told == 0 || since >= PAUSE_MS {
            true => Ok(told),
            false => Err(Duration::from_millis(PAUSE_MS - since)),
        }
    }

    /// Lets the calling thread look by itself, or fails with the time until a thread may.
    fn look_now(&self) -> Result<(), Duration> {
        let (now, order) = (clock::monotonic_ms().max(1), Ordering::Relaxed);
        let before = self.looked_at.load(order);
        let since = Duration::from_millis(now.saturating_sub(before));
        if before != 0 && since < LOOK {
            return Err(LOOK - since);
        }
        let taken = self.looked_at.compare_exchange(before, now, order, order);
        taken.map(drop).map_err(|_| LOOK)
    }

    /// Puts off the next look: a lasting excess is told once a second, whoever finds it.
    fn put_off_look(&self) {
        let now = clock::monotonic_ms().max(1);
        self.looked_at.store(now, Ordering::Relaxed);
    }

    /// Notes that the calling thread is told. Returns false if another thread is, since `before`.
    fn tell(&self, before: u64) -> bool {
        let (now, order) = (clock::monotonic_ms().max(1), Ordering::AcqRel);
        let told = self
            .told_at
            .compare_exchange(before, now, order, Ordering::Relaxed);
        told.is_ok()
    }
}
