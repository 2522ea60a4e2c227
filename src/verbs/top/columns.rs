//! Chooses the columns of a table for a width, and their widths.

use super::canvas::Align;

/// A column that a table can have.
#[derive(Copy, Clone, Debug)]
pub struct Column<T> {
    pub kind: T,
    pub head: &'static str,
    pub align: Align,
    /// The least width, with which the column is shown at all.
    pub least: usize,
    /// The width that the cells need. Only cells of texts need more than the least width.
    pub wanted: usize,
    /// The width up to which the column takes what is left.
    pub most: usize,
    /// Columns of a low number are shown on narrow screens, too.
    pub rank: u8,
}

/// A column with its place and its width.
#[derive(Copy, Clone, Debug)]
pub struct Placed<T> {
    pub column: Column<T>,
    pub x: usize,
    pub width: usize,
}

/// Chooses columns by rank, as many as fit, and gives out the remaining width: first what texts
/// need, then the rest to columns that can grow, in both cases to those of a high rank first.
/// Columns of a rank of at least `extra` are shown only if all others have what they need.
pub fn place<T: Copy>(columns: &[Column<T>], width: usize, extra: u8) -> Vec<Placed<T>> {
    let mut order: Vec<usize> = (0..columns.len()).collect();
    order.sort_by_key(|at| columns[*at].rank);
    let mut widths = vec![0; columns.len()];
    let mut left = width + 1;
    let widen = |widths: &mut Vec<usize>, left: &mut usize, to: fn(&Column<T>) -> usize| {
        for at in order.iter().rev() {
            let more = to(&columns[*at]).saturating_sub(widths[*at]).min(*left);
            if widths[*at] > 0 {
                widths[*at] += more;
                *left -= more;
            }
        }
    };
    for pass in [false, true] {
        for at in order
            .iter()
            .filter(|at| (columns[**at].rank >= extra) == pass)
        {
            let least = if pass {
                columns[*at].wanted
            } else {
                columns[*at].least
            };
            if least < left {
                widths[*at] = least;
                left -= least + 1;
            }
        }
        widen(&mut widths, &mut left, |column| column.wanted);
    }
    widen(&mut widths, &mut left, |column| column.most);
    let mut x = 0;
    let mut placed = Vec::new();
    for (column, width) in columns.iter().zip(widths).filter(|(_, width)| *width > 0) {
        let column = *column;
        placed.push(Placed { column, x, width });
        x += width + 1;
    }
    placed
}

/// Formats bytes in at most six columns: `23.8G`, `518.0M`, `17B`.
pub fn short(bytes: u64) -> String {
    const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];
    if bytes < 1_000 {
        return format!("{bytes}B");
    }
    let tenths = |shift: u32| (u128::from(bytes) * 10 + (1 << (shift - 1))) >> shift;
    let fits = |(_, shift): &(char, u32)| tenths(*shift) < 10_000;
    let (unit, shift) = UNITS.into_iter().find(fits).unwrap_or(UNITS[4]);
    format!("{}.{}{unit}", tenths(shift) / 10, tenths(shift) % 10)
}

/// Formats bytes; `-` if unknown.
pub fn short_or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".into(), short)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn column(kind: char, least: usize, wanted: usize, rank: u8) -> Column<char> {
        Column {
            kind,
            head: "",
            align: Align::Left,
            least,
            wanted,
            most: wanted,
            rank,
        }
    }

    fn placed(width: usize) -> String {
        let mut growing = column('c', 2, 4, 0);
        growing.most = 10;
        let columns = [
            column('a', 4, 8, 1),
            column('b', 3, 3, 2),
            column('x', 5, 5, 9),
            growing,
        ];
        let placed = place(&columns, width, 9);
        let texts = placed
            .iter()
            .map(|it| format!("{}{}+{}", it.column.kind, it.x, it.width));
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn columns_are_chosen_by_rank_and_fit() {
        for (width, expected) in [
            (0, ""),
            (2, "c0+2"),
            (7, "a0+4 c5+2"),
            (11, "a0+4 b5+3 c9+2"),
            // What texts need comes before further columns.
            (17, "a0+8 b9+3 c13+4"),
            (22, "a0+8 b9+3 c13+9"),
            (23, "a0+8 b9+3 x13+5 c19+4"),
            (40, "a0+8 b9+3 x13+5 c19+10"),
        ] {
            assert_eq!(placed(width), expected, "{width}");
        }
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(short(0), "0B");
        assert_eq!(short(518 << 20), "518.0M");
        assert_eq!(short((80 << 30) - 1), "80.0G");
        assert_eq!(short_or_unknown(None), "-");
        assert_eq!(short(999), "999B");
        assert_eq!(short(1_000), "1.0K");
        assert_eq!(short(1_023 << 20), "1.0G");
        assert_eq!(short(u64::MAX), "16384.0P");
    }
}
