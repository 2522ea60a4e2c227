//! Sorts rows by a figure that can be unknown.

use std::cmp::Reverse;

/// The direction in which rows are sorted.
#[derive(Copy, Clone)]
pub enum Direction {
    /// From small to large, or from A to Z.
    Up,
    /// From large to small.
    Down,
}

impl Direction {
    /// Returns the other direction if `reverse` is true.
    pub fn reversed(self, reverse: bool) -> Self {
        match (self, reverse) {
            (Self::Up, false) | (Self::Down, true) => Self::Up,
            (Self::Down, false) | (Self::Up, true) => Self::Down,
        }
    }
}

/// Sorts rows by a figure, with unknown figures last in both directions. Equal rows keep their
/// order.
pub fn sort<R, F: Ord>(rows: &mut [R], direction: Direction, figure: impl Fn(&R) -> Option<F>) {
    match direction {
        Direction::Up => rows.sort_by_cached_key(|row| unknown_last(figure(row))),
        Direction::Down => rows.sort_by_cached_key(|row| unknown_last(figure(row).map(Reverse))),
    }
}

/// Returns a key by which unknown figures are sorted after all known ones.
fn unknown_last<F>(figure: Option<F>) -> (bool, Option<F>) {
    (figure.is_none(), figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_figures_are_last_and_equal_rows_keep_their_order() {
        let rows = [
            (1, None),
            (2, Some(5)),
            (3, Some(7)),
            (4, Some(5)),
            (5, None),
        ];
        for (direction, expected) in [
            (Direction::Up, [2, 4, 3, 1, 5]),
            (Direction::Down, [3, 2, 4, 1, 5]),
        ] {
            let mut sorted = rows;
            sort(&mut sorted, direction, |row| row.1);
            assert_eq!(sorted.map(|row| row.0), expected);
        }
    }
}
