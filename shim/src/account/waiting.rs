//! Threads of this process that wait at its gate.

use gpulimit_group::{Member, Undisturbed};
use gpulimit_ledger::{Calls, Gate, Owner, Place, Says, Unmoved};

use super::Process;
use crate::driver::{inside, suspension};

/// This process. Without an account, its membership is unknown.
pub struct Own(pub Option<&'static Process>);

impl Own {
    fn member(&self) -> Option<&'static Member> {
        self.0?.member.get()?.as_ref().ok()
    }

    /// Begins a call that the gate holds back: see [`Gate::wait`].
    #[cold]
    pub fn wait(self, gate: &'static Gate, calls: Calls, place: Place<'_>) -> Place<'static> {
        let _undisturbed = Undisturbed::new();
        gate.wait(inside::own(), calls, place, &self)
    }
}

impl Owner for Own {
    fn says(&self) -> Says {
        suspension::says()
    }

    fn has_actor(&self) -> bool {
        self.member().is_some_and(Member::has_actor)
    }

    fn charge(&self, is_due: &dyn Fn() -> bool) -> bool {
        // Without a free descriptor, the next request restores the charge.
        let member = self.member();
        let taken = member.map_or(Ok(()), |member| member.take_back(is_due));
        taken != Err(Unmoved::Busy) && is_due()
    }

    fn unlock(&self) {
        suspension::unlock();
    }

    fn restore(&self) {
        for device in self.0.into_iter().flat_map(Process::devices) {
            device.restore();
        }
    }
}
