//! An upper estimate of the bytes that a CUDA array takes, for drivers that do not tell the size.

use super::rounding::{BLOCK, round_up};
use crate::abi::{ARRAY3D_CUBEMAP, ARRAY3D_LAYERED, Array3dDescriptor};

/// Returns the bytes of one array element. For an unusual format, returns the most bytes that any
/// format has.
fn element(descriptor: &Array3dDescriptor) -> u64 {
    const LARGEST: u64 = 16;
    let number = match descriptor.format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return LARGEST,
    };
    (number * u64::from(descriptor.channels)).min(LARGEST)
}

/// Returns an array's width, height, depth and number of layers. A missing dimension is 1. `None`:
/// the array has no width.
fn extent(descriptor: &Array3dDescriptor) -> Option<[u64; 4]> {
    let [width, height, depth] = [descriptor.width, descriptor.height, descriptor.depth];
    let [height, depth] = [height, depth].map(|length| length.max(1) as u64);
    let layered = descriptor.flags & (ARRAY3D_LAYERED | ARRAY3D_CUBEMAP) != 0;
    let (depth, layers) = if layered { (1, depth) } else { (depth, 1) };
    (width > 0).then_some([width as u64, height, depth, layers])
}

/// Returns a lower bound of the bytes that an array takes. The smallest format has half a byte for
/// each element.
pub fn least(descriptor: &Array3dDescriptor) -> u64 {
    let elements = extent(descriptor).unwrap_or_default();
    elements.into_iter().fold(1, u64::saturating_mul) / 2
}

/// Returns an upper bound of the bytes that an array takes, in whole blocks; 0 for an array without
/// width.
///
/// Arrays consist of groups of 64 bytes × 8 rows. Up to 16 groups form a pile along the height or
/// the depth (measured). The bound rounds both up to whole piles.
pub fn most(descriptor: &Array3dDescriptor, levels: u32) -> u64 {
    let Some([width, height, depth, layers]) = extent(descriptor) else {
        return 0;
    };
    let deepest = width.max(height).max(depth).ilog2() + 1;
    let layer = (0..levels.clamp(1, deepest)).fold(0u64, |sum, level| {
        let at = |length: u64| (length >> level).max(1);
        let pile = |length: u64, least: u64, most: u64| {
            let step = at(length).checked_next_power_of_two().unwrap_or(most);
            round_up(at(length), step.clamp(least, most))
        };
        let row = round_up(at(width).saturating_mul(element(descriptor)), 64);
        let rows = pile(height, 8, 128).saturating_mul(pile(depth, 1, 16));
        sum.saturating_add(row.saturating_mul(rows))
    });
    round_up(round_up(layer, 8 << 10).saturating_mul(layers), BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(sizes: [usize; 3], format: u32, channels: u32, flags: u32) -> Array3dDescriptor {
        Array3dDescriptor {
            width: sizes[0],
            height: sizes[1],
            depth: sizes[2],
            format,
            channels,
            flags,
        }
    }

    #[test]
    fn measured_arrays_lie_between_the_bounds() {
        // For each array: its size, format, channels, flags and levels, and the MiB that it takes
        // on an H100.
        for (sizes, format, channels, flags, levels, taken) in [
            ([1000, 1000, 0], 0x20, 4, 0, 1, 16),
            ([5000, 3000, 0], 0x20, 4, 0, 1, 236),
            ([65536, 0, 0], 0x20, 4, 0, 1, 8),
            ([100, 100, 100], 0x20, 4, 0, 1, 18),
            ([333, 77, 41], 0x20, 1, 0, 1, 6),
            ([1000, 1000, 10], 0x20, 4, 1, 1, 158),
            ([100, 100, 12], 0x20, 4, 5, 1, 4),
            ([2048, 2048, 2048], 1, 1, 0, 1, 8192),
            ([700, 900, 300], 0x10, 4, 0, 1, 1478),
            ([2, 2, 16384], 1, 1, 0, 1, 8),
            ([4096, 1024, 0], 0x20, 4, 0, 4, 86),
            ([1024, 1024, 0], 0x20, 4, 0, 11, 22),
            ([256, 256, 64], 0x20, 1, 0, 9, 20),
            ([512, 512, 6], 0x20, 4, 4, 10, 34),
            ([3000, 2000, 5], 0x10, 4, 1, 12, 314),
        ] {
            let shape = shape(sizes, format, channels, flags);
            let (least, most) = (least(&shape), most(&shape, levels));
            let taken = taken << 20;
            assert!(least <= taken, "{shape:?}: {least}");
            assert!(
                (taken..=taken * 3 / 2 + BLOCK).contains(&most),
                "{shape:?}: estimated {most} bytes, taken {taken} bytes"
            );
        }
    }

    #[test]
    fn absurd_sizes_saturate_and_empty_arrays_take_nothing() {
        let endless = shape([1 << 63; 3], 0x20, 4, 0);
        assert!(least(&endless) > 1 << 62);
        assert!(most(&endless, u32::MAX) > 1 << 62);
        assert_eq!(most(&shape([0, 10, 10], 0x20, 4, 0), 1), 0);
        assert_eq!(most(&shape([1, 0, 0], 1, 1, 0), 0), BLOCK);
    }
}
