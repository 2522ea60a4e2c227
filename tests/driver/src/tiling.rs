//! The layout of CUDA arrays in memory, and the bytes that they need.
//!
//! [`Shape::bytes`] returns the bytes that were measured for 31 arrays and 8 mipmapped arrays of
//! all kinds (H100, 580.159.04).
//!
//! An array consists of groups of 64 bytes × 8 rows. Up to 16 groups form a block, stacked along
//! the height; in a three-dimensional array, along the depth first. Each layer has all levels of a
//! mipmapped array, and begins at a whole block. The total is rounded up to 64 KiB.

use crate::{Outcome, Status};

/// `CUDA_ARRAY3D_LAYERED`: the depth is the number of layers.
const LAYERED: u32 = 0x01;
/// `CUDA_ARRAY3D_CUBEMAP`: each cube map has six layers.
const CUBEMAP: u32 = 0x04;
/// `CUDA_ARRAY3D_SPARSE`: the array has no memory of its own. A program maps memory into its tiles.
pub const SPARSE: u32 = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`: the array has no memory of its own. A program maps memory into
/// the whole array.
pub const DEFERRED: u32 = 0x80;
/// The array flags that the driver accepts. 0x02, 0x08 and 0x20 are surfaces, texture gather and
/// colour attachments. Depth textures (0x10) of floats are rejected (measured).
const FLAGS: u32 = LAYERED | 0x02 | CUBEMAP | 0x08 | 0x20 | SPARSE | DEFERRED;

/// Array sizes are multiples of this many bytes.
pub const GRAIN: u64 = 64 << 10;
/// The size of a group of an array's layout: bytes per row, and number of rows.
const GROUP: (u64, u64) = (64, 8);
/// The largest number of groups in a block of an array's layout.
const STACK: u64 = 16;

/// The shape of an array, as in `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The width in elements.
    pub width: u64,
    /// The height in elements; 0 for a one-dimensional array.
    pub height: u64,
    /// The depth in elements, or the number of layers; 0 for a one- or two-dimensional array.
    pub depth: u64,
    /// The `CUarray_format`.
    pub format: u32,
    /// The number of channels of each element.
    pub channels: u32,
    /// The flags of the array (`CUDA_ARRAY3D_…`).
    pub flags: u32,
}

impl Shape {
    /// Returns the bytes of one element; `None` unless it has 1, 2 or 4 integers or floats.
    fn element(&self) -> Option<u64> {
        let number = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => return None,
        };
        matches!(self.channels, 1 | 2 | 4).then(|| number * u64::from(self.channels))
    }

    fn is_layered(&self) -> bool {
        self.flags & (LAYERED | CUBEMAP) != 0
    }

    /// Returns the number of layers of the array; 1 for an array without layers.
    pub fn layers(&self) -> u64 {
        if self.is_layered() { self.depth } else { 1 }
    }

    /// Returns width, height and depth of one layer at a level of the array, in elements.
    pub fn extent(&self, level: u32) -> [u64; 3] {
        let depth = if self.is_layered() { 1 } else { self.depth };
        [self.width, self.height, depth].map(|length| (length >> level).max(1))
    }

    /// Returns the largest number of levels that a mipmapped array of this shape can have.
    pub fn levels(&self) -> u32 {
        self.extent(0).into_iter().max().unwrap_or(1).ilog2() + 1
    }

    /// Checks that the driver accepts an array of this shape.
    ///
    /// # Errors
    /// `INVALID_VALUE`, also above the GPU's limits for textures.
    pub fn check(&self) -> Outcome<()> {
        let within = |most: [u64; 3]| {
            self.width <= most[0] && self.height <= most[1] && self.depth <= most[2]
        };
        let fits = match (self.flags & (LAYERED | CUBEMAP), self.height, self.depth) {
            (0, 0, depth) => depth == 0 && within([131_072, 0, 0]),
            (0, _, 0) => within([131_072, 65_536, 0]),
            (0, ..) => within([16_384; 3]),
            (LAYERED, 0, depth) => depth > 0 && within([32_768, 0, 2048]),
            (LAYERED, _, depth) => depth > 0 && within([32_768, 32_768, 2048]),
            (CUBEMAP, height, depth) => {
                height == self.width && depth == 6 && within([32_768, 32_768, 6])
            }
            (_, height, depth) => {
                let cubes = depth > 0 && depth.is_multiple_of(6);
                height == self.width && cubes && within([32_768, 32_768, 2046])
            }
        };
        let both = SPARSE | DEFERRED;
        if fits
            && self.width > 0
            && self.element().is_some()
            && self.flags & !FLAGS == 0
            && self.flags & both != both
        {
            Ok(())
        } else {
            Err(Status::INVALID_VALUE)
        }
    }

    /// Returns the bytes of an array of this shape with `levels` levels.
    pub fn bytes(&self, levels: u32) -> u64 {
        let element = self.element().unwrap_or(0);
        let layer: u64 = (0..levels)
            .map(|level| {
                let [width, height, depth] = self.extent(level);
                let (high, deep) = self.block(level);
                (width * element).next_multiple_of(GROUP.0)
                    * height.next_multiple_of(GROUP.1 * high)
                    * depth.next_multiple_of(deep)
            })
            .sum();
        let (high, deep) = self.block(0);
        let layers = match self.layers() {
            1 => layer,
            layers => layers * layer.next_multiple_of(GROUP.0 * GROUP.1 * high * deep),
        };
        layers.next_multiple_of(GRAIN)
    }

    /// Returns the height and the depth of a block at a level of the array, in groups.
    fn block(&self, level: u32) -> (u64, u64) {
        let [_, height, depth] = self.extent(level);
        let deep = depth.next_power_of_two().min(STACK);
        let high = height.div_ceil(GROUP.1).next_power_of_two();
        (high.min(STACK / deep), deep)
    }

    /// Returns the width, height and depth of a tile (64 KiB) in elements: NVIDIA's standard
    /// shapes.
    pub fn tile(&self) -> [u64; 3] {
        let flat = self.is_layered() || self.depth == 0;
        match (flat, self.element().unwrap_or(1)) {
            (true, 1) => [256, 256, 1],
            (true, 2) => [256, 128, 1],
            (true, 4) => [128, 128, 1],
            (true, 8) => [128, 64, 1],
            (true, _) => [64, 64, 1],
            (false, 1) => [64, 32, 32],
            (false, 2) => [32, 32, 32],
            (false, 4) => [32, 32, 16],
            (false, 8) => [32, 16, 16],
            (false, _) => [16, 16, 16],
        }
    }
}
