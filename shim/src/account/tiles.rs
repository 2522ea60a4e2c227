//! Parts of sparse arrays, as `cuMemMapArrayAsync` names them.

/// A box in one level of one layer, or a piece of a layer's mip tail: from and to, in elements or bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Part {
    /// The level; `None` for the mip tail.
    pub level: Option<u32>,
    pub layer: u32,
    pub from: [u64; 3],
    pub to: [u64; 3],
}

impl Part {
    /// What lies in both.
    pub fn overlap(&self, other: &Part) -> Option<Part> {
        if (self.level, self.layer) != (other.level, other.layer) {
            return None;
        }
        let mut both = *self;
        for axis in 0..3 {
            both.from[axis] = self.from[axis].max(other.from[axis]);
            both.to[axis] = self.to[axis].min(other.to[axis]);
            if both.from[axis] >= both.to[axis] {
                return None;
            }
        }
        Some(both)
    }

    /// What is left around `hole`, which lies in it.
    pub fn around(&self, hole: &Part) -> Vec<Part> {
        let mut core = *self;
        let mut left = Vec::new();
        for axis in 0..3 {
            for (from, to) in [
                (core.from[axis], hole.from[axis]),
                (hole.to[axis], core.to[axis]),
            ] {
                if from < to {
                    let mut slab = core;
                    (slab.from[axis], slab.to[axis]) = (from, to);
                    left.push(slab);
                }
            }
            (core.from[axis], core.to[axis]) = (hole.from[axis], hole.to[axis]);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(from: [u64; 3], to: [u64; 3]) -> Part {
        Part {
            level: Some(0),
            layer: 0,
            from,
            to,
        }
    }

    fn volume(part: &Part) -> u64 {
        (0..3).map(|axis| part.to[axis] - part.from[axis]).product()
    }

    #[test]
    fn a_hole_and_what_is_around_it_are_the_whole() {
        let whole = part([0, 0, 0], [10, 8, 6]);
        for hole in [
            part([3, 2, 1], [7, 5, 4]),
            part([0, 0, 0], [10, 4, 6]),
            part([0, 0, 0], [1, 1, 1]),
            whole,
        ] {
            let around = whole.around(&hole);
            let sum: u64 = around.iter().chain([&hole]).map(volume).sum();
            assert_eq!(sum, volume(&whole), "{hole:?}");
            for (at, one) in around.iter().enumerate() {
                assert_eq!(one.overlap(&hole), None);
                assert!(
                    around[at + 1..]
                        .iter()
                        .all(|two| one.overlap(two).is_none())
                );
            }
        }
    }

    #[test]
    fn other_levels_and_layers_have_nothing_in_common() {
        let one = part([0; 3], [4; 3]);
        assert_eq!(one.overlap(&one), Some(one));
        assert_eq!(one.overlap(&Part { level: None, ..one }), None);
        assert_eq!(one.overlap(&Part { layer: 1, ..one }), None);
        assert_eq!(one.overlap(&part([4, 0, 0], [8, 4, 4])), None);
    }
}
