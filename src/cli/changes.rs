//! Changes of limits as `set` and `create` take them: `max=8G --device 1`.

use super::failure::Failure;
use super::figures::bytes;
use super::gpu;
use super::groups::{self, Above};
use super::nvml::Driver;
use gpulimit::device::DeviceId;
use gpulimit::ledger::Ledger;
use gpulimit::limits::{Key, LimitSet, Selector, Setting};
use gpulimit::units::Size;

/// Settings, each key once, and the GPUs that the sizes among them are for.
pub struct Changes {
    settings: Vec<Setting>,
    /// All, or some.
    pub targets: Vec<Selector>,
}

impl Changes {
    /// Reads `KEY=VALUE` arguments and the GPUs of `--device`.
    pub fn read(
        texts: &[String],
        devices: &[String],
        driver: Option<&Driver>,
    ) -> Result<Self, Failure> {
        let mut settings: Vec<Setting> = Vec::new();
        for text in texts {
            let setting: Setting = text.parse().map_err(Failure::usage)?;
            if settings.iter().any(|there| there.name() == setting.name()) {
                return Err(Failure::usage(format_args!(
                    "{} is given twice",
                    setting.name()
                )));
            }
            settings.push(setting);
        }
        let targets = gpu::selectors(devices, driver)?;
        Ok(Self { settings, targets })
    }

    /// Makes them.
    pub fn apply(&self, rules: &mut LimitSet) {
        for change in &self.settings {
            match change {
                Setting::Size(key, size) => {
                    for target in &self.targets {
                        rules.set(*target, *key, *size);
                    }
                }
                // Checked when it was read.
                Setting::Option(key, value) => drop(rules.options.set(*key, value)),
            }
        }
    }

    /// The new `max`, if that is one of them.
    pub fn max(&self) -> Option<Size> {
        self.settings.iter().find_map(|change| match change {
            Setting::Size(Key::Max, size) => Some(*size),
            _ => None,
        })
    }

    /// A line for each of them.
    pub fn lines(&self, now: &LimitSet, driver: Option<&Driver>) -> Vec<String> {
        let mut lines = Vec::new();
        for change in &self.settings {
            let Setting::Size(key, _) = change else {
                lines.push(format!("{change} applied"));
                continue;
            };
            for target in &self.targets {
                lines.push(match target {
                    Selector::All => format!("{change} applied to all GPUs"),
                    Selector::Device(id) => {
                        format!("{change} applied to GPU {}", groups::label(*id, driver))
                    }
                });
            }
            if !self.targets.contains(&Selector::All) {
                continue;
            }
            for (selector, own) in &now.rules {
                if let (Selector::Device(id), Some(size)) = (selector, own.get(*key))
                    && !self.targets.contains(selector)
                {
                    lines.push(format!(
                        "GPU {} keeps its own {key}={size}; change it with --device",
                        groups::label(*id, driver)
                    ));
                }
            }
        }
        lines
    }

    /// Where a group above has a smaller limit than the new one.
    pub fn outranked(
        &self,
        above: &[Above],
        ledger: Option<&Ledger>,
        driver: Option<&Driver>,
    ) -> Vec<String> {
        let Some(own) = self.max() else {
            return Vec::new();
        };
        let seen = ledger.map(Ledger::devices).unwrap_or_default();
        let capacity = |id: DeviceId| {
            let there = seen.iter().find(|device| device.id == id);
            there
                .map(|device| device.capacity)
                .or_else(|| groups::gpu(id, driver)?.capacity)
        };
        let mut lines = Vec::new();
        for target in &self.targets {
            // Without GPUs only sizes of a kind can be compared.
            let mut gpus: Vec<Option<DeviceId>> = match target {
                Selector::Device(id) => vec![Some(*id)],
                Selector::All => seen.iter().map(|device| Some(device.id)).collect(),
            };
            if gpus.is_empty() {
                gpus.push(None);
            }
            for id in gpus {
                let capacity = id.and_then(capacity);
                let theirs = |above: &Above| match id {
                    Some(id) => above.rules.for_device(id, Key::Max),
                    None => above.rules.get(Selector::All, Key::Max),
                };
                let smaller = above
                    .iter()
                    .filter_map(|above| Some((theirs(above)?, &above.name)))
                    .filter(|(theirs, _)| is_above(own, *theirs, capacity))
                    .min_by_key(|(theirs, _)| bytes(Some(*theirs), capacity));
                if let Some((theirs, name)) = smaller {
                    let line =
                        format!("max={own} is above max={theirs} of group {name}, which holds");
                    if !lines.contains(&line) {
                        lines.push(line);
                    }
                }
            }
        }
        lines
    }
}

/// Whether one size is more than another; not where that cannot be told.
pub fn is_above(size: Size, other: Size, capacity: Option<u64>) -> bool {
    match (size, other, capacity) {
        (size, other, Some(capacity)) => size.resolve(capacity) > other.resolve(capacity),
        (Size::Bytes(size), Size::Bytes(other), None) => size > other,
        (Size::Percent(size), Size::Percent(other), None) => size > other,
        (Size::Max, other, None) => other != Size::Max,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_compared_where_that_can_be() {
        let (four, eight, half) = (Size::Bytes(4), Size::Bytes(8), Size::Percent(5000));
        assert!(is_above(eight, four, None) && !is_above(four, eight, None));
        assert!(is_above(Size::Max, four, None) && !is_above(Size::Max, Size::Max, None));
        assert!(!is_above(eight, half, None) && !is_above(half, four, None));
        assert!(is_above(eight, half, Some(10)) && is_above(half, four, Some(10)));
        assert!(!is_above(half, four, Some(8)));
    }
}
