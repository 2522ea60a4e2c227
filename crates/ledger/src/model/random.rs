//! Random numbers of models. Each process draws 1 and 0 in turn.

use super::model::explorer;

pub(super) struct Random;

impl Random {
    pub(super) fn new() -> Self {
        Self
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        explorer::draw().checked_rem(end.min(2)).unwrap_or(0)
    }
}
