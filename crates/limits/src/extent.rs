//! Turns limits that depend on the size of a GPU, such as "all but 2 GiB", into bytes.

use super::{Key, LimitSet, Selector};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::{Extent, Size, gib};
use std::error::Error;
use std::fmt;

/// A GPU, and its memory in bytes if that is known.
pub type Capacity = (DeviceId, Option<u64>);

/// The reason why an extent such as "all but 2 GiB" cannot be turned into bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExtentError {
    /// The size of a GPU's memory is not known, or there is no known GPU.
    Unknown {
        /// The requested extent, such as "all but 2 GiB".
        extent: Extent,
        /// The GPU whose memory size is not known; `None` if no GPU is known.
        gpu: Option<DeviceId>,
    },
    /// "All but N bytes" would leave no memory, because the GPU has N bytes or fewer.
    TooMuch {
        /// The requested extent, such as "all but 2 GiB".
        extent: Extent,
        /// The GPU that would have no memory left.
        gpu: DeviceId,
        /// The GPU's memory in bytes.
        capacity: u64,
    },
}

impl fmt::Display for ExtentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { extent, gpu: None } => write!(
                f,
                "cannot work out {extent} in bytes: this process cannot find out which GPUs the \
                 machine has; give a size such as 6G, or see `gpulimit doctor`"
            ),
            Self::Unknown {
                extent,
                gpu: Some(gpu),
            } => write!(
                f,
                "cannot work out {extent} in bytes: this process cannot find out how much memory \
                 GPU {gpu} has; give a size such as 6G"
            ),
            Self::TooMuch {
                extent,
                gpu,
                capacity,
            } => write!(
                f,
                "{extent} leaves no memory: GPU {gpu} has only {}",
                gib(*capacity)
            ),
        }
    }
}

impl Error for ExtentError {}

impl LimitSet {
    /// Sets one key of the rule for `selector` to an extent, as bytes of each of `gpus`. With
    /// `each`, every GPU gets a rule.
    pub fn set_extent(
        &mut self,
        selector: Selector,
        key: Key,
        extent: Extent,
        gpus: &[Capacity],
        each: bool,
    ) -> Result<(), ExtentError> {
        let less = match extent {
            Extent::Size(size) => {
                self.set(selector, key, size);
                return Ok(());
            }
            Extent::AllBut(less) => less,
        };
        let on = |(gpu, capacity): &Capacity| {
            let unknown = ExtentError::Unknown {
                extent,
                gpu: Some(*gpu),
            };
            let capacity = capacity.ok_or(unknown)?;
            match capacity.checked_sub(less).filter(|bytes| *bytes > 0) {
                Some(bytes) => Ok((*gpu, bytes)),
                None => Err(ExtentError::TooMuch {
                    extent,
                    gpu: *gpu,
                    capacity,
                }),
            }
        };
        match selector {
            Selector::Device(id) => {
                let found = gpus.iter().find(|(gpu, _)| *gpu == id);
                let (_, bytes) = on(found.unwrap_or(&(id, None)))?;
                self.set(selector, key, Size::Bytes(bytes));
            }
            Selector::All => {
                let all = gpus.iter().map(on).collect::<Result<Vec<_>, _>>()?;
                let smallest = all.iter().map(|(_, bytes)| *bytes).min();
                let smallest = smallest.ok_or(ExtentError::Unknown { extent, gpu: None })?;
                // All GPUs get the smallest result. A GPU with another result gets a rule of its
                // own.
                self.set(Selector::All, key, Size::Bytes(smallest));
                for (gpu, bytes) in all {
                    let own = Selector::Device(gpu);
                    if each || bytes != smallest || self.get(own, key).is_some() {
                        self.set(own, key, Size::Bytes(bytes));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DeviceId = DeviceId::gpu([1; 16]);
    const B: DeviceId = DeviceId::gpu([2; 16]);
    const GIB: u64 = 1 << 30;
    const BUT_TWO: Extent = Extent::AllBut(2 * GIB);

    #[test]
    fn equal_gpus_share_one_rule() {
        let mut set = LimitSet::default();
        let gpus = [(A, Some(24 * GIB)), (B, Some(24 * GIB))];
        set.set_extent(Selector::All, Key::Max, BUT_TWO, &gpus, false)
            .expect("known");
        assert_eq!(set, LimitSet::all(Size::Bytes(22 * GIB)));
    }

    #[test]
    fn gpus_of_other_sizes_get_rules_of_their_own() {
        let gpus = [(A, Some(80 * GIB)), (B, Some(24 * GIB))];
        let mut set = LimitSet::default();
        let mut ask = |less: u64| {
            let extent = Extent::AllBut(less * GIB);
            set.set_extent(Selector::All, Key::Max, extent, &gpus, false)
                .expect("known");
            [A, B].map(|id| set.for_device(id, Key::Max))
        };
        assert_eq!(ask(2), [78, 22].map(|n| Some(Size::Bytes(n * GIB))));
        // The second call of `set_extent` overwrites all rules of the first call.
        assert_eq!(ask(4), [76, 20].map(|n| Some(Size::Bytes(n * GIB))));
        let mut each = LimitSet::default();
        each.set_extent(Selector::All, Key::Max, BUT_TWO, &gpus[..1], true)
            .expect("known");
        assert_eq!(
            each.get(Selector::Device(A), Key::Max),
            Some(Size::Bytes(78 * GIB))
        );
    }

    #[test]
    fn an_extent_without_a_known_capacity_is_refused() {
        let mut set = LimitSet::default();
        let mut ask = |selector, less: u64, gpus: &[Capacity]| {
            let extent = Extent::AllBut(less * GIB);
            let done = set.set_extent(selector, Key::Max, extent, gpus, false);
            done.expect_err("refused").to_string()
        };
        let said = ask(Selector::All, 2, &[]);
        assert!(
            said.contains("-2GiB") && said.contains("cannot find out which GPUs"),
            "{said}"
        );
        let said = ask(Selector::Device(A), 2, &[(B, Some(GIB))]);
        assert!(said.contains(&A.to_string()), "{said}");
        let said = ask(Selector::All, 2, &[(A, None)]);
        assert!(said.contains(&A.to_string()), "{said}");
        let said = ask(Selector::All, 24, &[(A, Some(24 * GIB))]);
        assert!(said.contains("has only 24.0 GiB"), "{said}");
        assert_eq!(set, LimitSet::default());
    }
}
