//! Why this process must not be suspended, as its slot in the ledger says it to others.
//!
//! An obstacle appears before the call of the driver that makes it, and disappears after the call
//! that ends it, or that has failed. Whoever suspends this process looks at the word once the
//! driver has locked the calls of the process. So the word then has every obstacle.

use gpulimit_base::obstacle::Obstacle;
use parking_lot::Mutex;

use super::Process;

/// How often the process has each obstacle, by its number. The lock is held while the word in the
/// ledger is written, so that no thread writes an older word over a newer one.
#[derive(Default)]
pub struct Obstacles(Mutex<[u64; Obstacle::ALL.len()]>);

impl Obstacles {
    /// Counts an obstacle `count` more times. The first time calls `show` with the new word.
    fn add(&self, obstacle: Obstacle, count: u64, show: impl FnOnce(u64)) {
        let mut counts = self.0.lock();
        let known = &mut counts[obstacle as usize];
        let is_new = *known == 0;
        *known = known.saturating_add(count);
        if is_new && count > 0 {
            show(word(&*counts));
        }
    }

    /// Counts an obstacle `count` fewer times. The last time calls `show` with the new word.
    fn remove(&self, obstacle: Obstacle, count: u64, show: impl FnOnce(u64)) {
        let mut counts = self.0.lock();
        let known = &mut counts[obstacle as usize];
        let was_there = *known > 0;
        *known = known.saturating_sub(count);
        if was_there && *known == 0 {
            show(word(&*counts));
        }
    }
}

fn word(counts: &[u64]) -> u64 {
    let all = Obstacle::ALL.into_iter().zip(counts);
    let there = all.filter(|(_, count)| **count > 0);
    there.fold(0, |word, (obstacle, _)| word | obstacle.bit())
}

/// An obstacle that a call under way may make. Dropping it ends the obstacle.
#[must_use]
pub struct Possible {
    process: &'static Process,
    obstacle: Obstacle,
}

impl Possible {
    /// Leaves the obstacle in place, because the call has made it.
    pub fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Possible {
    fn drop(&mut self) {
        self.process.end_obstacle(self.obstacle, 1);
    }
}

impl Process {
    /// Counts an obstacle. Call before the driver's call that may make it.
    pub fn expect_obstacle(&'static self, obstacle: Obstacle) -> Possible {
        self.obstacles.add(obstacle, 1, |word| self.show(word));
        Possible {
            process: self,
            obstacle,
        }
    }

    /// Counts an obstacle `count` fewer times. Call after the driver's call that has ended it.
    pub fn end_obstacle(&'static self, obstacle: Obstacle, count: u64) {
        if count > 0 {
            let show = |word| self.show(word);
            self.obstacles.remove(obstacle, count, show);
        }
    }

    /// Writes the obstacles to the ledger. Call when the process has joined its group: it may have
    /// obstacles from before.
    pub(super) fn show_obstacles(&'static self) {
        let counts = self.obstacles.0.lock();
        self.show(word(&*counts));
    }

    fn show(&'static self, word: u64) {
        if let Some(Ok(member)) = self.joined() {
            member.show_obstacles(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn only_the_first_and_the_last_of_a_kind_are_shown() {
        let obstacles = Obstacles::default();
        let shown = Cell::new(None);
        let show = |word| shown.set(Some(word));
        let add = |obstacle, count| obstacles.add(obstacle, count, show);
        let remove = |obstacle, count| obstacles.remove(obstacle, count, show);
        let (managed, capture) = (Obstacle::ManagedMemory, Obstacle::Capture);
        add(managed, 1);
        assert_eq!(shown.take(), Some(managed.bit()));
        add(managed, 2);
        assert_eq!(shown.take(), None);
        add(capture, 1);
        assert_eq!(shown.take(), Some(managed.bit() | capture.bit()));
        remove(managed, 2);
        assert_eq!(shown.take(), None);
        remove(managed, 1);
        assert_eq!(shown.take(), Some(capture.bit()));
        remove(managed, 1);
        assert_eq!(shown.take(), None, "none is left to end");
        remove(capture, 5);
        assert_eq!(shown.take(), Some(0));
    }

    #[test]
    fn threads_leave_the_word_of_the_last_count() {
        let obstacles = Obstacles::default();
        let shown = std::sync::atomic::AtomicU64::new(0);
        let show = |word| shown.store(word, std::sync::atomic::Ordering::Relaxed);
        let stays = Obstacle::OpenedMemory;
        obstacles.add(stays, 1, show);
        let obstacles = &obstacles;
        std::thread::scope(|scope| {
            for obstacle in [Obstacle::Capture, Obstacle::Multicast] {
                scope.spawn(move || {
                    for _ in 0..1_000 {
                        obstacles.add(obstacle, 1, show);
                        obstacles.remove(obstacle, 1, show);
                    }
                });
            }
        });
        assert_eq!(shown.into_inner(), stays.bit());
    }
}
