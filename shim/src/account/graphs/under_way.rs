//! A launch under way and its payment, as guards: what is promised to the launch ends with it, also
//! on a panic.

use super::GraphMemory;
use super::state::{Launch, Payment};
use crate::account::book::Book;

/// A launch, until its call is over.
pub struct UnderWay<'a> {
    pub(super) memory: &'a GraphMemory,
    pub(super) book: &'a Book,
    pub launch: Launch<'a>,
}

impl UnderWay<'_> {
    /// Ends the launch, which has `succeeded` or not: reads how much is reserved now.
    pub fn settle(self, succeeded: bool) {
        self.memory.settle(self.book, &self.launch, succeeded);
        std::mem::forget(self);
    }
}

/// Dropped by a panic: it is not known whether the call was made. What is paid stays charged until
/// the next look (`Process::recover`).
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

/// A launch that is being charged for.
pub(super) struct Paying<'a, 'n> {
    pub memory: &'a GraphMemory,
    pub book: &'a Book,
    pub launch: &'a mut Launch<'n>,
    pub payment: &'a Payment,
    /// The rest of the payment has been charged.
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
