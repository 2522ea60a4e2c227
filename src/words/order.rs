//! The order of rows: the options `--sort` and `--reverse`.

use clap::ValueEnum;
use std::cmp::Reverse;

/// The place of a name among names: from A to Z, part by part, with numbers in the order of their
/// values. A name comes before the names below it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Natural(Vec<u8>, String);

impl Natural {
    pub fn of(name: &str) -> Self {
        let mut key = Vec::with_capacity(name.len() + 8);
        for part in name
            .as_bytes()
            .chunk_by(|a, b| a.is_ascii_digit() && b.is_ascii_digit())
        {
            match part {
                b"/" => key.push(0),
                [b'0'..=b'9', ..] => {
                    // A longer number is larger, and numbers are where their digits would be.
                    let zeros = part.iter().take_while(|digit| **digit == b'0').count();
                    let digits = &part[zeros..];
                    key.extend([b'0', digits.len().min(255) as u8]);
                    key.extend(digits);
                }
                other => key.extend(other),
            }
        }
        Self(key, name.to_owned())
    }
}

/// The options for the order of rows. `K` lists what rows can be sorted by.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args<K: ValueEnum + Send + Sync + 'static> {
    /// Sort the rows: pids and names from small to large, figures from large to small
    #[arg(long, value_name = "KEY", value_enum)]
    pub sort: Option<K>,

    /// Reverse the order of --sort; unknown figures stay last
    #[arg(long, requires = "sort")]
    reverse: bool,
}

/// What decides the place of a row.
#[derive(Clone, Eq, Ord, PartialEq, PartialOrd)]
pub enum Place {
    Name(Natural),
    /// From small to large.
    Number(u32),
    /// From large to small.
    Figure(Reverse<u64>),
}

impl Place {
    /// Returns the place of a name, before the names below it.
    pub fn name(name: &str) -> Option<Self> {
        Some(Self::Name(Natural::of(name)))
    }

    pub fn figure(figure: Option<u64>) -> Option<Self> {
        Some(Self::Figure(Reverse(figure?)))
    }
}

impl<K: ValueEnum + Send + Sync + 'static> Args<K> {
    /// Sorts rows as the caller asked. `place` returns what decides the place of a row; `None` if
    /// it is unknown.
    pub fn sort<Row>(&self, rows: &mut [Row], place: impl Fn(&K, &Row) -> Option<Place>) {
        if let Some(key) = &self.sort {
            sort(rows, self.reverse, |row| place(key, row));
        }
    }
}

/// Sorts rows. Unknown places are last in both directions, and equal rows keep their order.
pub fn sort<Row>(rows: &mut [Row], reverse: bool, place: impl Fn(&Row) -> Option<Place>) {
    rows.sort_by_cached_key(|row| {
        let place = place(row);
        let [up, down] = match reverse {
            false => [place.clone(), None],
            true => [None, place.clone()],
        };
        (place.is_none(), up, Reverse(down))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, ValueEnum)]
    enum Second {
        Second,
    }

    #[test]
    fn numbers_in_names_are_in_the_order_of_their_values() {
        let sorted = [
            "a",
            "a/b",
            "a/b/10",
            "a-1",
            "a1",
            "a1b",
            "a2",
            "a10",
            "ab",
            "b",
            "run-9-7",
            "run-10-1",
            "run-10-2",
            "run-010-2/x",
            "run-10-10",
        ];
        assert!(sorted.is_sorted_by_key(|name| Natural::of(name)));
        let reversed: Vec<_> = sorted.into_iter().rev().collect();
        let mut again = reversed.clone();
        again.sort_by_key(|name| Natural::of(name));
        assert_eq!(again, sorted);
    }

    #[test]
    fn unknown_figures_are_last_and_equal_rows_keep_their_order() {
        let rows = [
            (1, None),
            (2, Some(5)),
            (3, Some(7)),
            (4, Some(5)),
            (5, None),
        ];
        for (reverse, expected) in [(true, [2, 4, 3, 1, 5]), (false, [3, 2, 4, 1, 5])] {
            let mut sorted = rows;
            let sort = Some(Second::Second);
            Args { sort, reverse }.sort(&mut sorted, |_, row| Place::figure(row.1));
            assert_eq!(sorted.map(|row| row.0), expected);
        }
    }
}
