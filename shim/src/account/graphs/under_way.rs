//! Two guards: one for a graph launch, and one for charging its bytes. After a panic, their drop
//! ends the promise of bytes.

use super::GraphMemory;
use super::state::{Launch, Payment};
use crate::account::book::Book;

/// A graph launch under way, until the driver's launch function has returned.
pub struct UnderWay<'a> {
    pub(super) memory: &'a GraphMemory,
    pub(super) book: &'a Book,
    pub launch: Launch<'a>,
}

impl UnderWay<'_> {
    /// Ends the launch: reads how much graph memory the driver has reserved now. `succeeded`: the
    /// driver's launch function has succeeded.
    pub fn settle(self, succeeded: bool) {
        self.memory.settle(self.book, &self.launch, succeeded);
        std::mem::forget(self);
    }
}

/// Only a panic drops this guard without `settle`. The bytes stay charged until `Process::recover`
/// reads the reserved bytes.
impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.state.lock();
        state.end(&self.launch);
        self.book
            .adjust_headroom((self.launch.paid as i64).wrapping_neg());
        state.conclude(&self.launch, false);
        self.memory.settled.notify_all();
    }
}

/// A launch for which bytes are being charged.
pub(super) struct Paying<'a, 'n> {
    pub memory: &'a GraphMemory,
    pub book: &'a Book,
    pub launch: &'a mut Launch<'n>,
    pub payment: &'a Payment,
    /// Whether the missing bytes of the launch have been charged.
    pub charged: bool,
}

impl Drop for Paying<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.memory.state.lock();
        state.pay(self.launch, self.payment, self.charged);
        if self.charged {
            self.book.adjust_headroom(self.launch.paid as i64);
        } else {
            self.memory.settled.notify_all();
        }
    }
}
